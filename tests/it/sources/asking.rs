//! What servers ask on the way to a prompt, a resource or the end of a task reaches the session that wants it.

use std::sync::atomic::Ordering::SeqCst;

use serde_json::{Value, json};

use super::toy_http::{ToyEra, ToyHttp};
use super::{SOON, body, call, entry, failed, in_session, in_state, said, session, with_servers};
use crate::daemon::{Home, until};
use crate::wire::Caller;

fn accepted() -> Value {
    json!({ "action": "accept", "content": { "n": 1 } })
}

/// Makes a request in a session that can be asked, answers the question that comes, and gives the result.
#[track_caller]
fn asked_in_session(caller: &Caller, id: &str, method: &str, params: &Value) -> Value {
    let request = json!({ "jsonrpc": "2.0", "id": 5, "method": method, "params": params });
    let mut stream =
        in_session(caller, id, &request).follow().expect("an answer").expect("a stream");
    let question = stream.event().data;
    assert_eq!(
        (&question["method"], &question["params"]["message"]),
        (&json!("elicitation/create"), &json!("well?")),
        "{question}"
    );
    let answer = json!({ "jsonrpc": "2.0", "id": question["id"], "result": accepted() });
    assert_eq!(in_session(caller, id, &answer).send().status(), 202);
    stream.event().data["result"].clone()
}

/// A request of a client without sessions that can be asked.
fn modern(caller: &Caller, method: &str, name: &str, mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": { "elicitation": {} },
    });
    let request = json!({ "jsonrpc": "2.0", "id": 6, "method": method, "params": params });
    let reply = caller
        .request("POST", "/mcp")
        .header("Accept", super::BOTH)
        .header("MCP-Protocol-Version", "2026-07-28")
        .header("Mcp-Method", method)
        .header("Mcp-Name", name)
        .json(&request)
        .send();
    let text = body(&reply);
    let last = text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back();
    serde_json::from_str(last.unwrap_or(&text)).expect("JSON")
}

/// Two rounds of such a client: the question, and the request again with its answer. Gives the result.
#[track_caller]
fn asked_in_rounds(caller: &Caller, method: &str, name: &str, params: &Value) -> Value {
    let first = modern(caller, method, name, params.clone())["result"].clone();
    assert_eq!(first["resultType"], "input_required", "{first}");
    let requests = first["inputRequests"].as_object().expect("questions");
    let (key, question) = requests.iter().next().expect("a question");
    assert_eq!(question["params"]["message"], "well?", "{first}");
    let mut again = params.clone();
    again["inputResponses"] = json!({ key: accepted() });
    again["requestState"] = first["requestState"].clone();
    modern(caller, method, name, again)["result"].clone()
}

#[test]
fn prompts_and_resources_ask_the_session_that_wants_them() {
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
    // Nobody can be asked: the server hears it, and does what it does then.
    let plain = session(&d, &json!({}));
    let request = json!({ "jsonrpc": "2.0", "id": 5, "method": "prompts/get", "params": prompt });
    let refused = body(&in_session(&d, &plain, &request).send());
    assert!(refused.contains("cannot answer elicitation/create"), "{refused}");
    let unknown = json!({ "jsonrpc": "2.0", "id": 5, "method": "prompts/get", "params": { "name": "web__none" } });
    let unknown = body(&in_session(&d, &plain, &unknown).send());
    assert!(unknown.contains("Unknown prompt"), "{unknown}");
}

#[test]
fn who_loses_its_token_gets_no_prompt_that_it_waits_for() {
    let home = Home::new();
    let d = with_servers(&home, &json!({ "toy": entry(&home, &[]) }));
    in_state(&d, "toy", "connected");
    let caller = d.session("s-1");
    let id = session(&caller, &json!({}));
    let file = home.user().join("go");
    let prompt = json!({ "name": "toy__greet", "arguments": { "file": file } });
    let request = json!({ "jsonrpc": "2.0", "id": 5, "method": "prompts/get", "params": prompt });
    let waiting = std::thread::spawn({
        let request = in_session(&caller, &id, &request);
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
fn a_task_of_a_server_is_waited_for_and_cancelled() {
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
    // One that takes too long is cancelled.
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
    // A task whose question nobody can answer is of no use.
    failed(&call(&d, "web__dig", &json!({})));
    until(SOON, || (web.toy.cancelled.load(SeqCst) == 1).then_some(()));
}

#[test]
fn a_question_about_a_call_that_has_ended_reaches_no_other_session() {
    let home = Home::new();
    let mut shared = entry(&home, &[]);
    shared["sharing"] = json!("shared");
    let d = with_servers(&home, &json!({ "toy": shared }));
    in_state(&d, "toy", "connected");
    let file = home.user().join("now").display().to_string();
    assert_eq!(said(&call(&d.session("a"), "toy__later", &json!({ "value": file }))), "later");
    // The only call under way is that of b, whose client could be asked.
    let other = d.session("b");
    let id = session(&other, &json!({ "elicitation": {} }));
    let wait = json!({ "name": "toy__wait", "arguments": { "value": file } });
    let request = json!({ "jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": wait });
    let told = body(&in_session(&other, &id, &request).send());
    assert!(told.contains("-32603"), "{told}");
    assert!(!told.contains("well?"), "b is asked nothing: {told}");
}
