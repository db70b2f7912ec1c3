//! What servers behind the daemon answer: their results pass as they are.

use std::sync::Arc;

use futures_util::FutureExt as _;
use serde_json::{Value, json, value::RawValue};
use svc_core::tools::{Call, Failure};
use svc_model::{Caller, StreamName};
use svc_sources::{Relayed, SourceManager};
use tokio::sync::mpsc;

use super::super::{
    McpServer,
    call::{CallAnswer, CallClient, ClientChannel, PendingAnswer, rpc_error_of, unauthorized},
    metrics::RequestOutcome,
    origin::{RequestContext, RequestOrigin},
    resources::{Resource, ResourceTemplate},
    rpc::{
        AnswerEra, CacheHint, CacheScope, ClientRequest, RpcError, raw_in_era, result_message,
        result_message_with_room,
    },
    running::{CallRecord, MessageSink},
};
use super::params::raw;

const JSON: &str = "application/json";
/// What a server's resource says may change with every read.
const NOT_KEPT: CacheHint = CacheHint { ttl_ms: 0, cache_scope: CacheScope::Private };

impl McpServer {
    /// A request as a call of its caller.
    fn call_of(&self, context: &RequestContext, request: &ClientRequest) -> Call {
        Call {
            session: context.acting_session.clone().or(context.caller.session().map(Arc::from)),
            trace: context.trace.clone(),
            params: request.raw_params.clone(),
            ..Call::alone(self.services.clone(), context.caller.clone())
        }
    }

    /// Resources of servers, and large results of theirs.
    pub(super) fn resources_of_servers(&self, caller: &Caller) -> Vec<Box<RawValue>> {
        let Some(sources) = &self.sources else { return Vec::new() };
        let mut all = sources.offered_resources(caller);
        all.extend(sources.kept_results(caller).into_iter().map(|kept| {
            let mut entry = json!(Resource {
                uri: kept.uri,
                name: kept.tool,
                title: None,
                description: Some("A large result. It is kept for 7 days.".to_owned()),
                mime_type: Some(JSON.to_owned()),
            });
            entry["size"] = json!(kept.bytes);
            raw(&entry)
        }));
        all
    }

    /// Templates of resources of servers.
    pub(super) fn templates_of_servers(&self, caller: &Caller) -> Vec<Box<RawValue>> {
        let Some(sources) = &self.sources else { return Vec::new() };
        let results = raw(&ResourceTemplate {
            uri_template: "svc://result/{id}".to_owned(),
            name: "result".to_owned(),
            title: Some("A large result of a tool".to_owned()),
            description: Some("What was too large for an answer, whole, for 7 days.".to_owned()),
            mime_type: Some(JSON.to_owned()),
        });
        std::iter::once(results).chain(sources.offered_templates(caller)).collect()
    }

    /// Prompts of servers.
    pub(super) fn prompts_of_servers(&self, caller: &Caller) -> Vec<Box<RawValue>> {
        self.sources.as_ref().map(|sources| sources.offered_prompts(caller)).unwrap_or_default()
    }

    /// The contents of a large result; `None` if there is none of that URI.
    pub(super) async fn large_result(&self, caller: &Caller, uri: &str) -> Option<Vec<Value>> {
        let text = self.sources.as_ref()?.kept_result(caller, uri).await?;
        Some(vec![json!({ "uri": uri, "mimeType": JSON, "text": text })])
    }

    /// The result of `resources/read`, `prompts/get` or `completion/complete`; `None` if it is about nothing of a server's.
    pub(super) async fn relayed(
        &self,
        context: &RequestContext,
        request: &ClientRequest,
    ) -> Result<Option<Box<RawValue>>, RpcError> {
        let Some(sources) = &self.sources else { return Ok(None) };
        let call = self.call_of(context, request);
        let asked = Relayed { call: &call, params: &request.params };
        let text =
            |name: &str| request.params.get(name).and_then(Value::as_str).unwrap_or_default();
        let answer = match request.method.as_str() {
            "resources/read" => sources.read_resource(asked, text("uri")).await,
            "prompts/get" => sources.get_prompt(asked, text("name")).await,
            "completion/complete" => sources.complete(asked).await,
            _ => None,
        };
        answer.transpose().map_err(rpc_error_of)
    }

