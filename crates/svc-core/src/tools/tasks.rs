//! Tools that read tasks, wait for their ends, cancel them and reply to them.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{
    FrameKind, ListQuery, NOT_BLANK, ReplyKind, Seq, Task, TaskFilter, TaskId, Timestamp, limits,
};
use tokio::time::{Instant, timeout, timeout_at};

use super::{Call, Failure, Tool, ToolError, ToolProgress, peers::own_peer};
use crate::service::{Page, PageBounds, tasks::Cancelled};

pub(super) fn tools() -> Vec<Tool> {
    vec![
        Tool::new("TaskGet", GET, get).title("Look at a task").read_only(),
        Tool::new("TaskList", LIST, list).title("List tasks").read_only(),
        Tool::new("TaskWait", WAIT, wait).title("Wait for a task").read_only().slow(),
        Tool::new("TaskNotify", NOTIFY, notify).title("Wait for several tasks").read_only().slow(),
        Tool::new("TaskCancel", CANCEL, cancel).title("Cancel a task").destructive().idempotent(),
        Tool::new("TaskReply", REPLY, reply).title("Reply to a task"),
    ]
}

const WAIT_MAX: u64 = limits::TASK_WAIT.as_secs();

const GET: &str = "\
Returns a task as it is now: its state, and how it ended.

Use it to look once; to wait for the end use TaskWait. With frames it also gives the last lines of the task's output \
(at most 256 KiB of them; events_read on the stream task/<task_id> has all of it).";

#[derive(Deserialize, JsonSchema)]
struct TaskGetArguments {
    /// The task.
    #[schemars(regex(pattern = NOT_BLANK))]
    task_id: String,
    /// How many of the last lines of its output to return.
    #[schemars(range(min = 0, max = limits::TASK_FRAMES_MAX), extend("default" = 0))]
    frames: Option<u32>,
}

#[derive(Serialize, JsonSchema)]
struct TaskGetResult {
    task: Arc<Task>,
    #[serde(flatten)]
    output: TaskOutput,
}

/// The end of a task's output.
#[derive(Serialize, JsonSchema)]
struct TaskOutput {
    /// The last lines of its output, in order.
    frames: Vec<OutputLine>,
    /// Lines that were asked for were left out because of their size.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    frames_cut: bool,
}

/// A line of output.
#[derive(Serialize, JsonSchema)]
struct OutputLine {
    /// The id of its event in the stream `task/<task_id>`.
    id: Seq,
    #[serde(flatten)]
    frame: StoredFrame,
}

/// What is shown of a frame in the log.
#[derive(Serialize, Deserialize, JsonSchema)]
struct StoredFrame {
    line: String,
    /// The pipe that it came from.
    kind: FrameKind,
    ts: Timestamp,
}

async fn get(call: Call, input: TaskGetArguments) -> Result<TaskGetResult, Failure> {
    let task = call.services.tasks.task(&call.caller, &input.task_id).await?;
    let output = last_lines(&call, &task.task_id, input.frames).await?;
    Ok(TaskGetResult { task, output })
}

async fn last_lines(call: &Call, task: &TaskId, count: Option<u32>) -> Result<TaskOutput, Failure> {
    let (frames, cut) = call.services.tasks.last_frames(task, count.unwrap_or(0)).await?;
    let lines = frames.into_iter().map(|(id, data)| {
        let frame = serde_json::from_str(&data).map_err(|error| {
            tracing::error!(%task, id, %error, "a frame in the log cannot be parsed");
            ToolError::internal()
        })?;
        Ok(OutputLine { id, frame })
    });
    Ok(TaskOutput { frames: lines.collect::<Result<_, ToolError>>()?, frames_cut: cut })
}

const LIST: &str = "\
Lists tasks, the latest first.

Use it to find the id of a task, or to see what is going on. Filters match exactly, and all that are given have to \
match.";

async fn list(call: Call, input: ListQuery<TaskFilter>) -> Result<Page<Task>, Failure> {
    let page = PageBounds::from(&input.page).for_model();
    Ok(call.services.tasks.tasks(&call.caller, &input.filter, page).await?)
}

const WAIT: &str = "\
Waits until a task is over (done, failed, cancelled), and gives it: at once if it is over already, else after timeout_s with timed_out = true, which is \
no failure. For several tasks use TaskNotify.";

