//! The era of a request, and the headers that the era requires.

use serde_json::{Value, json};

use super::{
    BOTH, Client, MODERN, given, initialize, message, modern, modern_body, modern_post,
    notification, post, refused, request, result, tool, with_tasks,
};
use crate::daemon::Daemon;
use crate::wire::{Reply, Request};

const VERSION: &str = "MCP-Protocol-Version";

fn peer_list() -> Value {
    modern_body("q", "tools/call", &tool("peer_list", &json!({})), &json!({}))
}

/// A stateless request with some headers replaced.
fn with(request: Request, changes: &[(&str, Option<&str>)]) -> Request {
    let bare = changes.iter().fold(request, |request, (name, _)| request.without(name));
    changes.iter().fold(bare, |request, (name, value)| match value {
        Some(value) => request.header(name, value),
        None => request,
    })
}

#[test]
fn stateless_request_needs_no_session() {
    let d = Daemon::start();
    let session = Client::open(&d, "2025-11-25");
    for (method, params, cached) in [
        ("server/discover", json!({}), true),
        ("tools/list", json!({}), true),
        ("tools/call", tool("peer_list", &json!({})), false),
        ("tools/call", tool("TaskGet", &json!({ "task_id": "task_x" })), false),
        ("prompts/list", json!({}), true),
        ("prompts/get", json!({ "name": "servers" }), false),
        ("resources/list", json!({}), true),
        ("resources/templates/list", json!({}), true),
        ("resources/read", json!({ "uri": "svc://stream/daemon" }), true),
        (
            "completion/complete",
            json!({
                "ref": { "type": "ref/prompt", "name": "servers" },
                "argument": { "name": "x", "value": "" },
            }),
            false,
        ),
    ] {
        let body = modern_body("q", method, &params, &json!({}));
        // Headers of another era are ignored, also if their session is gone.
        for id in [None, Some(session.session.as_str()), Some("gone")] {
            let mut asked = modern_post(&d, &body).header("Last-Event-ID", "x.1");
            if let Some(id) = id {
                asked = asked.header("Mcp-Session-Id", id);
            }
            let reply = asked.send();
            let answer = result(&reply);
            assert_eq!(message(&reply)["id"], "q");
            assert_eq!(reply.header("mcp-session-id"), None);
            assert_eq!(reply.header("mcp-method"), Some(method));
            assert_eq!(answer["resultType"], "complete", "{method}: {answer}");
            let server = &answer["_meta"]["io.modelcontextprotocol/serverInfo"];
            assert_eq!(server["name"], "svc", "{method}: {answer}");
            assert!(server["version"].is_string(), "{method}: {answer}");
            assert_eq!(answer["ttlMs"].is_u64(), cached, "{method}: {answer}");
            let scope = answer["cacheScope"].as_str();
            assert_eq!(matches!(scope, Some("public" | "private")), cached, "{method}: {answer}");
        }
    }
    let found = result(&modern(&d, "server/discover", &json!({})));
    assert_eq!(found["supportedVersions"], json!([MODERN]));
    assert_eq!(found["capabilities"]["extensions"]["io.modelcontextprotocol/tasks"], json!({}));
    let instructions = found["instructions"].as_str().expect("a text");
    assert!(instructions.starts_with("You speak as the operator"), "{instructions}");
    // The same list in the same order.
    let list = || result(&modern(&d, "tools/list", &json!({})));
    assert_eq!(list(), list());
    // Older eras have none of this.
    for answer in [session.ask("tools/list", &json!({})), session.ask("resources/list", &json!({}))]
    {
        for member in ["resultType", "_meta", "ttlMs", "cacheScope"] {
            assert_eq!(answer.get(member), None, "{member}");
        }
    }
}

#[test]
fn removed_methods_are_not_found() {
    let d = Daemon::start();
    for method in [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "tasks/list",
        "tasks/result",
        "no/such",
    ] {
        let params = json!({ "uri": "svc://stream/team", "level": "info", "taskId": "x" });
        for id in [json!(3), json!("three")] {
            let body = modern_body(id.clone(), method, &params, &with_tasks());
            let reply = modern_post(&d, &body).send();
            refused(&reply, 404, -32601);
            assert_eq!(message(&reply)["id"], id, "{method}");
            assert_eq!(reply.header("mcp-session-id"), None);
        }
    }
    // Errors of handlers have another status.
    refused(&modern(&d, "tools/call", &tool("no_such_tool", &json!({}))), 200, -32602);
    refused(&modern(&d, "prompts/get", &json!({ "name": "no_such_prompt" })), 200, -32602);
}

