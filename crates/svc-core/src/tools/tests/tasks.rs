use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use svc_model::{Caller, FrameKind, NewTask, TaskChange, TaskEvent, TaskEventBody, TaskStatus};

use crate::tools::{
    Call, ErrorType,
    testing::{World, each, eventually, nothing, text},
};

async fn frame(world: &World, task: &str, line: &str) {
    let body = TaskEventBody::Frame { line: line.to_owned(), kind: FrameKind::Stdout, ts: None };
    let events = vec![TaskEvent { producer_id: None, body }];
    world.services.tasks.append_task_events(&Caller::Operator, task, events).await.unwrap();
}

async fn end(world: &World, task: &str, status: TaskStatus) {
    let mut change = TaskChange::to(status, None);
    change.report.exit_code = Some(0);
    let events = vec![TaskEvent { producer_id: None, body: TaskEventBody::Change(change) }];
    world.services.tasks.append_task_events(&Caller::Operator, task, events).await.unwrap();
}

fn listeners(world: &World) -> usize {
    world.services.store().bus().listeners()
}

#[tokio::test]
async fn a_task_is_returned_with_the_last_lines_of_its_output() {
    let world = World::open().await;
    let call = world.operator(None);
    let id = world.task().await;
    for n in 0..5 {
        frame(&world, &id, &n.to_string()).await;
    }
    let found = world.call(&call, "TaskGet", json!({ "task_id": id })).await;
    assert_eq!((text(&found["task"], "status"), &found["frames"]), ("pending".into(), &json!([])));
    let found = world.call(&call, "TaskGet", json!({ "task_id": id, "frames": 2 })).await;
    assert_eq!(each(&found["frames"], "line"), ["3", "4"]);
    assert_eq!(each(&found["frames"], "id"), [5, 6]);
    assert_eq!(found.get("frames_cut"), None);
    frame(&world, &id, &"x".repeat(200 * 1024)).await;
    frame(&world, &id, &"y".repeat(200 * 1024)).await;
    let found = world.call(&call, "TaskGet", json!({ "task_id": id, "frames": 500 })).await;
    assert_eq!(
        (found["frames"].as_array().unwrap().len(), &found["frames_cut"]),
        (1, &json!(true))
    );
    for unknown in ["task_x", "..", "a b"] {
        for name in ["TaskGet", "TaskWait", "TaskCancel"] {
            world.refuse(&call, name, json!({ "task_id": unknown }), ErrorType::NotFound).await;
        }
        let arguments = json!({ "task_id": unknown, "body": "a" });
        world.refuse(&call, "TaskReply", arguments, ErrorType::NotFound).await;
    }
}

#[tokio::test]
async fn lists_filter_and_have_pages() {
    let world = World::open().await;
    let call = world.operator(None);
    for agent in ["a", "b"] {
        let task = NewTask {
            agent: Some(agent.to_owned()),
            from: Some("me".to_owned()),
            ..NewTask::default()
        };
        world.services.tasks.create_task(&Caller::Operator, task).await.unwrap();
    }
    for (filter, expected) in [
        (nothing(), 2),
        (json!({ "agent": "a", "from": "me", "status": "pending" }), 1),
        (json!({ "status": "done" }), 0),
        (json!({ "since": "2999-01-01T00:00:00Z" }), 0),
        (json!({ "limit": 1 }), 1),
    ] {
        let page = world.call(&call, "TaskList", filter.clone()).await;
        assert_eq!(page["count"], expected, "{filter}");
        assert_eq!(page["next_cursor"].is_string(), filter.get("limit").is_some());
    }
    let since = json!({ "since": "yesterday", "status": "done" });
    let error = world.refuse(&call, "TaskList", since, ErrorType::ValidationError).await;
    assert_eq!(error.field.as_deref(), Some("since"));
}