#[derive(Deserialize, JsonSchema)]
struct TaskWaitArguments {
    /// The task.
    #[schemars(regex(pattern = NOT_BLANK))]
    task_id: String,
    /// Maximum wait in seconds.
    #[schemars(range(min = 0, max = WAIT_MAX), extend("default" = 300))]
    timeout_s: Option<u64>,
    /// How many of the last lines of its output to return.
    #[schemars(range(min = 0, max = limits::TASK_FRAMES_MAX), extend("default" = 0))]
    frames: Option<u32>,
}

#[derive(Serialize, JsonSchema)]
struct TaskWaitResult {
    task: Arc<Task>,
    /// It was not over in time.
    timed_out: bool,
    #[serde(flatten)]
    output: TaskOutput,
}

async fn wait(call: Call, input: TaskWaitArguments) -> Result<TaskWaitResult, Failure> {
    let left = call.time_left(Duration::from_secs(input.timeout_s.unwrap_or(300)));
    let mut watch =
        call.services.tasks.watch_tasks(&call.caller, std::slice::from_ref(&input.task_id)).await?;
    let ended = match timeout(left, watch.next()).await {
        Ok(ended) => ended?,
        Err(_) => None,
    };
    let task = match ended {
        Some(task) => Arc::new(task),
        None => call.services.tasks.task(&call.caller, &input.task_id).await?,
    };
    let output = last_lines(&call, &task.task_id, input.frames).await?;
    Ok(TaskWaitResult { timed_out: !task.is_over(), task, output })
}

const NOTIFY: &str = "\
Waits for several tasks: until the first of them is over, or with mode = all until all of them are.

Use it after you have handed out work, to go on as soon as something is done. It gives every watched task that is over \
by then in `finished`, and the others in `pending_ids`: call it again with those. If the time is up first you get what \
there is, with timed_out = true: that is no failure. An id that no task has fails the whole call at once.";

#[derive(Deserialize, JsonSchema)]
struct TaskNotifyArguments {
    /// The ids of the tasks; duplicates count once.
    #[schemars(length(min = 1, max = limits::WATCHED_TASKS), inner(regex(pattern = NOT_BLANK)))]
    task_ids: Vec<String>,
    /// Maximum wait in seconds.
    #[schemars(range(min = 0, max = WAIT_MAX), extend("default" = 600))]
    timeout_s: Option<u64>,
    /// `any`: until the first task ends. `all`: until all tasks have ended.
    #[schemars(extend("default" = "any"))]
    mode: Option<TaskNotifyMode>,
}

/// How many of the tasks have to be over.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum TaskNotifyMode {
    /// One is enough.
    Any,
    /// All of them.
    All,
}

#[derive(Serialize, JsonSchema)]
struct TaskNotifyResult {
    /// The tasks that were waited for.
    watched_ids: Vec<String>,
    /// Those that are over, in the order of their ends as far as this call has seen them.
    finished: Vec<Task>,
    /// Those that are not.
    pending_ids: Vec<String>,
    /// The time was up before enough of them were over.
    timed_out: bool,
}

async fn notify(call: Call, input: TaskNotifyArguments) -> Result<TaskNotifyResult, Failure> {
    let until =
        Instant::now() + call.time_left(Duration::from_secs(input.timeout_s.unwrap_or(600)));
    let mut known = HashSet::new();
    let mut watched_ids = input.task_ids;
    watched_ids.retain(|id| known.insert(id.clone()));
    let enough = match input.mode.unwrap_or(TaskNotifyMode::Any) {
        TaskNotifyMode::Any => 1,
        TaskNotifyMode::All => watched_ids.len(),
    };
    let mut watch = call.services.tasks.watch_tasks(&call.caller, &watched_ids).await?;
    let mut finished: Vec<Task> = Vec::new();
    loop {
        let next = if finished.len() < enough {
            timeout_at(until, watch.next()).await.ok()
        } else {
            // Other tasks may have ended meanwhile; they are returned without waiting.
            watch.next().now_or_never()
        };
        let Some(Some(task)) = next.transpose()? else { break };
        let message = format!("task {} is {}", task.task_id, task.status.as_str());
        finished.push(task);
        let (progress, total) = (count(finished.len()), Some(count(watched_ids.len())));
        call.progress(ToolProgress { progress, total, message: Some(message) }).await;
    }
    let over: HashSet<&str> = finished.iter().map(|task| task.task_id.as_str()).collect();
    let pending_ids =
        watched_ids.iter().filter(|id| !over.contains(id.as_str())).cloned().collect();
    let timed_out = finished.len() < enough;
    Ok(TaskNotifyResult { watched_ids, finished, pending_ids, timed_out })
}

