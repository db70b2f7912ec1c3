//! The state of a task, and what changes it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// Whether a task is over. Only one that is over has a time of its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskState {
    /// No runner has begun.
    Pending,
    /// A runner has begun.
    Active,
    /// It is over, and stays so.
    Ended {
        /// How it ended.
        how: TaskEnd,
        /// When it ended.
        at: Timestamp,
    },
}

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskEnd {
    /// Well.
    Done,
    /// Badly.
    Failed,
    /// Stopped on request.
    Cancelled,
    /// Silent for 24 h.
    Expired,
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

/// What a runner reports of the process. A runner may report before the end, and a report keeps what an earlier one said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskReport {
    /// Exit code of the process.
    pub exit_code: Option<i32>,
    /// The signal that ended the process.
    pub signal: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
}

/// The process that runs a task, on the daemon's machine.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RunnerProcess {
    /// Its process id.
    pub pid: u32,
}

/// A change of a task's state, as a producer sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskChange {
    /// Status from now on.
    pub status: TaskStatus,
    /// What is known of the process now.
    pub report: TaskReport,
    /// The process that runs it, so that the daemon notices when it is gone.
    pub runner: Option<RunnerProcess>,
}

impl TaskState {
    /// The state that a task has had since `at`.
    pub const fn since(status: TaskStatus, at: Timestamp) -> Self {
        match status {
            TaskStatus::Pending => Self::Pending,
            TaskStatus::Active => Self::Active,
            TaskStatus::Done => Self::Ended { how: TaskEnd::Done, at },
            TaskStatus::Failed => Self::Ended { how: TaskEnd::Failed, at },
            TaskStatus::Cancelled => Self::Ended { how: TaskEnd::Cancelled, at },
            TaskStatus::Expired => Self::Ended { how: TaskEnd::Expired, at },
        }
    }

    /// The state that a row stands for: `None` if its status and its time of end contradict each other.
    pub const fn of_row(status: TaskStatus, ended_at: Option<Timestamp>) -> Option<Self> {
        match (status.is_terminal(), ended_at) {
            (true, Some(at)) => Some(Self::since(status, at)),
            (false, None) => Some(Self::since(status, Timestamp::from_millis(0))),
            _ => None,
        }
    }

    /// The word for it.
    pub const fn status(self) -> TaskStatus {
        match self {
            Self::Pending => TaskStatus::Pending,
            Self::Active => TaskStatus::Active,
            Self::Ended { how: TaskEnd::Done, .. } => TaskStatus::Done,
            Self::Ended { how: TaskEnd::Failed, .. } => TaskStatus::Failed,
            Self::Ended { how: TaskEnd::Cancelled, .. } => TaskStatus::Cancelled,
            Self::Ended { how: TaskEnd::Expired, .. } => TaskStatus::Expired,
        }
    }

    /// When it ended; `None` if it goes on.
    pub const fn ended_at(self) -> Option<Timestamp> {
        match self {
            Self::Pending | Self::Active => None,
            Self::Ended { at, .. } => Some(at),
        }
    }
}

impl TaskReport {
    /// Takes over what `later` says.
    pub fn update(&mut self, later: &Self) {
        self.exit_code = later.exit_code.or(self.exit_code);
        self.signal = later.signal.clone().or_else(|| self.signal.take());
        self.error = later.error.clone().or_else(|| self.error.take());
    }
}

impl TaskChange {
    /// A change to `status` of which nothing is known but, maybe, why.
    pub fn to(status: TaskStatus, error: Option<String>) -> Self {
        let report = TaskReport { error, ..TaskReport::default() };
        Self { status, report, runner: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [TaskStatus; 6] = [
        TaskStatus::Pending,
        TaskStatus::Active,
        TaskStatus::Done,
        TaskStatus::Failed,
        TaskStatus::Cancelled,
        TaskStatus::Expired,
    ];

    #[test]
    fn a_row_has_a_time_of_end_exactly_when_its_status_is_final() {
        let at = Timestamp::from_millis(5);
        for status in ALL {
            let (closed, open) =
                (TaskState::of_row(status, Some(at)), TaskState::of_row(status, None));
            let (state, contradiction) =
                if status.is_terminal() { (closed, open) } else { (open, closed) };
            assert_eq!(state.map(TaskState::status), Some(status));
            assert_eq!(contradiction, None, "{status:?}");
        }
    }
}
