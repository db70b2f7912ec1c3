//! `resources/list`, `resources/templates/list`, `resources/read`, the subscriptions of legacy
//! sessions, and what servers behind the daemon answer: their results pass as they are.

use std::sync::Arc;

use futures_util::FutureExt as _;
use serde::Serialize;
use serde_json::{Map, Value, json, value::RawValue};
use svc_core::tools::{Call, Failure};
use svc_model::{Caller, StreamName};
use svc_sources::SourceManager;
use tokio::sync::mpsc;

use super::{
    super::{
        McpServer,
        call::{CallAnswer, CallRun, PendingAnswer, WorkEnd, rpc_error_of},
        origin::{RequestContext, RequestOrigin},
        resources::{Resource, ResourceTemplate},
        rpc::{
            CacheHint, CacheScope, ClientRequest, INVALID_PARAMS, RESOURCE_NOT_FOUND, RpcError,
            text_param,
        },
    },
    cursor, raw, refuse_cursor,
};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResourceList {
    resources: Vec<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResourceTemplateList {
    resource_templates: Vec<Box<RawValue>>,
}

#[derive(Serialize)]
pub(super) struct ResourceContents {
    contents: Vec<Value>,
}

impl McpServer {
    pub(super) async fn list_resources(
        &self,
        caller: &Caller,
        params: &Map<String, Value>,
    ) -> Result<ResourceList, RpcError> {
        let cursor = cursor(params)?;
        let (mut resources, mut next_cursor) = (Vec::new(), None);
        for provider in &self.resources {
            let (page, next) = provider.list(&self.services, caller, cursor).await?;
            resources.extend(page.iter().map(raw));
            next_cursor = next_cursor.or(next);
        }
        // They are no more than a page.
        if cursor.is_none() {
            resources.extend(self.resources_of_servers(caller));
        }
        Ok(ResourceList { resources, next_cursor })
    }

    pub(super) fn list_templates(
        &self,
        caller: &Caller,
        params: &Map<String, Value>,
    ) -> Result<ResourceTemplateList, RpcError> {
        refuse_cursor(params)?;
        let own = self.resources.iter().flat_map(|provider| provider.templates());
        let mut resource_templates: Vec<Box<RawValue>> =
            own.map(|template| raw(&template)).collect();
        resource_templates.extend(self.templates_of_servers(caller));
        Ok(ResourceTemplateList { resource_templates })
    }

    pub(super) async fn read_resource(
        &self,
        context: &RequestContext,
        params: &Map<String, Value>,
    ) -> Result<ResourceContents, RpcError> {
        let uri = text_param(params, "uri")?;
        for provider in &self.resources {
            if let Some(contents) = provider.read(&self.services, &context.caller, uri).await? {
                return Ok(ResourceContents { contents });
            }
        }
        if let Some(contents) = self.large_result(&context.caller, uri).await {
            return Ok(ResourceContents { contents });
        }
        Err(no_resource(context, uri))
    }

    /// The stream whose events change a resource that the caller may read; `None` if there is none.
    pub(in crate::mcp) async fn stream_of_resource(
        &self,
        caller: &Caller,
        uri: &str,
    ) -> Result<Option<StreamName>, RpcError> {
        for provider in &self.resources {
            if let Some(stream) = provider.stream_of(&self.services, caller, uri).await? {
                return Ok(Some(stream));
            }
        }
        self.stream_of_server_resource(caller, uri).await
    }

    pub(super) async fn subscribe(
        &self,
        context: &RequestContext,
        method: &str,
        params: &Map<String, Value>,
    ) -> Result<(), RpcError> {
        let uri = text_param(params, "uri")?;
        let RequestOrigin::Legacy(session) = &context.origin else {
            let text = "a subscription belongs to a session: begin with initialize";
            return Err(RpcError::invalid_params(text));
        };
        if method == "resources/unsubscribe" {
            self.services.mcp.unsubscribe_resource(&session.id, uri.to_owned()).await?;
            self.unwatch_server_resource(&context.caller, uri).await;
        } else {
            let stream = self.stream_of_resource(&context.caller, uri).await?;
            let stream = stream.ok_or_else(|| no_resource(context, uri))?;
            let stream = stream.as_str().to_owned();
            let (mcp, uri) = (&self.services.mcp, uri.to_owned());
            mcp.subscribe_resource(&context.caller, &session.id, uri, stream).await?;
        }
        session.subscriptions.send_modify(|count| *count += 1);
        Ok(())
    }
}

fn no_resource(context: &RequestContext, uri: &str) -> RpcError {
    let code = match context.origin {
        RequestOrigin::Modern(_) => INVALID_PARAMS,
        RequestOrigin::Bare | RequestOrigin::Legacy(_) => RESOURCE_NOT_FOUND,
    };
    RpcError::new(code, "there is no such resource").data(json!({ "uri": uri }))
}

const JSON: &str = "application/json";
/// What a server's resource says may change with every read.
const NOT_KEPT: CacheHint = CacheHint { ttl_ms: 0, cache_scope: CacheScope::Private };

impl McpServer {
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

    pub(super) fn prompts_of_servers(&self, caller: &Caller) -> Vec<Box<RawValue>> {
        self.sources.as_ref().map(|sources| sources.offered_prompts(caller)).unwrap_or_default()
    }

    /// The contents of a large result; `None` if there is none of that URI.
    pub(super) async fn large_result(&self, caller: &Caller, uri: &str) -> Option<Vec<Value>> {
        let text = self.sources.as_ref()?.kept_result(caller, uri).await?;
        Some(vec![json!({ "uri": uri, "mimeType": JSON, "text": text })])
    }

    /// The answer to `resources/read`, `prompts/get` or `completion/complete`; `None` if it is
    /// about nothing of a server's.
    pub(in crate::mcp) fn relayed(
        &self,
        context: &RequestContext,
        request: &ClientRequest,
    ) -> Result<Option<PendingAnswer>, RpcError> {
        let (method, subject) = match request.method.as_str() {
            "prompts/get" => ("prompts/get", "name"),
            "resources/read" => ("resources/read", "uri"),
            "completion/complete" => ("completion/complete", ""),
            _ => return Ok(None),
        };
        let target = self
            .sources
            .as_ref()
            .and_then(|sources| sources.relay_target(&context.caller, method, &request.params));
        let Some(target) = target else { return Ok(None) };
        let subject = request.params.get(subject).and_then(Value::as_str).unwrap_or_default();
        let mut record = context.record(self, request, method, subject);
        let own = || context.caller.session().map(Arc::from);
        record.acting_session = record.acting_session.or_else(own);
        let (sender, messages) = mpsc::unbounded_channel();
        let (caller, origin) = (context.caller.clone(), context.origin.clone());
        let mut run = CallRun::attached(self, caller, origin, record, Some(sender))?;
        let (era, id) = (context.origin.answer_era(), request.id.clone());
        let cache = (method == "resources/read").then_some(NOT_KEPT);
        let answer = async move {
            let call = run.call();
            let end = run.drive(false, target.result(&call)).await;
            // The caller's token may have been taken back while the server was at work.
            let permitted = run.still_permitted().await;
            match end {
                WorkEnd::Outcome(outcome) => match permitted.and(outcome) {
                    Ok(result) => CallAnswer::verbatim(&id, era, &result, cache),
                    Err(Failure::NeedsInput) => run.input_required(),
                    Err(failure) => CallAnswer::error(&id, &rpc_error_of(failure)),
                },
                WorkEnd::Cancelled | WorkEnd::Left => CallAnswer::lost(&id, true),
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

    /// Subscribes again to resources of servers: this daemon may know nothing of it yet. Nobody
    /// waits for it.
    pub(in crate::mcp) fn watch_again(&self, caller: &Caller, uris: Vec<String>) {
        let (Some(sources), false) = (&self.sources, uris.is_empty()) else { return };
        let (sources, call) = (sources.clone(), Call::alone(self.services.clone(), caller.clone()));
        self.background.spawn(self.stop.clone().run_until_cancelled_owned(async move {
            watch_all(&sources, &call, &uris).await;
        }));
    }
}

async fn watch_all(sources: &SourceManager, call: &Call, uris: &[String]) {
    for uri in uris {
        // What cannot be watched now is watched when its server is back.
        if let Some(Err(failure)) = sources.watch_resource(call, uri, true).await {
            tracing::debug!(?failure, "a resource cannot be watched");
        }
    }
}