/// A number of tasks, in the type of MCP progress.
fn count(tasks: usize) -> f64 {
    u32::try_from(tasks).map_or(f64::MAX, f64::from)
}

const CANCEL: &str = "\
Asks for a task to be stopped.

A task that nobody has begun is cancelled at once (at_once = true). Otherwise its runner is asked to stop, and the task \
is `cancelled` when it has: TaskWait tells. A task that has ended cannot be cancelled: conflict.";

#[derive(Deserialize, JsonSchema)]
struct TaskCancelArguments {
    /// The task.
    #[schemars(regex(pattern = NOT_BLANK))]
    task_id: String,
}

async fn cancel(call: Call, input: TaskCancelArguments) -> Result<Cancelled, Failure> {
    Ok(call.services.tasks.cancel_task(&call.caller, &input.task_id).await?)
}

const REPLY: &str = "\
Says something in the stream of a task that was given to you, for whoever watches it.

Use it while you work on a task: kind `progress` for how far you are, `clarification` for a question or the answer to \
one, `result` for the result, `error` for what went wrong. It does not end the task, whatever the kind: the \
runner's exit does. It is refused when the task is over (conflict).";

#[derive(Deserialize, JsonSchema)]
struct TaskReplyArguments {
    /// The task.
    #[schemars(regex(pattern = NOT_BLANK))]
    task_id: String,
    /// The text, at most 256 KiB.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::REPLY_BYTES))]
    body: String,
    /// Progress, a result, a question or its answer, or an error.
    #[schemars(extend("default" = "progress"))]
    kind: Option<ReplyKind>,
}

#[derive(Serialize, JsonSchema)]
struct TaskReplyResult {
    task_id: String,
    /// The id of its event in the stream `task/<task_id>`.
    event_id: Seq,
    kind: ReplyKind,
}

