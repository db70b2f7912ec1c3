//! Tasks: recorded work, its state, and the events of its stream.

use clap::Args;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;

use crate::{Seq, TaskId, Timestamp, json::exact_object, limits, words::words};

words! {
    /// State of a task.
    pub enum TaskStatus {
        /// No runner has begun.
        Pending = "pending",
        /// A runner has begun.
        Active = "active",
        /// Ended well.
        Done = "done",
        /// Ended badly.
        Failed = "failed",
        /// Stopped on request.
        Cancelled = "cancelled",
        /// Silent for 24 h.
        Expired = "expired",
    }
}

impl TaskStatus {
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled | Self::Expired)
    }
}

/// What a runner reports of the process. A runner may report before the end, and a report keeps
/// what an earlier one said.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskReport {
    /// Exit code of the process.
    pub exit_code: Option<i32>,
    /// The signal that ended the process.
    pub signal: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
}

/// The process that runs a task, on the daemon's machine. The daemon notices its exit.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RunnerProcess {
    pub pid: u32,
}

/// A change of a task's state, as a producer sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskChange {
    pub status: TaskStatus,
    pub report: TaskReport,
    pub runner: Option<RunnerProcess>,
    /// What the task waits for.
    pub reason: Option<String>,
}

impl TaskReport {
    /// Adds the values of `later`, which take precedence.
    pub fn update(&mut self, later: &Self) {
        self.exit_code = later.exit_code.or(self.exit_code);
        self.signal = later.signal.clone().or_else(|| self.signal.take());
        self.error = later.error.clone().or_else(|| self.error.take());
    }
}

impl TaskChange {
    /// A change to `status`, perhaps with an error.
    pub fn to(status: TaskStatus, error: Option<String>) -> Self {
        let report = TaskReport { error, ..TaskReport::default() };
        Self { status, report, runner: None, reason: None }
    }
}

/// A task, as everybody sees it.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Task {
    /// Given by the daemon. Its output is the stream `task/<task_id>`.
    pub task_id: TaskId,
    /// Name for people.
    pub title: Option<String>,
    /// Name of the agent that is to run it.
    pub agent: Option<String>,
    /// Instructions for the agent.
    pub prompt: Option<String>,
    /// Who asked for it.
    pub from: Option<String>,
    /// Kept as it is, for its maker.
    pub metadata: Option<Map<String, Value>>,
    /// Present state.
    pub status: TaskStatus,
    /// What its runner reported of the process. A runner may report before the end.
    #[serde(flatten)]
    pub report: TaskReport,
    /// What the task waits for: a free agent, the end of a turn, a person who types, or an answer
    /// to a permission request.
    pub reason: Option<String>,
    /// Result of the task, in the words of the agent that did it.
    pub result: Option<String>,
    /// Whether only a part of the result is here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub result_truncated: bool,
    /// When the runner was asked to stop.
    pub cancel_requested_at: Option<Timestamp>,
    /// When it was made.
    pub created_at: Timestamp,
    /// The time of the last event of its stream.
    pub updated_at: Timestamp,
    /// When it reached a terminal status.
    pub closed_at: Option<Timestamp>,
    /// The id of the last event of its stream.
    pub last_id: Seq,
}

/// A task to be made.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize, JsonSchema)]
pub struct NewTask {
    /// Name for people.
    #[arg(long, help = "A title for people")]
    pub title: Option<String>,
    /// Name of the agent that is to run it.
    #[arg(long, help = "Who should do it")]
    pub agent: Option<String>,
    /// Instructions for the agent.
    #[arg(long, help = "The instructions")]
    pub prompt: Option<String>,
    /// Who asks for it, which only the operator may choose.
    #[arg(long, help = "On whose behalf; only the operator may choose")]
    pub from: Option<String>,
    /// Kept as it is, for its maker.
    #[arg(skip)]
    #[serde(default, deserialize_with = "exact_object")]
    #[schemars(!default)]
    pub metadata: Option<Map<String, Value>>,
    /// A repeat with the same key is answered with the task first made.
    #[arg(long, value_name = "KEY", help = "A repeat with the same key returns the first task")]
    pub idempotency_key: Option<String>,
}

impl NewTask {
    /// Whether this request would create `task`, whichever run of the command made it.
    pub fn is_for(&self, task: &Task) -> bool {
        (&self.title, &self.agent, &self.prompt) == (&task.title, &task.agent, &task.prompt)
            && without_run(self.metadata.as_ref()) == without_run(task.metadata.as_ref())
    }
}

/// Metadata without `run`, by which `svc task run` distinguishes its task from that of an earlier
/// run.
fn without_run(metadata: Option<&Map<String, Value>>) -> Map<String, Value> {
    let mut metadata = metadata.cloned().unwrap_or_default();
    metadata.remove("run");
    metadata
}

impl Task {
    pub const fn is_over(&self) -> bool {
        self.status.is_terminal()
    }

