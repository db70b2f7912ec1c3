//! Participants: their identity, and what each may change.

use serde_json::{Value, json};

use super::{
    Client,
    shapes::{all_pages, each, instant, invalid, page, peer, problem, register, text},
};

#[track_caller]
fn status(client: &Client, id: &str) -> String {
    text(&client.get(&format!("/v1/peers/{id}")).ok(200), "status")
}

#[test]
fn peer_identity_is_its_session_or_else_its_place() {
    let d = Client::start();
    // Each row registers; the same letter is the same participant.
    let row = |backend: &str, session: &str, path: &str, pane: &str| {
        let mut body = json!({ "display_name": "x", "backend": backend });
        for (name, value) in [("session_id", session), ("path", path), ("tmux_pane", pane)] {
            if !value.is_empty() {
                body[name] = json!(value);
            }
        }
        body
    };
    let table = [
        ("a", row("claude", "s-1", "/p", "%1")),
        ("a", row("claude", "s-1", "/elsewhere", "%2")),
        ("a", row("claude", "s-1", "", "")),
        ("b", row("codex", "s-1", "/p", "%1")),
        ("c", row("claude", "s-2", "/p", "%1")),
        // Without a session the place identifies, and an empty part of it is a value like any
        // other.
        ("d", row("claude", "", "/q", "%1")),
        ("d", row("claude", "", "/q", "%1")),
        ("e", row("claude", "", "/q", "%2")),
        ("f", row("claude", "", "/q", "")),
        ("g", row("claude", "", "", "%1")),
        ("h", row("claude", "", "", "")),
        ("h", row("claude", "", "", "")),
        ("i", row("codex", "", "", "")),
        ("f", row("claude", "", "/q", "")),
        ("j", row("claude", "", "/Q", "")),
        ("k", row("claude", "S-1", "", "")),
        ("a", row("claude", "s-1", "/q", "%1")),
        ("d", row("claude", "", "/q", "%1")),
    ];
    let mut known: Vec<(&str, String)> = Vec::new();
    for (letter, body) in table {
        let id = text(&register(&d, &body), "peer_id");
        if let Some((_, first)) = known.iter().find(|(other, _)| *other == letter) {
            assert_eq!(&id, first, "{letter} again: {body}");
        } else {
            assert!(known.iter().all(|(_, other)| *other != id), "{letter} is new: {body}");
            known.push((letter, id));
        }
    }
    assert_eq!(all_pages(&d, "/v1/peers?limit=500", "peers", "cursor").len(), known.len());
}

#[test]
fn empty_strings_count_as_absent_in_an_identity() {
    let d = Client::start();
    let bare = register(&d, &json!({ "display_name": "x", "backend": "codex" }));
    let empty = json!({
        "display_name": "x", "backend": "codex", "session_id": "", "path": "", "tmux_pane": "",
    });
    assert_eq!(register(&d, &empty)["peer_id"], bare["peer_id"]);
}

#[test]
fn claude_code_is_asked_for_by_either_of_its_names() {
    let d = Client::start();
    let made = |name: &str, backend: &str, session: &str| {
        let body = json!({ "display_name": name, "backend": backend, "session_id": session });
        register(&d, &body)
    };
    let ada = made("ada", "claude-code", "s-1");
    let again = made("ada", "claude", "s-1");
    assert_eq!(again["peer_id"], ada["peer_id"], "a session is one participant");
    assert_eq!(again["backend"], "claude-code");
    let bob = made("bob", "claude", "s-2");
    assert_eq!(made("bob", "claude-code", "s-2")["peer_id"], bob["peer_id"]);
    made("eve", "codex", "s-1");
    for backend in ["claude", "claude-code"] {
        let listed = page(&d.get(&format!("/v1/peers?backend={backend}")), "peers");
        assert_eq!(each(&listed, "display_name"), ["ada", "bob"], "{backend}");
    }
}

