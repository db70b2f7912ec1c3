//! Tasks: created once, appended to without gaps, ended once.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::{Daemon, eventually};
use crate::expect::{
    all_pages, append, dense, done, frame, instant, new_task, page, problem, subscribe,
    task_events, text,
};
use crate::wire::Caller;

fn with_id(id: &str, mut event: Value) -> Value {
    event["id"] = json!(id);
    event
}

fn status_event(status: &str) -> Value {
    json!({ "kind": "task", "data": { "status": status, "runner": { "pid": 1 } } })
}

fn terminal(status: &str) -> Value {
    json!({ "kind": "terminal", "data": { "status": status } })
}

#[track_caller]
fn task(caller: &Caller, id: &str) -> Value {
    caller.get(&format!("/v1/tasks/{id}")).ok(200)
}

#[test]
fn new_task_is_pending_and_has_every_given_member() {
    let mut d = Daemon::start();
    let body = json!({
        "title": "t", "agent": "claude", "prompt": "do \"it\"\n", "from": "me",
        "metadata": { "ticket": "7" },
    });
    let made = d.post("/v1/tasks", &body).ok(201);
    for (name, value) in body.as_object().unwrap() {
        assert_eq!(&made[name], value, "{name}");
    }
    assert_eq!(made["status"], "pending");
    assert_eq!(made["last_id"], 1, "its making is its first event");
    assert_eq!(instant(&made["created_at"]), instant(&made["updated_at"]));
    assert!(made.get("closed_at").is_none_or(Value::is_null), "{made}");
    let id = text(&made, "task_id");
    assert_eq!(task(&d, &id), made);
    d.kill_and_restart();
    assert_eq!(task(&d, &id), made);
    assert_eq!(d.post("/v1/tasks", &json!({})).ok(201)["status"], "pending", "nothing is needed");
}

#[test]
fn a_repeated_idempotency_key_is_the_same_task() {
    let mut d = Daemon::start();
    let body = json!({ "title": "once", "idempotency_key": "k-1" });
    let replies: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| d.post("/v1/tasks", &body))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let made = replies.iter().filter(|reply| reply.status() == 201).count();
    assert_eq!(made, 1, "one made it: {replies:?}");
    let id = text(&replies[0].json(), "task_id");
    for reply in &replies {
        assert!(matches!(reply.status(), 200 | 201), "{reply:?}");
        assert_eq!(reply.json()["task_id"], json!(id));
    }
    d.kill_and_restart();
    assert_eq!(d.post("/v1/tasks", &body).ok(200)["task_id"], json!(id));
    append(&d, &id, &done());
    assert_eq!(d.post("/v1/tasks", &body).ok(200)["status"], "done", "it answers as it is now");
    d.post("/v1/tasks", &json!({ "idempotency_key": "k-2" })).ok(201);
    for more in [
        json!({ "title": "twice" }),
        json!({ "prompt": "x" }),
        json!({ "metadata": { "of": "x" } }),
    ] {
        let mut other = body.clone();
        other.as_object_mut().expect("one").extend(more.as_object().expect("one").clone());
        let refusal = problem(&d.post("/v1/tasks", &other), 409, "conflict");
        assert!(text(&refusal, "detail").contains(&id), "{refusal}");
    }
    assert_eq!(page(&d.get("/v1/tasks"), "tasks").len(), 2);
}

#[test]
fn repeated_append_returns_the_first_ids() {
    let mut d = Daemon::start();
    let id = new_task(&d);
    let named = |name: &str| with_id(name, frame(name));
    let batch = json!([named("a"), named("b"), named("c")]);
    assert_eq!(append(&d, &id, &batch), (2, 4));
    append(&d, &id, &frame("between"));
    assert_eq!(append(&d, &id, &batch), (2, 4), "the whole batch");
    assert_eq!(append(&d, &id, &named("b")), (3, 3), "one of it");
    d.kill_and_restart();
    assert_eq!(append(&d, &id, &batch), (2, 4), "after a crash");
    let (first, last) = append(&d, &id, &json!([named("c"), named("d")]));
    assert_eq!((first, last), (4, 6), "a part of it with something new");
    assert_eq!(append(&d, &id, &json!([named("d")])), (6, 6));
    let (first, last) = append(&d, &id, &json!([named("e"), named("e")]));
    assert_eq!((first, last), (7, 7), "twice within one batch");
    let lines: Vec<_> =
        task_events(&d, &id)[1..].iter().map(|event| text(&event["data"], "line")).collect();
    assert_eq!(lines, ["a", "b", "c", "between", "d", "e"]);
    // The key belongs to the task's producer: another task may use it.
    let other = new_task(&d);
    assert_eq!(append(&d, &other, &batch), (2, 4));
}

