//! Tasks.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout, timeout_at};

use super::{Call, Failure, Progress, Tool, ToolError, peers::own_peer, schema::NOT_BLANK};
use crate::{
    domain::{FrameKind, ReplyKind, Seq, Task, TaskId, TaskStatus, Timestamp, limits},
    store::TaskFilter,
};

pub(super) fn tools() -> Vec<Tool> {
    [
        Tool::new("TaskGet", GET, get).title("Look at a task").read_only(),
        Tool::new("TaskList", LIST, list).title("List tasks").read_only(),
        Tool::new("TaskWait", WAIT, wait).title("Wait for a task").read_only().slow(),
        Tool::new("TaskNotify", NOTIFY, notify).title("Wait for several tasks").read_only().slow(),
        Tool::new("TaskCancel", CANCEL, cancel).title("Cancel a task").destructive().idempotent(),
        Tool::new("TaskReply", REPLY, reply).title("Reply to a task"),
    ]
    .into_iter()
    .map(|tool| tool.family("tasks"))
    .collect()
}

const WAIT_MAX: u64 = limits::TASK_WAIT.as_secs();

const GET: &str = "\
Gives a task as it is now: its state, and if it is over, how it ended.

Use it to look once; to wait for the end use TaskWait. With frames it also gives the last lines of the task's output \
(at most 256 KiB of them; events_read on the stream task/<task_id> has all of it).";

/// Which task.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Get {
    /// The task.
    #[schemars(regex(pattern = NOT_BLANK))]
    task_id: String,
    /// How many of the last lines of its output to give.
    #[schemars(range(min = 0, max = limits::TASK_FRAMES_MAX), extend("default" = 0))]
    frames: Option<u32>,
}

/// A task, and the end of its output.
#[derive(Serialize, JsonSchema)]
struct Found {
    task: Arc<Task>,
    /// The last lines of its output, in order.
    frames: Vec<Line>,
    /// Lines that were asked for were left out because of their size.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    frames_cut: bool,
}

/// A line of output.
#[derive(Serialize, JsonSchema)]
struct Line {
    /// The id of its event in the stream `task/<task_id>`.
    id: Seq,
    line: String,
    /// The pipe that it came from.
    kind: FrameKind,
    ts: Timestamp,
}

async fn get(call: Call, input: Get) -> Result<Found, Failure> {
    let task = call.services.tasks.task(&input.task_id).await?;
    let (frames, frames_cut) = lines(&call, &task.task_id, input.frames).await?;
    Ok(Found { task, frames, frames_cut })
}

/// The last lines of a task, and whether some were left out.
async fn lines(
    call: &Call,
    task: &TaskId,
    count: Option<u32>,
) -> Result<(Vec<Line>, bool), Failure> {
    #[derive(Deserialize)]
    struct Stored {
        line: String,
        kind: FrameKind,
        ts: Timestamp,
    }
    let last = call.services.tasks.last_frames(task, count.unwrap_or(0)).await?;
    let lines = last.frames.into_iter().map(|(id, data)| {
        let Stored { line, kind, ts } = serde_json::from_str(&data).map_err(|error| {
            tracing::error!(%task, id, %error, "a frame in the log is not one");
            ToolError::internal()
        })?;
        Ok(Line { id, line, kind, ts })
    });
    Ok((lines.collect::<Result<_, ToolError>>()?, last.cut))
}

const LIST: &str = "\
Lists tasks, the latest first.

Use it to find the id of a task, or to see what is going on. Filters match exactly, and all that are given have to \
match.";

