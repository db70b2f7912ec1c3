//! Where a request comes from: the caller, the era, which tools the caller is shown, and the
//! session that a call acts in.
//!
//! An MCP session is a connection. What a person calls a session (a conversation, with its hooks,
//! its peer and its journal) is the client's own, and one connection may serve several. Clients
//! name it in different ways:
//!
//! - The `Svc-Session-Id` header names one.
//! - Codex names its session in `_meta`.
//! - Claude Code names the use of the tool, which its hook has reported just before.
//! - opencode names nothing: its hook has reported the tool and the arguments of the call.
//! - A client without hooks may call `start_session` with an id.
//! - Gemini reports nothing about a call.
//!
//! Whatever names a session, the holder of a token acts in none but those that belong to its
//! principal: hooks and connections of one client's process share a principal, and those of another
//! process have another. Where nothing names one it is the latest open session of the principal.
//! The operator may act in any; a connection with the operator's credential keeps the session that
//! was found, also over a restart, until another is found.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use serde_json::{Map, Value};
use svc_core::{
    service::{Error, process::RequestSender, team::NewSession},
    tools::RequestTrace,
};
use svc_model::{Caller, SessionStanding, ToolExposure, is_daemons_session_id, limits};
use svc_sys::telemetry;
use svc_wire::mcp::{CLIENT_PROCESS, EXPOSE};

use super::{
    McpServer,
    call::CallRecord,
    era::ModernClient,
    metrics::RequestEra,
    rpc::{AnswerEra, ClientRequest, INVALID_REQUEST, RpcError},
    server::McpSession,
};

/// The era of a request, and what is known of the client in it.
#[derive(Debug, Clone)]
pub(crate) enum RequestOrigin {
    /// Neither a session nor a revision: a hook, `curl`.
    Bare,
    Legacy(Arc<McpSession>),
    Modern(ModernClient),
}

/// A request's circumstances, as every method gets them.
#[derive(Debug, Clone)]
pub(crate) struct RequestContext {
    pub(crate) caller: Caller,
    pub(crate) origin: RequestOrigin,
    /// The agent's session on whose behalf the request is made.
    pub(crate) acting_session: Option<Arc<str>>,
    /// Which tools the caller is shown.
    pub(crate) exposure: ToolExposure,
    /// What the client has named the request by.
    pub(crate) trace: RequestTrace,
}

impl RequestContext {
    /// The circumstances of a request over HTTP; its names are in the headers.
    pub(crate) fn from_http(
        (caller, headers, sender): (&Caller, &HeaderMap, RequestSender),
        origin: RequestOrigin,
        acting_session: Option<Arc<str>>,
        exposure: ToolExposure,
    ) -> Self {
        let (caller, trace) = (caller.clone(), trace_of(headers, sender));
        Self { caller, origin, acting_session, exposure, trace }
    }
}

impl RequestContext {
    /// A request that asks the caller's client nothing but what belongs to it.
    pub(crate) fn record(
        &self,
        server: &McpServer,
        request: &ClientRequest,
        method: &'static str,
        name: &str,
    ) -> CallRecord {
        CallRecord {
            rpc_id: request.id.clone(),
            method,
            name: name.to_owned(),
            params: request.params.clone(),
            raw_params: request.raw_params.clone(),
            trace: self.trace.clone(),
            acting_session: self.acting_session.clone(),
            credential: server.services.access.credential_name(&self.caller),
            started_at: server.services.now(),
            hold: None,
        }
    }
}

/// The names that a client gave a request. An id that the daemon made is for the daemon's log
/// alone.
fn trace_of(headers: &HeaderMap, sender: RequestSender) -> RequestTrace {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(Arc::from);
    RequestTrace { request_id: text("x-request-id"), parent: text("traceparent"), sender }
}

impl RequestOrigin {
    /// The client of a modern request.
    pub(crate) fn modern(&self) -> Option<&ModernClient> {
        match self {
            Self::Modern(client) => Some(client),
            Self::Bare | Self::Legacy(_) => None,
        }
    }

