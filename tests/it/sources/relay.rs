//! Resources, templates, prompts and completions of servers by the protocol's own methods, and
//! results that are too large.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    SOON, body, call, entry, failed, in_session, in_state, of_project, said, session, with_servers,
};
use crate::daemon::{Daemon, Home, svc, until};
use crate::wire::Caller;

fn ask(caller: &Caller, method: &str, params: &Value) -> Value {
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    caller.request("POST", "/mcp").json(&request).send().ok(200)
}

/// The unparsed response.
fn raw(caller: &Caller, method: &str, params: &str) -> String {
    let request = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
    body(
        &caller
            .request("POST", "/mcp")
            .header("Content-Type", "application/json")
            .body(request)
            .send(),
    )
}

fn texts(list: &Value, member: &str) -> Vec<String> {
    let entries = list.as_array().expect("a list").iter();
    entries.map(|entry| entry[member].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn relayed_items_have_unique_names_and_unchanged_bytes() {
    let home = Home::new();
    let d = with_servers(&home, &json!({ "toy": entry(&home, &[]), "zoo": entry(&home, &[]) }));
    in_state(&d, "toy", "connected");
    in_state(&d, "zoo", "connected");
    let uris = texts(&ask(&d, "resources/list", &json!({}))["result"]["resources"], "uri");
    assert!(
        uris.contains(&"toy://one".to_owned()) && uris.contains(&"svc+zoo:toy://one".to_owned()),
        "{uris:?}"
    );
    let templates =
        ask(&d, "resources/templates/list", &json!({}))["result"]["resourceTemplates"].clone();
    let of = texts(&templates, "uriTemplate");
    assert!(
        of.contains(&"toy://item/{id}".to_owned())
            && of.contains(&"svc+zoo:toy://item/{id}".to_owned()),
        "{of:?}"
    );
    assert!(templates.to_string().contains(r#""x-own":1"#), "{templates}");
    let names = texts(&ask(&d, "prompts/list", &json!({}))["result"]["prompts"], "name");
    assert_eq!(names, ["servers", "toy__greet", "zoo__greet"]);
    let expected = r#""result":{"contents":[ {"uri":"toy://item/7","text":"\u0041","x":1.0} ]}}"#;
    for uri in ["toy://item/7", "svc+zoo:toy://item/7"] {
        let read = raw(&d, "resources/read", &json!({ "uri": uri }).to_string());
        assert!(read.ends_with(expected), "{read}");
    }
    let unknown = ask(&d, "resources/read", &json!({ "uri": "nobody://1" }));
    assert_eq!(unknown["error"]["data"]["uri"], "nobody://1", "{unknown}");
    let missing = ask(&d, "resources/read", &json!({ "uri": "toy://item/8" }));
    assert_eq!(missing["error"]["message"], "no toy://item/8", "{missing}");
    // The server gets the caller's bytes, with the server's own names.
    let got = raw(
        &d,
        "prompts/get",
        r#"{"name":"zoo__greet","arguments":{ "a":"\u0041" },"x-own": 1.50}"#,
    );
    assert!(got.contains(r#""result":{"messages":[ ],"x":1.0,"y":"#), "{got}");
    assert!(
        got.contains(r#"\"name\":\"greet\",\"arguments\":{ \"a\":\"\\u0041\" },\"x-own\":1.50"#),
        "{got}"
    );
    let prompt = json!({ "ref": { "type": "ref/prompt", "name": "toy__greet" }, "argument": { "name": "a", "value": "" } });
    let completed = raw(&d, "completion/complete", &prompt.to_string());
    assert!(
        completed.contains(r#"{"completion":{"values":["a"],"total":1.0}"#)
            && completed.contains(r#"\"name\":\"greet\""#),
        "{completed}"
    );
    let item = json!({ "ref": { "type": "ref/resource", "uri": "svc+zoo:toy://item/{id}" }, "argument": { "name": "id", "value": "" } });
    assert!(
        raw(&d, "completion/complete", &item.to_string())
            .contains(r#"\"uri\":\"toy://item/{id}\""#)
    );
    // By the listed name, and by the earlier one.
    for name in ["servers", "mcp"] {
        let shown = ask(&d, "prompts/get", &json!({ "name": name }));
        assert!(shown.to_string().contains("toy: connected, 20 tools"), "{shown}");
    }
    let listed = texts(&ask(&d, "prompts/list", &json!({}))["result"]["prompts"], "name");
    let has = |name: &str| listed.iter().any(|listed| listed == name);
    assert!(has("servers") && !has("mcp"), "{listed:?}");
    // The error says that the server is gone, and its lists stay.
    assert_eq!(failed(&call(&d, "toy__die", &json!({})))["type"], "unavailable");
    let down = ask(&d, "prompts/get", &json!({ "name": "toy__greet" }));
    assert!(down["error"].is_object() || down["result"]["x"] == 1.0, "{down}");
    assert!(
        texts(&ask(&d, "prompts/list", &json!({}))["result"]["prompts"], "name")
            .contains(&"toy__greet".to_owned())
    );
}

fn listen(caller: &Caller, session: &str) -> crate::wire::Sse {
    let request = caller.request("GET", "/mcp").header("Accept", "text/event-stream");
    let request = request.header("Mcp-Session-Id", session);
    let request = request.header("MCP-Protocol-Version", "2025-11-25");
    request.follow().expect("an answer").expect("a stream")
}

#[test]
fn change_of_the_tools_is_told_once() {
    const SILENCE: Duration = Duration::from_secs(1);
    let home = Home::new();
    let d = with_servers(&home, &json!({ "toy": entry(&home, &[]) }));
    in_state(&d, "toy", "connected");
    // A session is shown few tools, but finds the server's. Its folder has a plan of its own.
    let agent = of_project(&d, "s-1", &home.project().display().to_string());
    let mut streams = [&*d, &agent].map(|caller| {
        let id = session(caller, &json!({}));
        let list = json!({ "jsonrpc": "2.0", "id": 3, "method": "tools/list", "params": {} });
        in_session(caller, &id, &list).send().ok(200);
        listen(caller, &id)
    });
    let mut told = || {
        streams.each_mut().map(|stream| {
            stream.set_timeout(SILENCE);
            let mut count = 0;
            while let Ok(block) = stream.block() {
                let data = block.expect("it goes on").data.join("");
                count += usize::from(data.contains("notifications/tools/list_changed"));
            }
            count
        })
    };
    assert_eq!(told(), [0, 0]);
    svc(&home, &["mcp", "disable", "toy"]).ok();
    in_state(&d, "toy", "disabled");
    assert_eq!(told(), [1, 1], "disabled");
    svc(&home, &["mcp", "enable", "toy"]).ok();
    in_state(&d, "toy", "connected");
    assert_eq!(told(), [1, 1], "enabled");
    let script = super::toy(&home).display().to_string();
    svc(&home, &["mcp", "add", "other", "--", "python3", &script]).ok();
    in_state(&d, "other", "connected");
    assert_eq!(told(), [1, 1], "added");
    svc(&home, &["mcp", "reconnect", "other"]).ok();
    in_state(&d, "other", "connected");
    assert_eq!(told(), [0, 0], "nothing that a client lists or finds");
}

#[test]
fn resource_subscription_survives_a_server_restart() {
    let home = Home::new();
    let d = with_servers(&home, &json!({ "toy": entry(&home, &[]) }));
    in_state(&d, "toy", "connected");
    let id = session(&d, &json!({}));
    let in_it = |method: &str, params: Value| {
        let request = json!({ "jsonrpc": "2.0", "id": 3, "method": method, "params": params });
        in_session(&d, &id, &request).send().json()
    };
    let subscribed = in_it("resources/subscribe", json!({ "uri": "toy://one" }));
    assert_eq!(subscribed["result"], json!({}), "{subscribed}");
    let refused = in_it("resources/subscribe", json!({ "uri": "toy://item/7" }));
    assert_eq!(refused["error"]["code"], -32002, "{refused}");
    let mut stream = listen(&d, &id);
    let mut hear = |method: &str, uri: Option<&str>| loop {
        let block = stream.block().expect("a stream").expect("it goes on");
        let Ok(note) = serde_json::from_str::<Value>(&block.data.join("\n")) else { continue };
        if note["method"] == method && uri.is_none_or(|uri| note["params"]["uri"] == uri) {
            return;
        }
    };
    call(&d, "toy__touch", &json!({ "value": "toy://other" }));
    call(&d, "toy__touch", &json!({ "value": "toy://one" }));
    hear("notifications/resources/updated", Some("toy://one"));
    call(&d, "toy__teach", &json!({ "value": "sing" }));
    hear("notifications/prompts/list_changed", None);
    until(SOON, || {
        texts(&ask(&d, "prompts/list", &json!({}))["result"]["prompts"], "name")
            .contains(&"toy__sing".to_owned())
            .then_some(())
    });
    call(&d, "toy__die", &json!({}));
    // It may have changed while its server was away.
    hear("notifications/resources/updated", Some("toy://one"));
    in_state(&d, "toy", "connected");
    let ended = in_it("resources/unsubscribe", json!({ "uri": "toy://one" }));
    assert_eq!(ended["result"], json!({}), "{ended}");
    assert_eq!(
        said(&call(&d, "toy__heard", &json!({}))),
        "resources/subscribe resources/unsubscribe"
    );
}

#[test]
fn large_result_is_a_resource_for_its_caller_and_project() {
    let home = Home::new();
    home.write("config.toml", "[sources]\nmax_result_bytes = 10000\nmax_kept_bytes = 70000\n");
    let mut shared = entry(&home, &[]);
    shared["sharing"] = json!("shared");
    let d = with_servers(&home, &json!({ "toy": shared }));
    in_state(&d, "toy", "connected");
    let agents = [("one", "/p"), ("two", "/p"), ("three", "/q")]
        .map(|(name, project)| of_project(&d, name, project));
    let small = call(&agents[0], "toy__big", &json!({ "value": "9000" }));
    assert_eq!(said(&small).len(), 9000);
    let large = call(&agents[0], "toy__big", &json!({ "value": "20000" }));
    assert_eq!(said(&large).chars().count(), 2000, "{large}");
    let uri = large["result"]["structuredContent"]["uri"].as_str().expect("a URI").to_owned();
    assert!(uri.starts_with("svc://result/"), "{uri}");
    assert_eq!(
        (&large["result"]["content"][1]["type"], &large["result"]["content"][1]["uri"]),
        (&json!("resource_link"), &json!(uri))
    );
    let bytes = large["result"]["structuredContent"]["bytes"].as_u64().expect("a number");
    for (caller, may) in [(&agents[0], true), (&agents[1], true), (&agents[2], false), (&*d, true)]
    {
        let read = ask(caller, "resources/read", &json!({ "uri": uri }));
        let text = read["result"]["contents"][0]["text"].as_str().map(str::to_owned);
        assert_eq!(text.is_some(), may, "{read}");
        if let Some(text) = text {
            assert_eq!(text.len() as u64, bytes);
            let whole: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(whole["content"][0]["text"].as_str().map(str::len), Some(20_000));
        }
    }
    let listed =
        texts(&ask(&agents[0], "resources/list", &json!({}))["result"]["resources"], "uri");
    assert!(listed.contains(&uri), "{listed:?}");
    let file = call(&agents[0], "ReadMcpResource", &json!({ "server": "svc", "uri": uri }));
    assert_eq!(file["result"]["structuredContent"]["contents"][0]["size"], bytes, "{file}");
    // The quota of one principal: the oldest results are evicted.
    for _ in 0..3 {
        call(&agents[0], "toy__big", &json!({ "value": "20000" }));
    }
    let gone = ask(&agents[0], "resources/read", &json!({ "uri": uri }));
    assert!(gone["error"].is_object(), "{gone}");
}

#[test]
fn many_tools_are_listed_and_searchable() {
    let home = Home::new();
    let d: Daemon = with_servers(&home, &json!({ "many": entry(&home, &["many"]) }));
    let row = in_state(&d, "many", "connected");
    assert_eq!(row["warnings"], json!(["it has more than 1000 tools: the others are left out"]));
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let list = d.request("POST", "/mcp").header("Svc-Expose", "all").json(&list).send().json();
    let names = texts(&list["result"]["tools"], "name");
    assert_eq!(names.iter().filter(|name| name.starts_with("many__")).count(), 1000);
    let hits = call(&d, "ToolSearch", &json!({ "query": "widget 777", "limit": 1 }));
    assert_eq!(
        hits["result"]["structuredContent"]["tools"][0]["name"], "many__widget_777",
        "{hits}"
    );
    assert_eq!(said(&call(&d, "many__widget_777", &json!({}))), "called widget_777");
}