/// Which tasks.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct List {
    /// Only tasks in this state.
    status: Option<TaskStatus>,
    /// Only tasks for this agent.
    agent: Option<String>,
    /// Only tasks that this one asked for: a `peer_id`, a session or `operator`.
    from: Option<String>,
    /// Only tasks made at this time or later (RFC 3339).
    since: Option<Timestamp>,
    /// How many at most.
    #[schemars(range(min = 1, max = limits::PAGE_MAX), extend("default" = limits::PAGE_DEFAULT))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(regex(pattern = NOT_BLANK))]
    cursor: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Tasks {
    tasks: Vec<Task>,
    /// How many are on this page.
    count: usize,
    /// There is more: goes into `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

async fn list(call: Call, input: List) -> Result<Tasks, Failure> {
    let filter = TaskFilter {
        status: input.status,
        agent: input.agent,
        from: input.from,
        since: input.since,
    };
    let page = call.services.tasks.tasks(&filter, input.cursor.as_deref(), input.limit).await?;
    let (count, next_cursor) = (page.tasks.len(), page.next_cursor);
    Ok(Tasks { tasks: page.tasks, count, next_cursor })
}

const WAIT: &str = "\
Waits until a task is over (done, failed, cancelled or expired), and gives it.

Use it in place of calling TaskGet again and again. If the task is not over after timeout_s seconds, you get it as it \
is then, with timed_out = true: that is no failure, and you may wait again. A task that is over already is given at \
once. For several tasks use TaskNotify.";

/// Which task, and for how long.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Wait {
    /// The task.
    #[schemars(regex(pattern = NOT_BLANK))]
    task_id: String,
    /// How long to wait at most, in seconds.
    #[schemars(range(min = 0, max = WAIT_MAX), extend("default" = 300))]
    timeout_s: Option<u64>,
    /// How many of the last lines of its output to give.
    #[schemars(range(min = 0, max = limits::TASK_FRAMES_MAX), extend("default" = 0))]
    frames: Option<u32>,
}

/// A task that was waited for.
#[derive(Serialize, JsonSchema)]
struct Waited {
    task: Arc<Task>,
    /// It was not over in time.
    timed_out: bool,
    /// The last lines of its output, in order.
    frames: Vec<Line>,
    /// Lines that were asked for were left out because of their size.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    frames_cut: bool,
}

async fn wait(call: Call, input: Wait) -> Result<Waited, Failure> {
    let left = call.time_left(Duration::from_secs(input.timeout_s.unwrap_or(300)));
    let mut watch = call.services.tasks.watch_tasks(std::slice::from_ref(&input.task_id)).await?;
    let ended = match timeout(left, watch.next()).await {
        Ok(ended) => ended?,
        Err(_) => None,
    };
    let task = match ended {
        Some(task) => Arc::new(task),
        None => call.services.tasks.task(&input.task_id).await?,
    };
    let (frames, frames_cut) = lines(&call, &task.task_id, input.frames).await?;
    Ok(Waited { timed_out: !task.status.is_terminal(), task, frames, frames_cut })
}

const NOTIFY: &str = "\
Waits for several tasks: until the first of them is over, or with mode = all until all of them are.

Use it after you have handed out work, to go on as soon as something is done. It gives every watched task that is over \
by then in `finished`, and the others in `pending_ids`: call it again with those. If the time is up first you get what \
there is, with timed_out = true: that is no failure. An id that no task has fails the whole call at once.";

/// Which tasks, and for how long.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Notify {
    /// The tasks. An id that stands here twice counts once.
    #[schemars(length(min = 1, max = limits::WATCHED_TASKS), inner(regex(pattern = NOT_BLANK)))]
    task_ids: Vec<String>,
    /// How long to wait at most, in seconds.
    #[schemars(range(min = 0, max = WAIT_MAX), extend("default" = 600))]
    timeout_s: Option<u64>,
    /// `any`: the first end is enough. `all`: every task has to be over.
    #[schemars(extend("default" = "any"))]
    mode: Option<Mode>,
}

/// How many of the tasks have to be over.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Mode {
    /// One is enough.
    Any,
    /// All of them.
    All,
}

/// What became of the tasks.
#[derive(Serialize, JsonSchema)]
struct Notified {
    /// The tasks that were waited for.
    watched_ids: Vec<String>,
    /// Those that are over, in the order of their ends as far as this call has seen them.
    finished: Vec<Task>,
    /// Those that are not.
    pending_ids: Vec<String>,
    /// The time was up before enough of them were over.
    timed_out: bool,
}

