//! Finds the method of a request, and makes the answer as the client's era has it.

use serde::Serialize;
use serde_json::{Map, Value, value::RawValue};
use svc_core::tools::LogLevel;

use super::{
    super::{
        McpServer,
        introduction::client_name,
        origin::{RequestContext, RequestOrigin},
        rpc::{
            AnswerEra, CacheHint, CacheScope, ClientRequest, Empty, EraResult, RpcError,
            result_message, text_param,
        },
    },
    params::refuse_cursor,
    relayed::as_it_is,
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
    /// The answer to any request but `initialize`, `tools/call` and `subscriptions/listen`.
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
            ("prompts/get", _) => match self.relayed(context, request).await? {
                Some(result) => as_it_is(id, era, &result, None),
                None => self.get_prompt(context, request).await?,
            },
            ("resources/list", _) => {
                kept(id, era, self.list_resources(&context.caller, params).await?, NOT_KEPT)
            }
            ("resources/templates/list", _) => {
                let list = self.list_templates(&context.caller, params)?;
                kept(id, era, list, self.list_of_servers())
            }
            ("resources/read", _) => match self.relayed(context, request).await? {
                Some(result) => as_it_is(id, era, &result, Some(NOT_KEPT)),
                None => kept(id, era, self.read_resource(context, params).await?, NOT_KEPT),
            },
            ("completion/complete", _) => {
                if let Some(result) = self.relayed(context, request).await? {
                    as_it_is(id, era, &result, None)
                } else {
                    let completion = self.complete(&context.caller, params).await?;
                    result_message(id, &EraResult::complete(era, completion, None))
                }
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