#[tokio::test]
async fn a_wait_ends_with_the_task_or_its_timeout() {
    let world = Arc::new(World::open().await);
    let call = world.operator(None);
    let id = world.task().await;
    let now = world.call(&call, "TaskWait", json!({ "task_id": id, "timeout_s": 0 })).await;
    assert_eq!((&now["timed_out"], text(&now["task"], "status")), (&json!(true), "pending".into()));
    // A repeated call keeps its deadline.
    let old = Call { started_at: call.started_at.minus(Duration::from_secs(301)), ..call.clone() };
    let late = world.call(&old, "TaskWait", json!({ "task_id": id })).await;
    assert_eq!(late["timed_out"], true);
    assert_eq!(listeners(&world), 0);

    let waiting = tokio::spawn({
        let (world, call, id) = (Arc::clone(&world), call.clone(), id.clone());
        async move { world.call(&call, "TaskWait", json!({ "task_id": id, "frames": 1 })).await }
    });
    eventually(|| listeners(&world) == 1).await;
    frame(&world, &id, "last words").await;
    end(&world, &id, TaskStatus::Failed).await;
    let waited = waiting.await.unwrap();
    assert_eq!(
        (&waited["timed_out"], text(&waited["task"], "status")),
        (&json!(false), "failed".into())
    );
    assert_eq!(each(&waited["frames"], "line"), ["last words"]);
    let again = world.call(&call, "TaskWait", json!({ "task_id": id, "timeout_s": 0 })).await;
    assert_eq!((&again["timed_out"], &again["task"]), (&json!(false), &waited["task"]));
    assert_eq!(listeners(&world), 0);
}

