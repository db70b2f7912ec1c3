//! A server's questions during a prompt, a resource or a task reach the session that made the
//! request.

use std::sync::atomic::Ordering::SeqCst;

use serde_json::{Value, json};

use super::toy_http::{ToyEra, ToyHttp};
use super::{SOON, body, call, entry, failed, in_session, in_state, said, session, with_servers};
use crate::daemon::{Daemon, Home, until};
use crate::wire::Caller;

fn accepted() -> Value {
    json!({ "action": "accept", "content": { "n": 1 } })
}

/// Makes a request in a session that can be asked, answers the question, and returns the result.
#[track_caller]
fn asked_in_session(caller: &Caller, id: &str, method: &str, params: &Value) -> Value {
    let request = json!({ "jsonrpc": "2.0", "id": 5, "method": method, "params": params });
    let mut stream =
        in_session(caller, id, &request).follow().expect("an answer").expect("a stream");
    let question = stream.message();
    assert_eq!(
        (&question["method"], &question["params"]["message"]),
        (&json!("elicitation/create"), &json!("well?")),
        "{question}"
    );
    let answer = json!({ "jsonrpc": "2.0", "id": question["id"], "result": accepted() });
    assert_eq!(in_session(caller, id, &answer).send().status(), 202);
    stream.message()["result"].clone()
}

/// A request of a client without sessions that can be asked.
fn modern(caller: &Caller, method: &str, name: &str, params: Value) -> Value {
    let reply = modern_request(caller, method, name, params).send();
    let text = body(&reply);
    let last = text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back();
    serde_json::from_str(last.unwrap_or(&text)).expect("JSON")
}

fn modern_request(
    caller: &Caller,
    method: &str,
    name: &str,
    mut params: Value,
) -> crate::wire::Request {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": { "elicitation": {} },
    });
    let request = json!({ "jsonrpc": "2.0", "id": 6, "method": method, "params": params });
    caller
        .request("POST", "/mcp")
        .header("Accept", super::BOTH)
        .header("MCP-Protocol-Version", "2026-07-28")
        .header("Mcp-Method", method)
        .header("Mcp-Name", name)
        .json(&request)
}

/// Two rounds of such a client: the question, and the request again with its answer. Returns the
/// result.
#[track_caller]
fn asked_in_rounds(caller: &Caller, method: &str, name: &str, params: &Value) -> Value {
    let first = modern(caller, method, name, params.clone());
    modern(caller, method, name, with_answer(params, &first))["result"].clone()
}

/// The params of the request with the answer, from the result with the question.
#[track_caller]
fn with_answer(params: &Value, asked: &Value) -> Value {
    let asked = &asked["result"];
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let requests = asked["inputRequests"].as_object().expect("questions");
    let (key, question) = requests.iter().next().expect("a question");
    assert_eq!(
        (&question["method"], &question["params"]["message"]),
        (&json!("elicitation/create"), &json!("well?")),
        "{asked}"
    );
    let mut again = params.clone();
    again["inputResponses"] = json!({ key: accepted() });
    again["requestState"] = asked["requestState"].clone();
    again
}

#[test]
fn questions_of_prompts_and_resources_reach_the_calling_session() {
    let home = Home::new();
    let web = ToyHttp::start(ToyEra::Modern);
    web.toy.asks.store(true, SeqCst);
    let d = with_servers(
        &home,
        &json!({ "toy": entry(&home, &[]), "web": { "type": "http", "url": web.url() } }),
    );
    in_state(&d, "toy", "connected");
    in_state(&d, "web", "connected");
    let able = session(&d, &json!({ "elicitation": {} }));
    let told = r#""action""#;
    let prompt = json!({ "name": "toy__greet", "arguments": { "ask": "1" } });
    let got = asked_in_session(&d, &able, "prompts/get", &prompt);
    assert!(
        got["messages"][0]["content"]["text"].as_str().is_some_and(|it| it.contains(told)),
        "{got}"
    );
    let read = asked_in_session(&d, &able, "resources/read", &json!({ "uri": "toy://item/ask" }));
    assert!(read["contents"][0]["text"].as_str().is_some_and(|it| it.contains(told)), "{read}");
    let prompt = json!({ "name": "web__greet" });
    for got in [
        asked_in_session(&d, &able, "prompts/get", &prompt),
        asked_in_rounds(&d, "prompts/get", "web__greet", &prompt),
    ] {
        let text = got["messages"][0]["content"]["text"].as_str().expect("a text");
        assert_eq!(
            serde_json::from_str::<Value>(text).expect("JSON"),
            json!({ "who": accepted() })
        );
    }
    // A client that cannot be asked: the server is told and goes on.
    let plain = session(&d, &json!({}));
    let request = json!({ "jsonrpc": "2.0", "id": 5, "method": "prompts/get", "params": prompt });
    let refused = body(&in_session(&d, &plain, &request).send());
    assert!(refused.contains("cannot answer elicitation/create"), "{refused}");
    let unknown = json!({ "jsonrpc": "2.0", "id": 5, "method": "prompts/get", "params": { "name": "web__none" } });
    let unknown = body(&in_session(&d, &plain, &unknown).send());
    assert!(unknown.contains("Unknown prompt"), "{unknown}");
}