#[test]
fn registration_fills_defaults_and_keeps_given_members() {
    let d = Client::start();
    let bare = register(&d, &json!({ "display_name": "a", "backend": "claude" }));
    assert_eq!(bare["display_name"], "a");
    assert_eq!(bare["backend"], "claude");
    assert_eq!(bare["circle"], "default");
    assert_eq!(bare["role"], "agent");
    assert_eq!(bare["status"], "online");
    assert!(instant(&bare["registered_at"]) <= instant(&bare["last_seen"]));

    let full = json!({
        "display_name": "Ünï \"x\" 🦀", "backend": "codex", "path": "/a b", "circle": "blue",
        "role": "human", "session_id": "s", "tmux_pane": "%7", "pid": std::process::id(),
        "metadata": { "model": "opus", "": "empty key" },
    });
    let told = register(&d, &full);
    for (name, value) in full.as_object().unwrap() {
        assert_eq!(&told[name], value, "{name}");
    }
    let got = d.get(&format!("/v1/peers/{}", text(&told, "peer_id"))).ok(200);
    assert_eq!(got, told);
    for role in ["agent", "orchestrator", "human"] {
        let body = json!({ "display_name": role, "backend": "x", "path": role, "role": role });
        assert_eq!(register(&d, &body)["role"], json!(role));
    }
}

#[test]
fn repeated_registration_updates_given_members_and_merges_metadata() {
    let d = Client::start();
    let first = register(
        &d,
        &json!({
            "display_name": "old", "backend": "claude", "session_id": "s", "path": "/old",
            "circle": "blue", "role": "orchestrator", "tmux_pane": "%1",
            "metadata": { "keep": "1", "change": "1", "drop": "1" },
        }),
    );
    let again = register(
        &d,
        &json!({
            "display_name": "new", "backend": "claude", "session_id": "s", "path": "/new",
            "metadata": { "change": "2", "drop": null, "add": "3", "never": null },
        }),
    );
    assert_eq!(again["peer_id"], first["peer_id"]);
    assert_eq!(again["registered_at"], first["registered_at"]);
    assert_eq!(again["display_name"], "new");
    assert_eq!(again["path"], "/new");
    // A missing member keeps its value and is not reset to its default.
    assert_eq!(again["circle"], "blue");
    assert_eq!(again["role"], "orchestrator");
    assert_eq!(again["tmux_pane"], "%1");
    assert_eq!(again["metadata"], json!({ "keep": "1", "change": "2", "add": "3" }));
}

#[test]
fn peer_list_filters_by_every_field_and_sorts_by_presence_then_name() {
    let d = Client::start();
    let rows = [
        ("zoe", "claude", "blue", "/p", "online"),
        ("adam", "claude", "red", "/p", "offline"),
        ("bea", "codex", "blue", "/p", "idle"),
        ("cid", "claude", "blue", "/q", "busy"),
        ("dan", "codex", "red", "/q", "online"),
        ("eve", "claude", "blue", "/p", "busy"),
    ];
    for (name, backend, circle, path, status) in rows {
        let body = json!({
            "display_name": name, "backend": backend, "circle": circle, "path": path,
            "session_id": name,
        });
        let id = text(&register(&d, &body), "peer_id");
        d.post(&format!("/v1/peers/{id}/heartbeat"), &json!({ "status": status })).ok(200);
    }
    let table: [(&str, &[&str]); 9] = [
        ("", &["dan", "zoe", "cid", "eve", "bea", "adam"]),
        ("status=busy", &["cid", "eve"]),
        ("backend=codex", &["dan", "bea"]),
        ("circle=blue", &["zoe", "cid", "eve", "bea"]),
        ("path=/q", &["dan", "cid"]),
        ("circle=blue&path=%2Fp&backend=claude", &["zoe", "eve"]),
        ("circle=blue&status=offline", &[]),
        ("circle=BLUE", &[]),
        ("backend=claud", &[]),
    ];
    for (filter, names) in table {
        let reply = d.get(&format!("/v1/peers?{filter}"));
        instant(&reply.ok(200)["as_of"]);
        assert_eq!(each(&page(&reply, "peers"), "display_name"), names, "{filter}");
        // The same in pages of two.
        let paged = all_pages(&d, &format!("/v1/peers?{filter}&limit=2"), "peers", "cursor");
        assert_eq!(each(&paged, "display_name"), names, "{filter} by pages");
    }
}

