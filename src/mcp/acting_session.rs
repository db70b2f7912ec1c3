//! The session in which a client acts.
//!
//! An MCP session is a connection. What a person calls a session (a conversation, with its hooks, its peer and its
//! journal) is the client's own, and one connection may serve several. Clients name it in different ways:
//!
//! - A session's token speaks for that session alone; the operator names one with the `Svc-Session-Id` header.
//! - Codex names its session in `_meta`.
//! - Claude Code names the use of the tool, which its hook has reported just before.
//! - opencode names nothing: its hook has reported the tool and the arguments of the call.
//! - A client without hooks may call `start_session` with an id.
//! - Gemini reports nothing about a call: its hooks and `svc stdio` run under the same process of the client.
//!
//! A connection keeps the session that was found, also over a restart, until another is found.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use serde_json::{Map, Value};

use super::{
    McpServer,
    origin::RequestOrigin,
    rpc::{INVALID_REQUEST, RpcError},
    session::McpSession,
};
use crate::{
    domain::{Caller, limits, mcp::CLIENT_PROCESS},
    telemetry,
};

/// Header by which the operator names the session that a call acts in.
const ACTING_SESSION: &str = "svc-session-id";

/// The session of the token, else the one that the operator names, else the MCP session.
pub(crate) fn named_session(
    caller: &Caller,
    headers: &HeaderMap,
    origin: &RequestOrigin,
) -> Result<Option<Arc<str>>, RpcError> {
    let named = match headers.get(ACTING_SESSION).map(HeaderValue::to_str) {
        None => None,
        Some(Ok(named)) if !named.trim().is_empty() && named.len() <= limits::SHORT_TEXT_BYTES => {
            Some(named.trim())
        }
        Some(_) => {
            let error = RpcError::invalid_params("Svc-Session-Id: is no id of a session");
            return Err(error.status(400));
        }
    };
    match (caller.session(), named) {
        (Some(own), Some(named)) if own != named => {
            let text =
                format!("Svc-Session-Id: this token speaks for session {own:?} and for no other");
            Err(RpcError::new(INVALID_REQUEST, text).status(403))
        }
        (Some(own), _) => Ok(Some(own.into())),
        (None, Some(named)) => Ok(Some(named.into())),
        (None, None) => Ok(match origin {
            RequestOrigin::Legacy(session) => Some(session.id.as_str().into()),
            RequestOrigin::Bare | RequestOrigin::Modern(_) => None,
        }),
    }
}

impl McpServer {
    /// The session that a call of a tool acts in: as the credential or the header names it, else as the client's hooks
    /// have shown, else `named`.
    pub(crate) async fn acting_session(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
        origin: &RequestOrigin,
        named: Option<Arc<str>>,
        params: &Map<String, Value>,
    ) -> Option<Arc<str>> {
        if caller.session().is_some() || headers.contains_key(ACTING_SESSION) {
            return named;
        }
        match origin {
            RequestOrigin::Bare => named,
            RequestOrigin::Modern(_) => self.session_of_call(params).or(named),
            RequestOrigin::Legacy(session) => {
                let Some(client_session) = self.session_of_call(params) else {
                    let of_process = self.session_of_process(headers).await;
                    return of_process.or_else(|| session.client_session()).or(named);
                };
                self.keep_client_session(session, &client_session);
                Some(client_session)
            }
        }
    }

    /// Keeps the client's session with the connection. The call does not wait for the row.
    fn keep_client_session(&self, session: &McpSession, client_session: &Arc<str>) {
        if !session.set_client_session(client_session) {
            return;
        }
        let (server, id) = (self.clone(), session.id.clone());
        let client_session = Arc::clone(client_session);
        self.background.spawn(async move {
            if let Err(error) = server.services.hooks.tie_mcp_session(&id, &client_session).await {
                let error = telemetry::chain(&error);
                tracing::warn!(error, "cannot note whose a connection is");
            }
        });
    }

    /// The session that the client's process works for, if `svc stdio` names the process.
    async fn session_of_process(&self, headers: &HeaderMap) -> Option<Arc<str>> {
        let pid = headers.get(CLIENT_PROCESS)?.to_str().ok()?.parse().ok()?;
        self.services.hooks.session_of_process(pid).await.ok().flatten().map(Arc::from)
    }

    /// The session that the call itself names, or that a hook has reported for it.
    fn session_of_call(&self, params: &Map<String, Value>) -> Option<Arc<str>> {
        let tool = params.get("name")?.as_str()?;
        let arguments = params.get("arguments").unwrap_or(&Value::Null);
        let id = |value: &Value| value.as_str().filter(|id| !id.trim().is_empty()).map(Arc::from);
        if tool == "hook_event" {
            return id(&arguments["session_id"])
                .or_else(|| id(&arguments["payload"]["session_id"]));
        }
        let meta = params.get("_meta").unwrap_or(&Value::Null);
        if let Some(thread) = id(&meta["threadId"]) {
            return Some(thread);
        }
        let use_id = meta["claudecode/toolUseId"].as_str();
        let known =
            self.services.hooks.ties.session_of(use_id, tool, arguments, self.services.now());
        // A client that begins a session by name goes on in it.
        known.or_else(|| id(&arguments["session_id"]).filter(|_| tool == "start_session"))
    }
}