    pub(crate) fn answer_era(&self) -> AnswerEra {
        match self {
            Self::Bare | Self::Legacy(_) => AnswerEra::Legacy,
            Self::Modern(_) => AnswerEra::Stateless,
        }
    }

    pub(crate) fn era(&self) -> RequestEra {
        match self {
            Self::Bare => RequestEra::Bare,
            Self::Legacy(_) => RequestEra::Legacy,
            Self::Modern(_) => RequestEra::Modern,
        }
    }
}

/// Header by which the operator names the session that a call acts in.
const ACTING_SESSION: &str = "svc-session-id";

/// The session that the header names, if there is one.
fn session_in_header(headers: &HeaderMap) -> Result<Option<&str>, RpcError> {
    match headers.get(ACTING_SESSION).map(HeaderValue::to_str) {
        None => Ok(None),
        Some(Ok(named)) if !named.trim().is_empty() && named.len() <= limits::SHORT_TEXT_BYTES => {
            Ok(Some(named.trim()))
        }
        Some(_) => {
            let error = RpcError::invalid_params("Svc-Session-Id: is no id of a session");
            Err(error.status(400))
        }
    }
}

/// What tells which session a request, or a call of a tool, acts in.
#[derive(Clone, Copy)]
pub(crate) struct SessionSearch<'a> {
    pub(crate) server: &'a McpServer,
    pub(crate) caller: &'a Caller,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) origin: &'a RequestOrigin,
}

