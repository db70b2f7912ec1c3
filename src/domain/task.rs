//! Tasks: work that somebody runs and everybody may watch.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Seq, TaskId, Timestamp};

/// A task, as everybody sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Task {
    /// Given by the daemon. Its output is the stream `task/<task_id>`.
    pub task_id: TaskId,
    /// Name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Name of the agent that is to run it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Instructions for the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Who asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Kept as it is, for its maker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
    /// Present state.
    pub status: TaskStatus,
    /// Exit code of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When the runner was asked to stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel_requested_at: Option<Timestamp>,
    /// When it was made.
    pub created_at: Timestamp,
    /// The time of the last event of its stream.
    pub updated_at: Timestamp,
    /// When it reached a terminal status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<Timestamp>,
    /// The id of the last event of its stream.
    pub last_id: Seq,
}

/// A task to be made.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
pub struct NewTask {
    /// Name for people.
    pub title: Option<String>,
    /// Name of the agent that is to run it.
    pub agent: Option<String>,
    /// Instructions for the agent.
    pub prompt: Option<String>,
    /// Who asks for it, which only the operator may choose.
    pub from: Option<String>,
    /// Kept as it is, for its maker.
    pub metadata: Option<Map<String, Value>>,
    /// A repeat with the same key is answered with the task first made.
    pub idempotency_key: Option<String>,
}

/// State of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// No runner has begun.
    Pending,
    /// A runner has begun.
    Active,
    /// Ended well.
    Done,
    /// Ended badly.
    Failed,
    /// Stopped on request.
    Cancelled,
    /// Silent for 24 h.
    Expired,
}

impl TaskStatus {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Active => "active",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }

    /// Whether it is final.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled | Self::Expired)
    }
}

/// Which pipe of a process a line came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FrameKind {
    /// Standard output.
    #[default]
    Stdout,
    /// Standard error.
    Stderr,
}

/// The process that runs a task, on the daemon's machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Runner {
    /// Its process id.
    pub pid: u32,
}

/// A change of a task's status: the `data` of a `task` or `terminal` event as a producer sends it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
pub struct Verdict {
    /// Status from now on.
    pub status: TaskStatus,
    /// Exit code of the process.
    pub exit_code: Option<i32>,
    /// The signal that ended the process.
    pub signal: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
    /// The process that runs it, so that the daemon notices when it is gone.
    pub runner: Option<Runner>,
}

/// An event of a task, as its producer sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskEvent {
    /// The producer's own id for it, if it wants to be able to repeat itself.
    pub producer_id: Option<String>,
    /// What happened.
    pub body: TaskEventBody,
}

/// What a producer may say of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskEventBody {
    /// A line of output.
    Frame {
        /// The line, without its end.
        line: String,
        /// The pipe that it came from.
        kind: FrameKind,
        /// When it was written, if the producer knows.
        ts: Option<Timestamp>,
    },
    /// The task goes on, in a state that is not final.
    Task(Verdict),
    /// The task is over.
    Terminal(Verdict),
}

/// The `data` of a stored `frame` event.
#[derive(Debug, Serialize)]
pub struct Frame<'a> {
    /// The task.
    pub task_id: &'a TaskId,
    /// The line, without its end.
    pub line: &'a str,
    /// The pipe that it came from.
    pub kind: FrameKind,
    /// When it was written.
    pub ts: Timestamp,
}

/// What a reply is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplyKind {
    /// How far it has come.
    #[default]
    Progress,
    /// What came of it. The task goes on until its runner ends it.
    Result,
    /// A question, or the answer to one.
    Clarification,
    /// What went wrong. The task goes on until its runner ends it.
    Error,
}

/// The `data` of a stored `reply` event.
#[derive(Debug, Serialize)]
pub struct Reply<'a> {
    /// What it is.
    pub kind: ReplyKind,
    /// What the caller has to say.
    pub body: &'a str,
    /// Who says so, as the daemon knows it: a peer, a session, or `operator`.
    pub from: &'a str,
    /// When it was said.
    pub ts: Timestamp,
}

impl Task {
    /// The task after `verdict`. The caller has checked that this one is not final.
    pub fn apply(&mut self, verdict: &Verdict, now: Timestamp, seq: Seq) {
        self.status = verdict.status;
        self.exit_code = verdict.exit_code.or(self.exit_code);
        self.signal = verdict.signal.clone().or_else(|| self.signal.take());
        self.error = verdict.error.clone().or_else(|| self.error.take());
        self.updated_at = now;
        self.closed_at = verdict.status.is_terminal().then_some(now);
        self.last_id = seq;
    }
}
