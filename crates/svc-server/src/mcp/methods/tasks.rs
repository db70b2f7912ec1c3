//! `tasks/get`, `tasks/update` and `tasks/cancel` (SEP-2663).

use serde_json::{Value, json};
use svc_model::StreamName;
use svc_store::CallRow;
use svc_wire::mcp;

use super::super::{
    McpServer,
    call::{TaskView, cancel_call, store_questions},
    era::ModernClient,
    origin::RequestContext,
    rpc::{AnswerEra, ClientRequest, Empty, EraResult, RpcError, result_message},
};

impl McpServer {
    /// Answers a method of the tasks extension.
    pub(super) async fn task_method(
        &self,
        context: &RequestContext,
        client: &ModernClient,
        request: &ClientRequest,
    ) -> Result<String, RpcError> {
        if !client.has_tasks() {
            return Err(RpcError::missing_capability(
                &json!({ "extensions": { mcp::TASKS_EXTENSION: {} } }),
            ));
        }
        let id = request.params.get("taskId").and_then(Value::as_str);
        let id = id.ok_or_else(|| RpcError::invalid_params("params.taskId: must name a task"))?;
        let row = self.services.mcp.call(&context.caller, id).await?.filter(|row| row.is_task);
        let row = row.ok_or_else(|| RpcError::invalid_params("there is no such task"))?;
        match request.method.as_str() {
            "tasks/get" => {
                let view = TaskView::of(&self.services, &row).await?;
                let result = EraResult::complete(AnswerEra::Stateless, view, None);
                return Ok(result_message(&request.id, &result));
            }
            "tasks/update" => self.answer_task(&row, request).await?,
            _ => {
                let stream = StreamName::of("mcp", &row.call_id);
                cancel_call(self, &row.call_id, &stream).await;
            }
        }
        let result = EraResult::complete(AnswerEra::Stateless, Empty {}, None);
        Ok(result_message(&request.id, &result))
    }

    /// Hands the client's answers to the tool that waits for them.
    async fn answer_task(&self, row: &CallRow, request: &ClientRequest) -> Result<(), RpcError> {
        let Some(Value::Object(answers)) = request.params.get("inputResponses") else {
            let text = "params.inputResponses: must be an object";
            return Err(RpcError::invalid_params(text));
        };
        let Some(running) = self.running.get(&row.call_id) else { return Ok(()) };
        if let Some(questions) = running.conversation.take_answers(answers.clone()) {
            store_questions(self, questions).await?;
            running.conversation.announce_answers();
        }
        Ok(())
    }
}