async fn notify(call: Call, input: Notify) -> Result<Notified, Failure> {
    let until =
        Instant::now() + call.time_left(Duration::from_secs(input.timeout_s.unwrap_or(600)));
    let mut known = HashSet::new();
    let mut watched_ids = input.task_ids;
    watched_ids.retain(|id| known.insert(id.clone()));
    let enough = match input.mode.unwrap_or(Mode::Any) {
        Mode::Any => 1,
        Mode::All => watched_ids.len(),
    };
    let mut watch = call.services.tasks.watch_tasks(&watched_ids).await?;
    let mut finished: Vec<Task> = Vec::new();
    loop {
        let next = if finished.len() < enough {
            timeout_at(until, watch.next()).await.ok()
        } else {
            // Others may be over as well, and are given if that takes no waiting.
            watch.next().now_or_never()
        };
        let Some(Some(task)) = next.transpose()? else { break };
        let message = format!("task {} is {}", task.task_id, task.status.as_str());
        finished.push(task);
        let (progress, total) = (count(finished.len()), Some(count(watched_ids.len())));
        call.progress(Progress { progress, total, message: Some(message) }).await;
    }
    let over: HashSet<&str> = finished.iter().map(|task| task.task_id.as_str()).collect();
    let pending_ids =
        watched_ids.iter().filter(|id| !over.contains(id.as_str())).cloned().collect();
    let timed_out = finished.len() < enough;
    Ok(Notified { watched_ids, finished, pending_ids, timed_out })
}

/// A small number as progress has it.
fn count(tasks: usize) -> f64 {
    u32::try_from(tasks).map_or(f64::MAX, f64::from)
}

const CANCEL: &str = "\
Asks for a task to be stopped.

A task that nobody has begun is cancelled at once (at_once = true). Otherwise its runner is asked to stop, and the task \
is `cancelled` when it has: TaskWait tells. A task that is over already cannot be cancelled: conflict.";

/// Which task.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Cancel {
    /// The task.
    #[schemars(regex(pattern = NOT_BLANK))]
    task_id: String,
}

/// What came of it.
#[derive(Serialize, JsonSchema)]
struct Cancelled {
    task: Task,
    /// It is over; if not, its runner was asked to stop.
    at_once: bool,
}

async fn cancel(call: Call, input: Cancel) -> Result<Cancelled, Failure> {
    let cancelled = call.services.tasks.cancel_task(&input.task_id).await?;
    Ok(Cancelled { task: cancelled.task, at_once: cancelled.at_once })
}

const REPLY: &str = "\
Says something in the stream of a task that was given to you, for whoever watches it.

Use it while you work on a task: kind `progress` for how far you are, `clarification` for a question or the answer to \
one, `result` for what came of it, `error` for what went wrong. It does not end the task, whatever the kind: the \
runner's exit does. It is refused when the task is over (conflict).";

/// A reply to a task.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Say {
    /// The task.
    #[schemars(regex(pattern = NOT_BLANK))]
    task_id: String,
    /// What you have to say: at most 256 KiB.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::REPLY_BYTES))]
    body: String,
    /// How far you are, what came of it, a question or its answer, or what went wrong.
    #[schemars(extend("default" = "progress"))]
    kind: Option<ReplyKind>,
}

/// A reply that is in the log.
#[derive(Serialize, JsonSchema)]
struct Said {
    task_id: String,
    /// The id of its event in the stream `task/<task_id>`.
    event_id: Seq,
    kind: ReplyKind,
}