#[test]
fn era_follows_from_the_body() {
    let d = Daemon::start();
    let legacy = Client::open(&d, "2025-06-18");
    let meta = |version: Value, capabilities: Option<Value>| {
        let mut meta = json!({ "io.modelcontextprotocol/protocolVersion": version });
        if let Some(capabilities) = capabilities {
            meta["io.modelcontextprotocol/clientCapabilities"] = capabilities;
        }
        json!({ "_meta": meta })
    };
    let fine = || meta(json!(MODERN), Some(json!({})));
    for (version, params, code) in [
        (Some(MODERN), fine(), None),
        (Some(" 2026-07-28\t"), fine(), None),
        (None, fine(), Some(-32020)),
        (Some("2025-11-25"), fine(), Some(-32020)),
        (Some("2031-01-01"), fine(), Some(-32020)),
        (Some(MODERN), meta(json!("2031-01-01"), Some(json!({}))), Some(-32020)),
        (Some("2031-01-01"), meta(json!("2031-01-01"), Some(json!({}))), Some(-32022)),
        (Some("nonsense"), meta(json!("nonsense"), Some(json!({}))), Some(-32022)),
        (Some(MODERN), json!({}), Some(-32602)),
        (Some("2031-01-01"), json!({}), Some(-32602)),
        (Some(MODERN), json!({ "_meta": {} }), Some(-32602)),
        (Some(MODERN), meta(json!(20_260_728), Some(json!({}))), Some(-32602)),
        (Some(MODERN), meta(json!(MODERN), None), Some(-32602)),
        (Some(MODERN), meta(json!(MODERN), Some(json!(null))), Some(-32602)),
        (Some(MODERN), meta(json!(MODERN), Some(json!([]))), Some(-32602)),
    ] {
        for session in [None, Some(legacy.session.as_str())] {
            let mut asked =
                post(&d, &request("e", "tools/list", &params)).header("Mcp-Method", "tools/list");
            for (name, value) in [(VERSION, version), ("Mcp-Session-Id", session)] {
                if let Some(value) = value {
                    asked = asked.header(name, value);
                }
            }
            let reply = asked.send();
            match code {
                None => drop(result(&reply)),
                Some(code) => {
                    let error = refused(&reply, 400, code);
                    assert_eq!(message(&reply)["id"], "e", "{version:?} {params}");
                    if code == -32022 {
                        assert_eq!(error["data"]["supported"], json!([MODERN]), "{error}");
                        assert_eq!(error["data"]["requested"], json!(version), "{error}");
                    }
                }
            }
        }
    }
    // A client need not introduce itself.
    let mut body = peer_list();
    body["params"]["_meta"]["io.modelcontextprotocol/clientInfo"] =
        json!({ "name": "x", "version": "1" });
    given(&result(&modern_post(&d, &body).send()));
}

