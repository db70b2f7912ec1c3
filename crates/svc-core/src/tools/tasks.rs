//! Tools for tasks.

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
Returns a task as it is now: its state, and how it ended.

Use it to look once; to wait for the end use TaskWait. With frames it also gives the last lines of the task's output \
(at most 256 KiB of them; events_read on the stream task/<task_id> has all of it).";

/// Which task.
#[derive(Deserialize, JsonSchema)]
struct TaskGetArguments {
    /// The task.
    #[schemars(regex(pattern = NOT_BLANK))]
    task_id: String,
    /// How many of the last lines of its output to return.
    #[schemars(range(min = 0, max = limits::TASK_FRAMES_MAX), extend("default" = 0))]
    frames: Option<u32>,
}

/// A task, and the end of its output.
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
    let last = call.services.tasks.last_frames(task, count.unwrap_or(0)).await?;
    let lines = last.frames.into_iter().map(|(id, data)| {
        let frame = serde_json::from_str(&data).map_err(|error| {
            tracing::error!(%task, id, %error, "a frame in the log cannot be parsed");
            ToolError::internal()
        })?;
        Ok(OutputLine { id, frame })
    });
    Ok(TaskOutput { frames: lines.collect::<Result<_, ToolError>>()?, frames_cut: last.cut })
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

/// Which task, and for how long.
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

/// A task that was waited for.
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

/// Which tasks, and for how long.
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

/// What became of the tasks.
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
            // Other tasks may have ended, too; they are returned without waiting.
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

/// Which task.
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
one, `result` for what came of it, `error` for what went wrong. It does not end the task, whatever the kind: the \
runner's exit does. It is refused when the task is over (conflict).";

/// A reply to a task.
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

/// A reply that is in the log.
#[derive(Serialize, JsonSchema)]
struct TaskReplyResult {
    task_id: String,
    /// The id of its event in the stream `task/<task_id>`.
    event_id: Seq,
    kind: ReplyKind,
}

async fn reply(call: Call, input: TaskReplyArguments) -> Result<TaskReplyResult, Failure> {
    // The service finds a session's peer; the operator speaks for the peer of the session that it
    // names.
    let named = if call.caller.is_operator() { own_peer(&call).await? } else { None };
    let kind = input.kind.unwrap_or_default();
    let event_id = call
        .services
        .tasks
        .reply_to_task(&call.caller, named, &input.task_id, kind, input.body)
        .await?;
    Ok(TaskReplyResult { task_id: input.task_id, event_id, kind })
}
