//! The journal from outside: sessions and counters by `curl` and `jq`, records by bare calls, REST,
//! the command line and `sqlite3`; and a crash in between.

use std::process::Command;

use serde_json::{Value, json};

use crate::daemon::{Daemon, Ran, svc};
use crate::expect::{call, each, text};
use crate::wire::tool_call;

fn attempt(session: &str) -> Value {
    json!({
        "session_id": session, "domain": "debugging", "strategy": "read-the-error",
        "goal": "say \"no\" to \u{2028} and 😀\n", "hypothesis": "the quote is not escaped in the heredoc",
        "action": "escape it", "prediction": "the hook's output parses",
    })
}

/// The calls of an earlier system's shell hooks, with only the address and the token changed.
#[test]
fn shell_hooks_of_an_earlier_system_work_with_curl_and_jq() {
    let lacks = |tool: &&&str| Command::new(tool).arg("--version").output().is_err();
    let missing: Vec<&&str> = ["curl", "jq", "bash"].iter().filter(lacks).collect();
    if !missing.is_empty() {
        println!("skipped: the shell hooks were not run ({missing:?} not installed)");
        return;
    }
    let d = Daemon::start();
    let script = r#"
        set -euo pipefail
        call() {
            curl -sf -X POST "$URL/mcp" -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' \
                -d "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"$1\",\"arguments\":$2}}" \
                | jq -r '.result.content[0].text'
        }
        call start_session '{}' | jq -r '.session_id | length'
        call get_orphaned_ghap '{}' | jq -r .has_orphan
        call start_ghap '{"domain":"testing","strategy":"ask-user","goal":"g","hypothesis":"h because of i","action":"a","prediction":"p"}' >/dev/null
        for i in 1 2 3 4 5 6 7 8 9; do call increment_tool_count '{}' >/dev/null; done
        call should_check_in '{"frequency":10}' | jq -r .should_check_in
        call increment_tool_count '{}' | jq -r .tool_count
        call should_check_in '{"frequency":10}' | jq -r .should_check_in
        call get_active_ghap '{}' | jq -r '"\(.goal)/\(.hypothesis)/\(.prediction)"'
        call reset_tool_count '{}' | jq -r .tool_count
        call should_check_in '{"frequency":1}' | jq -r .should_check_in
    "#;
    let output = Command::new("bash")
        .args(["-c", script])
        .env("URL", d.url())
        .env("TOKEN", d.home.token().expect("a token"))
        .output()
        .expect("bash runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines, ["36", "false", "false", "10", "true", "g/h because of i/p", "0", "false"]);
}

#[test]
fn interleaved_sessions_do_not_affect_each_other() {
    let d = Daemon::start();
    for session in ["one", "two"] {
        call(&d, "start_session", &json!({ "session_id": session, "cwd": "/nowhere/p" }));
    }
    let one = call(&d, "start_ghap", &attempt("one"))["id"].clone();
    for n in 1..=7 {
        for session in ["one", "two"] {
            let counted = call(
                &d,
                "increment_tool_count",
                &json!({ "session_id": session, "tool_name": "Bash" }),
            );
            assert_eq!(counted["tool_count"], n);
        }
    }
    assert_eq!(call(&d, "get_active_ghap", &json!({ "session_id": "two" }))["has_active"], false);
    assert_eq!(call(&d, "get_orphaned_ghap", &json!({ "session_id": "two" }))["has_orphan"], false);
    call(&d, "reset_tool_count", &json!({ "session_id": "two" }));
    call(&d, "end_session", &json!({ "session_id": "two" }));
    let active = call(&d, "get_active_ghap", &json!({ "session_id": "one" }));
    assert_eq!((&active["id"], &active["goal"]), (&one, &attempt("one")["goal"]));
    let found = d.get("/v1/sessions/one").ok(200);
    assert_eq!((&found["tool_count"], &found["tools"][0]["count"]), (&json!(7), &json!(7)));
    assert_eq!(found["active_ghap"]["id"], one);
    let open = d.get("/v1/sessions?open=true").ok(200);
    assert_eq!((&open["count"], &open["sessions"][0]["session_id"]), (&json!(1), &json!("one")));
    assert_eq!(d.get("/v1/sessions/none").status(), 404);
}

#[test]
fn crash_leaves_a_record_active_or_resolved() {
    let mut d = Daemon::start();
    let rounds: u32 =
        std::env::var("SVC_CRASH_ROUNDS").ok().and_then(|it| it.parse().ok()).unwrap_or(5);
    for round in 0..rounds.min(20) {
        let session = format!("s{round}");
        call(&d, "start_session", &json!({ "session_id": session, "cwd": "/nowhere/p" }));
        let id = call(&d, "start_ghap", &attempt(&session))["id"].clone();
        let end = json!({ "session_id": session, "status": "confirmed", "result": "it parses" });
        let body = tool_call("resolve_ghap", &end);
        let request = d.request("POST", "/mcp").json(&body);
        let sent =
            std::thread::spawn(move || request.try_send().is_ok_and(|reply| reply.status() == 200));
        for _ in 0..round * 2000 {
            std::hint::spin_loop();
        }
        d.kill9();
        let answered = sent.join().expect("a thread");
        d.restart();
        let found = d.get(&format!("/v1/ghap/{}", id.as_str().expect("an id"))).ok(200);
        let events =
            d.get(&format!("/v1/events?stream=session/{session}&kind=ghap.resolved")).ok(200);
        let over = found["status"] == "confirmed";
        assert!(over || found["status"] == "active", "{found}");
        assert!(over || !answered, "an answer that was given counts");
        assert_eq!(events["count"], u32::from(over));
        assert_eq!(found["resolved_at"].is_string(), over);
        assert_eq!(found["confidence_tier"].is_string(), over);
    }
}

#[test]
fn records_are_listed_and_shown() {
    let d = Daemon::start();
    call(&d, "start_session", &json!({ "session_id": "s", "cwd": "/nowhere/p" }));
    for n in 0..3 {
        call(&d, "start_ghap", &attempt("s"));
        let change = json!({ "session_id": "s", "hypothesis": format!("the template is read twice, {n}"), "note": "hm" });
        call(&d, "update_ghap", &change);
        let end = json!({
            "session_id": "s", "status": "falsified", "result": "no", "surprise": "it was right before",
            "root_cause": { "category": "oversight", "description": "not looked at" },
            "lesson": { "what_worked": "look", "takeaway": "look first" },
        });
        call(&d, "resolve_ghap", &end);
    }
    let page = d.get("/v1/ghap?status=falsified&limit=2").ok(200);
    assert_eq!(page["count"], 2);
    let next = page["next_cursor"].as_str().expect("there is more");
    assert_eq!(d.get(&format!("/v1/ghap?limit=2&cursor={next}")).ok(200)["count"], 1);
    assert_eq!(d.get("/v1/ghap?domain=sports").status(), 422);

    let listed = svc(&d.home, &["ghap", "list", "--json"]).json();
    assert_eq!(listed["count"], 3);
    let id = listed["ghap"][0]["id"].as_str().expect("an id");
    let shown = svc(&d.home, &["ghap", "show", id]);
    assert!(shown.ok().contains("it was right before"), "{shown:?}");
    assert!(svc(&d.home, &["session", "show", "s"]).ok().contains("/nowhere/p"));
}

#[test]
fn unique_id_prefix_names_a_record_a_session_and_a_token() {
    let d = Daemon::start();
    let sessions = ["7d1e40aa-first", "7d1e40bb-second"];
    let mut records = Vec::new();
    for id in sessions {
        let start = json!({ "session_id": id, "cwd": "/repo", "client": "codex" });
        call(&d, "start_session", &start);
        records.push(text(&call(&d, "start_ghap", &attempt(id)), "id"));
    }
    let minted = ["a", "b"].map(|session| {
        let token = d.post("/v1/tokens", &json!({ "session": session })).ok(201);
        text(&token, "token_id")
    });
    let svc = |args: &[&str]| svc(&d.home, args);
    for (command, [one, other]) in [
        (["ghap", "show"], [&*records[0], &*records[1]]),
        (["session", "show"], sessions),
        (["token", "revoke"], [&*minted[0], &*minted[1]]),
    ] {
        let differs = one.bytes().zip(other.bytes()).position(|(a, b)| a != b).expect("two ids");
        let several = svc(&[command[0], command[1], &one[..differs]]);
        assert_eq!(several.code, Some(1), "{several:?}");
        assert!(several.stderr.lines().count() > 2, "one a line: {several:?}");
        assert!(several.stderr.contains(one) && several.stderr.contains(other), "{several:?}");
        let found = svc(&[command[0], command[1], &one[..=differs], "--json"]).json();
        assert!(found.to_string().contains(one) && !found.to_string().contains(other), "{found}");
        let nobody = svc(&[command[0], command[1], "zzzzzzzz"]);
        assert!(nobody.code == Some(1) && nobody.stderr.contains("there is no"), "{nobody:?}");
    }
    // So does the key of a session, whole or truncated as in lists.
    for name in ["agent:codex:7d1e40aa-first", "agent:codex:7d1e40a", "7d1e40aa-first"] {
        let found = svc(&["session", "show", name, "--json"]).json();
        assert_eq!(found["session_id"], sessions[0], "{name}: {found}");
    }
    for (name, words) in [
        ("agent:gemini:7d1e40aa-first", "there is no"),
        ("agent:codex:7d1e40", "7d1e40bb-second"),
        ("agent:codex:7", "there is no"),
    ] {
        let failed = svc(&["session", "show", name]);
        assert_eq!(failed.code, Some(1), "{failed:?}");
        assert!(failed.stderr.contains(words), "{name}: {failed:?}");
    }
    let tokens = d.get("/v1/tokens").ok(200);
    let revoked = |row: &&Value| !row["revoked_at"].is_null();
    let revoked: Vec<&Value> =
        tokens["tokens"].as_array().expect("a list").iter().filter(revoked).collect();
    assert_eq!(each(&revoked.into_iter().cloned().collect::<Vec<_>>(), "token_id"), [&*minted[0]]);
}

/// Open records are listed, and the operator abandons those that nobody will end.
#[test]
fn operator_finds_and_abandons_open_records() {
    let d = Daemon::start();
    call(&d, "start_session", &json!({ "session_id": "s-1", "cwd": "/src/app" }));
    let mut record = attempt("s-1");
    record["goal"] = json!("find the zeppelin");
    let id = text(&call(&d, "start_ghap", &record), "id");
    let found = svc(&d.home, &["ghap", "search", "zeppelin", "--json"]).json();
    assert_eq!((&found["count"], &found["ghap"][0]["id"]), (&json!(1), &json!(id)));
    let resolved = d.get("/v1/ghap/search?q=zeppelin&status=confirmed").ok(200);
    assert_eq!(resolved["count"], 0);
    let abandon = |more: &[&str]| {
        let mut words = vec!["ghap", "abandon", &id];
        words.extend(more);
        svc(&d.home, &words)
    };
    let refused =
        |ran: &Ran, why: &str| assert!(ran.code == Some(1) && ran.stderr.contains(why), "{ran:?}");
    refused(&abandon(&[]), "session s-1 still works on it");
    call(&d, "end_session", &json!({ "session_id": "s-1" }));
    // A session of another project cannot, and the operator names the record.
    let stranger = d.session("s-2");
    assert_eq!(stranger.post(&format!("/v1/ghap/{id}/abandon"), &json!({})).status(), 404);
    let gone = abandon(&["--reason", "the branch was dropped"]);
    assert!(gone.ok().contains("find the zeppelin"), "{gone:?}");
    let record = d.get(&format!("/v1/ghap/{id}")).ok(200);
    assert_eq!(
        (&record["status"], &record["result"]),
        (&json!("abandoned"), &json!("the branch was dropped"))
    );
    refused(&abandon(&[]), "has ended: it is abandoned");
    // The tool accepts an id of any project, too.
    call(&d, "start_session", &json!({ "session_id": "s-3", "cwd": "/src/other" }));
    let left = text(&call(&d, "start_ghap", &attempt("s-3")), "id");
    call(&d, "end_session", &json!({ "session_id": "s-3" }));
    let gone = call(&d, "abandon_orphan", &json!({ "id": left, "reason": "nobody comes back" }));
    assert_eq!(gone["id"], json!(left));
}
