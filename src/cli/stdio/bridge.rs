//! The state that all exchanges share, and the bridge's own requests: it renews the session and
//! lists the tools.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::value::RawValue;
use svc_client::{McpReply, StreamingReply, backoff};
use svc_model::ToolExposure;
use svc_wire::json_rpc::JsonRpcEnvelope;
use svc_wire::mcp::SESSION_ID;
use svc_wire::mcp_request::{self, RequestSetting};
use tokio::time::sleep;

use super::super::output;
use super::call::{ClientCall, own_request};
use super::lines::LineWriter;
use super::link::{DaemonLink, Effort, LinkError};
use super::session::{CurrentSession, LegacySession};
use super::tools::{ToolCache, ToolPage};

/// Retries of a request that gets no response. Bounded, since a request that crashes the daemon
/// must not do so for ever.
pub(super) const REPEATS: u32 = 3;
/// Most pages of the list of tools. A daemon with more pages repeats itself.
const MAX_TOOL_PAGES: usize = 100;
const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// The state that all exchanges share.
#[derive(Debug)]
pub(super) struct Bridge {
    pub(super) link: DaemonLink,
    pub(super) output: LineWriter,
    pub(super) session: CurrentSession,
    pub(super) tools: ToolCache,
    /// Which tools the client is shown, if a flag says so.
    pub(super) expose: Option<ToolExposure>,
}

#[derive(Debug, Serialize)]
struct ToolListParams<'a> {
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<&'a str>,
}

impl Bridge {
    pub(super) fn new(link: DaemonLink, output: LineWriter, expose: Option<ToolExposure>) -> Self {
        let (session, tools) = (CurrentSession::default(), ToolCache::default());
        Self { link, output, session, tools, expose }
    }

    /// Sends a request of the bridge, outside any session. Returns the result, and the session that
    /// it grants if the method is `initialize`. The request must be idempotent.
    async fn request(
        &self,
        request: &Bytes,
    ) -> Result<(Option<HeaderValue>, Box<RawValue>), String> {
        // A tool that the client does not list may be called, too.
        let expose = Some(ToolExposure::All);
        let outgoing = mcp_request::post(
            request.clone(),
            RequestSetting { expose, ..RequestSetting::default() },
        );
        let mut repeats = 0;
        loop {
            let problem = match self.link.open(&outgoing, Effort::Demand).await {
                Ok(stream) if stream.status.is_success() => {
                    let granted = stream.headers.get(SESSION_ID).cloned();
                    match own_response(McpReply::new(stream)).await {
                        Ok(answer) => return answer.map(|result| (granted, result)),
                        Err(problem) => problem,
                    }
                }
                Ok(stream) => {
                    let reply = stream.collect().await.map_err(|error| error.to_string())?;
                    return Err(reply.problem().to_string());
                }
                Err(LinkError::Lost(problem)) => problem,
                Err(LinkError::Away(problem)) => return Err(problem),
            };
            if repeats == REPEATS {
                return Err(problem);
            }
            sleep(backoff(repeats, None)).await;
            repeats += 1;
        }
    }

    /// Begins a session in place of one that the daemon does not know, with the client's parameters
    /// of `initialize`. Of many concurrent calls one begins it.
    pub(super) async fn renew(
        &self,
        stale: &Arc<LegacySession>,
    ) -> Result<Arc<LegacySession>, String> {
        let _turn = self.session.renewing.lock().await;
        match self.session.get() {
            Some(current) if !Arc::ptr_eq(&current, stale) => return Ok(current),
            _ => {}
        }
        let request = own_request("svc-stdio-initialize", "initialize", &stale.params);
        let (id, result) = self
            .request(&request)
            .await
            .map_err(|problem| format!("the session cannot be renewed: {problem}"))?;
        let session = LegacySession::new(id, &result, stale.params.as_deref());
        let initialized = mcp_request::post(Bytes::from_static(INITIALIZED), session.setting());
        match self.link.open(&initialized, Effort::Demand).await {
            Ok(answer) if answer.status.is_success() => {}
            Ok(answer) => return Err(format!("the session cannot be renewed: {}", answer.status)),
            Err(trouble) => return Err(format!("the session cannot be renewed: {trouble}")),
        }
        Ok(self.session.begin(session))
    }

    /// Fetches the list of tools, which a restart may have changed, with the `_meta` of the call
    /// that needs it.
    pub(super) async fn learn_tools(&self, call: &ClientCall) -> Result<(), String> {
        let (mut tools, mut cursor) = (HashMap::new(), None::<String>);
        for _ in 0..MAX_TOOL_PAGES {
            let params = ToolListParams { meta: call.meta.as_deref(), cursor: cursor.as_deref() };
            let request = own_request("svc-stdio-tools", "tools/list", &params);
            let (_, result) = self.request(&request).await?;
            let page: ToolPage =
                serde_json::from_str(result.get()).map_err(|error| error.to_string())?;
            tools.extend(page.tools.into_iter().map(|tool| (tool.name.clone(), Arc::new(tool))));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        self.tools.replace(tools);
        Ok(())
    }

    /// Whether a call is idempotent, so that it may be sent again after it may have been carried
    /// out.
    pub(super) async fn is_repeatable(&self, call: &ClientCall) -> bool {
        if call.tools.is_empty() {
            return true;
        }
        if self.learn_tools(call).await.is_err() {
            return false;
        }
        call.tools.iter().all(|name| self.tools.get(name).is_some_and(|tool| tool.is_repeatable()))
    }

    /// Forwards a message that belongs to no call.
    pub(super) async fn pass(&self, message: String) {
        if serde_json::from_str::<&RawValue>(&message).is_ok() {
            self.output.send(message).await;
        } else {
            note_garbage();
        }
    }

    /// Reports a refusal of the daemon on standard error, where no request could be answered.
    pub(super) async fn note_refusal(&self, answer: StreamingReply) {
        let Ok(reply) = answer.collect().await else {
            return;
        };
        let problem = reply.problem();
        if problem.status == StatusCode::UNAUTHORIZED {
            self.link.note_unauthorized(&problem);
        } else {
            output::note(&format!("svc: the daemon refused a message: {problem}"));
        }
    }
}

/// The response to a request of the bridge. The outer error is one that a retry may cure.
async fn own_response(mut answer: McpReply) -> Result<Result<Box<RawValue>, String>, String> {
    while let Some(text) = answer.next().await.map_err(|error| error.to_string())? {
        let Ok(message) = JsonRpcEnvelope::parse(text.as_bytes()) else {
            continue;
        };
        match (message.method, message.result, message.error) {
            (None, Some(result), _) => return Ok(Ok(result.to_owned())),
            (None, None, Some(error)) => return Ok(Err(error.get().to_owned())),
            _ => {}
        }
    }
    Err("the answer ended too early".to_owned())
}

pub(super) fn note_garbage() {
    output::note("svc: the daemon sent something that is no JSON-RPC message; it was dropped");
}
