//! The tasks extension (SEP-2663): a call of a stateless client that goes on without it.

use serde_json::{Map, Value, json};

use super::{
    Mcp, RpcError,
    calls::conclude,
    dispatch::server_meta,
    far_end::Wire,
    ladder::Modern,
    message::{INVALID_PARAMS, Request},
};
use crate::{
    domain::{CallId, Caller, StreamName, limits, mcp},
    service::{self, mcp::CallEnd},
    store::{CallRow, CallState},
    tools::{Failure, Output},
};

/// How a task ends: with a result, which may be that the tool failed, or with an error.
pub(super) fn end_of(outcome: Result<Output, Failure>) -> CallEnd {
    let id = serde_json::value::RawValue::NULL;
    let answer = conclude(id, outcome, None);
    // What is kept is the `result` or `error` member alone.
    let mut message: Map<String, Value> = serde_json::from_str(&answer.text).unwrap_or_default();
    message.retain(|member, _| member == "result" || member == "error");
    let state =
        if message.contains_key("error") { CallState::Failed } else { CallState::Completed };
    CallEnd { state, message: Some(Value::from(message).to_string()) }
}

impl Mcp {
    /// The result that stands for a call that has become a task (`CreateTaskResult`).
    pub(super) async fn new_task(&self, wire: &Wire) -> Result<String, service::Error> {
        let (_, id) = wire.settled().await;
        let id = id.map(|id| id.as_str().to_owned()).unwrap_or_default();
        let row = self.services.mcp.call(wire.caller(), &id).await?;
        let row = row.ok_or_else(|| service::Error::not_found(service::ResourceKind::Task, &id))?;
        let mut task = task_json(&row);
        // It may be further by now; what it says is asked for.
        task.remove("inputRequests");
        task.insert("resultType".to_owned(), "task".into());
        let members = Value::from(task).to_string();
        Ok(format!("{},{}", &members[1..members.len() - 1], server_meta()))
    }

    /// `tasks/get`, `tasks/update`, `tasks/cancel`.
    pub(super) async fn task_method(
        &self,
        caller: &Caller,
        modern: &Modern,
        request: &Request,
    ) -> Result<String, RpcError> {
        if !modern.has_tasks() {
            return Err(RpcError::missing_capability(
                &json!({ "extensions": { mcp::TASKS_EXTENSION: {} } }),
            ));
        }
        let id = request.params.get("taskId").and_then(Value::as_str);
        let id = id.ok_or_else(|| RpcError::invalid_params("params.taskId: must name a task"))?;
        let row = self.services.mcp.call(caller, id).await?.filter(|row| row.is_task);
        let row = row.ok_or_else(|| RpcError::new(INVALID_PARAMS, "there is no such task"))?;
        match request.method.as_str() {
            "tasks/get" => {
                let mut task = self.detailed(&row).await?;
                task.insert("resultType".to_owned(), "complete".into());
                let members = Value::from(task).to_string();
                return Ok(members[1..members.len() - 1].to_owned());
            }
            "tasks/update" => {
                let answers = match request.params.get("inputResponses") {
                    Some(Value::Object(answers)) => answers.clone(),
                    _ => {
                        return Err(RpcError::invalid_params(
                            "params.inputResponses: must be an object",
                        ));
                    }
                };
                if let Some(running) = self.calls.get(&row.call_id) {
                    running.wire.answer(answers).await?;
                }
            }
            _ => self.cancel_task(&row.call_id).await,
        }
        Ok(r#""resultType":"complete""#.to_owned())
    }

    async fn cancel_task(&self, id: &CallId) {
        let running = self.calls.get(id);
        let end = CallEnd { state: CallState::Cancelled, message: None };
        self.end(id, &StreamName::of("mcp", id), end).await;
        if let Some(running) = running {
            running.cancel.cancel();
        }
    }

    /// A task with all that there is to say about it (`DetailedTask`).
    pub(super) async fn detailed(
        &self,
        row: &CallRow,
    ) -> Result<Map<String, Value>, service::Error> {
        let mut task = task_json(row);
        if matches!(row.state, CallState::Completed | CallState::Failed) {
            let message =
                self.services.mcp.last_message(&StreamName::of("mcp", &row.call_id)).await?;
            let end: Option<Map<String, Value>> =
                message.and_then(|message| serde_json::from_str(&message).ok());
            task.extend(end.unwrap_or_default());
        }
        Ok(task)
    }
}

fn task_json(row: &CallRow) -> Map<String, Value> {
    let poll = u64::try_from(limits::MCP_PATIENCE.as_millis()).unwrap_or(u64::MAX);
    let mut task = Map::new();
    task.insert("taskId".to_owned(), json!(row.call_id));
    task.insert("status".to_owned(), row.state.as_str().into());
    task.insert("createdAt".to_owned(), json!(row.started_at));
    task.insert("lastUpdatedAt".to_owned(), json!(row.updated_at));
    // Rows stay.
    task.insert("ttlMs".to_owned(), Value::Null);
    task.insert("pollIntervalMs".to_owned(), poll.into());
    if row.state == CallState::InputRequired
        && let Some(asks) = row.asks.as_deref().and_then(|asks| serde_json::from_str(asks).ok())
    {
        task.insert("inputRequests".to_owned(), asks);
    }
    task
}
