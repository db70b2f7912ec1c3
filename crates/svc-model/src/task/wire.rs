//! The form of a task on the wire: everything on one level.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::{record::Task, state::TaskStatus};
use crate::{Seq, TaskId, Timestamp};

/// A task, as everybody sees it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Task")]
struct TaskWire<'a> {
    /// Given by the daemon. Its output is the stream `task/<task_id>`.
    task_id: &'a TaskId,
    /// Name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    /// Name of the agent that is to run it.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<&'a str>,
    /// Instructions for the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<&'a str>,
    /// Who asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'a str>,
    /// Kept as it is, for its maker.
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a Map<String, Value>>,
    /// Present state.
    status: TaskStatus,
    /// Exit code of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// The signal that ended the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<&'a str>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    /// What the task waits for: a free agent, the end of a turn, a person who types, or an answer to a permission request.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    /// What came of it, in the words of the agent that did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a str>,
    /// When the runner was asked to stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    cancel_requested_at: Option<Timestamp>,
    /// When it was made.
    created_at: Timestamp,
    /// The time of the last event of its stream.
    updated_at: Timestamp,
    /// When it reached a terminal status.
    #[serde(skip_serializing_if = "Option::is_none")]
    closed_at: Option<Timestamp>,
    /// The id of the last event of its stream.
    last_id: Seq,
}

impl<'a> From<&'a Task> for TaskWire<'a> {
    fn from(task: &'a Task) -> Self {
        Self {
            task_id: &task.task_id,
            title: task.title.as_deref(),
            agent: task.agent.as_deref(),
            prompt: task.prompt.as_deref(),
            from: task.from.as_deref(),
            metadata: task.metadata.as_ref(),
            status: task.status(),
            exit_code: task.report.exit_code,
            signal: task.report.signal.as_deref(),
            error: task.report.error.as_deref(),
            reason: task.reason.as_deref(),
            result: task.result.as_deref(),
            cancel_requested_at: task.cancel_requested_at,
            created_at: task.created_at,
            updated_at: task.updated_at,
            closed_at: task.state.ended_at(),
            last_id: task.last_id,
        }
    }
}

impl Serialize for Task {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        TaskWire::from(self).serialize(serializer)
    }
}

impl JsonSchema for Task {
    fn schema_name() -> Cow<'static, str> {
        TaskWire::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        TaskWire::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        TaskWire::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{TaskChange, TaskReport, TaskState};

    #[test]
    fn a_task_is_written_on_one_level_in_this_order() {
        let at = Timestamp::from_millis;
        let mut task = Task {
            task_id: TaskId::from("task_1".to_owned()),
            title: None,
            agent: None,
            prompt: None,
            from: None,
            metadata: None,
            state: TaskState::Pending,
            report: TaskReport::default(),
            reason: None,
            result: None,
            cancel_requested_at: None,
            created_at: at(0),
            updated_at: at(0),
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
        let early = TaskChange { status: TaskStatus::Active, report: early, runner: None };
        task.apply(&early, at(2), 2);
        let late = TaskReport { exit_code: Some(3), signal: None, error: Some("e".to_owned()) };
        let late = TaskChange { status: TaskStatus::Cancelled, report: late, runner: None };
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