#[tokio::test]
async fn notify_returns_the_first_end_or_all_of_them() {
    let world = Arc::new(World::open().await);
    let call = world.operator(None);
    let mut ids = Vec::new();
    for _ in 0..64 {
        ids.push(world.task().await);
    }
    let start = |arguments: Value| {
        let (world, call) = (Arc::clone(&world), call.clone());
        tokio::spawn(async move { world.call(&call, "TaskNotify", arguments).await })
    };
    let any = start(json!({ "task_ids": ids }));
    let all = start(json!({ "task_ids": [ids[7], ids[9], ids[7]], "mode": "all" }));
    eventually(|| listeners(&world) == 66).await;
    frame(&world, &ids[7], "not yet").await;
    end(&world, &ids[7], TaskStatus::Done).await;
    let any = any.await.unwrap();
    assert_eq!(each(&any["finished"], "task_id"), [json!(ids[7])]);
    assert_eq!(any["watched_ids"], json!(ids));
    assert_eq!(
        (any["pending_ids"].as_array().unwrap().len(), &any["timed_out"]),
        (63, &json!(false))
    );
    assert!(!any["pending_ids"].as_array().unwrap().contains(&json!(ids[7])));
    assert!(!all.is_finished());
    end(&world, &ids[9], TaskStatus::Cancelled).await;
    let all = all.await.unwrap();
    assert_eq!(each(&all["finished"], "status"), ["done", "cancelled"]);
    assert_eq!((&all["watched_ids"], &all["pending_ids"]), (&json!([ids[7], ids[9]]), &json!([])));

    // Ended tasks are returned at once, all of them; a pending one delays `all` until the timeout.
    let arguments = json!({ "task_ids": [ids[9], ids[0], ids[7]] });
    let now = world.call(&call, "TaskNotify", arguments).await;
    assert_eq!(each(&now["finished"], "task_id"), [json!(ids[9]), json!(ids[7])]);
    assert_eq!((&now["pending_ids"], &now["timed_out"]), (&json!([ids[0]]), &json!(false)));
    let arguments = json!({ "task_ids": [ids[9], ids[0]], "mode": "all", "timeout_s": 0 });
    let late = world.call(&call, "TaskNotify", arguments).await;
    assert_eq!(
        (each(&late["finished"], "task_id"), &late["timed_out"]),
        (vec![json!(ids[9])], &json!(true))
    );

    let arguments = json!({ "task_ids": [ids[0], "task_x"] });
    world.refuse(&call, "TaskNotify", arguments, ErrorType::NotFound).await;
    assert_eq!(listeners(&world), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_is_never_missed_by_a_wait() {
    let world = Arc::new(World::open().await);
    for n in 0..200 {
        let id = world.task().await;
        let (name, arguments) = match n % 3 {
            0 => ("TaskWait", json!({ "task_id": id, "timeout_s": 20 })),
            1 => ("TaskNotify", json!({ "task_ids": [id], "timeout_s": 20 })),
            _ => {
                let stream = format!("task/{id}");
                ("events_read", json!({ "stream": stream, "after": 1, "wait_s": 20 }))
            }
        };
        let waiting = tokio::spawn({
            let (world, call) = (Arc::clone(&world), world.operator(None));
            async move { world.call(&call, name, arguments).await }
        });
        end(&world, &id, TaskStatus::Done).await;
        let heard = waiting.await.unwrap();
        let timed_out = heard["timed_out"] == true || heard["count"] == 0;
        assert!(!timed_out, "{name}: {heard}");
    }
    assert_eq!(listeners(&world), 0);
}

#[tokio::test]
async fn a_cancelled_wait_leaves_no_listener() {
    let world = Arc::new(World::open().await);
    let id = world.task().await;
    for (name, arguments) in [
        ("TaskWait", json!({ "task_id": id })),
        ("TaskNotify", json!({ "task_ids": [id] })),
        ("events_read", json!({ "stream": format!("task/{id}"), "after": 1, "wait_s": 60 })),
        ("events_read", json!({ "after": 1, "wait_s": 60 })),
    ] {
        let waiting = tokio::spawn({
            let (world, call) = (Arc::clone(&world), world.operator(None));
            async move { world.call(&call, name, arguments).await }
        });
        eventually(|| listeners(&world) == 1).await;
        waiting.abort();
        waiting.await.unwrap_err();
        assert_eq!(listeners(&world), 0, "{name}");
    }
}

#[tokio::test]
async fn a_task_is_cancelled_once() {
    let world = World::open().await;
    let call = world.operator(None);
    let (nobody, begun) = (world.task().await, world.task().await);
    let cancelled = world.call(&call, "TaskCancel", json!({ "task_id": nobody })).await;
    assert_eq!(
        (&cancelled["at_once"], text(&cancelled["task"], "status")),
        (&json!(true), "cancelled".into())
    );
    world.refuse(&call, "TaskCancel", json!({ "task_id": nobody }), ErrorType::Conflict).await;
    frame(&world, &begun, "a").await;
    let asked = world.call(&call, "TaskCancel", json!({ "task_id": begun })).await;
    assert_eq!(
        (&asked["at_once"], asked["task"]["cancel_requested_at"].is_string()),
        (&json!(false), true)
    );
}

#[tokio::test]
async fn a_reply_is_in_the_stream_with_its_author() {
    let world = World::open().await;
    let id = world.task().await;
    let register = json!({ "display_name": "ann", "backend": "test" });
    let ann = world.call(&world.session("ann"), "peer_register", register.clone()).await;
    let mcp = world.operator(Some("mcp-1"));
    let mine = world.call(&mcp, "peer_register", register).await;
    for (call, from, kind) in [
        (&world.session("ann"), text(&ann, "peer_id"), "progress"),
        (&world.session("bob"), "session:bob".to_owned(), "result"),
        (&world.operator(None), "operator".to_owned(), "error"),
        (&mcp, text(&mine, "peer_id"), "clarification"),
    ] {
        let made =
            world.services.tasks.create_task(&call.caller, NewTask::default()).await.unwrap();
        let id = made.task.task_id.as_str().to_owned();
        let mut arguments = json!({ "task_id": id, "body": "so far" });
        if kind != "progress" {
            arguments["kind"] = json!(kind);
        }
        let said = world.call(call, "TaskReply", arguments).await;
        assert_eq!(said, json!({ "task_id": id, "event_id": 2, "kind": kind }));
        let stream = json!({ "stream": format!("task/{id}"), "after": 1, "kind": "reply" });
        let read = world.call(call, "events_read", stream).await;
        let data = &read["events"][0]["data"];
        assert_eq!(
            (text(data, "from"), text(data, "kind"), text(data, "body")),
            (from, kind.into(), "so far".into())
        );
        assert!(data["ts"].is_string());
    }
    let call = world.operator(None);
    let reply = json!({ "task_id": id, "body": "done", "kind": "result" });
    world.refuse(&world.session("ann"), "TaskReply", reply.clone(), ErrorType::NotFound).await;
    world.call(&call, "TaskReply", reply).await;
    let task = world.call(&call, "TaskGet", json!({ "task_id": id })).await;
    assert_eq!(text(&task["task"], "status"), "pending", "a result is no end");
    let long = json!({ "task_id": id, "body": "ü".repeat(200 * 1024) });
    let error = world.refuse(&call, "TaskReply", long, ErrorType::ValidationError).await;
    assert_eq!(error.field.as_deref(), Some("body"));
    end(&world, &id, TaskStatus::Done).await;
    let late = json!({ "task_id": id, "body": "wait" });
    world.refuse(&call, "TaskReply", late, ErrorType::Conflict).await;
}
