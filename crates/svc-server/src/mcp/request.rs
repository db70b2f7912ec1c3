//! A request over HTTP: its body and its messages, the caller, the era, the tools that the caller
//! is shown, and the session that a call acts in; how a request is refused; and messages that want
//! no answer.
//!
//! An MCP session is a connection. What a person calls a session (a conversation, with its hooks,
//! its peer and its journal) is the client's own, and one connection may serve several. Clients
//! name it in different ways:
//!
//! - The `Svc-Session-Id` header names one.
//! - Codex names its session in `_meta`.
//! - Claude Code names the use of the tool, which its hook has reported just before.
//! - opencode's call names nothing, but its hook has reported the tool and the arguments.
//! - A client without hooks may call `start_session` with an id.
//! - Gemini reports nothing about a call.
//!
//! Whatever names a session, the holder of a token acts in none but those that belong to its
//! principal. Hooks and connections of one client's process share a principal, and each process has
//! its own. A call that names no session acts in the latest open session of its principal. The
//! operator may act in any session; a connection with the operator's credential keeps the session
//! that was found, also over a restart, until another is found.

use std::sync::Arc;

use axum::{body::Body, response::Response};
use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Request, header, request::Parts};
use serde_json::{Map, Value, value::RawValue};
use svc_core::{
    service::{Error, process::RequestSender, team::NewSession},
    tools::RequestTrace,
};
use svc_model::{Caller, SessionStanding, ToolExposure, is_daemons_session_id, limits};
use svc_store::McpTransport;
use svc_sys::telemetry;
use svc_wire::mcp::{self, CLIENT_PROCESS, EXPOSE};

use super::{
    McpServer,
    call::{CallRecord, RequestKey},
    era::{self, ModernClient},
    rpc::{
        AnswerEra, ClientBody, ClientMessage, ClientRequest, INVALID_REQUEST, PARSE_ERROR,
        RpcError, SESSION_NOT_FOUND, UnreadableMessage, error_message, parse_body,
    },
    server::{McpSession, RequestEra, RequestMeter},
    stream::{AnswerForms, whole_response},
};
use crate::web::{self, GivenRequestId, Problem};

pub(crate) static METHOD: HeaderName = HeaderName::from_static(mcp::METHOD);
pub(crate) static NAME: HeaderName = HeaderName::from_static(mcp::NAME);
pub(crate) static SESSION_ID: HeaderName = HeaderName::from_static(mcp::SESSION_ID);

/// A request's head and body. A request id that the daemon made is removed: it is for the daemon's
/// log only.
pub(crate) fn parts_of(request: Request<Body>) -> (Parts, Body) {
    let (mut parts, body) = request.into_parts();
    if parts.extensions.get::<GivenRequestId>().is_none() {
        parts.headers.remove("x-request-id");
    }
    (parts, body)
}

pub(crate) fn sender_of(extensions: &Extensions) -> RequestSender {
    extensions.get().copied().unwrap_or_default()
}

pub(crate) async fn read_body(
    server: &McpServer,
    headers: &HeaderMap,
    body: Body,
) -> Result<Bytes, Problem> {
    web::require_json(headers)?;
    web::read(body, limits::BODY_BYTES, server.services.tuning().body_stall).await
}

pub(crate) fn parse_messages(body: &[u8]) -> Result<ClientBody, UnreadableMessage> {
    let Ok(text) = std::str::from_utf8(body) else {
        let error = RpcError::new(PARSE_ERROR, "the body is not UTF-8").status(400);
        return Err(UnreadableMessage { id: None, error });
    };
    if web::is_too_heavy(text) {
        return Err(UnreadableMessage { id: None, error: RpcError::too_large(web::TOO_HEAVY) });
    }
    parse_body(text)
}