#[test]
fn peer_pages_have_each_once_even_with_equal_names() {
    let d = Client::start();
    for n in 0..23 {
        let body = json!({
            "display_name": format!("same-{}", n % 2), "backend": "x", "session_id": n.to_string(),
        });
        register(&d, &body);
    }
    for limit in [1, 4, 22, 23, 24] {
        let all = all_pages(&d, &format!("/v1/peers?limit={limit}"), "peers", "cursor");
        let mut ids = each(&all, "peer_id");
        ids.sort();
        ids.dedup();
        assert_eq!((all.len(), ids.len()), (23, 23), "limit {limit}");
    }
    let full = d.get("/v1/peers?limit=23").ok(200);
    assert!(full.get("next_cursor").is_none_or(Value::is_null), "there is no next page: {full}");
}

#[test]
fn heartbeat_sets_status_and_last_seen() {
    let d = Client::start();
    let id = peer(&d, "s-1");
    let path = format!("/v1/peers/{id}/heartbeat");
    for status in ["busy", "idle", "offline", "online"] {
        let beaten = d.post(&path, &json!({ "status": status })).ok(200);
        assert_eq!(beaten["status"], json!(status));
    }
    d.post(&path, &json!({ "status": "busy" })).ok(200);
    let kept = d.post(&path, &json!({})).ok(200);
    assert_eq!(kept["status"], "busy", "a heartbeat without a status leaves it");
    d.post(&path, &json!({ "status": "offline" })).ok(200);
    let revived = d.post(&path, &json!({})).ok(200);
    assert_eq!(revived["status"], "online", "any heartbeat revives");

    let unknown = d.post("/v1/peers/peer_unknown/heartbeat", &json!({}));
    let problem = problem(&unknown, 404, "not_found");
    assert!(problem.to_string().contains("register"), "a hint to register: {problem}");
}

#[test]
fn removal_returns_the_peer_and_deletes_it() {
    let d = Client::start();
    let id = peer(&d, "s-1");
    let path = format!("/v1/peers/{id}");
    let before = d.get(&path).ok(200);
    let removed = d.delete(&path).ok(200);
    assert_eq!(removed["peer_id"], before["peer_id"]);
    assert_eq!(removed["display_name"], before["display_name"]);
    problem(&d.get(&path), 404, "not_found");
    problem(&d.delete(&path), 404, "not_found");
    problem(&d.post(&format!("{path}/heartbeat"), &json!({})), 404, "not_found");
    assert!(page(&d.get("/v1/peers"), "peers").is_empty());
    assert_ne!(peer(&d, "s-1"), id, "who comes back is somebody new");
}

#[test]
fn team_stream_has_every_join_change_and_leave() {
    let d = Client::start();
    let id = peer(&d, "s-1");
    let body = json!({ "display_name": "renamed", "backend": "claude", "session_id": "s-1" });
    register(&d, &body);
    d.post(&format!("/v1/peers/{id}/heartbeat"), &json!({ "status": "busy" })).ok(200);
    d.post(&format!("/v1/peers/{id}/heartbeat"), &json!({ "status": "busy" })).ok(200);
    d.delete(&format!("/v1/peers/{id}")).ok(200);
    let events = page(&d.get("/v1/events?stream=team"), "events");
    let kinds = each(&events, "kind");
    assert_eq!(kinds, ["peer.registered", "peer.updated", "peer.status", "peer.removed"]);
    for event in &events {
        assert_eq!(event["data"]["peer_id"], json!(id), "{event}");
    }
}

