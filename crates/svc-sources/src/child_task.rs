//! A call to which a server responds with a task: follows the task and returns its result to the
//! caller.
//!
//! A server of a revision with sessions holds `tasks/result` open until the task ends, and sends
//! its questions on it. A server without sessions is polled for the state, which contains its
//! questions.

use std::{collections::HashSet, sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};
use svc_core::tools::{Call, Failure};
use svc_wire::json_rpc::INTERNAL_ERROR;

use super::{
    connection::SourceConnection,
    message::{Reply, RequestLoss, ServerError},
};

/// Shortest poll interval for a task's state.
const MIN_POLL: Duration = Duration::from_millis(20);
const MAX_POLL: Duration = Duration::from_secs(5);
/// Poll interval if the server names none.
const USUAL_POLL: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) enum CallStop {
    Lost(RequestLoss),
    /// The client did not answer the server's question, or has to be asked first.
    Failed(Failure),
}

impl From<RequestLoss> for CallStop {
    fn from(loss: RequestLoss) -> Self {
        Self::Lost(loss)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChildTask {
    id: String,
    poll: Duration,
}

/// The state of a task in revisions without sessions.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChildTaskState<'a> {
    status: String,
    #[serde(default)]
    poll_interval_ms: Option<u64>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(default)]
    error: Option<ServerError>,
    #[serde(default)]
    input_requests: Map<String, Value>,
}

impl ChildTask {
    pub(super) fn parse(result: &RawValue) -> Option<Self> {
        // Nearly all results contain no task, and are not parsed.
        if !result.get().contains("\"taskId\"") {
            return None;
        }
        let result: Value = serde_json::from_str(result.get()).ok()?;
        match result.get("resultType").and_then(Value::as_str) {
            Some("task") => Self::from_members(&result, "pollIntervalMs"),
            Some(_) => None,
            // A result with content is no task, whatever else it has.
            None if result.get("content").is_some() => None,
            None => Self::from_members(result.get("task")?, "pollInterval"),
        }
    }

    fn from_members(members: &Value, poll: &str) -> Option<Self> {
        let id = members.get("taskId")?.as_str()?.to_owned();
        members.get("status")?.as_str()?;
        let poll = members.get(poll).and_then(Value::as_u64).map(Duration::from_millis);
        Some(Self { id, poll: poll.unwrap_or(USUAL_POLL).clamp(MIN_POLL, MAX_POLL) })
    }

    fn to_kept(&self) -> Value {
        json!({ "task": self.id })
    }

    /// The task that an earlier run of the call kept.
    pub(super) fn from_kept(kept: &Value) -> Option<Self> {
        Some(Self { id: kept.get("task")?.as_str()?.to_owned(), poll: MIN_POLL })
    }

    /// Waits for the task's end. A task is cancelled when nobody waits for it any more. `token` is
    /// the call's progress token, which stays valid until the task ends.
    pub(super) async fn follow(
        self,
        connection: &Arc<SourceConnection>,
        call: &Call,
        token: Option<u64>,
    ) -> Result<Reply, CallStop> {
        let connection = Arc::clone(connection);
        let mut watch = ChildTaskWatch { connection, task: self, token, is_over: false };
        let connection = &watch.connection;
        let end =
            if connection.is_modern() { watch.poll(call).await } else { watch.wait(call).await };
        // The task began, whatever became of a later request about it.
        let end = end.map_err(|stop| match stop {
            CallStop::Lost(RequestLoss::NotTaken(reason)) => {
                CallStop::Lost(RequestLoss::Unanswered(reason))
            }
            stop => stop,
        });
        // A task whose client cannot answer is cancelled; one whose client is asked first goes on.
        watch.is_over = match &end {
            Err(CallStop::Failed(failure)) => matches!(failure, Failure::NeedsInput),
            _ => true,
        };
        end
    }
}

/// A task under way. Dropping it cancels the task, unless it has ended.
struct ChildTaskWatch {
    connection: Arc<SourceConnection>,
    task: ChildTask,
    token: Option<u64>,
    is_over: bool,
}

impl ChildTaskWatch {
    async fn ask(&self, method: &str, params: &Value, call: &Call) -> Result<Reply, RequestLoss> {
        let mut request = self.connection.open(Some(call.clone()));
        request.send(method, &params.to_string(), None).await?;
        request.answer_to(Some(call)).await
    }

