//! What a client finds after a restart of the daemon.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    Client, LEGACY, Message, SOON, call_states, finish, given, is_wait_answer, modern, request,
    result, tool, tool_error, wait_for, with_client,
};
use crate::daemon::{Daemon, eventually, quickly};
use crate::expect::{append, frame, new_task};

/// The data of the last event of a call's stream.
#[track_caller]
fn last_event(d: &Daemon, call: &str) -> Value {
    let data = d.home.value(&format!(
        "select event.data from event join stream on stream.id = event.stream_id
        where stream.name = 'mcp/{call}' order by seq desc limit 1"
    ));
    serde_json::from_str(data.as_str().expect("JSON")).expect("JSON")
}

#[test]
fn session_survives_a_crash() {
    let mut d = Daemon::start();
    let callers = [d.with_token(d.token.as_deref().expect("a token")), d.session("s-1")];
    let clients: Vec<_> = callers
        .iter()
        .flat_map(|caller| LEGACY.map(|revision| Client::open(caller, revision)))
        .collect();
    let closed = Client::open(&d, "2025-11-25");
    assert_eq!(closed.delete().status(), 204);
    for _ in 0..2 {
        d.kill_and_restart();
        for client in &clients {
            client.ask("ping", &json!({}));
            given(&client.call("peer_list", &json!({})));
            let reply = client.of(&d.session("s-2")).post(&request(1, "ping", &json!({}))).send();
            assert_eq!(reply.status(), 404, "still nobody else's");
        }
        assert_eq!(closed.post(&request(1, "ping", &json!({}))).send().status(), 404);
    }
}

#[test]
fn call_under_way_gets_its_response_after_a_crash() {
    for revision in LEGACY {
        let mut d = Daemon::start();
        let session = d.session("s-1");
        let client = Client::open(&session, revision);
        let (before, after, over) = (new_task(&session), new_task(&session), new_task(&session));
        let (id, mut one) = client.begin("TaskWait", &wait_for(&before));
        let (other_id, mut two) = client.begin("TaskWait", &wait_for(&after));
        let (over_id, mut three) = client.begin("TaskWait", &wait_for(&over));
        let (first, second, third) = (one.next(), two.next(), three.next());
        finish(&d, &over);
        eventually(SOON, || call_states(&d).contains(&"completed".to_owned()));
        d.kill9();
        for stream in [&mut one, &mut two] {
            assert!(stream.try_next().is_err(), "cut");
        }
        // The response stays available, whether or not it was read.
        d.restart();
        is_wait_answer(&client.listen(Some(third.event_id())).answer().json, over_id);
        let mut resumed = client.listen(Some(first.event_id()));
        finish(&d, &before);
        is_wait_answer(&resumed.answer().json, id);
        // Another crash, with the end of the task in the log before a client asks.
        finish(&d, &after);
        d.kill_and_restart();
        let mut resumed = client.listen(Some(second.event_id()));
        let answers = resumed.rest();
        let answers: Vec<_> = answers.iter().filter(|message| message.is_answer()).collect();
        assert_eq!(answers.len(), 1, "{answers:?}");
        is_wait_answer(&answers[0].json, other_id);
        let reply = client.no_stream(Some(answers[0].event_id()));
        assert_eq!(reply.status(), 204);
    }
}

#[test]
fn call_deadline_counts_from_its_first_start() {
    let (mut d, client) = with_client();
    let task = new_task(&d);
    let (id, mut call) = client.begin("TaskWait", &wait_for(&task));
    let primed = call.next();
    let began = "select started_at from mcp_call";
    let first = d.home.value(began);
    d.kill_and_restart();
    assert_eq!(call_states(&d), ["working"], "its time is not over");
    assert_eq!(d.home.value(began), first);
    d.kill9();
    // As if it had begun ten minutes ago, which is its deadline.
    assert_eq!(d.home.change("update mcp_call set started_at = started_at - 600000"), 1);
    d.restart();
    // Ten minutes from the last start, nobody would wait for the answer.
    let answer = client.listen(Some(primed.event_id())).answer().json;
    assert_eq!(answer["id"], json!(id));
    assert_eq!(given(&answer["result"])["timed_out"], json!(true));
}

