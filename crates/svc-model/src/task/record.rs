//! A task, and the request that creates one.

use clap::Args;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::state::{TaskChange, TaskReport, TaskStatus};
use crate::{Seq, TaskId, Timestamp};

/// A task, as everybody sees it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
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
    /// What its runner reported of the process. A runner may report before the end.
    #[serde(flatten)]
    pub report: TaskReport,
    /// What the task waits for: a free agent, the end of a turn, a person who types, or an answer
    /// to a permission request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What came of it, in the words of the agent that did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
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
    pub metadata: Option<Map<String, Value>>,
    /// A repeat with the same key is answered with the task first made.
    #[arg(long, value_name = "KEY", help = "A repeat with the same key returns the first task")]
    pub idempotency_key: Option<String>,
}

impl NewTask {
    /// Whether this request would create `task`; ignores which run of the command made it.
    pub fn is_for(&self, task: &Task) -> bool {
        (&self.title, &self.agent, &self.prompt) == (&task.title, &task.agent, &task.prompt)
            && without_run(self.metadata.as_ref()) == without_run(task.metadata.as_ref())
    }
}

/// Metadata without `run`. With that member `svc task run` distinguishes its own task from that of
/// an earlier run.
fn without_run(metadata: Option<&Map<String, Value>>) -> Map<String, Value> {
    let mut metadata = metadata.cloned().unwrap_or_default();
    metadata.remove("run");
    metadata
}

impl Task {
    pub const fn is_over(&self) -> bool {
        self.status.is_terminal()
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
        let early = TaskReport { exit_code: None, signal: Some("SIGTERM".to_owned()), error: None };
        let early = TaskChange {
            status: TaskStatus::Active,
            report: early,
            ..TaskChange::to(TaskStatus::Active, None)
        };
        task.apply(&early, at(2), 2);
        let late = TaskReport { exit_code: Some(3), signal: None, error: Some("e".to_owned()) };
        let late = TaskChange {
            status: TaskStatus::Cancelled,
            report: late,
            ..TaskChange::to(TaskStatus::Cancelled, None)
        };
        task.apply(&late, at(3), 3);
        let ended = concat!(
            r#"{"task_id":"task_1","title":"t","agent":"a","prompt":"p","from":"f","metadata":{"m":1},"#,
            r#""status":"cancelled","exit_code":3,"signal":"SIGTERM","error":"e","#,
            r#""cancel_requested_at":"1970-01-01T00:00:00.001Z","created_at":"1970-01-01T00:00:00.000Z","#,
            r#""updated_at":"1970-01-01T00:00:00.003Z","closed_at":"1970-01-01T00:00:00.003Z","last_id":3}"#,
        );
        assert_eq!(serde_json::to_string(&task).unwrap(), ended);
    }
}