    /// `prompts/get` or `resources/read` of a server, which may ask the caller's client on the way; `None` if it is about
    /// nothing of a server's, or if the client cannot be asked.
    pub(in crate::mcp) fn conversation_with_server(
        &self,
        context: &RequestContext,
        request: &ClientRequest,
    ) -> Result<Option<PendingAnswer>, RpcError> {
        let Some(sources) = &self.sources else { return Ok(None) };
        let text =
            |name: &str| request.params.get(name).and_then(Value::as_str).unwrap_or_default();
        let (subject, is_there) = match request.method.as_str() {
            "prompts/get" => (text("name"), sources.has_prompt(&context.caller, text("name"))),
            "resources/read" => (text("uri"), sources.has_resource(&context.caller, text("uri"))),
            _ => return Ok(None),
        };
        let client = match &context.origin {
            RequestOrigin::Legacy(session) => CallClient::Legacy(Arc::clone(session)),
            RequestOrigin::Modern(client) => CallClient::Modern(client.clone()),
            RequestOrigin::Bare => return Ok(None),
        };
        if !is_there {
            return Ok(None);
        }
        let record = CallRecord {
            rpc_id: request.id.clone(),
            tool: subject.to_owned(),
            params: request.params.clone(),
            raw_params: request.raw_params.clone(),
            trace: context.trace.clone(),
            acting_session: self.call_of(context, request).session,
            credential: self.services.access.credential_name(&context.caller),
            started_at: self.services.now(),
            hold: None,
        };
        let (sender, messages) = mpsc::unbounded_channel();
        let sink = MessageSink::Response(sender);
        let channel = ClientChannel::new(self, &context.caller, client, record, sink);
        channel.restore_round(&request.method)?;
        let (sources, request) = (sources.clone(), request.clone());
        let era = context.origin.answer_era();
        let answer = async move {
            let call = channel.call();
            let asked = Relayed { call: &call, params: &request.params };
            let subject = &channel.conversation.record.tool;
            let (reply, cache) = match request.method.as_str() {
                "prompts/get" => (sources.get_prompt(asked, subject).await, None),
                _ => (sources.read_resource(asked, subject).await, Some(NOT_KEPT)),
            };
            // The caller's token may have been taken back while the server was at work.
            let (access, record) = (&call.services.access, &channel.conversation.record);
            let reply = match access.check_credential(&channel.caller, &record.credential).await {
                Ok(()) => reply,
                Err(_) => Some(Err(unauthorized())),
            };
            let id = &request.id;
            match reply {
                Some(Ok(result)) => CallAnswer {
                    message: as_it_is(id, era, &result, cache),
                    status: 200,
                    outcome: RequestOutcome::Result,
                },
                Some(Err(Failure::NeedsInput)) => CallAnswer {
                    message: result_message(id, &channel.input_required(&request.method)),
                    status: 200,
                    outcome: RequestOutcome::InputRequired,
                },
                Some(Err(failure)) => CallAnswer::error(id, &rpc_error_of(failure)),
                None => {
                    let text = "the server that had it is turned off or gone";
                    CallAnswer::error(id, &RpcError::invalid_params(text))
                }
            }
        };
        let (answer, messages) = (answer.boxed(), Some(messages));
        Ok(Some(PendingAnswer { answer, messages, is_repeatable: true }))
    }

    /// Subscribes to a resource of a server; `None` if it is nothing of a server's.
    pub(in crate::mcp) async fn stream_of_server_resource(
        &self,
        caller: &Caller,
        uri: &str,
    ) -> Result<Option<StreamName>, RpcError> {
        let Some(sources) = &self.sources else { return Ok(None) };
        let call = Call::alone(self.services.clone(), caller.clone());
        sources.watch_resource(&call, uri, false).await.transpose().map_err(rpc_error_of)
    }

    /// Gives up a subscription to a resource of a server.
    pub(super) async fn unwatch_server_resource(&self, caller: &Caller, uri: &str) {
        let Some(sources) = &self.sources else { return };
        let call = Call::alone(self.services.clone(), caller.clone());
        sources.unwatch_resource(&call, uri).await;
    }

    /// Subscribes again to resources of servers: this daemon may know nothing of it yet. Nobody waits for it.
    pub(in crate::mcp) fn watch_again(&self, caller: &Caller, uris: Vec<String>) {
        let (Some(sources), false) = (&self.sources, uris.is_empty()) else { return };
        let (sources, call) = (sources.clone(), Call::alone(self.services.clone(), caller.clone()));
        self.background.spawn(self.stop.clone().run_until_cancelled_owned(async move {
            watch_all(&sources, &call, &uris).await;
        }));
    }
}

/// The message of a server's own result.
pub(super) fn as_it_is(
    id: &RawValue,
    era: AnswerEra,
    result: &RawValue,
    cache: Option<CacheHint>,
) -> String {
    result_message_with_room(id, &raw_in_era(result, era, cache), result.get().len() + 128)
}

async fn watch_all(sources: &SourceManager, call: &Call, uris: &[String]) {
    for uri in uris {
        // What cannot be watched now is watched when its server is back.
        if let Some(Err(failure)) = sources.watch_resource(call, uri, true).await {
            tracing::debug!(?failure, "a resource cannot be watched");
        }
    }
}
