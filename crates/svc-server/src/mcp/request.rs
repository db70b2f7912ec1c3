//! A request: its era and the checks that the era demands, its MCP session, the session that its
//! call acts in, and the tools that the caller is shown.
//!
//! The order of the checks: the era and its revision, `_meta`, the standard headers, the arguments
//! that headers repeat. Modern requests (stateless, from 2026-07-28 on) are checked as that
//! revision demands. For all others `Mcp-Method` and `Mcp-Name` are optional: the body wins, and a
//! disagreement is logged.
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

use std::{borrow::Cow, sync::Arc};

use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value, json};
use svc_core::{
    service::{Error, process::RequestSender, team::NewSession},
    tools::{HOOK_EVENT, HeaderParam, LogLevel, ParamKind, RequestTrace, Tool},
};
use svc_model::{Caller, SessionStanding, ToolExposure, is_daemons_session_id, limits};
use svc_store::McpTransport;
use svc_sys::telemetry;
use svc_wire::mcp::{self, CLIENT_PROCESS, EXPOSE, Revision, TASKS_EXTENSION, meta};

use super::{
    McpServer,
    rpc::{ClientRequest, INVALID_REQUEST, RequestEra, RpcError, SESSION_NOT_FOUND},
    server::McpSession,
};

pub(crate) static SESSION_ID: HeaderName = HeaderName::from_static(mcp::SESSION_ID);

/// The client of a modern request, as the request itself describes it.
#[derive(Debug, Clone)]
pub(crate) struct ModernClient {
    pub(crate) revision: Revision,
    pub(crate) capabilities: Arc<Map<String, Value>>,
    pub(crate) log_level: Option<LogLevel>,
}

impl ModernClient {
    pub(crate) fn has_tasks(&self) -> bool {
        self.capabilities.get("extensions").is_some_and(|all| all.get(TASKS_EXTENSION).is_some())
    }
}

/// The client of a modern request, whose `_meta` is checked; `None` for a request of an older era.
pub(crate) fn modern_client(
    headers: &HeaderMap,
    method: &str,
    params: &Map<String, Value>,
) -> Result<Option<ModernClient>, RpcError> {
    let meta = params.get("_meta").and_then(Value::as_object);
    let named = meta.and_then(|meta| meta.get(meta::PROTOCOL_VERSION));
    let malformed = |key: &str, what: &str| {
        RpcError::invalid_params(format!("params._meta[{key:?}]: {what}")).status(400)
    };
    let Some(named) = named else {
        let in_session = headers.contains_key(mcp::SESSION_ID);
        if names_modern(headers, None) || (method == "server/discover" && !in_session) {
            return Err(malformed(meta::PROTOCOL_VERSION, "is missing"));
        }
        return Ok(None);
    };
    let Some(named) = named.as_str() else {
        return Err(malformed(meta::PROTOCOL_VERSION, "must be a string"));
    };
    let why = match literal(headers, mcp::PROTOCOL_VERSION)? {
        Some(header) if header == named => None,
        Some(_) => Some("MCP-Protocol-Version and params._meta disagree"),
        None => Some("MCP-Protocol-Version: the header is missing"),
    };
    if let Some(why) = why {
        return Err(RpcError::header_mismatch(why));
    }
    let revision = Revision::parse(named).filter(|revision| revision.is_modern());
    let Some(revision) = revision else { return Err(RpcError::unsupported_version(named)) };
    let meta = meta.map(Cow::Borrowed).unwrap_or_default();
    let Some(capabilities) = meta.get(meta::CLIENT_CAPABILITIES).and_then(Value::as_object) else {
        return Err(malformed(meta::CLIENT_CAPABILITIES, "must be an object"));
    };
    let log_level = meta.get(meta::LOG_LEVEL).cloned().map(serde_json::from_value).transpose();
    let log_level = log_level.map_err(|_| malformed(meta::LOG_LEVEL, "is no log level"))?;
    let capabilities = known_capabilities(capabilities).into();
    Ok(Some(ModernClient { revision, capabilities, log_level }))
}

