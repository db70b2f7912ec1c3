//! What one principal reads, broadcasts, or leaves behind does not affect its neighbours.

use std::collections::HashSet;
use std::thread;

use serde_json::{Value, json};

use crate::budget::{refused, resident_of};
use crate::daemon::Daemon;
use crate::wire::{Caller, Reply};

const PAGE_BYTES: usize = 4 << 20;
const TOOL_PAGE_BYTES: usize = 128 << 10;

/// A session with a participant, and the participant's inbox.
fn sender(d: &Daemon, key: &str) -> (Caller, String) {
    let caller = d.session(key);
    let own = json!({ "display_name": key, "backend": "b", "session_id": key });
    let peer = caller.post("/v1/peers/register", &own).ok(200);
    let peer = peer["peer_id"].as_str().expect("an id").to_owned();
    (caller, format!("/v1/peers/{peer}/messages"))
}

fn broadcast(caller: &Caller, bytes: usize) -> Reply {
    caller.post("/v1/peers/broadcast", &json!({ "text": "x".repeat(bytes) }))
}

/// All pages of a list, each with the length of its response.
fn pages(caller: &Caller, path: &str, name: &str) -> Vec<(usize, Vec<Value>)> {
    let (mut pages, mut cursor) = (Vec::new(), String::new());
    loop {
        let mark = if path.contains('?') { '&' } else { '?' };
        let reply = caller.get(&format!("{path}{mark}limit=500{cursor}"));
        let page = reply.ok(200);
        let items = page[name].as_array().expect("items").clone();
        assert_eq!(page["count"], items.len(), "the page's own");
        pages.push((reply.body.len(), items));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return pages,
        }
    }
}

/// Asserts that no item is missing or repeated, and no page is longer than its bound.
#[track_caller]
fn complete(pages: &[(usize, Vec<Value>)], key: &str, count: usize, item_bytes: usize) {
    for (bytes, items) in pages {
        assert!(!items.is_empty(), "no page is empty");
        assert!(*bytes <= PAGE_BYTES + item_bytes, "{bytes} bytes in a page");
    }
    assert!(pages.len() > 1, "the list does not fit one page");
    let ids: Vec<&str> =
        pages.iter().flat_map(|(_, items)| items).filter_map(|item| item[key].as_str()).collect();
    assert_eq!(ids.len(), count);
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), count);
}

#[test]
fn broadcasts_of_one_sender_cannot_fill_inboxes() {
    let d = Daemon::start();
    let (greedy, _) = sender(&d, "greedy");
    let (receiver, inbox) = sender(&d, "receiver");
    let (third, _) = sender(&d, "third");
    for _ in 0..60 {
        broadcast(&greedy, 1_000_000).ok(200);
    }
    third.post(&inbox, &json!({ "text": "y".repeat(100_000) })).ok(200);
    broadcast(&third, 100_000).ok(200);
    d.post(&inbox, &json!({ "text": "the operator's" })).ok(200);
    // One page of messages has the bound of a page.
    let taken = receiver.get(&format!("{inbox}?limit=500"));
    assert!(taken.body.len() <= PAGE_BYTES + 1_000_000, "{}", taken.body.len());
    let taken = taken.ok(200)["messages"].as_array().expect("messages").len();
    assert!((1..=5).contains(&taken), "{taken}");
    // Messages that the page did not take are not leased.
    let next = receiver.get(&format!("{inbox}?limit=500")).ok(200);
    assert_eq!(next["messages"].as_array().map(Vec::len), Some(taken));
}

#[test]
fn broadcast_budget_is_checked_before_the_first_copy() {
    let d = Daemon::with(|plan| plan.env("SVC_BUDGET_STORED_BYTES_PER_HOUR", "500000"));
    let (greedy, _) = sender(&d, "greedy");
    let receivers: Vec<_> = (0..8).map(|number| sender(&d, &format!("r{number}"))).collect();
    broadcast(&greedy, 40_000).ok(200);
    refused(&broadcast(&greedy, 40_000), "stored_bytes_per_hour", "each copy of a broadcast");
    for (receiver, inbox) in &receivers {
        let messages = receiver.get(&format!("{inbox}?peek=true")).ok(200);
        assert_eq!(messages["count"], 1, "none of the second");
    }
    // One more copy fits, and a neighbour has its own hour.
    greedy.post(&receivers[0].1, &json!({ "text": "x".repeat(40_000) })).ok(200);
    broadcast(&receivers[0].0, 40_000).ok(200);

    let d = Daemon::with(|plan| plan.env("SVC_BUDGET_ROWS", "6"));
    let (greedy, _) = sender(&d, "greedy");
    let receivers: Vec<_> = (0..8).map(|number| sender(&d, &format!("r{number}"))).collect();
    refused(&broadcast(&greedy, 10), "rows", "acknowledge");
    for (receiver, inbox) in &receivers {
        let messages = receiver.get(&format!("{inbox}?peek=true")).ok(200);
        assert_eq!(messages["count"], 0, "not one copy was stored");
    }
    greedy.post(&receivers[0].1, &json!({ "text": "x" })).ok(200);
}

