//! A task, and what makes one.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::state::{TaskChange, TaskReport, TaskState, TaskStatus};
use crate::{Seq, TaskId, Timestamp};

/// A task, as everybody sees it.
#[derive(Debug, Clone, PartialEq)]
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
    pub state: TaskState,
    /// What its runner reported of the process. A runner may report before the end.
    pub report: TaskReport,
    /// What the task waits for: a free agent, the end of a turn, a person who types, or an answer to a permission request.
    pub reason: Option<String>,
    /// What came of it, in the words of the agent that did it.
    pub result: Option<String>,
    /// When the runner was asked to stop. It stays after the end.
    pub cancel_requested_at: Option<Timestamp>,
    /// When it was made.
    pub created_at: Timestamp,
    /// The time of the last event of its stream.
    pub updated_at: Timestamp,
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

impl NewTask {
    /// Whether a task is the one that this asks for, whichever run of a command asks.
    pub fn is_for(&self, task: &Task) -> bool {
        (&self.title, &self.agent, &self.prompt) == (&task.title, &task.agent, &task.prompt)
            && without_run(self.metadata.as_ref()) == without_run(task.metadata.as_ref())
    }
}

/// Metadata without the member `run`, by which `svc task run` knows its own task from that of an earlier run.
fn without_run(metadata: Option<&Map<String, Value>>) -> Map<String, Value> {
    let mut metadata = metadata.cloned().unwrap_or_default();
    metadata.remove("run");
    metadata
}

impl Task {
    /// The word for its state.
    pub const fn status(&self) -> TaskStatus {
        self.state.status()
    }

    /// Whether it is over.
    pub const fn is_over(&self) -> bool {
        matches!(self.state, TaskState::Ended { .. })
    }

    /// The task after `change`. The caller has checked that this one is not over.
    pub fn apply(&mut self, change: &TaskChange, now: Timestamp, seq: Seq) {
        self.state = TaskState::since(change.status, now);
        if change.status != TaskStatus::Pending {
            self.reason = None;
        }
        self.report.update(&change.report);
        self.updated_at = now;
        self.last_id = seq;
    }
}