#[test]
fn append_after_terminal_event_conflicts_but_its_repeat_succeeds() {
    let mut d = Daemon::start();
    let id = new_task(&d);
    let path = format!("/v1/tasks/{id}/events");
    append(&d, &id, &with_id("line", frame("line")));
    let end = with_id("end", terminal("done"));
    assert_eq!(append(&d, &id, &end), (3, 3));
    for _ in 0..2 {
        problem(&d.post(&path, &frame("late")), 409, "conflict");
        problem(&d.post(&path, &terminal("failed")), 409, "conflict");
        problem(&d.post(&path, &status_event("active")), 409, "conflict");
        let mixed = json!([with_id("line", frame("line")), with_id("new", frame("late"))]);
        problem(&d.post(&path, &mixed), 409, "conflict");
        assert_eq!(append(&d, &id, &end), (3, 3), "whose answer got lost may ask again");
        assert_eq!(append(&d, &id, &with_id("line", frame("line"))), (2, 2));
        d.kill_and_restart();
    }
    let task = task(&d, &id);
    assert_eq!(task["status"], "done");
    assert_eq!(task["last_id"], 3);
    instant(&task["closed_at"]);
}

#[test]
fn cancel_asks_the_runner_or_ends_a_task_without_one() {
    let d = Daemon::start();
    let cancel = |id: &str| d.post(&format!("/v1/tasks/{id}/cancel"), &json!({}));

    let nobody = new_task(&d);
    assert_eq!(cancel(&nobody).ok(200)["status"], "cancelled");
    assert_eq!(task(&d, &nobody)["status"], "cancelled");
    problem(&cancel(&nobody), 409, "conflict");
    problem(&d.post(&format!("/v1/tasks/{nobody}/events"), &frame("a")), 409, "conflict");
    assert_eq!(task_events(&d, &nobody).pop().unwrap()["kind"], "terminal", "its stream is closed");

    let running = new_task(&d);
    append(&d, &running, &status_event("active"));
    let mut runner = d.follow(&subscribe(&running));
    runner.events(2);
    let asked = cancel(&running).ok(202);
    assert_eq!(asked["status"], "active", "not before it has stopped");
    instant(&asked["cancel_requested_at"]);
    let heard = runner.event();
    assert_eq!(heard.kind, "task", "the runner hears of it");
    assert_eq!(heard.data["cancel_requested_at"], asked["cancel_requested_at"]);
    assert_eq!(cancel(&running).ok(202)["cancel_requested_at"], asked["cancel_requested_at"]);
    append(&d, &running, &frame("still cleaning up"));
    append(&d, &running, &terminal("cancelled"));
    assert_eq!(task(&d, &running)["status"], "cancelled");
    problem(&cancel(&running), 409, "conflict");
    // It may also have succeeded before it was told.
    let quick = new_task(&d);
    append(&d, &quick, &status_event("active"));
    cancel(&quick).ok(202);
    append(&d, &quick, &done());
    assert_eq!(task(&d, &quick)["status"], "done");

    let silent = new_task(&d);
    append(&d, &silent, &frame("a producer's event, so somebody runs it"));
    cancel(&silent).ok(202);
    problem(&cancel("task_unknown"), 404, "not_found");
}

#[test]
fn concurrent_cancel_and_end_leave_one_end() {
    let d = Daemon::start();
    for _ in 0..15 {
        let id = new_task(&d);
        let path = format!("/v1/tasks/{id}/events");
        let (cancelled, ended) = thread::scope(|scope| {
            let cancel = scope.spawn(|| d.post(&format!("/v1/tasks/{id}/cancel"), &json!({})));
            let end = scope.spawn(|| d.post(&path, &done()));
            (cancel.join().unwrap().status(), end.join().unwrap().status())
        });
        let wanted = if (cancelled, ended) == (200, 409) { "cancelled" } else { "done" };
        assert!(matches!((cancelled, ended), (200, 409) | (409, 200)), "{cancelled} {ended}");
        assert_eq!(task(&d, &id)["status"], wanted);
        let ends = task_events(&d, &id).iter().filter(|event| event["kind"] == "terminal").count();
        assert_eq!(ends, 1);
    }
}