    async fn wait(&self, call: &Call) -> Result<Reply, CallStop> {
        let mut request = self.connection.open(Some(call.clone()));
        if let Some(token) = self.token {
            self.connection.pass_progress(token, request.id);
        }
        let params = json!({ "taskId": self.task.id });
        request.send("tasks/result", &params.to_string(), None).await?;
        Ok(request.answer_to(Some(call)).await?)
    }

    async fn poll(&self, call: &Call) -> Result<Reply, CallStop> {
        let id = &self.task.id;
        let (mut poll, mut answered) = (self.task.poll, HashSet::new());
        loop {
            let reply = self.ask("tasks/get", &json!({ "taskId": id }), call).await?;
            let raw = match reply {
                Ok(raw) => raw,
                Err(error) => return Ok(Err(error)),
            };
            let Ok(state) = serde_json::from_str::<ChildTaskState<'_>>(raw.get()) else {
                return Ok(Err(fault("the state of its task cannot be read")));
            };
            if let Some(wanted) = state.poll_interval_ms {
                poll = Duration::from_millis(wanted).clamp(MIN_POLL, MAX_POLL);
            }
            match (state.status.as_str(), state.result, state.error) {
                ("completed", Some(result), _) => return Ok(Ok(result.to_owned())),
                ("failed", _, Some(error)) => return Ok(Err(error)),
                ("cancelled", ..) => return Ok(Err(fault("its task was cancelled"))),
                ("completed" | "failed", ..) => {
                    return Ok(Err(fault("its task ended without a result")));
                }
                ("input_required", ..) => {
                    let mut requests = state.input_requests;
                    // For a while the state may still show questions that were answered.
                    requests.retain(|key, _| !answered.contains(key));
                    if !requests.is_empty() {
                        call.keep(self.task.to_kept());
                        let answers = self.connection.answer_inputs(call, &requests).await;
                        let answers = answers.map_err(CallStop::Failed)?;
                        answered.extend(requests.keys().cloned());
                        let params = json!({ "taskId": id, "inputResponses": answers });
                        if let Err(error) = self.ask("tasks/update", &params, call).await? {
                            return Ok(Err(error));
                        }
                        continue;
                    }
                }
                _ => {}
            }
            tokio::time::sleep(poll).await;
        }
    }
}

impl Drop for ChildTaskWatch {
    fn drop(&mut self) {
        if let Some(token) = self.token {
            self.connection.forget_progress(token);
        }
        if !self.is_over {
            self.connection.post("tasks/cancel", &json!({ "taskId": self.task.id }));
        }
    }
}

fn fault(message: &str) -> ServerError {
    ServerError { code: INTERNAL_ERROR, message: message.to_owned(), data: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_results_parse_by_table() {
        for (text, expected) in [
            (r#"{"task":{"taskId":"t","status":"working","pollInterval":100}}"#, Some(("t", 100))),
            (r#"{"task":{"taskId":"t","status":"working"}}"#, Some(("t", 500))),
            (
                r#"{"resultType":"task","taskId":"u","status":"working","pollIntervalMs":1}"#,
                Some(("u", 20)),
            ),
            (
                r#"{"resultType":"task","taskId":"u","status":"working","pollIntervalMs":99999}"#,
                Some(("u", 5000)),
            ),
            (r#"{"content":[],"task":{"taskId":"t","status":"working"}}"#, None),
            (r#"{"resultType":"complete","content":[],"taskId":"u","status":"x"}"#, None),
            (r#"{"content":[{"type":"text","text":"\"taskId\""}]}"#, None),
            (r#"{"task":{"taskId":7,"status":"working"}}"#, None),
            (r#"{"task":{"taskId":"t"}}"#, None),
        ] {
            let result = RawValue::from_string(text.to_owned()).expect("JSON");
            let task = ChildTask::parse(&result);
            let expected = expected.map(|(id, poll): (&str, u64)| ChildTask {
                id: id.to_owned(),
                poll: Duration::from_millis(poll),
            });
            assert_eq!(task, expected, "{text}");
        }
        let task = ChildTask { id: "t".to_owned(), poll: USUAL_POLL };
        assert_eq!(ChildTask::from_kept(&task.to_kept()).map(|task| task.id), Some("t".to_owned()));
        assert_eq!(ChildTask::from_kept(&json!({ "resultType": "input_required" })), None);
    }
}
