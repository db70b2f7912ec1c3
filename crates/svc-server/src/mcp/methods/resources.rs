//! Resources: their lists, their contents, and the streams that report their changes.

use serde::Serialize;
use serde_json::{Map, Value, json, value::RawValue};
use svc_core::tools::Call;
use svc_model::{Caller, StreamName};

use super::super::{
    McpServer,
    call::rpc_error_of,
    rpc::{OneMember, RpcError, cursor, raw_json, refuse_cursor},
};

const JSON: &str = "application/json";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResourceList {
    resources: Vec<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// The resources of the daemon and of child servers that a caller may use.
#[derive(Clone, Copy)]
pub(crate) struct CallerResources<'a> {
    pub(crate) server: &'a McpServer,
    pub(crate) caller: &'a Caller,
}

impl CallerResources<'_> {
    pub(super) async fn list(self, params: &Map<String, Value>) -> Result<ResourceList, RpcError> {
        let (server, call, cursor) = (self.server, self.call(), cursor(params)?);
        let (mut resources, mut next_cursor) = (Vec::new(), None);
        for provider in &server.resources {
            let (page, next) = provider.list(&call, cursor).await?;
            resources.extend(page.iter().map(raw_json));
            next_cursor = next_cursor.or(next);
        }
        // The resources of child servers fit into one page.
        if cursor.is_none() {
            resources.extend(self.of_servers());
        }
        Ok(ResourceList { resources, next_cursor })
    }

    pub(super) fn templates(
        self,
        params: &Map<String, Value>,
    ) -> Result<OneMember<Vec<Box<RawValue>>>, RpcError> {
        refuse_cursor(params)?;
        let own = self.server.resources.iter().flat_map(|provider| provider.templates());
        let mut resource_templates: Vec<Box<RawValue>> =
            own.map(|template| raw_json(&template)).collect();
        resource_templates.extend(self.templates_of_servers());
        Ok(OneMember::from([("resourceTemplates", resource_templates)]))
    }

    pub(super) async fn read(self, uri: &str) -> Result<Option<OneMember<Vec<Value>>>, RpcError> {
        let Self { server, caller } = self;
        let call = self.call();
        for provider in &server.resources {
            if let Some(contents) = provider.read(&call, uri).await? {
                return Ok(Some(OneMember::from([("contents", contents)])));
            }
        }
        let Some(sources) = &server.sources else { return Ok(None) };
        let text = sources.results().read(caller, uri).await;
        Ok(text.map(|text| {
            let contents = vec![json!({ "uri": uri, "mimeType": JSON, "text": text })];
            OneMember::from([("contents", contents)])
        }))
    }

    /// The stream whose events change a resource that the caller may read; `None` if there is none.
    pub(crate) async fn stream_of(self, uri: &str) -> Result<Option<StreamName>, RpcError> {
        let Self { server, caller } = self;
        let call = self.call();
        for provider in &server.resources {
            if let Some(stream) = provider.stream_of(&call, uri).await? {
                return Ok(Some(stream));
            }
        }
        let Some(sources) = &server.sources else { return Ok(None) };
        let watched = sources.of_caller(caller).watch_resource(&call, uri, false).await;
        watched.transpose().map_err(rpc_error_of)
    }

    fn of_servers(self) -> Vec<Box<RawValue>> {
        let Self { server, caller } = self;
        let Some(sources) = &server.sources else { return Vec::new() };
        let mut all = sources.of_caller(caller).resources();
        all.extend(sources.results().list(caller).into_iter().map(|kept| {
            raw_json(&json!({
                "uri": kept.uri,
                "name": kept.tool,
                "description": "A large result. It is kept for 7 days.",
                "mimeType": JSON,
                "size": kept.bytes,
            }))
        }));
        all
    }

    fn templates_of_servers(self) -> Vec<Box<RawValue>> {
        let Self { server, caller } = self;
        let Some(sources) = &server.sources else { return Vec::new() };
        let results = raw_json(&json!({
            "uriTemplate": "svc://result/{id}",
            "name": "result",
            "title": "A large result of a tool",
            "description": "What was too large for an answer, whole, for 7 days.",
            "mimeType": JSON,
        }));
        std::iter::once(results).chain(sources.of_caller(caller).templates()).collect()
    }

    pub(super) async fn unwatch(self, uri: &str) {
        let Some(sources) = &self.server.sources else { return };
        sources.of_caller(self.caller).unwatch_resource(&self.call(), uri).await;
    }

    /// Subscribes again in the background, since a restarted daemon has lost its subscriptions at
    /// child servers.
    pub(crate) fn watch_again(self, uris: Vec<String>) {
        let Self { server, .. } = self;
        let (Some(sources), false) = (&server.sources, uris.is_empty()) else { return };
        let (sources, call) = (sources.clone(), self.call());
        server.background.spawn(server.stop.clone().run_until_cancelled_owned(async move {
            for uri in &uris {
                // A resource that cannot be watched now is watched when its server is back.
                let sources = sources.of_caller(&call.caller);
                if let Some(Err(failure)) = sources.watch_resource(&call, uri, true).await {
                    tracing::debug!(?failure, "a resource cannot be watched");
                }
            }
        }));
    }

    fn call(self) -> Call {
        Call::alone(self.server.services.clone(), self.caller.clone())
    }
}
