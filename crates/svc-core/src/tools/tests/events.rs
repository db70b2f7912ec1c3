use std::sync::Arc;

use serde_json::{Value, json};
use svc_model::StreamName;
use svc_store::testing::{append, event};

use crate::tools::{
    ErrorType,
    testing::{World, each, eventually, nothing},
};

async fn add(world: &World, stream: &'static str, kind: &str) {
    append(world.services.store(), &StreamName::fixed(stream), vec![event(kind, "{\"n\":1}")])
        .await;
}

#[tokio::test]
async fn pages_by_cursor_return_every_event_once() {
    let world = World::open().await;
    let call = world.operator(None);
    for n in 0..10 {
        add(&world, if n % 2 == 0 { "team" } else { "task/t" }, if n < 6 { "a" } else { "b" })
            .await;
    }
    for (filter, total, last) in [
        (nothing(), 10, 10),
        (json!({ "prefix": "" }), 10, 10),
        (json!({ "prefix": "ta" }), 5, 10),
        (json!({ "prefix": "none" }), 0, 10),
        (json!({ "stream": "team" }), 5, 5),
        (json!({ "stream": "team", "kind": "b" }), 2, 5),
        (json!({ "kind": "a" }), 6, 10),
        (json!({ "kind": "none" }), 0, 10),
    ] {
        let (mut seen, mut after) = (Vec::new(), json!(0));
        loop {
            let mut arguments = filter.clone();
            arguments["after"] = after.clone();
            arguments["limit"] = json!(2);
            let page = world.call(&call, "events_read", arguments).await;
            after = page["next_after"].clone();
            assert_eq!(page["count"], json!(page["events"].as_array().unwrap().len()));
            if page["count"] == 0 {
                break;
            }
            seen.extend(each(&page["events"], "position"));
        }
        let mut sorted = seen.clone();
        sorted.sort_by_key(Value::as_i64);
        sorted.dedup();
        assert_eq!((seen.len(), &seen), (total, &sorted), "{filter}");
        assert_eq!(after, last, "{filter}: what was passed over is not looked at again");
    }
}

#[tokio::test]
async fn unreadable_streams_and_cursors_are_reported() {
    let world = World::open().await;
    let call = world.operator(None);
    add(&world, "team", "a").await;
    let both = json!({ "stream": "team", "prefix": "t" });
    let error = world.refuse(&call, "events_read", both, ErrorType::ValidationError).await;
    assert_eq!(error.field.as_deref(), Some("prefix"));
    for unknown in ["none", "task/../x", "ä", "a\"b"] {
        let arguments = json!({ "stream": unknown });
        world.refuse(&call, "events_read", arguments, ErrorType::NotFound).await;
    }
    // A cursor ahead of the log begins from the start, with a gap.
    for arguments in
        [json!({ "after": 99, "wait_s": 60 }), json!({ "after": u64::MAX, "stream": "team" })]
    {
        let page = world.call(&call, "events_read", arguments).await;
        assert_eq!(
            (&page["gap"]["reason"], &page["count"], &page["next_after"]),
            (&json!("ahead"), &json!(1), &json!(1))
        );
    }
}

#[tokio::test]
async fn a_wait_returns_the_next_matching_event() {
    let world = Arc::new(World::open().await);
    add(&world, "team", "a").await;
    for (filter, after) in [
        (json!({ "stream": "team", "kind": "b" }), 1),
        (json!({ "prefix": "te", "kind": "b" }), 1),
        (json!({ "kind": "b" }), 0),
    ] {
        let bound =
            world.call(&world.operator(None), "events_read", filter.clone()).await["next_after"]
                .clone();
        assert!(bound.as_i64() >= Some(after), "{filter}");
        let mut arguments = filter.clone();
        arguments["after"] = bound;
        arguments["wait_s"] = json!(60);
        let waiting = tokio::spawn({
            let (world, call) = (Arc::clone(&world), world.operator(None));
            async move { world.call(&call, "events_read", arguments).await }
        });
        eventually(|| world.services.store().bus().listeners() == 1).await;
        for _ in 0..20 {
            add(&world, "team", "a").await;
            add(&world, "daemon", "a").await;
        }
        assert!(!waiting.is_finished(), "{filter}");
        add(&world, "team", "b").await;
        let page = waiting.await.unwrap();
        assert_eq!(each(&page["events"], "kind"), ["b"], "{filter}");
    }
    assert_eq!(world.services.store().bus().listeners(), 0);
}

#[tokio::test]
async fn a_read_of_a_closed_stream_does_not_wait() {
    let world = World::open().await;
    let call = world.operator(None);
    let id = world.task().await;
    world.call(&call, "TaskCancel", json!({ "task_id": id })).await;
    let stream = format!("task/{id}");
    let page = world.call(&call, "events_read", json!({ "stream": stream })).await;
    assert_eq!((&page["count"], &page["closed"]), (&json!(2), &json!(true)));
    let after = json!({ "stream": stream, "after": 2, "wait_s": 60 });
    let page = world.call(&call, "events_read", after).await;
    assert_eq!(
        (&page["count"], &page["closed"], &page["next_after"]),
        (&json!(0), &json!(true), &json!(2))
    );
    // A repeated call keeps its deadline.
    let old = crate::tools::Call {
        started_at: call.started_at.minus(std::time::Duration::from_mins(1)),
        ..call
    };
    let page = world.call(&old, "events_read", json!({ "after": 2, "wait_s": 60 })).await;
    assert_eq!((&page["count"], page.get("closed")), (&json!(0), None));
}
