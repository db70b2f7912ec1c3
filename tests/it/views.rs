//! Views for people: questions, attempts, senders and participants.

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::expect::{peer, register, text};

#[test]
fn conversation_view_pairs_questions_with_answers() {
    let d = Daemon::start();
    let member = |name: &str| {
        let body = json!({ "display_name": name, "backend": "test", "session_id": name });
        text(&register(&d, &body), "peer_id")
    };
    let (ann, bob) = (member("ann"), member("bob"));
    let send = |from: &str, to: &str, kind: &str, words: &str, answers: Option<&str>| {
        let body =
            json!({ "text": words, "type": kind, "from_peer": from, "correlation_id": answers });
        text(&d.post(&format!("/v1/peers/{to}/messages"), &body).ok(200), "id")
    };
    let first = send(&ann, &bob, "query", "is it green?", None);
    send(&ann, &bob, "response", "I ask myself", Some(&first));
    let yes = send(&bob, &ann, "response", "yes", Some(&first));
    send(&bob, &ann, "response", "yes, really", Some(&first));
    let second = send("operator", &ann, "query", "and now?", None);
    send(&ann, &bob, "notification", "no question", None);

    let told = d.home.rows(
        "select question_id, asker, asked, question, answer, answer_id, state, waited_seconds >= 0, answered_at is null
         from conversations order by asked_at, question_id",
    );
    assert_eq!(
        json!(told),
        json!([
            [first, "ann", "bob", "is it green?", "yes", yes, "answered", 1, 0],
            [second, "operator", "ann", "and now?", null, null, "open", 1, 1],
        ])
    );
    // An open question stays open; an answered one does not.
    d.home.change("update message set at = at - 60000 where type = 'query'");
    let waited =
        d.home.rows("select state, waited_seconds >= 60, waited_seconds < 600 from conversations");
    assert_eq!(json!(waited), json!([["answered", 1, 1], ["open", 1, 1]]));

    let names = d.home.rows("select from_name, to_name from messages_now where text = 'yes'");
    assert_eq!(json!(names), json!([["bob", "ann"]]));
    d.delete(&format!("/v1/peers/{bob}")).ok(200);
    let names = d.home.rows("select from_name, to_name from messages_now where text = 'yes'");
    assert_eq!(json!(names), json!([[bob, "ann"]]), "an id in the place of a name that is gone");
}

#[test]
fn outcome_view_has_attempt_and_result() {
    let d = Daemon::start();
    d.done("start_session", &json!({ "session_id": "s-1", "cwd": "/work", "client": "claude" }));
    let record = |goal: &str| {
        let record = json!({
            "session_id": "s-1", "domain": "testing", "strategy": "ask-user", "goal": goal,
            "hypothesis": "The cache is stale", "action": "Empty it", "prediction": "The tests pass",
        });
        text(&d.done("start_ghap", &record), "id")
    };
    let end = |status: &str, result: &str| {
        let mut end = json!({ "session_id": "s-1", "status": status, "result": result });
        if status == "falsified" {
            end["surprise"] = json!("It was not the cache");
            end["root_cause"] =
                json!({ "category": "wrong-assumption", "description": "The clock" });
        }
        d.done("resolve_ghap", &end)
    };
    record("A");
    end("confirmed", "green");
    record("B");
    end("falsified", "red");
    record("C");
    end("abandoned", "no time");
    let open = record("D");
    // Runs that hooks saw.
    d.home.change(
        "insert into outcome (outcome_id, session_id, command, verdict, summary, at)
         values ('out_1', 's-1', 'cargo test', 'fail', '1 failed', 1), ('out_2', 's-1', 'make', 'pass', 'ok', 2)",
    );
    d.home.change("update ghap set outcome_id = 'out_1' where goal = 'B'");
    let told = d.home.rows(
        "select kind, goal, tried, worked, result, proof, client, project from outcomes order by kind, goal",
    );
    assert_eq!(
        json!(told),
        json!([
            ["record", "A", "Empty it", "yes", "green", null, "claude", "/work"],
            ["record", "B", "Empty it", "no", "red", "cargo test", "claude", "/work"],
            ["record", "C", "Empty it", "given up", "no time", null, "claude", "/work"],
            ["record", "D", "Empty it", "open", null, null, "claude", "/work"],
            ["run", null, "make", "yes", "ok", null, "claude", null],
        ])
    );
    assert_eq!(json!(d.home.rows("select id from outcomes where goal = 'D'")), json!([[open]]));
}

#[test]
fn view_columns_need_no_quotes_and_statuses_name_their_owner() {
    let d = Daemon::start();
    let ann = peer(&d, "s-1");
    d.post("/v1/tasks", &json!({ "title": "t", "from": ann })).ok(201);
    d.post(&format!("/v1/peers/{ann}/heartbeat"), &json!({ "status": "busy" })).ok(200);
    let name = d.home.rows("select display_name from peers_now")[0][0].clone();
    let senders = d.home.rows("select sender, sender_name, \"from\" from tasks_now");
    assert_eq!(json!(senders), json!([[ann, name, ann]]));
    let told = d.home.rows("select data from history where kind = 'peer.status'");
    let told = told[0][0].as_str().expect("JSON");
    let told: Value = serde_json::from_str(told).expect("JSON");
    let told = ["display_name", "previous", "status"].map(|member| told[member].clone());
    assert_eq!(json!(told), json!([name, "online", "busy"]));
    only_if!(d.home.store().is_none());
    // Every column of a view but the old `from` needs no quotes.
    let file = Connection::open(d.home.path("svc.db")).expect("opens");
    let views = d.home.rows("select name from sqlite_schema where type = 'view'");
    for view in views {
        let view = view[0].as_str().expect("a name").to_owned();
        let columns = d.home.rows(&format!("select name from pragma_table_info('{view}')"));
        for column in columns {
            let column = column[0].as_str().expect("a name");
            let bare = file.prepare(&format!("select {column} from {view}"));
            assert!(
                bare.is_ok() || (view.as_str(), column) == ("tasks_now", "from"),
                "{view}.{column}"
            );
        }
    }
}

#[test]
fn waiting_view_matches_the_inbox() {
    let d = Daemon::start();
    let hook = |name: &str, more: &Value| {
        let mut payload =
            json!({ "session_id": "s-1", "cwd": "/nowhere/p", "hook_event_name": name });
        payload.as_object_mut().expect("one").extend(more.as_object().expect("one").clone());
        d.done("hook_event", &json!({ "client": "claude-code", "payload": payload }));
    };
    hook("SessionStart", &json!({ "source": "startup" }));
    let peers = d.get("/v1/peers").ok(200);
    let own = text(&peers["peers"][0], "peer_id");
    for (kind, words) in [("notification", "fyi"), ("query", "which?")] {
        let body = json!({ "text": words, "type": kind });
        d.post(&format!("/v1/peers/{own}/messages"), &body).ok(200);
    }
    let waiting = || {
        let sql = format!("select waiting from peers_now where peer_id = '{own}'");
        let inbox = d.get(&format!("/v1/peers/{own}/messages?peek=true")).ok(200);
        (d.home.rows(&sql)[0][0].clone(), inbox["count"].clone())
    };
    assert_eq!(waiting(), (json!(2), json!(2)));
    hook("UserPromptSubmit", &json!({ "prompt": "go on" }));
    hook(
        "PreToolUse",
        &json!({ "tool_name": "Bash", "tool_use_id": "t", "tool_input": { "command": "ls" } }),
    );
    assert_eq!(waiting(), (json!(1), json!(1)), "what a hook gave and asks nothing waits no more");
}
