//! Tasks: appends, ends and lists.

use serde_json::{Value, json};

use super::{
    Client,
    shapes::{all_pages, append, done, each, frame, instant, invalid, new_task, page, text},
};

fn status_event(status: &str) -> Value {
    json!({ "kind": "task", "data": { "status": status, "runner": { "pid": 1 } } })
}

fn terminal(status: &str) -> Value {
    json!({ "kind": "terminal", "data": { "status": status } })
}

#[track_caller]
fn task(client: &Client, id: &str) -> Value {
    client.get(&format!("/v1/tasks/{id}")).ok(200)
}

#[track_caller]
fn events(client: &Client, id: &str) -> Vec<Value> {
    all_pages(client, &format!("/v1/events?stream=task/{id}&limit=500"), "events", "after")
}

#[test]
fn appended_ids_have_no_gap_for_any_batch_size() {
    let d = Client::start();
    let id = new_task(&d);
    assert_eq!(append(&d, &id, &frame("one")), (2, 2));
    assert_eq!(append(&d, &id, &json!([frame("two")])), (3, 3));
    let many: Vec<_> = (0..1_000).map(|n| frame(&n.to_string())).collect();
    assert_eq!(append(&d, &id, &json!(many)), (4, 1_003));
    let path = format!("/v1/tasks/{id}/events");
    let too_many: Vec<_> = (0..1_001).map(|n| frame(&n.to_string())).collect();
    let reply = d.post(&path, &json!(too_many));
    assert!(matches!(reply.status, 413 | 422), "{reply:?}");
    assert_eq!(d.post(&path, &json!([])).status, 422, "nothing is no event");
    // If one event of a batch is bad, none is stored.
    let bad = json!([frame("good"), { "kind": "frame", "data": {} }]);
    assert_eq!(d.post(&path, &bad).status, 422);
    assert_eq!(append(&d, &id, &frame("last")), (1_004, 1_004));

    let stored = events(&d, &id);
    let seqs: Vec<_> = stored.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=1_004).collect::<Vec<_>>());
    let positions: Vec<_> =
        stored.iter().map(|event| event["position"].as_u64().unwrap()).collect();
    assert!(positions.is_sorted_by(|a, b| a < b));
    assert_eq!(stored[3]["data"]["line"], "0");
    assert_eq!(stored[1_002]["data"]["line"], "999");
    assert_eq!(task(&d, &id)["last_id"], 1_004);
    assert_eq!(task(&d, &id)["status"], "pending", "frames never change the status");
}

#[test]
fn frame_keeps_its_bytes_and_gets_a_time() {
    let d = Client::start();
    let id = new_task(&d);
    let line = "\u{1b}[31mred\u{1}\u{2028}\"\\ 🦀 \r\n\ttail  ";
    let mut stderr = frame(line);
    stderr["data"]["kind"] = json!("stderr");
    let mut dated = frame("");
    dated["data"]["ts"] = json!("2020-01-02T03:04:05.678Z");
    append(&d, &id, &json!([stderr, dated, frame("plain")]));
    let stored = events(&d, &id);
    assert_eq!(stored[1]["data"]["line"], json!(line));
    assert_eq!(stored[1]["data"]["kind"], "stderr");
    assert_eq!(stored[1]["data"]["task_id"], json!(id));
    assert_eq!(stored[2]["data"]["ts"], "2020-01-02T03:04:05.678Z");
    assert_eq!(stored[2]["data"]["line"], "", "an empty line is a line");
    instant(&stored[3]["data"]["ts"]);
}

#[test]
fn event_after_the_terminal_one_in_a_batch_is_refused() {
    let d = Client::start();
    let id = new_task(&d);
    let reply =
        d.post(&format!("/v1/tasks/{id}/events"), &json!([frame("a"), done(), frame("late")]));
    assert!(matches!(reply.status, 409 | 422), "{reply:?}");
    assert_eq!(task(&d, &id)["last_id"], 1, "none of it is stored");
    assert_eq!(append(&d, &id, &json!([frame("a"), done()])), (2, 3));
}

#[test]
fn task_keeps_how_it_ended() {
    let d = Client::start();
    let table = [
        json!({ "status": "done", "exit_code": 0 }),
        json!({ "status": "failed", "exit_code": 3, "error": "it said \"no\"" }),
        json!({ "status": "failed", "signal": "SIGKILL" }),
        json!({ "status": "cancelled" }),
        json!({ "status": "expired", "error": "too late" }),
    ];
    for data in table {
        let id = new_task(&d);
        append(&d, &id, &json!([status_event("active"), { "kind": "terminal", "data": data }]));
        let task = task(&d, &id);
        for (name, value) in data.as_object().unwrap() {
            assert_eq!(&task[name], value, "{name}");
        }
        assert_eq!(instant(&task["closed_at"]), instant(&task["updated_at"]));
        let last = events(&d, &id).pop().unwrap();
        assert_eq!(last["kind"], "terminal");
        assert_eq!(last["data"]["status"], data["status"], "the event holds the task: {last}");
        assert_eq!(last["data"]["task_id"], json!(id), "the event holds the task: {last}");
    }
}

#[test]
fn task_list_filters_by_every_field_and_by_time() {
    let d = Client::start();
    let make = |title: &str, agent: &str, from: &str, end: Option<Value>| {
        let body = json!({ "title": title, "agent": agent, "from": from });
        let made = d.post("/v1/tasks", &body).ok(201);
        if let Some(end) = end {
            append(&d, &text(&made, "task_id"), &end);
        }
        made
    };
    make("a", "claude", "me", None);
    make("b", "claude", "you", Some(done()));
    make("c", "codex", "me", Some(terminal("failed")));
    make("d", "codex", "you", Some(status_event("active")));
    let titles = |query: &str| {
        let mut titles = each(&page(&d.get(&format!("/v1/tasks?{query}")), "tasks"), "title");
        titles.sort();
        titles
    };
    let table: [(&str, &[&str]); 9] = [
        ("", &["a", "b", "c", "d"]),
        ("status=pending", &["a"]),
        ("status=done", &["b"]),
        ("status=active", &["d"]),
        ("agent=codex", &["c", "d"]),
        ("from=me", &["a", "c"]),
        ("agent=codex&from=me", &["c"]),
        ("agent=codex&status=done", &[]),
        ("agent=nobody", &[]),
    ];
    for (query, wanted) in table {
        assert_eq!(titles(query), wanted, "{query}");
    }
    assert_eq!(titles("since=1970-01-01T00:00:00.000Z").len(), 4);
    assert_eq!(titles("since=1970-01-01T00:00:00Z").len(), 4);
    assert_eq!(titles("since=2999-01-01T00:00:00.000Z").len(), 0);
    for garbage in ["yesterday", "5", "2020-13-01T00:00:00Z"] {
        invalid(&d.get(&format!("/v1/tasks?since={garbage}")), "since");
    }
    let whole = each(&page(&d.get("/v1/tasks"), "tasks"), "task_id");
    let paged = all_pages(&d, "/v1/tasks?limit=1", "tasks", "cursor");
    assert_eq!(each(&paged, "task_id"), whole, "pages are the list");
}
