//! Notifications for a legacy client, on the standalone stream of its session.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{
    Client, LEGACY, SOON, Stream, finish, request, result, subscribers, wait_for, with_client,
};
use crate::daemon::{Daemon, eventually, quickly};
use crate::expect::{append, frame, new_task};

const LIST_CHANGED: &str = "notifications/resources/list_changed";
const UPDATED: &str = "notifications/resources/updated";

fn uri(task: &str) -> String {
    format!("svc://stream/task/{task}")
}

#[track_caller]
fn subscribe(client: &Client, uri: &str) {
    assert_eq!(client.ask("resources/subscribe", &json!({ "uri": uri })), json!({}));
}

#[test]
fn standalone_stream_begins_at_once_in_every_revision() {
    let d = Daemon::start();
    for revision in LEGACY {
        let client = Client::open(&d, revision);
        let mut first = None;
        quickly(Duration::from_secs(5), || {
            let asked = Instant::now();
            first = client.listen(None).block();
            asked.elapsed()
        });
        let first = first.expect("a first block");
        if revision == "2025-11-25" {
            assert_eq!((first.id.is_some(), first.data), (true, vec![String::new()]));
        } else {
            assert!(first.comment.is_some() && first.data.is_empty(), "{first:?}");
        }
        let asked = client.listen_request(None).without("Accept");
        for accept in [
            None,
            Some("*/*"),
            Some("application/json"),
            Some("text/event-stream, application/json"),
        ] {
            let asked = match accept {
                None => asked.clone(),
                Some(accept) => asked.clone().header("Accept", accept),
            };
            drop(Stream::open(&asked));
        }
    }
}

#[test]
fn list_changed_notifications_are_rate_limited() {
    const INTERVAL: Duration = Duration::from_secs(6);
    // On a machine that is too busy for twenty tasks in an interval, the test begins anew.
    let was_quick = (0..5).any(|_| {
        let d =
            Daemon::with(|plan| plan.env("SVC_LIST_CHANGED_MS", &INTERVAL.as_millis().to_string()));
        let clients = LEGACY.map(|revision| Client::open(&d, revision));
        let mut streams: Vec<_> = clients.iter().map(|client| client.listen(None)).collect();
        let began = Instant::now();
        new_task(&d);
        for stream in &mut streams {
            let told = stream.news(LIST_CHANGED);
            assert_eq!(told.id, None, "there is nothing to go back to");
        }
        for _ in 0..20 {
            new_task(&d);
        }
        let are_in_one_interval = began.elapsed() < INTERVAL;
        for stream in &mut streams {
            stream.news(LIST_CHANGED);
        }
        // The first came after the beginning, so this holds on a busy machine, too.
        assert!(began.elapsed() > INTERVAL / 2, "one for all of them, after a while");
        if are_in_one_interval {
            for stream in &mut streams {
                stream.is_silent();
            }
        }
        are_in_one_interval
    });
    assert!(was_quick, "each time, twenty tasks took longer than an interval");
}

#[test]
fn call_stream_does_not_change_the_resource_list() {
    let d = Daemon::with(|plan| plan.env("SVC_LIST_CHANGED_MS", "1"));
    let client = Client::open(&d, "2025-11-25");
    let task = new_task(&d);
    let other = Client::open(&d, "2025-06-18");
    let mut stream = client.listen(None);
    stream.next();
    let (_, mut call) = other.begin("TaskWait", &wait_for(&task));
    finish(&d, &task);
    call.answer();
    stream.is_silent();
}

#[test]
fn subscriber_gets_resource_updates() {
    let (d, client) = with_client();
    let (one, two) = (new_task(&d), new_task(&d));
    let mut stream = client.listen(None);
    // While the stream is open.
    subscribe(&client, &uri(&one));
    append(&d, &two, &frame("not for us"));
    append(&d, &one, &frame("a"));
    let told = stream.news(UPDATED);
    assert_eq!(told.json["params"], json!({ "uri": uri(&one) }));
    assert!(told.id.is_some());
    // Other clients have their own.
    let mut other = Client::open(&d, "2025-11-25").listen(None);
    subscribe(&client, &uri(&two));
    append(&d, &two, &frame("b"));
    assert_eq!(stream.news(UPDATED).json["params"]["uri"], json!(uri(&two)));
    let unsubscribed = client.ask("resources/unsubscribe", &json!({ "uri": uri(&one) }));
    assert_eq!(unsubscribed, json!({}));
    append(&d, &one, &frame("c"));
    append(&d, &two, &frame("d"));
    assert_eq!(stream.news(UPDATED).json["params"]["uri"], json!(uri(&two)));
    while let Some(block) = {
        other.0.set_timeout(super::SILENCE);
        other.0.block().ok().flatten()
    } {
        assert!(!block.data.concat().contains("updated"), "{block:?}");
    }
    // A new stream need not repeat earlier notifications.
    let mut again = client.listen(None);
    again.next();
    again.is_silent();
    // Resources that cannot be subscribed to.
    for (uri, code) in [
        (json!("file:///etc/passwd"), -32002),
        (json!("svc://stream/"), -32002),
        (json!("svc://stream/mcp/x"), -32002),
        (json!(3), -32602),
    ] {
        let asked = client.post(&request(1, "resources/subscribe", &json!({ "uri": uri })));
        super::refused(&asked.send(), 200, code);
    }
    let bare = super::post(&d, &request(1, "resources/subscribe", &json!({ "uri": uri(&one) })));
    super::refused(&bare.send(), 200, -32602);
}