/// Whether the headers of a message or its `_meta` name a modern revision, known or not.
pub(crate) fn names_modern(headers: &HeaderMap, params: Option<&Map<String, Value>>) -> bool {
    let meta = params.and_then(|params| params.get("_meta"));
    meta.is_some_and(|meta| meta.get(meta::PROTOCOL_VERSION).is_some())
        || literal(headers, mcp::PROTOCOL_VERSION)
            .is_ok_and(|version| version.is_some_and(Revision::names_modern))
}

/// The revision that a message of an older era names. The error has no code of the modern era: by
/// such a code a client that knows both eras would take this server for a modern one.
pub(crate) fn check_legacy_revision(headers: &HeaderMap) -> Result<Option<Revision>, RpcError> {
    let unknown = || {
        RpcError::new(INVALID_REQUEST, "MCP-Protocol-Version: is none that this server knows")
            .status(400)
    };
    match literal(headers, mcp::PROTOCOL_VERSION) {
        Ok(None) => Ok(None),
        Ok(Some(version)) => Revision::parse(version).map(Some).ok_or_else(unknown),
        Err(_) => Err(unknown()),
    }
}

/// Checks the standard headers of a modern request (SEP-2243).
pub(crate) fn check_standard_headers(
    headers: &HeaderMap,
    request: &ClientRequest,
) -> Result<(), RpcError> {
    let method = literal(headers, mcp::METHOD)?
        .ok_or_else(|| RpcError::header_mismatch("Mcp-Method: the header is missing"))?;
    if method != request.method {
        return Err(RpcError::header_mismatch("Mcp-Method and the body's method disagree"));
    }
    let Some(member) = mcp::name_member(&request.method) else { return Ok(()) };
    let Some(name) = request.params.get(member).and_then(Value::as_str) else { return Ok(()) };
    match decoded(headers, mcp::NAME)? {
        None => Err(RpcError::header_mismatch("Mcp-Name: the header is missing")),
        Some(header) if header == name => Ok(()),
        Some(_) => Err(RpcError::header_mismatch(format!("Mcp-Name and params.{member} disagree"))),
    }
}

pub(crate) fn check_argument_headers(
    headers: &HeaderMap,
    tool: &Tool,
    params: &Map<String, Value>,
) -> Result<(), RpcError> {
    for param in tool.header_params() {
        let mut value = params.get("arguments");
        for step in &param.path {
            value = value.and_then(|value| value.get(step));
        }
        let value = value.filter(|value| !value.is_null());
        let name = format!("{}{}", mcp::PARAM_PREFIX, param.header.to_ascii_lowercase());
        let Ok(name) = HeaderName::try_from(name) else { continue };
        let header = decoded(headers, name.as_str())?;
        let mismatch =
            |why: &str| RpcError::header_mismatch(format!("Mcp-Param-{}: {why}", param.header));
        match (value, header) {
            (Some(_), None) => return Err(mismatch("the header is missing")),
            (Some(value), Some(header)) if !agrees(param, value, &header) => {
                return Err(mismatch("the header and the argument disagree"));
            }
            (None, _) | (Some(_), Some(_)) => {}
        }
    }
    Ok(())
}

fn agrees(param: &HeaderParam, value: &Value, header: &str) -> bool {
    match param.kind {
        // The tool's schema refuses a value of another type.
        ParamKind::String => value.as_str().is_none_or(|value| value == header),
        ParamKind::Boolean => value.as_bool().is_none_or(|value| value.to_string() == header),
        ParamKind::Integer => {
            let Some(value) = value.as_f64() else { return true };
            value.to_string() == header
                || header.parse::<f64>().is_ok_and(|header| (header - value).abs() < f64::EPSILON)
        }
    }
}

/// The decoded value of a header that may occur once.
fn decoded(headers: &HeaderMap, name: &str) -> Result<Option<String>, RpcError> {
    let Some(value) = single(headers, name)? else { return Ok(None) };
    let value = mcp::decode_value(value.as_bytes()).ok_or_else(|| unreadable(name))?;
    Ok(Some(value.into_owned()))
}

/// The value of a header that may occur once and is never encoded.
fn literal<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, RpcError> {
    let Some(value) = single(headers, name)? else { return Ok(None) };
    value.to_str().map(|value| Some(value.trim())).map_err(|_| unreadable(name))
}

fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a HeaderValue>, RpcError> {
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    if values.next().is_some() {
        return Err(RpcError::header_mismatch(format!("{name}: the header is there twice")));
    }
    Ok(value)
}

fn unreadable(name: &str) -> RpcError {
    RpcError::header_mismatch(format!("{name}: the header's value cannot be read"))
}

/// The name of what a request is about (a tool, a prompt, a URI, a task), for spans, metrics and
/// the response's headers. The body wins over the headers.
pub(crate) fn subject_name(
    headers: &HeaderMap,
    method: &str,
    params: &Map<String, Value>,
) -> Option<String> {
    let header = literal(headers, mcp::METHOD).ok().flatten();
    if header.is_some_and(|header| header != method) {
        let text = "Mcp-Method disagrees with the body (SEP-2243): the body counts";
        tracing::warn!(mcp.method = method, "{text}");
    }
    let member = mcp::name_member(method)?;
    let named = params.get(member).and_then(Value::as_str).filter(|name| !name.is_empty());
    let header = decoded(headers, mcp::NAME).ok().flatten();
    match (named, header) {
        (Some(named), Some(header)) if named != header => {
            let text = "Mcp-Name disagrees with the body (SEP-2243): the body counts";
            tracing::warn!(mcp.method = method, "{text}");
            Some(named.to_owned())
        }
        (Some(named), _) => Some(named.to_owned()),
        (None, header) => header,
    }
}

/// The capabilities of clients that the protocol names, without extensions.
const CAPABILITIES: [&str; 4] = ["elicitation", "roots", "sampling", "tasks"];

/// The capabilities that the server may use. A large one is kept as an empty object.
pub(super) fn known_capabilities(capabilities: &Map<String, Value>) -> Map<String, Value> {
    let bounded = |capability: &Value| {
        let is_small = capability.to_string().len() <= limits::MCP_CAPABILITY_BYTES;
        if is_small { capability.clone() } else { json!({}) }
    };
    let mut known = Map::new();
    for name in CAPABILITIES {
        if let Some(capability) = capabilities.get(name) {
            known.insert(name.to_owned(), bounded(capability));
        }
    }
    let extensions = capabilities.get("extensions");
    if let Some(tasks) = extensions.and_then(|all| all.get(TASKS_EXTENSION)) {
        known.insert("extensions".to_owned(), json!({ TASKS_EXTENSION: bounded(tasks) }));
    }
    known
}

pub(crate) fn no_session() -> RpcError {
    // 404 makes a client start a new session, 400 would not.
    RpcError::new(SESSION_NOT_FOUND, "there is no such session: begin with initialize").status(404)
}

pub(crate) async fn request_origin(
    server: &McpServer,
    caller: &Caller,
    headers: &HeaderMap,
    request: &ClientRequest,
) -> Result<RequestOrigin, RpcError> {
    if let Some(client) = modern_client(headers, &request.method, &request.params)? {
        check_standard_headers(headers, request)?;
        return Ok(RequestOrigin::Modern(client));
    }
    check_legacy_revision(headers)?;
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
}

