//! The tools and instructions that a model gets at the start: few, and the search finds all others.

use serde_json::{Value, json};

use super::{
    Client, LEGACY, MODERN, finish, given, is_wait_answer, modern, post, refused, request, result,
    tool, tool_error, wait_for,
};
use crate::daemon::{Daemon, Running};
use crate::expect::{each, new_task, page};
use crate::identity::process_token;
use crate::wire::Caller;

/// The tools that a session is shown, if they exist.
const SHORT: [&str; 11] = [
    "peer_list",
    "peer_send",
    "peer_inbox",
    "sessions_send",
    "SendMessage",
    "TaskWait",
    "start_ghap",
    "resolve_ghap",
    "search_experiences",
    "ToolSearch",
    "ToolCall",
];

fn tools(result: &Value) -> Vec<String> {
    each(result["tools"].as_array().expect("tools"), "name")
}

/// A short list: at most ten tools, at most 8 KB, and as tokens (four characters each) at most
/// 2,048.
#[track_caller]
fn is_short(result: &Value) {
    let names = tools(result);
    assert!((8..=10).contains(&names.len()), "{names:?}");
    assert!(names.iter().all(|name| SHORT.contains(&name.as_str())), "{names:?}");
    for name in ["ToolSearch", "ToolCall", "peer_list", "peer_send", "peer_inbox"] {
        assert!(names.iter().any(|known| known == name), "{name} in {names:?}");
    }
    let text = result["tools"].to_string();
    assert!(text.len() <= 8 * 1024, "{} bytes", text.len());
    assert!(text.chars().count().div_ceil(4) <= 2_048, "{} characters", text.chars().count());
    for entry in result["tools"].as_array().expect("tools") {
        assert_eq!(entry["inputSchema"]["type"], "object", "{entry}");
        // The shortened schema lacks arguments, so it must not exclude them.
        assert!(entry["inputSchema"].get("additionalProperties").is_none(), "{entry}");
        assert!(entry["annotations"].is_object() && entry["description"].is_string(), "{entry}");
    }
}

#[track_caller]
fn is_whole(result: &Value) {
    let names = tools(result);
    assert!(names.len() > 40, "{names:?}");
    assert!(!names.contains(&"hook_event".to_owned()), "{names:?}");
    assert!(names.is_sorted(), "{names:?}");
}

fn bare(caller: &Caller, expose: Option<&str>) -> Value {
    let list = post(caller, &request(1, "tools/list", &json!({})));
    let list = match expose {
        None => list,
        Some(expose) => list.header("Svc-Expose", expose),
    };
    result(&list.send())
}

#[test]
fn session_gets_a_short_list_in_every_era_and_the_operator_all() {
    let mut d = Daemon::start();
    let session = d.session("s-1");
    for revision in LEGACY {
        is_short(&Client::open(&session, revision).ask("tools/list", &json!({})));
        is_whole(&Client::open(&d, revision).ask("tools/list", &json!({})));
    }
    is_short(&result(&modern(&session, "tools/list", &json!({}))));
    is_whole(&result(&modern(&d, "tools/list", &json!({}))));
    is_short(&bare(&session, None));
    is_whole(&bare(&d, None));
    // The client's choice counts, whoever it is.
    is_whole(&bare(&session, Some("all")));
    is_short(&bare(&d, Some("search")));
    for wrong in ["some", "", "ALL"] {
        let list = post(&session, &request(1, "tools/list", &json!({})));
        refused(&list.header("Svc-Expose", wrong).send(), 400, -32602);
    }
    // The configured choice counts, unless the client chooses.
    for (configured, short) in [("all", false), ("search", true)] {
        d.stop();
        d.home.write("config.toml", &format!("[sources]\nexpose = \"{configured}\"\n"));
        d.restart();
        for caller in [&d.session("s-2"), &*d] {
            let list = bare(caller, None);
            if short {
                is_short(&list);
            } else {
                is_whole(&list);
            }
            is_whole(&bare(caller, Some("all")));
        }
    }
    // Hooks call it, and no list shows it.
    assert!(
        !each(&page(&d.get("/v1/tools?limit=500"), "tools"), "name")
            .contains(&"hook_event".to_owned())
    );
    let event = json!({ "client": "codex", "payload": { "session_id": "s-3", "hook_event_name": "SessionStart" } });
    given(&result(&post(&d, &request(1, "tools/call", &tool("hook_event", &event))).send()));
}