#[test]
fn non_idempotent_call_has_an_unknown_outcome_after_a_crash() {
    let mut d = Daemon::start();
    let clients = ["2025-11-25", "2025-06-18"].map(|revision| Client::open(&d, revision));
    let task = new_task(&d);
    let mut begun = Vec::new();
    for client in &clients {
        let (id, mut call) = client.begin("TaskWait", &wait_for(&task));
        begun.push((id, call.next()));
    }
    d.kill9();
    // No tool of svc is slow and has effects; a crash would leave its call like this.
    assert_eq!(d.home.change("update mcp_call set tool = 'TaskReply'"), 2);
    d.restart();
    for (client, (id, first)) in clients.iter().zip(&begun) {
        let answer = client.listen(Some(first.event_id())).answer();
        assert_eq!(answer.json["id"], json!(id));
        let error = tool_error(&answer.json["result"], "unavailable");
        let text = error["message"].as_str().expect("a message");
        assert!(text.contains("outcome is unknown") && text.contains("TaskReply"), "{text}");
        assert_eq!(client.no_stream(Some(answer.event_id())).status(), 204);
    }
    assert!(call_states(&d).iter().all(|state| state == "completed"));
    // A tool that does not exist any more still gets a response.
    let (id, mut call) = clients[0].begin("TaskWait", &wait_for(&task));
    let primed = call.next();
    d.kill9();
    d.home.change("update mcp_call set tool = 'gone' where state = 'working'");
    d.restart();
    let answer = clients[0].listen(Some(primed.event_id())).answer();
    assert_eq!(answer.json["id"], json!(id));
    tool_error(&answer.json["result"], "unavailable");
}