async fn reply(call: Call, input: TaskReplyArguments) -> Result<TaskReplyResult, Failure> {
    // For a session, the service finds its peer. The operator speaks for the peer of the session
    // that the operator names.
    let named = if call.caller.is_operator() { own_peer(&call).await? } else { None };
    let kind = input.kind.unwrap_or_default();
    let tasks = &call.services.tasks;
    let event_id =
        tasks.reply_to_task(&call.caller, named, &input.task_id, kind, input.body).await?;
    Ok(TaskReplyResult { task_id: input.task_id, event_id, kind })
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use serde_json::{Value, json};
    use svc_model::{
        Caller, FrameKind, NewFrame, NewTask, TaskChange, TaskEvent, TaskEventBody, TaskStatus,
    };

    use super::super::{
        Call, ErrorType,
        tests::{World, each, eventually, nothing, text},
    };

    async fn frame(world: &World, task: &str, line: &str) {
        let frame = NewFrame { line: line.to_owned(), kind: FrameKind::Stdout, ts: None };
        let body = TaskEventBody::Frame(frame);
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
        let (world, call) = World::with_operator().await;
        let id = world.task().await;
        for n in 0..5 {
            frame(&world, &id, &n.to_string()).await;
        }
        let found = world.call(&call, "TaskGet", json!({ "task_id": id })).await;
        assert_eq!(text(&found["task"], "status"), "pending");
        assert_eq!(found["frames"], json!([]));
        let found = world.call(&call, "TaskGet", json!({ "task_id": id, "frames": 2 })).await;
        assert_eq!(each(&found["frames"], "line"), ["3", "4"]);
        assert_eq!(each(&found["frames"], "id"), [5, 6]);
        assert_eq!(found.get("frames_cut"), None);
        frame(&world, &id, &"x".repeat(200 * 1024)).await;
        frame(&world, &id, &"y".repeat(200 * 1024)).await;
        let found = world.call(&call, "TaskGet", json!({ "task_id": id, "frames": 500 })).await;
        assert_eq!(found["frames"].as_array().unwrap().len(), 1);
        assert_eq!(found["frames_cut"], true);
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
        let (world, call) = World::with_operator().await;
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
        world.refuse_field(&call, "TaskList", since, "since").await;
    }

    #[tokio::test]
    async fn a_wait_ends_with_the_task_or_its_timeout() {
        let world = Arc::new(World::open().await);
        let call = world.operator(None);
        let id = world.task().await;
        let now = world.call(&call, "TaskWait", json!({ "task_id": id, "timeout_s": 0 })).await;
        assert_eq!(now["timed_out"], true);
        assert_eq!(text(&now["task"], "status"), "pending");
        // A repeated call keeps its deadline.
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
        assert_eq!(waited["timed_out"], false);
        assert_eq!(text(&waited["task"], "status"), "failed");
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
        assert_eq!(any["pending_ids"].as_array().unwrap().len(), 63);
        assert_eq!(any["timed_out"], false);
        assert!(!any["pending_ids"].as_array().unwrap().contains(&json!(ids[7])));
        assert!(!all.is_finished());
        end(&world, &ids[9], TaskStatus::Cancelled).await;
        let all = all.await.unwrap();
        assert_eq!(each(&all["finished"], "status"), ["done", "cancelled"]);
        assert_eq!(all["watched_ids"], json!([ids[7], ids[9]]));
        assert_eq!(all["pending_ids"], json!([]));

        // Ended tasks are returned at once, all of them; a pending one delays `all` until the
        // timeout.
        let arguments = json!({ "task_ids": [ids[9], ids[0], ids[7]] });
        let now = world.call(&call, "TaskNotify", arguments).await;
        assert_eq!(each(&now["finished"], "task_id"), [json!(ids[9]), json!(ids[7])]);
        assert_eq!((&now["pending_ids"], &now["timed_out"]), (&json!([ids[0]]), &json!(false)));
        let arguments = json!({ "task_ids": [ids[9], ids[0]], "mode": "all", "timeout_s": 0 });
        let late = world.call(&call, "TaskNotify", arguments).await;
        assert_eq!(each(&late["finished"], "task_id"), [json!(ids[9])]);
        assert_eq!(late["timed_out"], true);

        let arguments = json!({ "task_ids": [ids[0], "task_x"] });
        world.refuse(&call, "TaskNotify", arguments, ErrorType::NotFound).await;
        assert_eq!(listeners(&world), 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_end_is_never_missed_by_a_wait() {
        let world = Arc::new(World::open().await);
        for n in 0..200 {
            let id = world.task().await;
            let (name, arguments) = match n % 2 {
                0 => ("TaskWait", json!({ "task_id": id, "timeout_s": 20 })),
                _ => ("TaskNotify", json!({ "task_ids": [id], "timeout_s": 20 })),
            };
            let waiting = tokio::spawn({
                let (world, call) = (Arc::clone(&world), world.operator(None));
                async move { world.call(&call, name, arguments).await }
            });
            end(&world, &id, TaskStatus::Done).await;
            let heard = waiting.await.unwrap();
            assert_ne!(heard["timed_out"], true, "{name}: {heard}");
        }
        assert_eq!(listeners(&world), 0);
    }

    #[tokio::test]
    async fn a_cancelled_wait_leaves_no_listener() {
        let world = Arc::new(World::open().await);
        let id = world.task().await;
        for (name, arguments) in
            [("TaskWait", json!({ "task_id": id })), ("TaskNotify", json!({ "task_ids": [id] }))]
        {
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
        let (world, call) = World::with_operator().await;
        let (nobody, begun) = (world.task().await, world.task().await);
        let cancelled = world.call(&call, "TaskCancel", json!({ "task_id": nobody })).await;
        assert_eq!(cancelled["at_once"], true);
        assert_eq!(text(&cancelled["task"], "status"), "cancelled");
        world.refuse(&call, "TaskCancel", json!({ "task_id": nobody }), ErrorType::Conflict).await;
        frame(&world, &begun, "a").await;
        let asked = world.call(&call, "TaskCancel", json!({ "task_id": begun })).await;
        assert_eq!(asked["at_once"], false);
        assert!(asked["task"]["cancel_requested_at"].is_string());
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
        world.refuse_field(&call, "TaskReply", long, "body").await;
        end(&world, &id, TaskStatus::Done).await;
        let late = json!({ "task_id": id, "body": "wait" });
        world.refuse(&call, "TaskReply", late, ErrorType::Conflict).await;
    }
}
