//! The methods, but for `initialize`, `tools/call` and `subscriptions/listen`, which are more than
//! one answer. This file finds the method and makes the answer as the client's era has it; it has
//! the methods of tasks (SEP-2663) and of lists.

mod discovery;
mod prompts;
mod resources;

use serde::Serialize;
use serde_json::{
    Map, Value, json,
    value::{RawValue, to_raw_value},
};
use svc_core::tools::LogLevel;
use svc_model::StreamName;
use svc_store::CallRow;
use svc_wire::mcp;

use super::{
    McpServer,
    call::{TaskView, cancel_call},
    era::{ModernClient, client_name},
    origin::{RequestContext, RequestOrigin},
    rpc::{
        AnswerEra, CacheHint, CacheScope, ClientRequest, Empty, EraResult, RpcError,
        result_message, text_param,
    },
};

/// How long a list may be kept, in milliseconds. Clients that listen hear of a change at once.
const LIST_TTL_MS: u32 = 60_000;
/// Every caller gets the same list.
const PUBLIC_LIST: CacheHint = CacheHint { ttl_ms: LIST_TTL_MS, cache_scope: CacheScope::Public };
/// A caller's scopes decide what the list has.
const PRIVATE_LIST: CacheHint = CacheHint { ttl_ms: LIST_TTL_MS, cache_scope: CacheScope::Private };
/// It may change with every event.
const NOT_KEPT: CacheHint = CacheHint { ttl_ms: 0, cache_scope: CacheScope::Private };

/// Members of `ListToolsResult`.
#[derive(Serialize)]
struct ToolList {
    tools: Vec<Box<RawValue>>,
}

impl McpServer {
    /// The answer to any request but `initialize`, `tools/call`, `subscriptions/listen`, and those
    /// about what a server has.
    pub(crate) async fn answer(
        &self,
        context: &RequestContext,
        request: &ClientRequest,
    ) -> Result<String, RpcError> {
        let (id, params) = (&request.id, &request.params);
        let method = request.method.as_str();
        let modern = context.origin.modern();
        let era = context.origin.answer_era();
        Ok(match (method, modern) {
            ("server/discover", Some(_)) => {
                let client = client_name(params);
                kept(id, era, self.discovery(&context.caller, client).await?, PRIVATE_LIST)
            }
            ("tasks/get" | "tasks/update" | "tasks/cancel", Some(client)) => {
                self.task_method(context, client, request).await?
            }
            ("ping", None) => result_message(id, &Empty {}),
            ("logging/setLevel", None) => {
                self.set_level(context, params).await?;
                result_message(id, &Empty {})
            }
            ("resources/subscribe" | "resources/unsubscribe", None) => {
                self.subscribe(context, method, params).await?;
                result_message(id, &Empty {})
            }
            ("tools/list", _) => {
                kept(id, era, self.list_tools(context, params).await?, PRIVATE_LIST)
            }
            ("prompts/list", _) => {
                let list = self.list_prompts(&context.caller, params)?;
                kept(id, era, list, self.list_of_servers())
            }
            ("prompts/get", _) => self.get_prompt(context, request).await?,
            ("resources/list", _) => {
                kept(id, era, self.list_resources(&context.caller, params).await?, NOT_KEPT)
            }
            ("resources/templates/list", _) => {
                let list = self.list_templates(&context.caller, params)?;
                kept(id, era, list, self.list_of_servers())
            }
            ("resources/read", _) => {
                kept(id, era, self.read_resource(context, params).await?, NOT_KEPT)
            }
            ("completion/complete", _) => {
                let completion = self.complete(&context.caller, params).await?;
                result_message(id, &EraResult::complete(era, completion, None))
            }
            _ => {
                let status = if modern.is_some() { 404 } else { 200 };
                return Err(RpcError::unknown_method(method).status(status));
            }
        })
    }

    /// Which servers a caller may use is its own matter.
    fn list_of_servers(&self) -> CacheHint {
        if self.sources.is_some() { PRIVATE_LIST } else { PUBLIC_LIST }
    }

    async fn list_tools(
        &self,
        context: &RequestContext,
        params: &Map<String, Value>,
    ) -> Result<ToolList, RpcError> {
        refuse_cursor(params)?;
        if let RequestOrigin::Legacy(session) = &context.origin {
            self.note_tools_seen(session).await?;
        }
        let tools = self.catalogue.listed_to(&context.caller, context.exposure);
        Ok(ToolList { tools: tools.iter().map(|tool| tool.listed(context.exposure)).collect() })
    }

    async fn set_level(
        &self,
        context: &RequestContext,
        params: &Map<String, Value>,
    ) -> Result<(), RpcError> {
        let level = text_param(params, "level")?;
        let level: LogLevel = serde_json::from_value(level.into()).map_err(|_| {
            RpcError::invalid_params(
                "params.level: must be debug, info, notice, warning, error, critical, alert or emergency",
            )
        })?;
        if let RequestOrigin::Legacy(session) = &context.origin {
            self.set_log_level(session, level).await?;
        }
        Ok(())
    }
}

/// The message of a result that a client of the stateless revisions may keep.
fn kept(id: &RawValue, era: AnswerEra, members: impl Serialize, cache: CacheHint) -> String {
    result_message(id, &EraResult::complete(era, members, Some(cache)))
}

/// A member of a list as JSON.
pub(super) fn raw(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).expect("it has a JSON form")
}

/// The cursor of a list in pages.
pub(super) fn cursor(params: &Map<String, Value>) -> Result<Option<&str>, RpcError> {
    match params.get("cursor") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(cursor)) => Ok(Some(cursor)),
        Some(_) => Err(RpcError::invalid_params("params.cursor: must be a string")),
    }
}

/// A list that comes whole has given no cursor to come back with.
pub(super) fn refuse_cursor(params: &Map<String, Value>) -> Result<(), RpcError> {
    match cursor(params)? {
        None => Ok(()),
        Some(_) => Err(RpcError::invalid_params("params.cursor: is none of this list's")),
    }
}

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
                let view = TaskView::read(&self.services, &row).await?;
                let result = EraResult::complete(AnswerEra::Stateless, view, None);
                return Ok(result_message(&request.id, &result));
            }
            "tasks/update" => self.answer_task(&row, request).await?,
            _ => {
                let stream = StreamName::new("mcp", &row.call_id);
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
        Ok(running.give_answers(answers.clone()).await?)
    }
}