#[test]
fn unlisted_tool_can_be_found_and_called() {
    let d = Daemon::start();
    let session = d.session("s-1");
    for revision in ["2025-11-25", MODERN] {
        let call = |name: &str, arguments: &Value| {
            let params = tool(name, arguments);
            if revision == MODERN {
                result(&modern(&session, "tools/call", &params))
            } else {
                Client::open(&session, revision).ask("tools/call", &params)
            }
        };
        let query =
            json!({ "query": "register me so that others see me", "limit": 3, "detail": "full" });
        let found = given(&call("ToolSearch", &query));
        let found = found["tools"].as_array().expect("tools");
        let hit = found.iter().find(|hit| hit["name"] == "peer_register").expect("it is found");
        assert_eq!(hit["input_schema"]["required"], json!(["display_name", "backend"]), "{hit}");
        let members: Vec<&String> = hit.as_object().expect("an object").keys().collect();
        assert_eq!(members, ["description", "input_schema", "name", "title"]);

        let arguments = json!({ "display_name": "ada", "backend": "codex" });
        let by_name = given(&call("peer_register", &arguments));
        let by_call = json!({ "name": "peer_register", "arguments": arguments });
        let by_call = given(&call("ToolCall", &by_call));
        assert_eq!(by_call["peer_id"], by_name["peer_id"]);
        let wrong = json!({ "name": "peer_register", "arguments": { "backend": "codex" } });
        assert_eq!(
            tool_error(&call("ToolCall", &wrong), "validation_error")["field"],
            "display_name"
        );
        let nobody = json!({ "name": "no_such_tool" });
        assert_eq!(tool_error(&call("ToolCall", &nobody), "not_found")["field"], "name");
        let itself = json!({ "name": "ToolCall", "arguments": { "name": "peer_list" } });
        tool_error(&call("ToolCall", &itself), "validation_error");
        let more = json!({ "name": "peer_list", "argument": {} });
        assert_eq!(tool_error(&call("ToolCall", &more), "validation_error")["field"], "argument");
    }
}

/// A slow tool is recorded whichever way it is called, and its call survives a crash.
#[test]
fn slow_tool_through_tool_call_survives_a_crash() {
    let mut d = Daemon::start();
    let session = d.session("s-1");
    let client = Client::open(&session, "2025-11-25");
    let task = new_task(&session);
    let wait = json!({ "name": "TaskWait", "arguments": wait_for(&task) });
    let (id, mut call) = client.begin("ToolCall", &wait);
    let primed = call.next();
    d.kill_and_restart();
    finish(&d, &task);
    is_wait_answer(&client.listen(Some(primed.event_id())).answer().json, id);
}

/// What `svc stdio` forwards: the list as its flag says, and the session's name that the hooks
/// reported.
#[test]
fn stdio_client_gets_a_short_list_unless_a_flag_says_otherwise() {
    let d = Daemon::start();
    let begin = json!({
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "claude-code", "version": "1" },
    });
    let listed = |args: &[&str]| {
        let mut command = d.home.command(&[&["stdio"], args].concat());
        command.stdin(std::process::Stdio::piped());
        let mut stdio = Running::spawn(command);
        let mut input = stdio.stdin();
        let mut ask = |id: u64, method: &str, params: &Value| {
            use std::io::Write as _;
            writeln!(input, "{}", request(id, method, params)).expect("it reads");
            let answer: Value = serde_json::from_str(&stdio.line().expect("a line")).expect("JSON");
            assert_eq!(answer["id"], id, "{answer}");
            answer["result"].clone()
        };
        let instructions = ask(1, "initialize", &begin)["instructions"].clone();
        (instructions.as_str().expect("a text").to_owned(), ask(2, "tools/list", &json!({})))
    };
    let (instructions, list) = listed(&[]);
    is_short(&list);
    assert!(
        instructions.contains("do not poll") && instructions.contains("peer_register"),
        "{instructions}"
    );
    is_whole(&listed(&["--expose", "all"]).1);
    is_whole(&listed(&["--operator"]).1);
    is_short(&listed(&["--operator", "--expose", "search"]).1);
}

/// Four characters to a token.
#[test]
fn instructions_name_the_session_and_are_short() {
    let d = Daemon::start();
    let own = d.with_token(&process_token(&d.home));
    let event = json!({
        "client": "claude-code",
        "payload": { "session_id": "s-1", "hook_event_name": "SessionStart", "source": "startup", "cwd": "/nowhere/web" },
    });
    given(&result(&post(&own, &request(1, "tools/call", &tool("hook_event", &event))).send()));
    let peers = page(&d.get("/v1/peers"), "peers");
    let name =
        peers.iter().find(|peer| peer["session_id"] == "s-1").expect("a peer")["display_name"]
            .clone();
    let discovered = result(&modern(&own, "server/discover", &json!({})));
    assert_eq!(discovered["cacheScope"], "private", "they name the caller");
    let begin = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    let begun = result(&post(&own, &request(1, "initialize", &begin)).send());
    for answer in [&discovered, &begun] {
        let text = answer["instructions"].as_str().expect("a text");
        let point: String = text.chars().take(240).collect();
        let start = format!("You are {}, already registered", name.as_str().expect("a name"));
        assert!(point.starts_with(&start), "{point}");
        assert!(point.contains("Messages reach you by themselves: do not poll."), "{point}");
        assert_eq!(text.matches("goal, hypothesis, action, prediction").count(), 1, "{text}");
        assert!(!text.contains("peer_register") && !text.contains("peer_ack"), "{text}");
        assert!(text.chars().count().div_ceil(4) <= 200, "{}", text.chars().count());
    }
    let stranger = result(&modern(&d.session("s-2"), "server/discover", &json!({})));
    assert!(
        stranger["instructions"].as_str().expect("a text").contains("peer_register"),
        "{stranger}"
    );
}
