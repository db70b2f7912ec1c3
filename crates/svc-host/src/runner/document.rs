//! The task of a run, as the daemon describes it.

use serde_json::Value;

use super::exit::RunExit;

/// The daemon's document of a task. Fields that this program does not know are kept.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskDocument(pub Value);

impl TaskDocument {
    /// The task's id; empty if the document has none.
    pub fn id(&self) -> &str {
        self.0["task_id"].as_str().unwrap_or_default()
    }

    /// The task's status as the daemon writes it, such as `pending`.
    pub fn status(&self) -> &str {
        self.0["status"].as_str().unwrap_or_default()
    }

    /// Whether no run has begun it.
    pub(super) fn is_pending(&self) -> bool {
        self.status() == "pending"
    }

    /// The exit code of the run that the task records; 0 if the run is not over.
    pub fn exit_code(&self) -> u8 {
        let code = self.0["exit_code"].as_i64().and_then(|code| i32::try_from(code).ok());
        let signal = || self.0["signal"].as_str().and_then(RunExit::by_signal);
        match (self.status(), code.map(RunExit::Code).or_else(signal)) {
            ("pending" | "active" | "done", _) => 0,
            (_, Some(exit)) => exit.shell_code(),
            (_, None) => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_task_tells_how_its_run_ended() {
        for (task, code) in [
            (json!({ "status": "pending" }), 0),
            (json!({ "status": "active" }), 0),
            (json!({ "status": "done", "exit_code": 0 }), 0),
            (json!({ "status": "failed", "exit_code": 3 }), 3),
            (json!({ "status": "failed", "signal": "SIGKILL" }), 137),
            (json!({ "status": "cancelled", "signal": "SIGTERM" }), 143),
            (json!({ "status": "cancelled", "exit_code": 0 }), 0),
            (json!({ "status": "expired" }), 1),
        ] {
            assert_eq!(TaskDocument(task.clone()).exit_code(), code, "{task}");
        }
    }
}
