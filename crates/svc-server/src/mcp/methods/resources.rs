//! `resources/list`, `resources/templates/list`, `resources/read`, and the subscriptions of legacy sessions.

use serde::Serialize;
use serde_json::{Map, Value, json, value::RawValue};
use svc_model::{Caller, StreamName};

use super::{
    super::{
        McpServer,
        origin::{RequestContext, RequestOrigin},
        rpc::{INVALID_PARAMS, RESOURCE_NOT_FOUND, RpcError, text_param},
    },
    params::{cursor, raw, refuse_cursor},
};

/// Members of `ListResourcesResult`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResourceList {
    resources: Vec<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Members of `ListResourceTemplatesResult`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResourceTemplateList {
    resource_templates: Vec<Box<RawValue>>,
}

/// Members of `ReadResourceResult`.
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

    /// `resources/subscribe` and `resources/unsubscribe`.
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
