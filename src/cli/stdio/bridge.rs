//! State that all exchanges share: the session, the daemon's tools and the lines for the client.
//! Also the bridge's own requests, which renew the session and list the tools.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use svc_client::{McpReply, StreamingReply, backoff};
use svc_model::ToolExposure;
use svc_wire::json_rpc::JsonRpcEnvelope;
use svc_wire::mcp::{Revision, SESSION_ID};
use svc_wire::mcp_request::{self, RequestSetting};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;

use super::super::{output, program};
use super::call::{ClientCall, own_request};
use super::link::{DaemonLink, Effort, LinkError};

/// Retries of a request that gets no response. Bounded, since a request that crashes the daemon
/// must not be repeated for ever.
pub(super) const REPEATS: u32 = 3;
/// Most pages of the list of tools. A daemon that has more repeats pages.
const MAX_TOOL_PAGES: usize = 100;
const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

pub(super) struct Bridge {
    pub(super) link: DaemonLink,
    pub(super) output: LineWriter,
    pub(super) session: CurrentMcpSession,
    /// The tools of the last list: which are idempotent, and which arguments are repeated in
    /// headers. Fetched only after a call was cut off, or was refused for its headers.
    tools: Mutex<HashMap<String, Arc<CachedTool>>>,
    /// Which tools the client is shown, if `--expose` says so.
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
        let (session, tools) = (CurrentMcpSession::default(), Mutex::default());
        Self { link, output, session, tools, expose }
    }

    /// Sends a request of the bridge outside any session. Returns the result, and the session that
    /// is granted if the method is `initialize`. The request must be idempotent.
    async fn request(&self, body: &Bytes) -> Result<(Option<HeaderValue>, Box<RawValue>), String> {
        // Clients may call tools that they do not see in their list.
        let expose = Some(ToolExposure::All);
        let setting = RequestSetting { expose, ..RequestSetting::default() };
        let outgoing = mcp_request::post(body.clone(), setting);
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
                Err(error @ (LinkError::Away(_) | LinkError::Database(_))) => {
                    return Err(error.to_string());
                }
            };
            if repeats == REPEATS {
                return Err(problem);
            }
            sleep(backoff(repeats, None)).await;
            repeats += 1;
        }
    }

    /// Replaces a session that the daemon does not know, with the client's parameters of
    /// `initialize`. Concurrent calls share one renewal.
    pub(super) async fn renew(
        &self,
        stale: &Arc<LegacyMcpSession>,
    ) -> Result<Arc<LegacyMcpSession>, String> {
        let _turn = self.session.renewing.lock().await;
        match self.session.get() {
            Some(current) if !Arc::ptr_eq(&current, stale) => return Ok(current),
            _ => {}
        }
        let failed = |problem: String| format!("the session cannot be renewed: {problem}");
        let request = own_request("svc-stdio-initialize", "initialize", &stale.params);
        let (id, result) = self.request(&request).await.map_err(failed)?;
        let session = LegacyMcpSession::new(id, &result, stale.params.as_deref());
        let initialized = mcp_request::post(Bytes::from_static(INITIALIZED), session.setting());
        let answer = self.link.open(&initialized, Effort::Demand).await;
        let answer = answer.map_err(|error| failed(error.to_string()))?;
        if !answer.status.is_success() {
            return Err(failed(answer.status.to_string()));
        }
        Ok(self.session.begin(session))
    }

    /// Fetches the list of tools, which a restart may have changed. Sends the `_meta` of the call
    /// that needs the list.
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
        *self.tools() = tools;
        Ok(())
    }

    /// Whether a call is idempotent, so that it may be resent although it may have been carried
    /// out.
    pub(super) async fn is_repeatable(&self, call: &ClientCall) -> bool {
        if call.tools.is_empty() {
            return true;
        }
        if self.learn_tools(call).await.is_err() {
            return false;
        }
        let tools = self.tools();
        call.tools.iter().all(|name| tools.get(name).is_some_and(|tool| tool.is_repeatable()))
    }

    /// Empty before the list was fetched.
    pub(super) fn tools(&self) -> MutexGuard<'_, HashMap<String, Arc<CachedTool>>> {
        self.tools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn pass(&self, message: String) {
        if serde_json::from_str::<&RawValue>(&message).is_ok() {
            self.output.send(message).await;
        } else {
            note_garbage();
        }
    }

    /// Reports a refusal of the daemon on standard error, where no request could be answered.
    pub(super) async fn note_refusal(&self, answer: StreamingReply) {
        let Ok(reply) = answer.collect().await else { return };
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
        let Ok(message) = JsonRpcEnvelope::parse(text.as_bytes()) else { continue };
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

/// The session of a protocol revision with sessions, granted by `initialize` and kept for a
/// renewal.
pub(super) struct LegacyMcpSession {
    /// The session's id; `None` if the server grants none.
    pub(super) id: Option<HeaderValue>,
    revision: Option<Revision>,
    /// The client's parameters of `initialize`, which a renewal sends again.
    pub(super) params: Option<Box<RawValue>>,
    /// The client's process, which links this session with the session of the client's hooks.
    process: Option<u32>,
}

#[derive(Default)]
pub(super) struct CurrentMcpSession {
    session: Mutex<Option<Arc<LegacyMcpSession>>>,
    /// Held during a renewal, so that only one of several concurrent requests renews the session.
    renewing: tokio::sync::Mutex<()>,
}

impl LegacyMcpSession {
    /// The session that a response to `initialize` grants; `None` if it is an error.
    pub(super) fn granted(request: &[u8], answer: &str, id: Option<HeaderValue>) -> Option<Self> {
        let result = JsonRpcEnvelope::parse(answer.as_bytes()).ok()?.result?;
        let params = JsonRpcEnvelope::parse(request).ok()?.params;
        Some(Self::new(id, result, params))
    }

    pub(super) fn new(
        id: Option<HeaderValue>,
        result: &RawValue,
        params: Option<&RawValue>,
    ) -> Self {
        let result: Value = serde_json::from_str(result.get()).unwrap_or_default();
        let revision = result["protocolVersion"].as_str().and_then(Revision::parse);
        let process = program::client();
        Self { id, revision, params: params.map(ToOwned::to_owned), process }
    }

    pub(super) fn setting(&self) -> RequestSetting<'_> {
        RequestSetting {
            revision: self.revision,
            session: self.id.as_ref(),
            process: self.process,
            ..RequestSetting::default()
        }
    }
}