#[test]
fn changes_while_disconnected_are_reported_on_reconnect() {
    let (d, client) = with_client();
    let tasks: Vec<_> = (0..3).map(|_| new_task(&d)).collect();
    for task in &tasks {
        subscribe(&client, &uri(task));
    }
    let mut stream = client.listen(None);
    let mut last = stream.next();
    for round in 0..3 {
        stream.knife().cut();
        stream.is_over();
        append(&d, &tasks[0], &json!([frame("a"), frame("b")]));
        append(&d, &tasks[2], &frame("c"));
        stream = client.listen(Some(last.event_id()));
        assert_eq!(stream.next().id, last.id, "round {round}");
        let told = [stream.news(UPDATED), stream.news(UPDATED)];
        let uris = told.clone().map(|told| told.json["params"]["uri"].clone());
        assert_eq!(uris, [json!(uri(&tasks[0])), json!(uri(&tasks[2]))]);
        // Resumed after the first, the second still follows.
        let mut half = client.listen(Some(told[0].event_id()));
        assert_eq!(half.news(UPDATED).json["params"]["uri"], json!(uri(&tasks[2])));
        half.is_silent();
        last = told[1].clone();
        stream = client.listen(Some(last.event_id()));
        stream.next();
        stream.is_silent();
    }
}

#[test]
fn cursor_beyond_the_end_counts_as_the_end() {
    let (d, client) = with_client();
    let task = new_task(&d);
    subscribe(&client, &uri(&task));
    let beyond = format!("{}.999999", client.session);
    let mut stream = client.listen(Some(&beyond));
    let first = stream.next();
    assert_ne!(first.event_id(), beyond);
    stream.knife().cut();
    append(&d, &task, &frame("a"));
    let mut again = client.listen(Some(first.event_id()));
    assert_eq!(again.news(UPDATED).json["params"]["uri"], json!(uri(&task)));
}

#[test]
fn two_subscriptions_of_one_stream_both_get_updates_across_a_cut() {
    let (d, client) = with_client();
    let task = new_task(&d);
    let views = [uri(&task), format!("{}?limit=1", uri(&task))];
    for view in &views {
        subscribe(&client, view);
    }
    let mut stream = client.listen(None);
    let primed = stream.next();
    append(&d, &task, &frame("a"));
    let told = [stream.news(UPDATED), stream.news(UPDATED)];
    let uris: Vec<&Value> = told.iter().map(|told| &told.json["params"]["uri"]).collect();
    assert_eq!(json!(uris), json!(views));
    // A client whose stream broke after the first resumes with the last id that it saw.
    let seen = told[0].id.as_deref().unwrap_or_else(|| primed.event_id());
    let mut again = client.listen(Some(seen));
    let mut missing = again.news(UPDATED);
    if missing.json["params"]["uri"] == json!(views[0]) {
        missing = again.news(UPDATED);
    }
    assert_eq!(missing.json["params"]["uri"], json!(views[1]));
}

#[test]
fn cursor_of_another_session_is_ignored() {
    let (d, client) = with_client();
    let mut stream = client.listen(None);
    let primed = stream.next();
    let other = Client::open(&d, "2025-11-25");
    let reply = other.no_stream(Some(primed.event_id()));
    assert_eq!(reply.status(), 404, "{reply:?}");
    let reply = client.of(&d.session("s-1")).no_stream(Some(primed.event_id()));
    assert_eq!(reply.status(), 404, "{reply:?}");
    let mut again = client.listen(Some(primed.event_id()));
    assert_eq!(again.next(), primed);
}

#[test]
fn later_listener_replaces_the_earlier() {
    let (d, client) = with_client();
    let before = subscribers(&d);
    let mut streams: Vec<_> = (0..5).map(|_| client.listen(None)).collect();
    let mut last = streams.pop().expect("five");
    for stream in &mut streams {
        assert!(stream.rest().iter().all(|message| message.json.is_null()), "a clean end");
    }
    new_task(&d);
    last.news(LIST_CHANGED);
    drop(last);
    eventually(SOON, || subscribers(&d) <= before);
}

#[test]
fn stalled_listener_delays_no_other() {
    let d = Daemon::with(|plan| plan.env("SVC_LIST_CHANGED_MS", "1"));
    let client = Client::open(&d, "2025-11-25");
    let task = new_task(&d);
    subscribe(&client, &uri(&task));
    let stalled = client.listen(None);
    // The same for a call's stream that nobody reads: its messages are on the wire and in the log.
    let mut params = super::tool("TaskNotify", &json!({ "task_ids": [task], "timeout_s": 600 }));
    params["_meta"] = json!({ "progressToken": "p" });
    let (id, mut unread) = client.begin_with(&params);
    let lines: Vec<_> = (0..100).map(|n| frame(&format!("{n} {}", "x".repeat(100)))).collect();
    for _ in 0..50 {
        append(&d, &task, &json!(lines));
        new_task(&d);
        quickly(Duration::from_secs(5), || {
            let asked = Instant::now();
            result(&client.post(&request("p", "ping", &json!({}))).send());
            asked.elapsed()
        });
    }
    client.ask("resources/read", &json!({ "uri": uri(&task) }));
    finish(&d, &task);
    let answer = unread.answer().json;
    assert_eq!(answer["id"], json!(id));
    drop(stalled);
}
