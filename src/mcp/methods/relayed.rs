//! What servers behind the daemon answer: their results pass as they are.

use std::sync::Arc;

use serde_json::{Value, json, value::RawValue};

use super::super::{
    McpServer,
    call::rpc_error_of,
    origin::RequestContext,
    resources::{Resource, ResourceTemplate},
    rpc::{ClientRequest, RpcError},
};
use crate::{
    domain::{Caller, StreamName},
    sources::{Relayed, SourceManager},
    tools::Call,
};

const JSON: &str = "application/json";

impl McpServer {
    /// A request as a call of its caller.
    fn call_of(&self, context: &RequestContext, request: &ClientRequest) -> Call {
        Call {
            session: context.acting_session.clone().or(context.caller.session().map(Arc::from)),
            params: request.raw_params.clone(),
            ..Call::alone(self.services.clone(), context.caller.clone())
        }
    }

    /// Resources of servers, and large results of theirs.
    pub(super) fn resources_of_servers(&self, caller: &Caller) -> Vec<Value> {
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
            entry
        }));
        all
    }

    /// Templates of resources of servers.
    pub(super) fn templates_of_servers(&self, caller: &Caller) -> Vec<Value> {
        let Some(sources) = &self.sources else { return Vec::new() };
        let results = json!(ResourceTemplate {
            uri_template: "svc://result/{id}".to_owned(),
            name: "result".to_owned(),
            title: Some("A large result of a tool".to_owned()),
            description: Some("What was too large for an answer, whole, for 7 days.".to_owned()),
            mime_type: Some(JSON.to_owned()),
        });
        std::iter::once(results).chain(sources.offered_templates(caller)).collect()
    }

    /// Prompts of servers.
    pub(super) fn prompts_of_servers(&self, caller: &Caller) -> Vec<Value> {
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

async fn watch_all(sources: &SourceManager, call: &Call, uris: &[String]) {
    for uri in uris {
        // What cannot be watched now is watched when its server is back.
        if let Some(Err(failure)) = sources.watch_resource(call, uri, true).await {
            tracing::debug!(?failure, "a resource cannot be watched");
        }
    }
}
