//! What all exchanges share, and the requests that the bridge makes itself: it renews the session
//! and lists the tools.

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

/// How often a request is sent again that brings no answer. A request that brings the daemon down
/// must not do so for ever.
pub(super) const REPEATS: u32 = 3;
/// Pages of the list of tools that are read; a daemon that has more sends the same page again and
/// again.
const MAX_TOOL_PAGES: usize = 100;
const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// What all exchanges share.
#[derive(Debug)]
pub(super) struct Bridge {
    pub(super) link: DaemonLink,
    pub(super) output: LineWriter,
    pub(super) session: CurrentSession,
    pub(super) tools: ToolCache,
    /// Which tools the client is shown, if it was started so.
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

    /// Sends a request of the bridge's own, outside of any session. Gives the result, and the
    /// session that it grants if the method is `initialize`. The request must be one that may be
    /// sent twice.
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
                    match own_answer(McpReply::new(stream)).await {
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

    /// Begins another session in the place of one that the daemon does not know, with what the
    /// client said in `initialize`. Of many calls at once, one begins it.
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

    /// Whether a call may be sent again although it may have done its work already.
    pub(super) async fn is_repeatable(&self, call: &ClientCall) -> bool {
        if call.tools.is_empty() {
            return true;
        }
        if self.learn_tools(call).await.is_err() {
            return false;
        }
        call.tools.iter().all(|name| self.tools.get(name).is_some_and(|tool| tool.is_repeatable()))
    }

    /// Passes on a message that belongs to no call.
    pub(super) async fn pass(&self, message: String) {
        if serde_json::from_str::<&RawValue>(&message).is_ok() {
            self.output.send(message).await;
        } else {
            note_garbage();
        }
    }

    /// Says on standard error that the daemon refused something, where there is no request to
    /// answer.
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

/// The answer to a request of the bridge's own. The outer error is one that another attempt may
/// mend.
async fn own_answer(mut answer: McpReply) -> Result<Result<Box<RawValue>, String>, String> {
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