async fn reply(call: Call, input: Say) -> Result<Said, Failure> {
    // A session's peer is found by the service; the operator speaks for the peer of the session that it names.
    let named = if call.caller.is_operator() { own_peer(&call).await? } else { None };
    let kind = input.kind.unwrap_or_default();
    let event_id = call
        .services
        .tasks
        .reply_to_task(&call.caller, named, &input.task_id, kind, input.body)
        .await?;
    Ok(Said { task_id: input.task_id, event_id, kind })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::{
        super::{
            ErrorType,
            testing::{World, each, eventually, nothing, text},
        },
        *,
    };
    use crate::domain::{Caller, NewTask, TaskEvent, TaskEventBody, Verdict};

    async fn frame(world: &World, task: &str, line: &str) {
        let body =
            TaskEventBody::Frame { line: line.to_owned(), kind: FrameKind::Stdout, ts: None };
        let events = vec![TaskEvent { producer_id: None, body }];
        world.services.tasks.append_task_events(task, events).await.unwrap();
    }

    async fn end(world: &World, task: &str, status: TaskStatus) {
        let verdict =
            Verdict { status, exit_code: Some(0), signal: None, error: None, runner: None };
        let events = vec![TaskEvent { producer_id: None, body: TaskEventBody::Terminal(verdict) }];
        world.services.tasks.append_task_events(task, events).await.unwrap();
    }

    fn listeners(world: &World) -> usize {
        world.services.store().bus().listeners()
    }

    #[tokio::test]
    async fn a_task_is_given_with_the_end_of_its_output() {
        let world = World::open().await;
        let call = world.operator(None);
        let id = world.task().await;
        for n in 0..5 {
            frame(&world, &id, &n.to_string()).await;
        }
        let found = world.call(&call, "TaskGet", json!({ "task_id": id })).await;
        assert_eq!(
            (text(&found["task"], "status"), &found["frames"]),
            ("pending".into(), &json!([]))
        );
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
        let since = json!({ "since": "yesterday" });
        let error = world.refuse(&call, "TaskList", since, ErrorType::ValidationError).await;
        assert_eq!(error.field.as_deref(), Some("since"));
    }

    #[tokio::test]
    async fn waiting_ends_with_the_task_or_with_the_time() {
        let world = Arc::new(World::open().await);
        let call = world.operator(None);
        let id = world.task().await;
        let now = world.call(&call, "TaskWait", json!({ "task_id": id, "timeout_s": 0 })).await;
        assert_eq!(
            (&now["timed_out"], text(&now["task"], "status")),
            (&json!(true), "pending".into())
        );
        // A call that is run again has no more time than it had.
        let old =
            Call { started_at: call.started_at.minus(Duration::from_secs(301)), ..call.clone() };
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
    async fn the_first_end_is_told_or_all_of_them() {
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
        assert_eq!(
            (&all["watched_ids"], &all["pending_ids"]),
            (&json!([ids[7], ids[9]]), &json!([]))
        );

        // What is over already is told at once, all of it; what is not leaves the rest waiting until the time is up.
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
    async fn an_end_at_any_moment_is_heard() {
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
    async fn a_wait_that_is_given_up_leaves_nothing_behind() {
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
    async fn a_reply_stands_in_the_stream_with_the_name_of_who_gave_it() {
        let world = World::open().await;
        let id = world.task().await;
        let register = json!({ "display_name": "ann", "backend": "test" });
        let ann = world.call(&world.session("ann"), "peer_register", register.clone()).await;
        let mcp = world.operator(Some("mcp-1"));
        let mine = world.call(&mcp, "peer_register", register).await;
        let mut seq = 1;
        for (call, from, kind) in [
            (world.session("ann"), text(&ann, "peer_id"), "progress"),
            (world.session("bob"), "session:bob".to_owned(), "result"),
            (world.operator(None), "operator".to_owned(), "error"),
            (mcp, text(&mine, "peer_id"), "clarification"),
        ] {
            seq += 1;
            let mut arguments = json!({ "task_id": id, "body": "so far" });
            if kind != "progress" {
                arguments["kind"] = json!(kind);
            }
            let said = world.call(&call, "TaskReply", arguments).await;
            assert_eq!(said, json!({ "task_id": id, "event_id": seq, "kind": kind }));
            let stream =
                json!({ "stream": format!("task/{id}"), "after": seq - 1, "kind": "reply" });
            let read = world.call(&call, "events_read", stream).await;
            let data = &read["events"][0]["data"];
            assert_eq!(
                (text(data, "from"), text(data, "kind"), text(data, "body")),
                (from, kind.into(), "so far".into())
            );
            assert!(data["ts"].is_string());
        }
        let call = world.operator(None);
        let task = world.call(&call, "TaskGet", json!({ "task_id": id })).await;
        assert_eq!(text(&task["task"], "status"), "pending", "a result is no end");
        let long = json!({ "task_id": id, "body": "ü".repeat(200 * 1024) });
        let error = world.refuse(&call, "TaskReply", long, ErrorType::ValidationError).await;
        assert_eq!(error.field.as_deref(), Some("body"));
        end(&world, &id, TaskStatus::Done).await;
        let late = json!({ "task_id": id, "body": "wait" });
        world.refuse(&call, "TaskReply", late, ErrorType::Conflict).await;
    }
}
