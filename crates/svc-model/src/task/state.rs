//! The state of a task, and changes of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled | Self::Expired)
    }
}

/// What a runner reports of the process. A runner may report before the end, and a report keeps
/// what an earlier one said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskReport {
    /// Exit code of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The process that runs a task, on the daemon's machine.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RunnerProcess {
    pub pid: u32,
}

/// A change of a task's state, as a producer sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskChange {
    /// The new status.
    pub status: TaskStatus,
    /// What is known of the process now.
    pub report: TaskReport,
    /// The process that runs the task; the daemon notices its exit.
    pub runner: Option<RunnerProcess>,
    /// Why it does not go on, if it does not.
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
    /// A change to `status` with at most a reason.
    pub fn to(status: TaskStatus, error: Option<String>) -> Self {
        let report = TaskReport { error, ..TaskReport::default() };
        Self { status, report, runner: None, reason: None }
    }
}