#[test]
fn session_that_a_call_opens_counts_as_a_row() {
    let d = Daemon::with(|plan| plan.env("SVC_BUDGET_ROWS", "6"));
    let agent = d.session("agent");
    let task = || agent.post("/v1/tasks", &json!({ "title": "t" }));
    for _ in 0..6 {
        task().ok(201);
    }
    let told = agent.tool("increment_tool_count", &json!({}));
    assert_eq!(told["structuredContent"]["error"]["reason"], "limit_reached", "{told}");
    d.get("/v1/sessions/agent").ok(404);
    // A session that is there costs nothing more.
    let id = agent.get("/v1/tasks?limit=1").ok(200)["tasks"][0]["task_id"].clone();
    let id = id.as_str().expect("an id");
    agent.post(&format!("/v1/tasks/{id}/cancel"), &json!({})).ok(200);
    for _ in 0..2 {
        agent.done("increment_tool_count", &json!({}));
    }
    refused(&task(), "rows", "");
}

#[test]
fn every_rest_list_bounds_its_pages_by_bytes() {
    let d = Daemon::start();
    let large = "x".repeat(900_000);
    for _ in 0..9 {
        d.post("/v1/tasks", &json!({ "title": "t", "prompt": large })).ok(201);
    }
    complete(&pages(&d, "/v1/tasks", "tasks"), "task_id", 9, 1_000_000);

    let (receiver, inbox) = sender(&d, "receiver");
    for _ in 0..9 {
        d.post(&inbox, &json!({ "text": large })).ok(200);
    }
    complete(&pages(&receiver, &format!("{inbox}?peek=true"), "messages"), "id", 9, 1_000_000);

    let metadata: serde_json::Map<String, Value> =
        (0..60).map(|number| (format!("key {number}"), "y".repeat(4000).into())).collect();
    for number in 0..30 {
        let peer = json!({ "display_name": format!("p{number}"), "backend": "b",
            "path": format!("/p{number}"), "metadata": metadata });
        d.post("/v1/peers/register", &peer).ok(200);
    }
    let listed = pages(&d, "/v1/peers", "peers");
    let count = listed.iter().map(|(_, items)| items.len()).sum();
    assert!(count >= 31, "{count}");
    complete(&listed, "peer_id", count, 300_000);
}

#[test]
fn model_page_is_shorter_and_an_oversized_item_comes_alone() {
    let d = Daemon::start();
    let agent = d.session("agent");
    let sizes = [40_000, 40_000, 40_000, 40_000, 300_000, 40_000, 40_000];
    for bytes in sizes {
        agent.post("/v1/tasks", &json!({ "title": "t", "prompt": "x".repeat(bytes) })).ok(201);
    }
    let (mut ids, mut cursor, mut largest) = (HashSet::new(), Value::Null, 0);
    loop {
        let mut arguments = json!({ "limit": 500 });
        if cursor.is_string() {
            arguments["cursor"] = cursor;
        }
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": { "name": "TaskList", "arguments": arguments } });
        let page = agent.post("/mcp", &call).ok(200)["result"]["structuredContent"].take();
        let tasks = page["tasks"].as_array().unwrap_or_else(|| panic!("{page}")).clone();
        let bytes = Value::from(tasks.clone()).to_string().len();
        assert!(bytes <= TOOL_PAGE_BYTES + 16 || tasks.len() == 1, "{bytes}");
        largest = largest.max(bytes);
        for task in &tasks {
            assert!(ids.insert(task["task_id"].to_string()), "comes once");
        }
        cursor = page["next_cursor"].clone();
        if !cursor.is_string() {
            break;
        }
    }
    assert_eq!(ids.len(), sizes.len());
    assert!(largest > 300_000, "the large one came");
}

#[test]
fn many_readers_of_long_lists_use_bounded_memory() {
    let d = Daemon::start();
    let prompt = "x".repeat(1_000_000);
    for _ in 0..40 {
        d.post("/v1/tasks", &json!({ "title": "t", "prompt": prompt })).ok(201);
    }
    let reader = d.reader("reader");
    let (neighbour, pid) = (d.session("neighbour"), d.pid());
    let most = thread::scope(|scope| {
        let loops: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let mut most = 0;
                    for _ in 0..6 {
                        let reply = reader.get("/v1/tasks?limit=500");
                        assert!(reply.body.len() <= PAGE_BYTES + 1_100_000);
                        reply.ok(200);
                        most = most.max(resident_of(pid));
                    }
                    most
                })
            })
            .collect();
        for _ in 0..20 {
            neighbour.post("/v1/tasks", &json!({ "title": "mine" })).ok(201);
        }
        loops.into_iter().map(|reading| reading.join().expect("reads")).max()
    });
    let most = most.expect("eight loops");
    assert!(most < 300 << 20, "{} MiB", most >> 20);
}