impl CurrentMcpSession {
    /// `None` before `initialize`.
    pub(super) fn get(&self) -> Option<Arc<LegacyMcpSession>> {
        self.lock().clone()
    }

    pub(super) fn begin(&self, session: LegacyMcpSession) -> Arc<LegacyMcpSession> {
        let session = Arc::new(session);
        *self.lock() = Some(Arc::clone(&session));
        session
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<LegacyMcpSession>>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CachedTool {
    pub(super) name: String,
    /// Shows which arguments are repeated in headers.
    #[serde(default)]
    pub(super) input_schema: Value,
    #[serde(default)]
    annotations: ToolHints,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ToolHints {
    read_only_hint: bool,
    idempotent_hint: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ToolPage {
    pub(super) tools: Vec<CachedTool>,
    pub(super) next_cursor: Option<String>,
}

impl CachedTool {
    pub(super) fn is_repeatable(&self) -> bool {
        self.annotations.read_only_hint || self.annotations.idempotent_hint
    }
}

/// Longest line, in bytes: the largest body that the daemon accepts.
pub(super) const MAX_LINE: usize = 4 * 1024 * 1024;
/// Capacity of the queue of lines for the client. Exchanges wait while it is full, so memory is
/// bounded.
const QUEUE: usize = 64;
pub(super) const BLOCK: usize = 64 * 1024;

/// Writes whole lines. Cheap to clone; the writer ends when the last clone is dropped.
#[derive(Debug, Clone)]
pub(super) struct LineWriter(mpsc::Sender<String>);

impl LineWriter {
    /// Standard output and the task that writes to it. The task ends early if standard output is
    /// closed.
    pub(super) fn stdout() -> (Self, JoinHandle<anyhow::Result<()>>) {
        let (sender, mut lines) = mpsc::channel::<String>(QUEUE);
        let writing = spawn_blocking(move || {
            while let Some(line) = lines.blocking_recv() {
                output::exact(format!("{line}\n").as_bytes())?;
            }
            Ok(())
        });
        (Self(sender), writing)
    }

    /// Writes one message, which contains no line break.
    pub(super) async fn send(&self, message: String) {
        debug_assert!(!message.contains('\n'), "one message is one line");
        // Fails if standard output is closed, which ends the bridge.
        self.0.send(message).await.ok();
    }
}