#[test]
fn headers_of_a_stateless_request_must_match_its_body() {
    let d = Daemon::start();
    let send =
        |changes: &[(&str, Option<&str>)]| with(modern_post(&d, &peer_list()), changes).send();
    for changes in [
        vec![("Mcp-Name", Some("  peer_list\t "))],
        vec![("Mcp-Method", Some(" tools/call "))],
        vec![("mcp-METHOD", Some("tools/call")), ("MCP-NAME", Some("peer_list"))],
        vec![("Mcp-Name", Some("=?base64?cGVlcl9saXN0?="))],
        vec![("Mcp-Param-Unknown", Some("x")), ("Accept", None)],
        vec![("Accept", Some("application/json"))],
    ] {
        given(&result(&send(&changes)));
    }
    for changes in [
        vec![("Mcp-Method", None)],
        vec![("Mcp-Name", None)],
        vec![("Mcp-Method", Some(""))],
        vec![("Mcp-Name", Some(""))],
        vec![("Mcp-Method", Some("tools/list"))],
        vec![("Mcp-Method", Some("TOOLS/CALL"))],
        vec![("Mcp-Method", Some("=?base64?dG9vbHMvY2FsbA==?="))],
        vec![("Mcp-Name", Some("peer_send"))],
        vec![("Mcp-Name", Some("Peer_List"))],
        vec![("Mcp-Name", Some("=?BASE64?cGVlcl9saXN0?="))],
        vec![("Mcp-Name", Some("=?base64?cGVlcl9saXN0"))],
        vec![("Mcp-Name", Some("=?base64?cGVlcl9saXN?="))],
        vec![("Mcp-Name", Some("=?base64?cGVlc$9saXN0?="))],
        vec![("Mcp-Name", Some("=?base64?/////w==?="))],
        vec![("Mcp-Name", Some("peer_lïst"))],
        vec![("Mcp-Method", Some("tools/call")), ("Mcp-Method", Some("tools/call"))],
        vec![("Mcp-Name", Some("peer_list")), ("Mcp-Name", Some("peer_list"))],
        vec![(VERSION, Some(MODERN)), (VERSION, Some(MODERN))],
        vec![(VERSION, Some("=?base64?MjAyNi0wNy0yOA==?="))],
    ] {
        let reply = send(&changes);
        refused(&reply, 400, -32020);
        assert_eq!(message(&reply)["id"], "q", "{changes:?}");
    }
    for (method, params) in [
        ("resources/read", json!({ "uri": "svc://stream/daemon" })),
        ("prompts/get", json!({ "name": "servers" })),
    ] {
        let body = modern_body(1, method, &params, &json!({}));
        result(&modern_post(&d, &body).send());
        refused(&modern_post(&d, &body).without("Mcp-Name").send(), 400, -32020);
        refused(&with(modern_post(&d, &body), &[("Mcp-Name", Some("x"))]).send(), 400, -32020);
    }
    // Names with non-ASCII characters, which do not exist.
    let body = modern_body(1, "tools/call", &tool("wörk ", &json!({})), &json!({}));
    let asked = with(modern_post(&d, &body), &[("Mcp-Name", Some("=?base64?d8O2cmsg?="))]);
    let reply = asked.send();
    refused(&reply, 200, -32602);
    assert_eq!(reply.header("mcp-name"), Some("=?base64?d8O2cmsg?="));
}

#[test]
fn stateless_notification_needs_no_headers() {
    let d = Daemon::start();
    let mut body = notification("notifications/cancelled", &json!({ "requestId": 1 }));
    for (session, version) in [(None, true), (Some("gone"), true), (Some("gone"), false)] {
        if !version {
            body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(MODERN);
        }
        let mut asked = post(&d, &body);
        if version {
            asked = asked.header(VERSION, MODERN);
        }
        if let Some(session) = session {
            asked = asked.header("Mcp-Session-Id", session);
        }
        let reply = asked.send();
        assert_eq!((reply.status(), reply.body.len()), (202, 0), "{reply:?}");
    }
    // There is no request that it could be a response to.
    let answer = json!({ "jsonrpc": "2.0", "id": "svc-1", "result": {} });
    refused(&post(&d, &answer).header(VERSION, MODERN).send(), 400, -32600);
}

#[test]
fn stateless_client_can_only_post() {
    let d = Daemon::start();
    let session = Client::open(&d, "2025-11-25");
    for method in ["GET", "DELETE"] {
        for version in [MODERN, "2031-01-01"] {
            for with_session in [false, true] {
                let mut asked = d
                    .request(method, "/mcp")
                    .header("Accept", "text/event-stream")
                    .header(VERSION, version);
                if with_session {
                    asked = asked.header("Mcp-Session-Id", &session.session);
                }
                let reply = asked.send();
                assert_eq!(reply.status(), 405, "{reply:?}");
                assert_eq!(reply.header("allow"), Some("POST"));
            }
        }
    }
    for method in ["PUT", "PATCH"] {
        let reply = d.request(method, "/mcp").json(&json!({})).send();
        assert_eq!(reply.status(), 405, "{reply:?}");
        let allow = reply.header("allow").unwrap_or_default();
        assert!(["GET", "POST", "DELETE"].iter().all(|it| allow.contains(it)), "{allow}");
    }
    session.ask("ping", &json!({}));
}

