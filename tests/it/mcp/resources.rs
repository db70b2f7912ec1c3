//! Resources and prompts.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    Client, MODERN, call_states, finish, modern, post, refused, request, result, wait_for,
    with_client,
};
use crate::daemon::Daemon;
use crate::expect::{append, frame, new_task, with_task};

/// The JSON that a resource holds.
#[track_caller]
fn contents(answer: &Value, uri: &str) -> Value {
    let contents = answer["contents"].as_array().expect("contents");
    let [only] = contents.as_slice() else { panic!("one content: {answer}") };
    assert_eq!((&only["uri"], &only["mimeType"]), (&json!(uri), &json!("application/json")));
    serde_json::from_str(only["text"].as_str().expect("text")).expect("JSON")
}

fn seqs(page: &Value) -> Vec<u64> {
    let events = page["events"].as_array().expect("events");
    assert_eq!(page["count"], json!(events.len()), "{page}");
    events.iter().map(|event| event["seq"].as_u64().expect("a seq")).collect()
}

#[test]
fn every_public_stream_is_listed_page_by_page() {
    let d = Daemon::start();
    let client = Client::open(&d.reader("s-1"), "2025-11-25");
    let tasks: Vec<_> = (0..250).map(|_| new_task(&d)).collect();
    // A recorded call has a stream, too, which is no resource.
    let (_, mut call) = client.begin("TaskWait", &wait_for(&tasks[0]));
    finish(&d, &tasks[0]);
    call.answer();
    let (mut uris, mut params, mut pages) = (Vec::new(), json!({}), 0);
    loop {
        let page = client.ask("resources/list", &params);
        for resource in page["resources"].as_array().expect("resources") {
            assert!(resource["name"].is_string(), "{resource}");
            uris.push(resource["uri"].as_str().expect("a URI").to_owned());
        }
        pages += 1;
        match page.get("nextCursor") {
            Some(next) => params = json!({ "cursor": next }),
            None => break,
        }
    }
    assert!(pages >= 3, "{pages} pages");
    let known: BTreeSet<&str> = uris.iter().map(String::as_str).collect();
    assert_eq!(known.len(), uris.len(), "none twice");
    for task in &tasks {
        assert!(known.contains(format!("svc://stream/task/{task}").as_str()));
    }
    assert!(known.contains("svc://stream/daemon"));
    assert!(known.iter().all(|uri| !uri.contains("stream/mcp/")), "{known:?}");
    for bad in [json!("nonsense"), json!(3), json!("")] {
        let asked = client.post(&request(1, "resources/list", &json!({ "cursor": bad })));
        refused(&asked.send(), 200, -32602);
    }
    let templates = client.ask("resources/templates/list", &json!({}));
    let template = &templates["resourceTemplates"][0];
    assert_eq!(template["uriTemplate"], "svc://stream/{+name}{?after,limit}");
}

#[test]
fn stream_resource_is_read_in_pages() {
    let (d, task) = with_task();
    let lines: Vec<_> = (0..149).map(|n| frame(&format!("line {n}"))).collect();
    append(&d, &task, &json!(lines));
    let client = Client::open(&d.reader("s-1"), "2025-06-18");
    let read = |query: &str| {
        let uri = format!("svc://stream/task/{task}{query}");
        contents(&client.ask("resources/read", &json!({ "uri": uri })), &uri)
    };
    for (query, expected) in [
        ("", 51..=150),
        ("?limit=3", 148..=150),
        ("?after=0&limit=2", 1..=2),
        ("?after=140", 141..=150),
        ("?limit=500", 1..=150),
        ("?after=148&limit=1", 149..=149),
    ] {
        let page = read(query);
        assert_eq!(seqs(&page), expected.clone().collect::<Vec<u64>>(), "{query}");
        assert_eq!(page["next_after"], json!(expected.end()), "{query}");
        assert_eq!((&page["head"], &page["closed"]), (&json!(150), &json!(false)));
    }
    assert!(seqs(&read("?after=150")).is_empty());
    assert_eq!(read("?after=150")["next_after"], json!(150));
    finish(&d, &task);
    assert_eq!(read("?after=150")["closed"], json!(true));
    assert_eq!(read("?limit=1")["events"][0]["kind"], "terminal");
    for query in ["?after=x", "?after=-1", "?limit=x", "?limit=0", "?limit=501", "?limit=-1"] {
        let uri = format!("svc://stream/task/{task}{query}");
        let asked = client.post(&request(1, "resources/read", &json!({ "uri": uri })));
        refused(&asked.send(), 200, -32602);
    }
}

#[test]
fn missing_resource_has_the_error_of_its_era() {
    let (d, client) = with_client();
    let task = new_task(&d);
    let (_, mut call) = client.begin("TaskWait", &wait_for(&task));
    let primed = call.next();
    let (call_id, _) = primed.event_id().rsplit_once('.').expect("an id");
    finish(&d, &task);
    call.answer();
    assert_eq!(call_states(&d), ["completed"]);
    for uri in [
        "svc://stream/task/unknown",
        "svc://stream/",
        "svc://stream",
        "svc://other/team",
        "file:///etc/passwd",
        "nonsense",
        "",
        &format!("svc://stream/mcp/{call_id}"),
        &format!("svc://stream/m%63p/{call_id}"),
        &format!("svc://stream/mcp%2F{call_id}"),
        "svc://stream/%zz",
        "svc://stream/%ff",
    ] {
        let params = json!({ "uri": uri });
        for asked in [
            client.post(&request(1, "resources/read", &params)),
            post(&d, &request(1, "resources/read", &params)),
        ] {
            let error = refused(&asked.send(), 200, -32002);
            assert_eq!(error["data"]["uri"], json!(uri), "{error}");
        }
        let error = refused(&modern(&d, "resources/read", &params), 200, -32602);
        assert_eq!(error["data"]["uri"], json!(uri), "{MODERN} {error}");
    }
    for params in [json!({}), json!({ "uri": 3 }), json!({ "uri": null })] {
        let asked = client.post(&request(1, "resources/read", &params));
        refused(&asked.send(), 200, -32602);
    }
}

#[test]
fn prompts_are_listed_and_rendered() {
    let d = Daemon::start();
    let client = Client::open(&d.reader("s-1"), "2025-06-18");
    let list = client.ask("prompts/list", &json!({}));
    let prompts = list["prompts"].as_array().expect("prompts");
    for prompt in prompts {
        assert!(prompt["name"].is_string() && prompt["description"].is_string(), "{prompt}");
        assert!(prompt["arguments"].is_array(), "{prompt}");
    }
    let filled = client.ask("prompts/get", &json!({ "name": "servers" }));
    let message = &filled["messages"][0];
    assert_eq!((&message["role"], &message["content"]["type"]), (&json!("user"), &json!("text")));
    assert!(client.ask("prompts/get", &json!({ "name": "mcp" }))["messages"].is_array());
    for params in [
        json!({}),
        json!({ "name": "no_such_prompt" }),
        json!({ "name": "servers", "arguments": [] }),
    ] {
        refused(&client.post(&request(1, "prompts/get", &params)).send(), 200, -32602);
    }
    let one = result(&modern(&d, "prompts/get", &json!({ "name": "servers" })));
    assert_eq!(one["resultType"], "complete");
}