    /// Stores the beginning of a result, as much as a task keeps.
    pub fn set_result(&mut self, result: Option<String>) {
        self.result = result.map(|mut text| {
            text.truncate(text.floor_char_boundary(limits::TASK_RESULT_BYTES));
            text
        });
        self.result_truncated = self.result.as_deref().is_some_and(is_cut_result);
    }

    /// Applies a change. The caller has checked that the task has not ended.
    pub fn apply(&mut self, change: &TaskChange, now: Timestamp, seq: Seq) {
        self.status = change.status;
        self.closed_at = change.status.is_terminal().then_some(now);
        if change.status != TaskStatus::Pending {
            self.reason.clone_from(&change.reason);
        }
        self.report.update(&change.report);
        self.updated_at = now;
        self.last_id = seq;
    }
}

/// Which pipe of a process a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FrameKind {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskEvent {
    /// The producer's own id of the event, if the producer may have to repeat the request.
    pub producer_id: Option<String>,
    pub body: TaskEventBody,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskEventBody {
    Frame(NewFrame),
    /// A change of state. A final status ends the task.
    Change(TaskChange),
}

/// A line of output, without its terminator, with the time if the producer knows it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NewFrame {
    pub line: String,
    pub kind: FrameKind,
    pub ts: Option<Timestamp>,
}

/// The `data` of a stored `frame` event.
#[derive(Debug, Serialize)]
pub struct Frame<'a> {
    pub task_id: &'a TaskId,
    /// The line, without its terminator.
    pub line: &'a str,
    pub kind: FrameKind,
    /// When it was written.
    pub ts: Timestamp,
    /// Whether further output was not stored.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// Whether the next frame continues this line.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

/// What a reply is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplyKind {
    /// How far it has come.
    #[default]
    Progress,
    /// The result. The task goes on until its runner ends it.
    Result,
    /// A question, or the answer to one.
    Clarification,
    /// What went wrong. The task goes on until its runner ends it.
    Error,
}

/// The `data` of a stored `reply` event of a task.
#[derive(Debug, Serialize)]
pub struct TaskReply<'a> {
    pub kind: ReplyKind,
    /// The caller's text.
    pub body: &'a str,
    /// The author as the daemon knows it: a peer, a session, or `operator`.
    pub from: &'a str,
    pub ts: Timestamp,
}

/// Whether a stored result was cut. A cut between characters leaves up to 3 bytes less than the
/// bound, and a whole result of that length counts as cut.
pub const fn is_cut_result(result: &str) -> bool {
    result.len() + char::MAX_LEN_UTF8 > limits::TASK_RESULT_BYTES
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_task_serialises_flat_in_this_order() {
        let at = Timestamp::from_millis;
        let mut task = Task {
            task_id: TaskId::from("task_1".to_owned()),
            title: None,
            agent: None,
            prompt: None,
            from: None,
            metadata: None,
            status: TaskStatus::Pending,
            report: TaskReport::default(),
            reason: None,
            result: None,
            result_truncated: false,
            cancel_requested_at: None,
            created_at: at(0),
            updated_at: at(0),
            closed_at: None,
            last_id: 1,
        };
        let pending = concat!(
            r#"{"task_id":"task_1","status":"pending","created_at":"1970-01-01T00:00:00.000Z","#,
            r#""updated_at":"1970-01-01T00:00:00.000Z","last_id":1}"#,
        );
        assert_eq!(serde_json::to_string(&task).unwrap(), pending);
        task.title = Some("t".to_owned());
        task.agent = Some("a".to_owned());
        task.prompt = Some("p".to_owned());
        task.from = Some("f".to_owned());
        task.metadata = json!({ "m": 1 }).as_object().cloned();
        task.cancel_requested_at = Some(at(1));
        let mut early = TaskChange::to(TaskStatus::Active, None);
        early.report.signal = Some("SIGTERM".to_owned());
        task.apply(&early, at(2), 2);
        let mut late = TaskChange::to(TaskStatus::Cancelled, Some("e".to_owned()));
        late.report.exit_code = Some(3);
        task.apply(&late, at(3), 3);
        let ended = concat!(
            r#"{"task_id":"task_1","title":"t","agent":"a","prompt":"p","from":"f","metadata":{"m":1},"#,
            r#""status":"cancelled","exit_code":3,"signal":"SIGTERM","error":"e","#,
            r#""cancel_requested_at":"1970-01-01T00:00:00.001Z","created_at":"1970-01-01T00:00:00.000Z","#,
            r#""updated_at":"1970-01-01T00:00:00.003Z","closed_at":"1970-01-01T00:00:00.003Z","last_id":3}"#,
        );
        assert_eq!(serde_json::to_string(&task).unwrap(), ended);
        for (length, is_cut) in [(limits::TASK_RESULT_BYTES / 3, true), (1, false)] {
            task.set_result(Some("€".repeat(length + 1)));
            let shown = serde_json::to_value(&task).unwrap();
            assert_eq!(shown.get("result_truncated"), is_cut.then_some(&json!(true)));
            assert!(task.result.as_ref().unwrap().len() <= limits::TASK_RESULT_BYTES);
        }
    }
}