#[test]
fn stateless_client_is_asked_during_a_call() {
    let home = Home::new();
    let mut quick = entry(&home, &["asks"]);
    quick["timeout"] = json!(300);
    let toy = entry(&home, &["tasks", "asks"]);
    let mut d = with_servers(&home, &json!({ "toy": toy, "quick": quick }));
    in_state(&d, "toy", "connected");
    in_state(&d, "quick", "connected");
    let caller = d.session("s-1");
    let ask = |params: &Value| {
        let name = params["name"].as_str().unwrap_or_default();
        modern(&caller, "tools/call", name, params.clone())
    };
    // A call that asks twice is made once, and the client's answers reach it.
    let interview = json!({ "name": "toy__interview", "arguments": {} });
    let first = ask(&interview);
    let second = ask(&with_answer(&interview, &first));
    // A question without an answer is repeated.
    let mut without = with_answer(&interview, &second);
    without["inputResponses"] = json!({});
    let again = ask(&without);
    let again = with_answer(&interview, &again);
    // Another caller cannot answer, nor can another call.
    let other = modern(&d.session("s-2"), "tools/call", "toy__interview", again.clone());
    assert_eq!(other["error"]["code"], -32602, "{other}");
    let done = ask(&again);
    let told: Value = serde_json::from_str(&said(&done)).expect("JSON");
    assert_eq!(told, json!({ "calls": 1, "answers": [accepted(), accepted()] }));
    assert_eq!(done["result"]["resultType"], "complete", "{done}");
    // It was answered, so nothing is left to answer.
    let twice = failed(&ask(&again));
    assert!(twice["message"].as_str().is_some_and(|it| it.contains("is over")), "{twice}");
    assert_eq!(twice["allowed"]["outcome"], "unknown", "{twice}");
    // Tasks, prompts and resources of a server ask as its calls do.
    let dig = json!({ "name": "toy__dig", "arguments": { "value": "ask" } });
    let dug = asked_in_rounds(&caller, "tools/call", "toy__dig", &dig);
    assert!(dug["content"][0]["text"].as_str().is_some_and(|it| it.contains(r#""n": 1"#)), "{dug}");
    let prompt = json!({ "name": "toy__greet", "arguments": { "ask": "1" } });
    let got = asked_in_rounds(&caller, "prompts/get", "toy__greet", &prompt);
    assert!(got.to_string().contains("accept"), "{got}");
    let item = json!({ "uri": "toy://item/ask" });
    let read = asked_in_rounds(&caller, "resources/read", "toy://item/ask", &item);
    assert!(read.to_string().contains("accept"), "{read}");
    // The call's deadline runs while the client is asked.
    let late = json!({ "name": "quick__interview", "arguments": {} });
    let asked = ask(&late);
    until(SOON, || said(&call(&d, "quick__heard", &json!({}))).contains("cancelled").then_some(()));
    let ended = failed(&ask(&with_answer(&late, &asked)));
    assert!(ended["message"].as_str().is_some_and(|it| it.contains("300 ms")), "{ended}");
    // After a restart the daemon does not know the call, and does not repeat it.
    let asked = ask(&interview);
    d.kill_and_restart();
    in_state(&d, "toy", "connected");
    let answered = with_answer(&interview, &asked);
    let lost = failed(&modern(&d.session("s-1"), "tools/call", "toy__interview", answered));
    assert_eq!(lost["allowed"]["outcome"], "unknown", "{lost}");
    let fresh = d.session("s-1");
    let first = modern(&fresh, "tools/call", "toy__interview", interview.clone());
    let second = modern(&fresh, "tools/call", "toy__interview", with_answer(&interview, &first));
    let done = modern(&fresh, "tools/call", "toy__interview", with_answer(&interview, &second));
    assert!(said(&done).contains(r#""calls": 1"#), "{done}");
}

#[test]
fn suspended_calls_use_their_sessions_budget() {
    let home = Home::new();
    let servers = json!({ "toy": entry(&home, &["asks"]) });
    let d = Daemon::with(|plan| plan.home(&home).servers(&servers).env("SVC_BUDGET_REQUESTS", "4"));
    in_state(&d, "toy", "connected");
    let caller = d.session("s-1");
    let interview = json!({ "name": "toy__interview", "arguments": {} });
    let ask = |params: Value| modern(&caller, "tools/call", "toy__interview", params);
    let mut last = Value::Null;
    for _ in 0..2 {
        last = ask(interview.clone());
        assert_eq!(last["result"]["resultType"], "input_required", "{last}");
    }
    // The server is told that the client cannot be asked, and goes on.
    let refused = ask(interview.clone());
    assert!(refused.to_string().contains("budget.requests"), "{refused}");
    // An answered call frees capacity for another.
    let mut done = last;
    for _ in 0..2 {
        done = ask(with_answer(&interview, &done));
    }
    assert!(said(&done).contains("accept"), "{done}");
    let other = ask(interview.clone());
    assert_eq!(other["result"]["resultType"], "input_required", "{other}");
}

#[test]
fn revoked_token_gets_no_pending_prompt() {
    let home = Home::new();
    let d = with_servers(&home, &json!({ "toy": entry(&home, &[]) }));
    in_state(&d, "toy", "connected");
    let caller = d.session("s-1");
    let id = session(&caller, &json!({}));
    let file = home.user().join("go");
    let prompt = json!({ "name": "toy__greet", "arguments": { "file": file } });
    let request = json!({ "jsonrpc": "2.0", "id": 5, "method": "prompts/get", "params": prompt });
    let waiting = std::thread::spawn({
        // A stream would end with the token.
        let request = in_session(&caller, &id, &request).without("Accept");
        let request = request.header("Accept", "application/json");
        move || body(&request.send())
    });
    until(SOON, || home.user().join("go.begun").exists().then_some(()));
    let token = d.get("/v1/tokens").ok(200)["tokens"][0]["token_id"].clone();
    d.delete(&format!("/v1/tokens/{}", token.as_str().expect("an id"))).ok(200);
    std::fs::write(&file, "").expect("can be written");
    let answer = waiting.join().expect("it ended");
    assert!(answer.contains("unauthorized") && !answer.contains("a secret word"), "{answer}");
}

#[test]
fn child_task_is_awaited_and_cancelled() {
    let home = Home::new();
    let web = ToyHttp::start(ToyEra::Modern);
    web.toy.asks.store(true, SeqCst);
    let mut quick = entry(&home, &["tasks"]);
    quick["timeout"] = json!(300);
    let d = with_servers(
        &home,
        &json!({
            "toy": entry(&home, &["tasks"]), "quick": quick,
            "web": { "type": "http", "url": web.url() },
        }),
    );
    for name in ["toy", "quick", "web"] {
        in_state(&d, name, "connected");
    }
    let able = session(&d, &json!({ "elicitation": {} }));
    let dig = json!({ "name": "toy__dig", "arguments": { "value": "ask" } });
    let dug = asked_in_session(&d, &able, "tools/call", &dig);
    assert!(dug["content"][0]["text"].as_str().is_some_and(|it| it.contains(r#""n": 1"#)), "{dug}");
    assert_eq!(said(&call(&d, "toy__dig", &json!({}))), "dug deep");
    // A call that takes too long is cancelled.
    let error = failed(&call(&d, "quick__dig", &json!({ "value": "forever" })));
    assert!(error["message"].as_str().is_some_and(|text| text.contains("300 ms")), "{error}");
    let heard = || said(&call(&d, "quick__heard", &json!({})));
    until(SOON, || (heard().matches("tasks/cancel").count() == 1).then_some(()));
    let dig = json!({ "name": "web__dig", "arguments": {} });
    for dug in [
        asked_in_session(&d, &able, "tools/call", &dig),
        asked_in_rounds(&d, "tools/call", "web__dig", &dig),
    ] {
        let text = dug["content"][0]["text"].as_str().expect("a text");
        assert_eq!(
            serde_json::from_str::<Value>(text).expect("JSON"),
            json!({ "who": accepted() })
        );
    }
    assert_eq!(web.toy.cancelled.load(SeqCst), 0);
    // A task whose question cannot be answered is cancelled.
    failed(&call(&d, "web__dig", &json!({})));
    until(SOON, || (web.toy.cancelled.load(SeqCst) == 1).then_some(()));
}

#[test]
fn question_after_a_calls_end_reaches_no_other_session() {
    let home = Home::new();
    let mut shared = entry(&home, &[]);
    shared["sharing"] = json!("shared");
    let d = with_servers(&home, &json!({ "toy": shared }));
    in_state(&d, "toy", "connected");
    let file = home.user().join("now").display().to_string();
    assert_eq!(said(&call(&d.session("a"), "toy__later", &json!({ "value": file }))), "later");
    // The only call under way is that of b, whose client can be asked.
    let other = d.session("b");
    let id = session(&other, &json!({ "elicitation": {} }));
    let wait = json!({ "name": "toy__wait", "arguments": { "value": file } });
    let request = json!({ "jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": wait });
    let told = body(&in_session(&other, &id, &request).send());
    assert!(told.contains("-32603"), "{told}");
    assert!(!told.contains("well?"), "b is asked nothing: {told}");
}
