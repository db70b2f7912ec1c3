//! `subscriptions/listen`: the notices that a stateless client wants, and the acknowledgement of those it gets.

use std::collections::BTreeMap;

use axum::response::Response;
use serde::Serialize;
use serde_json::{Map, Value, value::RawValue};
use svc_model::{CallId, Caller};
use svc_wire::mcp::meta;

use super::super::{
    McpServer,
    era::ModernClient,
    notices::{NoticeFilter, NoticeQueue},
    rpc::{ClientRequest, RpcError, notification_message},
    stream::listen_response,
};
use crate::web::Endless;

/// Params of `notifications/subscriptions/acknowledged`.
#[derive(Serialize)]
struct Acknowledgement<'a> {
    #[serde(rename = "_meta")]
    meta: BTreeMap<&'static str, &'a RawValue>,
    notifications: GrantedNotices<'a>,
}

/// The wishes that the server grants.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct GrantedNotices<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    tools_list_changed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompts_list_changed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resources_list_changed: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    resource_subscriptions: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    task_ids: Vec<CallId>,
}

impl McpServer {
    /// Answers `subscriptions/listen` with a stream.
    pub(super) async fn listen(
        &self,
        caller: &Caller,
        client: &ModernClient,
        request: &ClientRequest,
    ) -> Result<Response, RpcError> {
        let Some(Value::Object(wishes)) = request.params.get("notifications") else {
            return Err(RpcError::invalid_params("params.notifications: must be an object"));
        };
        let mut filter = NoticeFilter {
            tools: wants(wishes, "toolsListChanged"),
            prompts: wants(wishes, "promptsListChanged") && !self.prompts.borrow().is_empty(),
            resources: wants(wishes, "resourcesListChanged"),
            ..NoticeFilter::default()
        };
        let mut granted = GrantedNotices {
            tools_list_changed: filter.tools.then_some(true),
            prompts_list_changed: filter.prompts.then_some(true),
            resources_list_changed: filter.resources.then_some(true),
            ..GrantedNotices::default()
        };
        for uri in texts(wishes, "resourceSubscriptions")? {
            let Some(stream) = self.stream_of_resource(caller, uri).await? else { continue };
            filter.watched.entry(stream.as_str().to_owned()).or_default().insert(uri.to_owned());
            granted.resource_subscriptions.push(uri);
        }
        for id in texts(wishes, "taskIds")? {
            let task = self.services.mcp.call(caller, id).await?.filter(|row| row.is_task);
            if let Some(row) = task.filter(|_| client.has_tasks()) {
                granted.task_ids.push(row.call_id.clone());
                filter.tasks.push(row.call_id);
            }
        }
        let notices = NoticeQueue::new(self, caller, filter, None).await?;
        let acknowledgement = Acknowledgement {
            meta: BTreeMap::from([(meta::SUBSCRIPTION_ID, &*request.id)]),
            notifications: granted,
        };
        let method = "notifications/subscriptions/acknowledged";
        let acknowledgement = notification_message(method, &acknowledgement);
        let mut response = listen_response(self, request.id.clone(), &acknowledgement, notices);
        response.extensions_mut().insert(Endless);
        Ok(response)
    }
}

fn wants(wishes: &Map<String, Value>, name: &str) -> bool {
    wishes.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn texts<'a>(wishes: &'a Map<String, Value>, name: &str) -> Result<Vec<&'a str>, RpcError> {
    let wrong = || {
        RpcError::invalid_params(format!("params.notifications.{name}: must be a list of strings"))
    };
    match wishes.get(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(texts)) => {
            texts.iter().map(|text| text.as_str().ok_or_else(wrong)).collect()
        }
        Some(_) => Err(wrong()),
    }
}