impl SessionSearch<'_> {
    /// The session that the header names, which a token's holder must own; else the caller's own,
    /// or the MCP session.
    pub(crate) async fn named(self) -> Result<Option<Arc<str>>, RpcError> {
        let Self { server, caller, headers, origin } = self;
        let team = &server.services.team;
        match (caller.session(), session_in_header(headers)?) {
            (_, Some(named)) => match team.check_named(caller, named).await {
                Ok(session_id) => Ok(Some(session_id.into())),
                Err(Error::NotYours { why, .. }) => {
                    let text = format!("Svc-Session-Id: {why}");
                    Err(RpcError::new(INVALID_REQUEST, text).status(403))
                }
                Err(error) => Err(error.into()),
            },
            (Some(_), None) => Ok(team.default_session(caller).await?.map(Arc::from)),
            (None, None) => Ok(match origin {
                RequestOrigin::Legacy(session) => Some(session.id.as_str().into()),
                RequestOrigin::Bare | RequestOrigin::Modern(_) => None,
            }),
        }
    }

    /// The session that a call of a tool acts in: as the header names it, else as the client's
    /// hooks have shown, else `named`.
    pub(crate) async fn of_call(
        self,
        named: Option<Arc<str>>,
        params: &Map<String, Value>,
    ) -> Result<Option<Arc<str>>, RpcError> {
        let Self { caller, headers, origin, .. } = self;
        if headers.contains_key(ACTING_SESSION) {
            return Ok(named);
        }
        if !caller.is_operator() {
            return self.own_of_call(named, params).await;
        }
        Ok(match origin {
            RequestOrigin::Bare => named,
            RequestOrigin::Modern(_) => self.named_by(params).or(named),
            RequestOrigin::Legacy(session) => {
                let Some(client_session) = self.named_by(params) else {
                    let of_process = self.of_process().await;
                    return Ok(of_process.or_else(|| session.client_session()).or(named));
                };
                self.keep_client_session(session, &client_session);
                Some(client_session)
            }
        })
    }

    /// The session that a call with a token names in its own way, if it is the caller's; else
    /// `named`.
    async fn own_of_call(
        self,
        named: Option<Arc<str>>,
        params: &Map<String, Value>,
    ) -> Result<Option<Arc<str>>, RpcError> {
        let Self { server, caller, origin, .. } = self;
        let Some(client_session) = self.named_by(params) else { return Ok(named) };
        let team = &server.services.team;
        let client_session: Arc<str> =
            team.session_of_client(caller, &client_session).await?.into();
        if !team.owns(caller, &client_session).await? {
            if thread_of(params).is_none() {
                return Ok(named);
            }
            if team.standing(caller, &client_session).await? != SessionStanding::Unclaimed {
                let text = format!(
                    "_meta.threadId: thread {client_session:?} is none of this client's process"
                );
                return Err(RpcError::new(INVALID_REQUEST, text).status(403));
            }
            if !caller.is_client_process() {
                return Ok(named);
            }
            // A thread that nobody has is one of the client's process, and no other of its
            // sessions: its hooks have not told of it yet, or there are none.
            let new = NewSession {
                session_id: Some(client_session.to_string()),
                cwd: None,
                source: None,
                client: None,
            };
            team.start_session(caller, None, new).await?;
        }
        if let RequestOrigin::Legacy(session) = origin {
            self.keep_client_session(session, &client_session);
        }
        Ok(Some(client_session))
    }

    /// Keeps the client's session with the connection. The call does not wait for the row.
    fn keep_client_session(self, session: &McpSession, client_session: &Arc<str>) {
        if !session.set_client_session(client_session) {
            return;
        }
        let (server, id) = (self.server.clone(), session.id.clone());
        let client_session = Arc::clone(client_session);
        self.server.background.spawn(async move {
            if let Err(error) = server.services.hooks.tie_mcp_session(&id, &client_session).await {
                let error = telemetry::chain(&error);
                tracing::warn!(error, "cannot note whose a connection is");
            }
        });
    }

    /// The session that the client's process works for, if `svc stdio` names the process.
    async fn of_process(self) -> Option<Arc<str>> {
        let pid = self.headers.get(CLIENT_PROCESS)?.to_str().ok()?.parse().ok()?;
        self.server.services.hooks.session_of_process(pid).await.ok().flatten().map(Arc::from)
    }

    /// The session that the call itself names, or that a hook has reported for it.
    fn named_by(self, params: &Map<String, Value>) -> Option<Arc<str>> {
        let tool = params.get("name")?.as_str()?;
        let arguments = params.get("arguments").unwrap_or(&Value::Null);
        let id = |value: &Value| value.as_str().filter(|id| !id.trim().is_empty()).map(Arc::from);
        if tool == "hook_event" {
            return id(&arguments["session_id"])
                .or_else(|| id(&arguments["payload"]["session_id"]));
        }
        let meta = params.get("_meta").unwrap_or(&Value::Null);
        if let Some(thread) = thread_of(params) {
            return Some(thread.into());
        }
        let use_id = meta["claudecode/toolUseId"].as_str();
        let (ties, now) = (&self.server.services.hooks.ties, self.server.services.now());
        let known = ties.session_of(&self.caller.principal(), use_id, tool, arguments, now);
        // A client that begins a session by name goes on in it.
        let begun = || id(&arguments["session_id"]).filter(|id| !is_daemons_session_id(id));
        known.or_else(|| begun().filter(|_| tool == "start_session"))
    }
}

/// The thread that Codex says it calls from.
fn thread_of(params: &Map<String, Value>) -> Option<&str> {
    let thread = params.get("_meta")?.get("threadId")?.as_str()?;
    (!thread.trim().is_empty()).then_some(thread)
}

/// Which tools a caller is shown: as the header asks, else as configured. By default a session
/// gets a few, as each of them costs its model tokens in every turn, and the operator gets all.
pub(crate) fn exposure_of(
    server: &McpServer,
    caller: &Caller,
    headers: &HeaderMap,
) -> Result<ToolExposure, RpcError> {
    let by_default = if caller.is_operator() { ToolExposure::All } else { ToolExposure::Search };
    match headers.get(EXPOSE).map(HeaderValue::to_str) {
        None => Ok(server.exposure.unwrap_or(by_default)),
        Some(asked) => asked.ok().and_then(|asked| asked.parse().ok()).ok_or_else(|| {
            RpcError::invalid_params("Svc-Expose: must be search or all").status(400)
        }),
    }
}