#[test]
fn concurrent_producers_leave_no_gap_and_keep_their_order() {
    let d = Daemon::start();
    let id = new_task(&d);
    thread::scope(|scope| {
        for producer in 0..8 {
            let (d, id) = (&d, &id);
            scope.spawn(move || {
                for n in 0..30 {
                    let batch: Vec<_> =
                        (0..3).map(|k| frame(&format!("{producer} {}", n * 3 + k))).collect();
                    let (first, last) = append(d, id, &json!(batch));
                    assert_eq!(last - first, 2, "a batch is not torn apart");
                }
            });
        }
    });
    let stored = task_events(&d, &id);
    assert_eq!(stored.len(), 1 + 8 * 30 * 3);
    let mut next = [0; 8];
    for (n, event) in stored.iter().enumerate() {
        assert_eq!(event["seq"], json!(n + 1));
        if event["kind"] != "frame" {
            continue;
        }
        let line = text(&event["data"], "line");
        let (producer, k) = line.split_once(' ').unwrap();
        let producer: usize = producer.parse().unwrap();
        assert_eq!(k.parse(), Ok(next[producer]), "producer {producer} in its own order");
        next[producer] += 1;
    }
}

#[test]
fn concurrent_equal_batches_are_stored_once() {
    let d = Daemon::start();
    for _ in 0..10 {
        let id = new_task(&d);
        let batch = json!([with_id("a", frame("a")), with_id("b", frame("b"))]);
        let given: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| append(&d, &id, &batch))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(given.iter().all(|ids| *ids == (2, 3)), "{given:?}");
        assert_eq!(task(&d, &id)["last_id"], 3);
    }
}

#[test]
fn refused_appends_leave_no_gap() {
    let d = Daemon::start();
    let good = new_task(&d);
    let over = new_task(&d);
    append(&d, &over, &done());
    let mut live = d.follow(&subscribe(&good));
    thread::scope(|scope| {
        for n in 0..6 {
            let (d, good, over) = (&d, &good, &over);
            scope.spawn(move || {
                for k in 0..25 {
                    if n % 2 == 0 {
                        append(
                            d,
                            good,
                            &json!([frame(&format!("{n}-{k}")), status_event("active")]),
                        );
                    } else {
                        let late = json!([frame("late"), status_event("active")]);
                        let reply = d.post(&format!("/v1/tasks/{over}/events"), &late);
                        problem(&reply, 409, "conflict");
                        problem(&d.post("/v1/tasks/task_x/events", &frame("a")), 404, "not_found");
                    }
                }
            });
        }
    });
    append(&d, &good, &done());
    let seen = live.rest();
    dense(&seen, 1);
    assert_eq!(seen.len(), 1 + 3 * 25 * 2 + 1);
    let stored = task_events(&d, &good);
    assert_eq!(stored.len(), seen.len());
    assert_eq!(task(&d, &over)["last_id"], 2);
    let all = all_pages(&d, "/v1/events?limit=500", "events", "after");
    let positions: Vec<_> = all.iter().map(|event| event["position"].as_u64().unwrap()).collect();
    assert!(positions.is_sorted_by(|a, b| a < b), "no position twice");
}

#[test]
fn task_with_a_gone_runner_gets_a_terminal_event() {
    let d = Daemon::with(|plan| plan.env("SVC_RUNNER_GRACE_MS", "300"));
    let task = new_task(&d);
    // A process that has certainly ended: a child that was waited for.
    let mut process = std::process::Command::new("true").spawn().expect("a process");
    let pid = process.id();
    process.wait().expect("its end");
    let alive = new_task(&d);
    for (task, pid) in [(&task, pid), (&alive, std::process::id())] {
        let active =
            json!({ "kind": "task", "data": { "status": "active", "runner": { "pid": pid } } });
        d.post(&format!("/v1/tasks/{task}/events"), &active).ok(200);
    }
    let path = format!("/v1/tasks/{task}");
    eventually(Duration::from_secs(10), || d.get(&path).ok(200)["status"] == json!("failed"));
    let ended = d.get(&path).ok(200);
    assert!(ended["error"].as_str().is_some_and(|it| it.contains(&pid.to_string())), "{ended}");
    assert_eq!(ended["last_id"], json!(3));
    assert_eq!(d.get(&format!("/v1/tasks/{alive}")).ok(200)["status"], json!("active"));
}
