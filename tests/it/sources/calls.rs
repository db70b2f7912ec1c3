//! Calls of a server's tools: byte for byte, to the right session, and their outcome when the
//! server ends.

use serde_json::{Value, json};

use super::{
    SOON, body, call, entry, failed, in_session, in_state, of_project, said, session, source,
    with_servers,
};
use crate::daemon::{Home, quickly, until};
use crate::wire::Caller;

const ODD: &str = r#"{"content":[ {"type":"text","text":"\u0041","x":1.0} ],"structuredContent":{"z":1.0,"a":12345678901234567890123},"x-more":null}"#;
#[test]
fn results_and_arguments_pass_byte_for_byte_in_every_form_of_a_call() {
    let home = Home::new();
    let d = with_servers(&home, &json!({ "toy": entry(&home, &[]) }));
    let shown = in_state(&d, "toy", "connected");
    assert_eq!((&shown["transport"], &shown["sharing"]), (&json!("stdio"), &json!("project")));
    assert_eq!(
        (&shown["tools"], &shown["resources"], &shown["prompts"]),
        (&json!(20), &json!(1), &json!(1))
    );
    assert!(shown["warnings"][0].as_str().is_some_and(|text| text.contains("broken")), "{shown}");
    let odd = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"toy__odd"}}"#;
    let bare =
        d.request("POST", "/mcp").header("Content-Type", "application/json").body(odd).send();
    assert_eq!(body(&bare), format!(r#"{{"jsonrpc":"2.0","id":7,"result":{ODD}}}"#));
    let legacy = session(&d, &json!({}));
    let reply = in_session(&d, &legacy, &serde_json::from_str(odd).expect("JSON")).send();
    assert!(body(&reply).contains(ODD), "{reply:?}");
    let modern = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"toy__odd","_meta":{
        "io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;
    let reply = d
        .request("POST", "/mcp")
        .header("Content-Type", "application/json")
        .header("MCP-Protocol-Version", "2026-07-28")
        .header("Mcp-Method", "tools/call")
        .header("Mcp-Name", "toy__odd")
        .body(modern)
        .send();
    let typed = ODD.replacen('{', r#"{"resultType":"complete","#, 1);
    assert!(body(&reply).contains(&typed), "{reply:?}");
    // The other direction: the server gets the caller's bytes.
    let arguments = r#"{ "z": 1.0, "a": [12345678901234567890123, "\u0041"] }"#;
    let sent = format!(
        r#"{{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{{"name":"toy__raw","x-own": 1.50,"arguments":{arguments},"_meta":{{"own": 2.0}}}}}}"#
    );
    let reply = d
        .request("POST", "/mcp")
        .header("Content-Type", "application/json")
        .body(sent)
        .send()
        .json();
    let read = said(&reply);
    assert!(read.contains(&format!(r#""arguments":{arguments}"#)), "{read}");
    assert!(read.contains(r#""name":"raw""#) && read.contains(r#""x-own":1.50"#), "{read}");
    assert!(read.contains(r#""_meta":{"own": 2.0}"#), "{read}");
    // A name that clients refuse is replaced for clients, and stays the server's own for the
    // server.
    assert_eq!(said(&call(&d, "toy__a_b", &json!({}))), "called a.b");
    let unknown = call(&d, "toy__nothing", &json!({}));
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
}

#[test]
fn lists_have_tools_as_their_server_declares_them() {
    let home = Home::new();
    let d = with_servers(&home, &json!({ "toy": entry(&home, &[]) }));
    in_state(&d, "toy", "connected");
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let list = d.request("POST", "/mcp").header("Svc-Expose", "all").json(&list).send().json();
    let tools = list["result"]["tools"].as_array().expect("tools");
    let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
    let first = names.iter().position(|name| name.starts_with("toy__")).expect("is listed");
    assert!(names[..first].is_sorted() && names[first..].is_sorted(), "{names:?}");
    assert!(names[first..].iter().all(|name| name.starts_with("toy__")), "{names:?}");
    let odd = tools.iter().find(|tool| tool["name"] == "toy__odd").expect("is listed");
    assert_eq!(odd["annotations"], json!({ "readOnlyHint": true, "x-own": 7 }));
    assert_eq!(odd["inputSchema"]["anyOf"], json!([{}]));
    assert_eq!(odd["_meta"], json!({ "own": true }));
    // Byte for byte: the order of its members, and the notation of its numbers.
    let schema = r#"{"type": "object", "x-z": 1e5, "anyOf": [{}], "x-a": 12345678901234567890123}"#;
    let written = |d: &Caller| {
        let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
        let listed = d.request("POST", "/mcp").header("Svc-Expose", "all").json(&list).send();
        body(&listed)
    };
    assert!(written(&d).contains(&format!(r#""inputSchema":{schema}"#)), "{}", written(&d));
    let search = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "ToolSearch", "arguments": { "query": "toy__odd", "detail": "full", "limit": 1 },
    } });
    let found = body(&d.request("POST", "/mcp").json(&search).send());
    assert!(found.contains(&format!(r#""input_schema":{schema}"#)), "{found}");
    let big = tools.iter().find(|tool| tool["name"] == "toy__big").expect("is listed");
    let description = big["description"].as_str().expect("has one");
    assert!(description.len() <= 2048 && description.ends_with("word…"), "{description}");
    // Its list changes, and subscribed clients are notified.
    let before = names.len();
    call(&d, "toy__grow", &json!({ "value": "sprout" }));
    until(SOON, || (source(&d, "toy")["tools"] == 21).then_some(()));
    assert_eq!(said(&call(&d, "toy__sprout", &json!({}))), "called sprout");
    let hits = call(&d, "ToolSearch", &json!({ "query": "sprout" }));
    assert_eq!(hits["result"]["structuredContent"]["tools"][0]["name"], "toy__sprout", "{hits}");
    assert!(before < 200);
}

/// `_pid` of `a` and `pid` of `a_` would have one name.
#[test]
fn tools_of_two_servers_never_share_a_name() {
    let home = Home::new();
    let d = with_servers(&home, &json!({ "a": entry(&home, &[]), "a_": entry(&home, &[]) }));
    in_state(&d, "a", "connected");
    let pid = in_state(&d, "a_", "connected")["pid"].to_string();
    assert_eq!(said(&call(&d, "a___pid", &json!({}))), pid, "the name is free");
    assert_eq!(said(&call(&d, "a__grow", &json!({ "value": "_pid" }))), "grown");
    let is_there = || call(&d, "a___pid", &json!({}));
    until(SOON, || (said(&is_there()) == "called _pid").then_some(()));
    // The first 8 digits of the SHA-256 of `a___pid`.
    let other = "a___pid_f6f3ebe7";
    assert_eq!(said(&call(&d, other, &json!({}))), pid);
    let tools = d.get("/v1/tools?limit=500").ok(200).to_string();
    assert!(tools.contains(other), "{tools}");
}

#[test]
fn call_in_a_killed_server_is_never_repeated() {
    let home = Home::new();
    let d = with_servers(&home, &json!({ "toy": entry(&home, &[]) }));
    let first = in_state(&d, "toy", "connected");
    let error = failed(&call(&d, "toy__die", &json!({})));
    assert_eq!(
        (&error["type"], &error["allowed"]["outcome"], &error["retryable"]),
        (&json!("unavailable"), &json!("unknown"), &json!(false))
    );
    // It is restarted.
    let again = until(SOON, || {
        Some(in_state(&d, "toy", "connected")).filter(|now| now["pid"] != first["pid"])
    });
    assert_eq!(said(&call(&d, "toy__pid", &json!({}))), again["pid"].to_string());
    // The event comes after the change of the state.
    let states = until(SOON, || {
        let told = d.get("/v1/events?stream=team&kind=source.state&limit=500").ok(200);
        let events = told["events"].as_array().expect("events").iter();
        let states: Vec<Value> = events.map(|event| event["data"]["state"].clone()).collect();
        (states.len() >= 5).then_some(states)
    });
    assert_eq!(states, ["connecting", "connected", "backing_off", "connecting", "connected"]);
    let calls = until(SOON, || {
        let page = d.get("/v1/events?stream=source/toy&kind=call").ok(200);
        Some(page).filter(|page| page["events"].as_array().is_some_and(|all| all.len() == 2))
    });
    let outcomes: Vec<&Value> = calls["events"]
        .as_array()
        .expect("events")
        .iter()
        .map(|event| &event["data"]["outcome"])
        .collect();
    assert_eq!(outcomes, ["unavailable", "ok"]);
    let metrics = body(&d.get("/metrics"));
    assert!(
        metrics
            .contains(r#"svc_source_calls_total{source="toy",tool="die",outcome="unavailable"} 1"#),
        "{metrics}"
    );
}

#[test]
fn server_killed_during_its_response_is_called_once() {
    let home = Home::new();
    let d = with_servers(&home, &json!({ "toy": entry(&home, &[]) }));
    let first = in_state(&d, "toy", "connected");
    let file = home.user().join("calls");
    let error = failed(&call(&d, "toy__die", &json!({ "value": file })));
    assert_eq!(error["allowed"]["outcome"], "unknown", "{error}");
    until(SOON, || Some(in_state(&d, "toy", "connected")).filter(|now| now["pid"] != first["pid"]));
    assert_eq!(said(&call(&d, "toy__a_b", &json!({}))), "called a.b");
    assert_eq!(std::fs::read_to_string(file).expect("is there"), "called\n");
}

#[test]
fn call_to_a_down_server_fails_at_once_and_a_hanging_one_delays_no_other() {
    let home = Home::new();
    let mut slow = entry(&home, &["hang"]);
    slow["startup_timeout"] = json!(600_000);
    let servers = json!({
        "toy": entry(&home, &[]), "hangs": slow, "quits": entry(&home, &["quit"]), "none": { "command": "/no/such" },
        "unset": { "command": "x", "args": ["${NO_SUCH_VARIABLE}"] },
    });
    let d = with_servers(&home, &servers);
    in_state(&d, "toy", "connected");
    in_state(&d, "hangs", "connecting");
    // Lists do not wait for it either.
    for method in ["tools/list", "resources/list", "prompts/list"] {
        quickly(std::time::Duration::from_secs(2), || {
            let began = std::time::Instant::now();
            let list = json!({ "jsonrpc": "2.0", "id": 1, "method": method });
            let listed = d.request("POST", "/mcp").header("Svc-Expose", "all").json(&list).send();
            assert!(body(&listed).contains("toy"), "{listed:?}");
            began.elapsed()
        });
    }
    let quits = in_state(&d, "quits", "backing_off");
    assert!(quits["reason"].as_str().is_some_and(|text| text.contains("cannot start")), "{quits}");
    assert!(quits["next_at"].is_string() && quits["attempt"].is_u64(), "{quits}");
    let unset = in_state(&d, "unset", "misconfigured");
    let reason = unset["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("args[0]") && reason.contains("NO_SUCH_VARIABLE"), "{unset}");
    for source in ["none", "unset", "quits"] {
        // It has none for the moment in which it is started again.
        until(SOON, || source_has_advice(&d, source).then_some(()));
    }
    // Its last known tools are listed at once, and a call says why it cannot be served.
    let mut d = d;
    let mut slow = entry(&home, &["hang"]);
    slow["startup_timeout"] = json!(600_000);
    let broken = json!({ "toy": slow });
    d.kill9();
    d.restart_with(|_| crate::daemon::Plan::default().home(&home).servers(&broken));
    assert_eq!(source(&d, "toy")["tools"], 0, "the lists of another entry are not its own");
}

fn source_has_advice(caller: &Caller, name: &str) -> bool {
    let source = source(caller, name);
    source["reason"].is_string() && source["next_action"].is_string()
}

#[test]
fn questions_reach_only_the_calling_session() {
    let home = Home::new();
    let mut shared = entry(&home, &[]);
    shared["sharing"] = json!("shared");
    let d = with_servers(&home, &json!({ "toy": shared, "own": entry(&home, &[]) }));
    in_state(&d, "toy", "connected");
    in_state(&d, "own", "connected");
    let [one, two] = ["s-1", "s-2"].map(|key| of_project(&d, key, "/nowhere"));
    let asking = json!({ "jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {
        "name": "toy__ask", "arguments": { "value": "elicitation/create" },
    } });
    let asked = session(&one, &json!({ "elicitation": {} }));
    let mut stream =
        in_session(&one, &asked, &asking).follow().expect("an answer").expect("a stream");
    let question = stream.message();
    assert_eq!(
        (&question["method"], &question["params"]["message"]),
        (&json!("elicitation/create"), &json!("well?"))
    );
    // Now another session's call runs as well: the question is ambiguous, and no client is asked.
    let other = session(&two, &json!({ "elicitation": {} }));
    let reply = in_session(&two, &other, &asking).send();
    let refused = body(&reply);
    assert!(refused.contains("-32603") && !refused.contains("well?"), "{refused}");
    let answer = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept", "content": { "n": 1 } } });
    assert_eq!(in_session(&one, &asked, &answer).send().status(), 202);
    let result = stream.message();
    let told = said(&result);
    assert!(told.contains(r#""action": "accept""#) && told.contains(r#""n": 1"#), "{told}");
    // A client that cannot be asked is not, and the server is told.
    let plain = session(&one, &json!({}));
    // The other's call has just ended, so for a while the question may belong to it.
    until(SOON, || {
        let reply = body(&in_session(&one, &plain, &asking).send());
        assert!(reply.contains("-32603"), "{reply}");
        reply.contains("cannot answer").then_some(())
    });
}

#[test]
fn progress_reaches_the_caller_with_its_own_token() {
    let home = Home::new();
    let d = with_servers(&home, &json!({ "toy": entry(&home, &["tasks"]) }));
    in_state(&d, "toy", "connected");
    let id = session(&d, &json!({}));
    // The progress of a call that becomes a task goes on with the task.
    for (tool, answer) in [("step", "stepped"), ("dig", "dug deep")] {
        let stepping = json!({ "jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {
            "name": format!("toy__{tool}"), "arguments": { "value": "step" }, "_meta": { "progressToken": "mine" },
        } });
        let stream = in_session(&d, &id, &stepping).follow().expect("an answer");
        let mut stream = stream.expect("a stream");
        for step in [1, 2] {
            let note = stream.message();
            assert_eq!(
                note["params"],
                json!({ "progressToken": "mine", "progress": step, "total": 2, "x-own": "kept" }),
                "{tool}"
            );
        }
        assert_eq!(said(&stream.message()), answer);
    }
}

#[test]
fn call_ends_at_its_deadline_and_on_cancel() {
    let home = Home::new();
    let mut quick = entry(&home, &[]);
    quick["timeout"] = json!(200);
    let d = with_servers(&home, &json!({ "quick": quick, "toy": entry(&home, &[]) }));
    in_state(&d, "quick", "connected");
    in_state(&d, "toy", "connected");
    // The server is told why, with the client's reason if it gave one. On a busy machine a call may
    // end before the server has it.
    let heard = |tool: &str, reason: &str| call(&d, tool, &json!({})).to_string().contains(reason);
    until(SOON, || {
        let error = failed(&call(&d, "quick__sleep", &json!({ "value": "60" })));
        assert!(error["message"].as_str().is_some_and(|text| text.contains("200 ms")), "{error}");
        heard("quick__heard", "cancelled: the caller waits no longer").then_some(())
    });
    let id = session(&d, &json!({}));
    let mut number = 8;
    until(SOON, || {
        number += 1;
        let sleeping = json!({ "jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {
            "name": "toy__sleep", "arguments": { "value": "60" },
        } });
        let waiting = std::thread::spawn({
            let request = in_session(&d, &id, &sleeping);
            move || body(&request.send())
        });
        let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": {
            "requestId": number, "reason": "somebody pressed Escape",
        } });
        // Sent again until the call is registered.
        until(SOON, || {
            in_session(&d, &id, &cancel).send();
            waiting.is_finished().then_some(())
        });
        let answer = waiting.join().expect("it ended");
        let own = format!("\"id\":{number}");
        assert!(!answer.contains(&own), "who cancels waits for no answer: {answer}");
        heard("toy__heard", "cancelled: somebody pressed Escape").then_some(())
    });
}

#[test]
fn models_list_and_read_resources_of_servers() {
    let home = Home::new();
    let off = json!({ "command": "cat", "enabled": false });
    let d = with_servers(&home, &json!({ "toy": entry(&home, &[]), "off": off }));
    in_state(&d, "toy", "connected");
    let of = |tool: &str, arguments: Value| {
        let answer = call(&d, tool, &arguments);
        answer["result"]["structuredContent"].clone()
    };
    let listed = of("ListMcpResources", json!({ "server": "toy" }));
    let row = json!({ "server": "toy", "uri": "toy://one", "name": "one" });
    assert_eq!(listed, json!({ "count": 1, "resources": [row] }));
    let read = of("ReadMcpResource", json!({ "server": "toy", "uri": "toy://one" }));
    let text = json!({ "uri": "toy://one", "mimeType": "text/plain", "text": "first" });
    assert_eq!(read["contents"][0], text);
    assert_eq!(read["contents"][1]["size"], 3);
    let path = read["contents"][1]["path"].as_str().expect("a file");
    assert_eq!(std::fs::read(path).expect("is there"), [0, 1, 2]);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(path).expect("is there").permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    let unknown = of("ListMcpResources", json!({ "server": "nobody" }));
    assert_eq!(
        (&unknown["error"]["type"], &unknown["error"]["allowed"]),
        (&json!("not_found"), &json!(["toy"]))
    );
    for tool in ["ListMcpResources", "ReadMcpResource"] {
        let mut arguments = json!({ "server": "off" });
        if tool == "ReadMcpResource" {
            arguments["uri"] = json!("toy://one");
        }
        let off = of(tool, arguments)["error"].clone();
        let said = (&off["type"], &off["allowed"]["state"]);
        assert_eq!(said, (&json!("unavailable"), &json!("disabled")), "{off}");
    }
    let missing = of("ReadMcpResource", json!({ "server": "toy", "uri": "toy://two" }));
    assert_eq!(missing["error"]["type"], "not_found", "{missing}");
}