impl RequestOrigin {
    pub(crate) fn modern(&self) -> Option<&ModernClient> {
        match self {
            Self::Modern(client) => Some(client),
            Self::Bare | Self::Legacy(_) => None,
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
        let keep = async move {
            if let Err(error) = server.services.hooks.tie_mcp_session(&id, &client_session).await {
                let error = telemetry::chain(&error);
                tracing::warn!(error, "cannot store the session of a connection");
            }
        };
        self.server.background.spawn(keep.boxed());
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
        if tool == HOOK_EVENT {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    fn meta(version: &str) -> Value {
        json!({"_meta": {"io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {}}})
    }

    #[test]
    fn eras_by_table() {
        let new = "2026-07-28";
        for (header, params, expected) in [
            (None, json!({}), Ok(false)),
            (Some("2025-06-18"), json!({}), Ok(false)),
            (Some("nonsense"), json!({}), Ok(false)),
            (Some(new), meta(new), Ok(true)),
            (Some("  2026-07-28 "), meta(new), Ok(true)),
            (Some(new), json!({}), Err(-32602)),
            (Some("2031-01-01"), json!({}), Err(-32602)),
            (
                Some(new),
                json!({"_meta": {"io.modelcontextprotocol/protocolVersion": new}}),
                Err(-32602),
            ),
            (
                Some(new),
                json!({"_meta": {"io.modelcontextprotocol/protocolVersion": 3}}),
                Err(-32602),
            ),
            (None, meta(new), Err(-32020)),
            (Some("2025-11-25"), meta(new), Err(-32020)),
            (Some("2031-01-01"), meta("2031-01-01"), Err(-32022)),
            (Some("2025-11-25"), meta("2025-11-25"), Err(-32022)),
        ] {
            let list: Vec<_> =
                header.into_iter().map(|value| ("mcp-protocol-version", value)).collect();
            let Value::Object(params) = params else { panic!("an object") };
            let client = modern_client(&headers(&list), "tools/list", &params);
            let is_modern = client.map(|client| client.is_some()).map_err(|error| {
                assert_eq!(error.status, 400);
                error.code
            });
            assert_eq!(is_modern, expected, "{header:?} {params:?}");
        }
    }

    #[test]
    fn standard_headers_by_table() {
        let request = |method: &str, params: Value| ClientRequest {
            id: serde_json::value::to_raw_value(&1).unwrap(),
            method: method.to_owned(),
            params: params.as_object().unwrap().clone(),
            raw_params: None,
        };
        let call = request("tools/call", json!({"name": "wörk"}));
        for (request, list, fine) in [
            (&request("tools/list", json!({})), vec![("mcp-method", "tools/list")], true),
            (&request("tools/list", json!({})), vec![("mcp-method", "  tools/list ")], true),
            (&request("tools/list", json!({})), vec![("mcp-method", "TOOLS/LIST")], false),
            (&request("tools/list", json!({})), vec![], false),
            (&call, vec![("mcp-method", "tools/call")], false),
            (&call, vec![("mcp-method", "tools/call"), ("mcp-name", "=?base64?d8O2cms=?=")], true),
            (&call, vec![("mcp-method", "tools/call"), ("mcp-name", "=?base64?d8O2cms?=")], false),
            (&call, vec![("mcp-method", "tools/call"), ("mcp-name", "work")], false),
            (
                &call,
                vec![("mcp-method", "tools/call"), ("mcp-name", "a"), ("mcp-name", "a")],
                false,
            ),
        ] {
            let checked = check_standard_headers(&headers(&list), request);
            assert_eq!(checked.is_ok(), fine, "{list:?}");
            assert!(checked.err().is_none_or(|error| error.code == -32020 && error.status == 400));
        }
    }

    #[test]
    fn repeated_arguments_by_table() {
        let schema = json!({"type": "object", "properties": {
            "text": {"type": "string", "x-mcp-header": "Text"},
            "count": {"type": "integer", "x-mcp-header": "Count"},
            "inner": {"type": "object", "properties": {"on": {"type": "boolean", "x-mcp-header": "On"}}},
        }});
        let tool = Tool::raw("t", "a tool", schema, |_, _| async {
            Ok(svc_core::tools::Output::text(""))
        });
        for (arguments, list, fine) in [
            (json!({}), vec![], true),
            (json!({"text": null}), vec![], true),
            (json!({"text": "a"}), vec![("mcp-param-text", "a")], true),
            (json!({"text": "a"}), vec![("mcp-param-text", "=?base64?YQ==?=")], true),
            (json!({"text": "a"}), vec![], false),
            (json!({"text": "a"}), vec![("mcp-param-text", "A")], false),
            (json!({"count": 42}), vec![("mcp-param-count", "42.0")], true),
            (json!({"count": 42}), vec![("mcp-param-count", "43")], false),
            (json!({"inner": {"on": true}}), vec![("mcp-param-on", "true")], true),
            (json!({"inner": {"on": true}}), vec![("mcp-param-on", "false")], false),
        ] {
            let params = json!({"name": "t", "arguments": arguments});
            let checked =
                check_argument_headers(&headers(&list), &tool, params.as_object().unwrap());
            assert_eq!(checked.is_ok(), fine, "{params} {list:?}");
        }
    }
}