/// Whatever was wrong with it, a request of an older era gets no error of the new one.
#[track_caller]
fn not_modern(reply: &Reply) {
    let code = message(reply)["error"]["code"].as_i64().expect("an error");
    assert!(!(-32022..=-32020).contains(&code), "{reply:?}");
}

#[test]
fn headers_of_older_eras_are_not_compared() {
    let d = Daemon::start();
    let legacy = Client::open(&d, "2025-06-18");
    let call = request(1, "tools/call", &tool("peer_list", &json!({})));
    let list = request(1, "tools/list", &json!({}));
    let prompt = request(1, "prompts/get", &json!({ "name": "servers" }));
    for (body, method, name) in [
        (&call, "tools/call", Some("peer_list")),
        (&list, "tools/list", None),
        (&prompt, "prompts/get", Some("servers")),
    ] {
        for changes in [
            vec![],
            vec![("Mcp-Method", "tools/call"), ("Mcp-Name", "peer_list")],
            vec![("Mcp-Method", "TOOLS"), ("Mcp-Name", "other")],
            vec![("Mcp-Method", " padded "), ("Mcp-Name", "=?base64?!?=")],
            vec![("Mcp-Name", "a"), ("Mcp-Name", "b"), ("Mcp-Method", "a"), ("Mcp-Method", "b")],
            vec![("Mcp-Param-Text", "x")],
        ] {
            for asked in [legacy.post(body), post(&d, body)] {
                let reply = changes.iter().fold(asked, |it, (name, value)| it.header(name, value));
                let reply = reply.send();
                result(&reply);
                assert_eq!(reply.header("mcp-method"), Some(method), "{changes:?}");
                assert_eq!(reply.header("mcp-name"), name, "{changes:?}");
            }
        }
    }
    // The header must match the body, which has no name.
    let nameless = request(1, "tools/call", &json!({}));
    let reply = post(&d, &nameless).header("Mcp-Name", "peer_list").send();
    refused(&reply, 200, -32602);
    assert_eq!(reply.header("mcp-name"), Some("peer_list"));
    let reply = post(&d, &notification("notifications/initialized", &json!({}))).send();
    assert_eq!((reply.status(), reply.header("mcp-name")), (202, None));
    assert_eq!(reply.header("mcp-method"), Some("notifications/initialized"));
}

#[test]
fn older_era_has_its_own_errors() {
    let d = Daemon::start();
    let legacy = Client::open(&d, "2025-06-18");
    let ping = request(1, "ping", &json!({}));
    let initialized = notification("notifications/initialized", &json!({}));
    for versions in [
        vec!["1999-01-01"],
        vec!["nonsense"],
        vec![""],
        vec!["2025-06-18, 2025-06-18"],
        vec!["2025-06-18", "2025-06-18"],
        vec!["2025-06-18", "2026-07-28"],
        vec!["2025‑06‑18"],
        vec!["=?base64?MjAyNS0wNi0xOA==?="],
    ] {
        for body in [&ping, &initialized] {
            for asked in [legacy.post(body).without(VERSION), post(&d, body)] {
                let asked = versions.iter().fold(asked, |it, version| it.header(VERSION, version));
                let reply = asked.send();
                refused(&reply, 400, -32600);
                not_modern(&reply);
            }
        }
        let asked = legacy.listen_request(None).without(VERSION);
        let asked = versions.iter().fold(asked, |it, version| it.header(VERSION, version));
        assert_eq!(asked.send().status(), 400, "{versions:?}");
    }
    // Any supported version is accepted, and none, too.
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        result(&legacy.post(&ping).without(VERSION).header(VERSION, version).send());
        result(&post(&d, &ping).header(VERSION, version).send());
    }
    result(&legacy.post(&ping).without(VERSION).send());
    let gone = post(&d, &ping).header("Mcp-Session-Id", "gone").send();
    assert_eq!(gone.status(), 404);
    not_modern(&gone);
    refused(&initialize(&d, "", &json!([])), 200, -32602);
    let reply = post(&d, &request(1, "initialize", &json!({ "protocolVersion": 3 })));
    refused(&reply.header("Accept", BOTH).send(), 200, -32602);
}