pub(crate) fn refusal(id: Option<&RawValue>, error: &RpcError, forms: AnswerForms) -> Response {
    let mut response = whole_response(error_message(id, error), error.status, forms);
    if let 429 | 503 = error.status {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

pub(crate) fn no_session() -> RpcError {
    // 404 makes a client start a new session, 400 would not.
    RpcError::new(SESSION_NOT_FOUND, "there is no such session: begin with initialize").status(404)
}

/// Repeats a request's header on its response.
pub(crate) fn echo(response: &mut Response, name: &HeaderName, value: &str) {
    let value = mcp::encode_value(value);
    // Clients limit the length of a response's head, and no name of the daemon's own is longer.
    let is_short = value.len() <= limits::SHORT_TEXT_BYTES;
    if let Some(value) = HeaderValue::from_str(&value).ok().filter(|_| is_short) {
        response.headers_mut().insert(name.clone(), value);
    }
}

pub(crate) async fn request_origin(
    server: &McpServer,
    caller: &Caller,
    headers: &HeaderMap,
    request: &ClientRequest,
) -> Result<RequestOrigin, RpcError> {
    if let Some(client) = era::modern_client(headers, &request.method, &request.params)? {
        era::check_standard_headers(headers, request)?;
        return Ok(RequestOrigin::Modern(client));
    }
    era::check_legacy_revision(headers)?;
    if request.method == "initialize" {
        return Ok(RequestOrigin::Bare);
    }
    let session = session_of(server, caller, headers).await?;
    Ok(session.map_or(RequestOrigin::Bare, RequestOrigin::Legacy))
}

/// The session that the headers name; an error if there is none of that id.
pub(crate) async fn session_of(
    server: &McpServer,
    caller: &Caller,
    headers: &HeaderMap,
) -> Result<Option<Arc<McpSession>>, RpcError> {
    let Some(id) = headers.get(&SESSION_ID) else { return Ok(None) };
    let id = id.to_str().map_err(|_| no_session())?;
    let session = server.sessions.find(caller, id).await?;
    session
        .filter(|session| session.transport == McpTransport::Http)
        .map(Some)
        .ok_or_else(no_session)
}

/// Starts to measure a request. The call of a tool sets the tool's name.
pub(crate) fn meter_of(
    server: &McpServer,
    method: &str,
    name: Option<&str>,
    era: RequestEra,
) -> RequestMeter {
    let is_prompt = |name: &&str| server.prompts.borrow().iter().any(|it| it.is_called(name));
    let known = name.filter(|name| method == "prompts/get" && is_prompt(name));
    RequestMeter::start(method, known.unwrap_or_default(), era)
}

/// Handles a notification, or an answer to a question of the daemon's. Without a session it has no
/// effect.
pub(crate) async fn handle_one_way(
    server: &McpServer,
    session: Option<&McpSession>,
    message: ClientMessage,
) {
    let Some(session) = session else { return };
    match message {
        ClientMessage::Response { id, outcome } => {
            server.questions.answer(&session.id, &id, outcome);
        }
        ClientMessage::Notification { method, params } if method == "notifications/cancelled" => {
            // Clients send this for calls that have ended, too; then it has no effect.
            if let Some(id) = params.get("requestId") {
                // A recorded call is registered when its recording ends.
                drop(session.recording.lock().await);
                let why = params.get("reason").and_then(Value::as_str);
                server.running.cancel(&RequestKey::new(&session.id, id), why);
            }
        }
        ClientMessage::Request(_) | ClientMessage::Notification { .. } => {}
    }
}

#[derive(Debug, Clone)]
pub(crate) enum RequestOrigin {
    /// Neither a session nor a revision: a hook, `curl`.
    Bare,
    Legacy(Arc<McpSession>),
    Modern(ModernClient),
}

#[derive(Debug, Clone)]
pub(crate) struct RequestContext {
    pub(crate) caller: Caller,
    pub(crate) origin: RequestOrigin,
    /// The agent's session on whose behalf the request is made.
    pub(crate) acting_session: Option<Arc<str>>,
    /// Which tools the caller is shown.
    pub(crate) exposure: ToolExposure,
    /// The ids that the client gave the request.
    pub(crate) trace: RequestTrace,
}

impl RequestContext {
    pub(crate) async fn from_http(
        server: &McpServer,
        caller: &Caller,
        headers: &HeaderMap,
        sender: RequestSender,
        origin: RequestOrigin,
    ) -> Result<Self, RpcError> {
        let search = SessionSearch { server, caller, headers, origin: &origin };
        let acting_session = search.named().await?;
        let exposure = exposure_of(server, caller, headers)?;
        // An id that the daemon made is for its own log.
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(Arc::from);
        let (request_id, parent) = (text("x-request-id"), text("traceparent"));
        let trace = RequestTrace { request_id, parent, sender };
        Ok(Self { caller: caller.clone(), origin, acting_session, exposure, trace })
    }

    /// The record of a request that asks its client nothing.
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

impl RequestOrigin {
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

/// Header that names the session that a call acts in.
const ACTING_SESSION: &str = "svc-session-id";

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

#[derive(Clone, Copy)]
pub(crate) struct SessionSearch<'a> {
    pub(crate) server: &'a McpServer,
    pub(crate) caller: &'a Caller,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) origin: &'a RequestOrigin,
}

impl SessionSearch<'_> {
    /// The session that the header names, which a token's holder must own; else the caller's
    /// default session, else the MCP session.
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

    /// The session that a call of a token's holder names in its client's way, if the caller owns
    /// it; else `named`.
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
            // A thread without an owner becomes a session of the client's process: no hook has
            // reported it yet, or the client has no hooks.
            let session_id = Some(client_session.to_string());
            let new = NewSession { session_id, cwd: None, source: None, client: None };
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
                tracing::warn!(error, "cannot store the session of a connection");
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
        // A client that starts a session by name continues in it.
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
/// gets a few, since each costs its model tokens in every turn, and the operator gets all.
fn exposure_of(
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