#[test]
fn call_with_an_unparsable_row_has_an_unknown_outcome() {
    let mut d = Daemon::start();
    let session = d.session("s-1");
    let client = Client::open(&session, "2025-11-25");
    let task = new_task(&session);
    let unreadable = [
        ("params", "[]"),
        ("params", r#"{"name":"TaskWait","arguments":"none"}"#),
        ("answers", "[]"),
        ("rpc_id", "{"),
        ("principal", "nobody"),
        ("principal", "session:"),
        // The session belongs to another caller.
        ("principal", "operator"),
        ("principal", "session:s-2"),
        // What was promised to the client is unknown.
        ("revision", "2031-01-01"),
        ("revision", ""),
        // The credential does not belong to its principal.
        ("credential", "tok_nobody"),
        ("credential", ""),
    ];
    let begun = unreadable.map(|(column, value)| {
        let (id, mut call) = client.begin("TaskWait", &wait_for(&task));
        let primed = call.next();
        (column, value, id, primed)
    });
    d.kill9();
    for (column, value, _, primed) in &begun {
        let (call, _) = primed.event_id().rsplit_once('.').expect("a call");
        let sql = format!("update mcp_call set {column} = '{value}' where call_id = '{call}'");
        assert_eq!(d.home.change(&sql), 1);
    }
    d.restart();
    assert_eq!(call_states(&d), begun.each_ref().map(|_| "completed"), "none runs again");
    // A call that ran again would have a response now.
    finish(&d, &task);
    for (column, value, id, primed) in &begun {
        let (call, _) = primed.event_id().rsplit_once('.').expect("a call");
        let stored = last_event(&d, call);
        // The credential is that of another principal, or of none.
        if *column == "credential" || ["operator", "session:s-2"].contains(value) {
            assert_eq!(stored["error"]["data"]["code"], "unauthorized", "{stored}");
            continue;
        }
        let error = tool_error(&stored["result"], "unavailable");
        let text = error["message"].as_str().expect("a message");
        assert!(text.contains("outcome is unknown"), "{column} {value}: {text}");
        assert_eq!(error["allowed"]["outcome"], "unknown", "{error}");
        if *column == "principal" {
            // The call belongs to another caller, or to none.
            assert_eq!(client.no_stream(Some(primed.event_id())).status(), 404);
            continue;
        }
        let expected = if *column == "rpc_id" { Value::Null } else { json!(id) };
        assert_eq!(stored["id"], expected, "{column} {value}");
        assert_eq!(client.listen(Some(primed.event_id())).answer().json, stored);
    }
}

#[test]
fn subscriptions_survive_a_restart() {
    let (mut d, client) = with_client();
    let task = new_task(&d);
    let uri = format!("svc://stream/task/{task}");
    client.ask("resources/subscribe", &json!({ "uri": uri }));
    let mut stream = client.listen(None);
    let primed = stream.next();
    d.kill_and_restart();
    append(&d, &task, &frame("while nobody listens"));
    let mut stream = client.listen(Some(primed.event_id()));
    let told = stream.news("notifications/resources/updated");
    assert_eq!(told.json["params"]["uri"], json!(uri));
    append(&d, &task, &frame("while somebody does"));
    stream.news("notifications/resources/updated");
}

#[test]
fn client_with_an_old_tool_list_is_notified_after_a_restart() {
    const CHANGED: &str = "notifications/tools/list_changed";
    let mut d = Daemon::start();
    let (client, fresh) = (Client::open(&d, "2025-11-25"), Client::open(&d, "2025-06-18"));
    client.ask("tools/list", &json!({}));
    knows(&client);
    d.kill9();
    // As after a version with other tools.
    assert_eq!(d.home.change("update mcp_session set tools = tools + 1"), 2);
    d.restart();
    for _ in 0..2 {
        client.listen(None).news(CHANGED);
    }
    client.ask("tools/list", &json!({}));
    knows(&client);
    fresh.listen(None).is_silent();
}

/// Asserts that the client gets only the priming event.
#[track_caller]
fn knows(client: &Client) {
    let mut stream = client.listen(None);
    assert!(stream.next().json.is_null(), "a priming event");
    stream.is_silent();
}

#[test]
fn log_level_and_client_capabilities_survive_a_restart() {
    let mut d = Daemon::start();
    let client = Client::open_with(&d, "2025-06-18", &json!({ "elicitation": {} }));
    assert_eq!(client.ask("logging/setLevel", &json!({ "level": "error" })), json!({}));
    for bad in [json!({}), json!({ "level": "loud" }), json!({ "level": 3 })] {
        let asked = client.post(&request(1, "logging/setLevel", &bad));
        super::refused(&asked.send(), 200, -32602);
    }
    d.kill_and_restart();
    let row = d.home.rows("select log_level, capabilities from mcp_session");
    assert_eq!(row, [["error", r#"{"elicitation":{}}"#]]);
    client.ask("ping", &json!({}));
}

#[test]
fn shutdown_ends_streams_that_resume_after_the_start() {
    // Requests get ten seconds; streams are not waited for.
    quickly(Duration::from_secs(8), || {
        let (mut d, client) = with_client();
        let _call = client.begin("TaskWait", &wait_for(&new_task(&d)));
        let _listening = client.listen(None);
        d.stop()
    });
    let (mut d, client) = with_client();
    let task = new_task(&d);
    let (id, mut call) = client.begin("TaskWait", &wait_for(&task));
    let primed = call.next();
    let mut listening = client.listen(None);
    let last = listening.next();
    d.stop();
    assert_eq!(call.rest(), [], "a clean end, without an answer");
    assert!(listening.rest().iter().all(|message| !message.is_answer()));
    assert_eq!(call_states(&d), ["working"]);
    d.restart();
    let mut resumed = client.listen(Some(primed.event_id()));
    let mut listening = client.listen(Some(last.event_id()));
    finish(&d, &task);
    is_wait_answer(&resumed.answer().json, id);
    new_task(&d);
    listening.news("notifications/resources/list_changed");
}

#[test]
fn call_of_an_ended_session_is_not_resumed() {
    let (mut d, client) = with_client();
    let task = new_task(&d);
    let (_, mut call) = client.begin("TaskWait", &wait_for(&task));
    call.next();
    d.kill9();
    d.home.change("update mcp_session set closed_at = last_seen_at");
    d.restart();
    assert_eq!(call_states(&d), ["cancelled"]);
    assert_eq!(client.post(&request(1, "ping", &json!({}))).send().status(), 404);
}

#[test]
fn session_expires_after_a_silent_month() {
    let mut d = Daemon::start();
    let (old, young) = (Client::open(&d, "2025-11-25"), Client::open(&d, "2025-11-25"));
    d.kill9();
    let day: i64 = 24 * 60 * 60 * 1000;
    for (client, days) in [(&old, 31), (&young, 29)] {
        let (session, silent) = (&client.session, days * day);
        d.home.change(&format!(
            "update mcp_session set last_seen_at = last_seen_at - {silent} where session_id = '{session}'"
        ));
    }
    d.restart();
    // The start sweeps at once.
    eventually(SOON, || old.post(&request(1, "ping", &json!({}))).send().status() == 404);
    young.ask("ping", &json!({}));
}

#[test]
fn restart_is_invisible_to_a_stateless_client() {
    let mut d = Daemon::start();
    for _ in 0..2 {
        result(&modern(&d, "server/discover", &json!({})));
        given(&result(&modern(&d, "tools/call", &tool("peer_list", &json!({})))));
        d.kill_and_restart();
    }
}

#[test]
fn revoked_token_gets_no_pending_response() {
    for revision in ["2025-06-18", "2025-11-25"] {
        let mut d = Daemon::start();
        let session = d.session("s-1");
        let client = Client::open(&session, revision);
        let task = new_task(&session);
        let (id, mut call) = client.begin("TaskWait", &wait_for(&task));
        let primed = call.next();
        let token = d.get("/v1/tokens").ok(200)["tokens"][0]["token_id"].clone();
        let token = token.as_str().expect("an id");
        d.delete(&format!("/v1/tokens/{token}")).ok(200);
        // The task goes on: the stream ends with the token, and says so.
        let rest = call.rest();
        let answers: Vec<&Message> = rest.iter().filter(|message| message.is_answer()).collect();
        let [answer] = answers.as_slice() else { panic!("one answer: {rest:?}") };
        assert_eq!(answer.json["id"], json!(id), "{answer:?}");
        assert_eq!(answer.json["error"]["data"]["code"], "unauthorized", "{answer:?}");
        assert_eq!(answer.id, None, "it is no event of the log");
        append(&d, &task, &json!([frame("a secret word")]));
        finish(&d, &task);
        eventually(SOON, || call_states(&d).iter().all(|state| state != "working"));
        let (call, _) = primed.event_id().rsplit_once('.').expect("a call");
        let stored = last_event(&d, call);
        assert_eq!(stored["error"]["data"]["code"], "unauthorized", "{stored}");
        assert!(!stored.to_string().contains("a secret word"), "{stored}");

        // While the daemon is away, another one on the same database revokes the token.
        let client = Client::open(&d.session("s-1"), revision);
        let task = new_task(&client.caller);
        let (_, mut call) = client.begin("TaskWait", &wait_for(&task));
        let primed = call.next();
        let (call, _) = primed.event_id().rsplit_once('.').expect("a call");
        d.kill9();
        let revoked = "update token set revoked_at = 1 where revoked_at is null";
        assert_eq!(d.home.change(revoked), 1);
        d.restart();
        finish(&d, &task);
        let stored = last_event(&d, call).to_string();
        assert!(stored.contains("unauthorized"), "{stored}");
        assert_eq!(client.no_stream(Some(primed.event_id())).status(), 401);
    }
}