#[test]
fn ids_that_look_like_paths_are_not_found() {
    let d = Client::start();
    let id = peer(&d, "victim");
    let send = format!("/v1/peers/{id}/messages");
    d.post(&send, &json!({ "text": "precious" })).ok(200);
    let long = "x".repeat(10 * 1024);
    let hostile = [
        "..%2F..%2Fetc",
        "..%2f..%2fvictim",
        "%2e%2e%2f%2e%2e",
        "..%5C..%5Cvictim",
        "%0d%0aX-Injected:%201",
        "'%20or%201=1%20--",
        "%25",
        "*",
        &long,
    ];
    for id in hostile {
        let path = format!("/v1/peers/{id}");
        for reply in [
            d.get(&path),
            d.delete(&path),
            d.get(&format!("{path}/messages")),
            d.post(&format!("{path}/messages"), &json!({ "text": "a" })),
            d.post(&format!("{path}/heartbeat"), &json!({})),
            d.get(&format!("/v1/messages/{id}")),
            d.get(&format!("/v1/tasks/{id}")),
            d.get(&format!("/v1/biam/subscribe?task_id={id}")),
            d.get(&format!("/v1/events?stream={id}")),
        ] {
            problem(&reply, 404, "not_found");
            assert_eq!(reply.header("x-injected"), None);
        }
    }
    for id in ["%00", "peer%00"] {
        problem(&d.get(&format!("/v1/peers/{id}")), 422, "invalid_request");
        invalid(&d.get(&format!("/v1/events?stream={id}")), "stream");
    }
    problem(&d.get("/v1/peers/../../../etc/passwd"), 404, "not_found");
    for path in ["/v1/peers/%ff%fe", "/v1/tasks/a%80", "/v1/hosts/%ff", "/v1/sources/%ff"] {
        problem(&d.get(path), 400, "invalid_request");
    }
    assert_eq!(each(&page(&d.get(&send), "messages"), "text"), ["precious"]);
}

#[test]
fn session_may_act_for_its_own_peer_only() {
    let d = Client::start();
    let (one, two) = (d.session("s-1"), d.session("s-2"));
    let mine = peer(&one, "s-1");
    let other = peer(&two, "s-2");
    let body = json!({ "display_name": "x", "backend": "claude", "session_id": "s-2" });
    problem(&one.post("/v1/peers/register", &body), 403, "forbidden");

    let beat = |id: &str| format!("/v1/peers/{id}/heartbeat");
    one.post(&beat(&mine), &json!({ "status": "busy" })).ok(200);
    problem(&one.post(&beat(&other), &json!({ "status": "busy" })), 403, "forbidden");
    problem(&one.delete(&format!("/v1/peers/{other}")), 403, "forbidden");
    problem(&one.get(&format!("/v1/peers/{other}/messages")), 403, "forbidden");
    problem(&one.get(&format!("/v1/peers/{other}/messages?peek=true")), 403, "forbidden");
    let ack = format!("/v1/peers/{other}/messages/ack");
    problem(&one.post(&ack, &json!({ "ids": [] })), 403, "forbidden");
    assert_eq!(status(&d, &other), "online", "nothing was changed");
    // Everybody may list participants.
    assert_eq!(page(&one.get("/v1/peers"), "peers").len(), 2);
    one.get(&format!("/v1/peers/{other}")).ok(200);
    one.delete(&format!("/v1/peers/{mine}")).ok(200);

    // A participant that was registered under the token without a session belongs to the token as
    // well.
    let three = d.session("s-3");
    let mine = register(&three, &json!({ "display_name": "x", "backend": "claude" }));
    three.post(&beat(&text(&mine, "peer_id")), &json!({})).ok(200);
}
