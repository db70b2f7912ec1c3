//! The era of a request, the checks of its headers against its body, the client's description of
//! itself, and the server's answer to that.
//!
//! The order of the checks: the era and its revision, `_meta`, the standard headers, the arguments
//! that headers repeat. Modern requests (stateless, from 2026-07-28 on) are checked as that
//! revision demands. For all others `Mcp-Method` and `Mcp-Name` are optional: the body wins, and a
//! disagreement is logged.
//!
//! Of a client's description in `initialize` only the members that the server uses are kept, within
//! bounds: they stay in memory for as long as the session.

use std::{borrow::Cow, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;
use serde_json::{Map, Value, json};
use svc_core::{
    service::mcp::NewMcpSession,
    tools::{HeaderParam, LogLevel, ParamKind, Tool},
};
use svc_model::{
    Caller, Peer,
    hook::HookClient,
    limits,
    quote::{self, ModelText, model_text},
};
use svc_store::McpTransport;
use svc_wire::mcp::{self, Revision, TASKS_EXTENSION, meta};

use super::{
    McpServer,
    rpc::{ClientRequest, Empty, INVALID_REQUEST, OneMember, RpcError, SERVER_INFO, ServerInfo},
};

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

/// Reads the params of `initialize`: revision, client and capabilities.
pub(crate) fn introduction(
    params: &Map<String, Value>,
    transport: McpTransport,
) -> Result<NewMcpSession, RpcError> {
    let requested = match params.get("protocolVersion") {
        Some(Value::String(requested)) => Some(requested.as_str()),
        None => None,
        Some(_) => {
            return Err(RpcError::invalid_params("params.protocolVersion: must be a string"));
        }
    };
    let latest = Revision::LEGACY[Revision::LEGACY.len() - 1];
    let revision = requested.and_then(Revision::parse).filter(|revision| !revision.is_modern());
    let client = params.get("clientInfo").and_then(Value::as_object).map(known_client);
    let capabilities = match params.get("capabilities") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(capabilities)) => known_capabilities(capabilities),
        Some(_) => return Err(RpcError::invalid_params("params.capabilities: must be an object")),
    };
    let revision = revision.unwrap_or(latest);
    let capabilities = Value::Object(capabilities).to_string();
    Ok(NewMcpSession { transport, revision, client, capabilities })
}

/// The client's name, in the params of `initialize` or in the metadata of another request.
pub(crate) fn client_name(params: &Map<String, Value>) -> Option<&str> {
    let meta = || params.get("_meta")?.get("io.modelcontextprotocol/clientInfo");
    params.get("clientInfo").or_else(meta)?.get("name")?.as_str()
}

/// The capabilities that the server may use. A large one is kept as an empty object.
fn known_capabilities(capabilities: &Map<String, Value>) -> Map<String, Value> {
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

fn known_client(info: &Map<String, Value>) -> String {
    let mut known = Map::new();
    for name in ["name", "title", "version"] {
        if let Some(text) = info.get(name).and_then(Value::as_str) {
            let text: String = text.chars().take(limits::MCP_CLIENT_NAME_CHARS).collect();
            known.insert(name.to_owned(), text.into());
        }
    }
    Value::Object(known).to_string()
}

/// The part of the instructions that describes the tools, for every model.
const TOOLS: &str = " peer_list shows who is here; peer_send asks, answers and tells, also the person (to=operator). \
    ToolSearch finds every other tool, and ToolCall calls it.\n\n\
    A GHAP record says what you try (goal, hypothesis, action, prediction) and what came of it: start_ghap before you test a \
    guess, resolve_ghap when you know. search_experiences finds what the team has learnt. TaskWait waits for a task.";

/// Parts of the names of clients that run many sessions in one process.
const SHARED: [&str; 2] = ["codex", "opencode"];

/// Longest name in the instructions, in bytes.
const NAME_BYTES: usize = 60;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InitializeResult {
    protocol_version: &'static str,
    capabilities: ServerCapabilities,
    server_info: ServerInfo,
    instructions: ModelText,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DiscoverMembers {
    supported_versions: Vec<&'static str>,
    capabilities: ServerCapabilities,
    instructions: ModelText,
}

#[derive(Serialize)]
struct ServerCapabilities {
    tools: OneMember<bool>,
    resources: ResourceCapability,
    completions: Empty,
    logging: Empty,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompts: Option<OneMember<bool>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extensions: Option<OneMember<Value>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceCapability {
    subscribe: bool,
    list_changed: bool,
}

pub(crate) async fn initialize_result(
    server: &McpServer,
    caller: &Caller,
    client: Option<&str>,
    revision: Revision,
) -> Result<InitializeResult, RpcError> {
    Ok(InitializeResult {
        protocol_version: revision.as_str(),
        capabilities: ServerCapabilities::new(server, None),
        server_info: SERVER_INFO,
        instructions: instructions(server, caller, client).await?,
    })
}

pub(crate) async fn discovery(
    server: &McpServer,
    caller: &Caller,
    client: Option<&str>,
) -> Result<DiscoverMembers, RpcError> {
    let extensions = OneMember::from([(TASKS_EXTENSION, json!({}))]);
    Ok(DiscoverMembers {
        supported_versions: Revision::MODERN.into_iter().map(Revision::as_str).collect(),
        capabilities: ServerCapabilities::new(server, Some(extensions)),
        instructions: instructions(server, caller, client).await?,
    })
}

/// The instructions for a client's model. Some clients cut them after a few hundred characters, so
/// the essential part comes first: who the model is, and what it need not do.
async fn instructions(
    server: &McpServer,
    caller: &Caller,
    client: Option<&str>,
) -> Result<ModelText, RpcError> {
    let mut text = if caller.is_operator() {
        model_text!(
            "You speak as the operator of svc, which connects the coding agents of this machine."
        )
    } else {
        // Claude Code connects and runs its first hook in parallel. Other clients run their first
        // hook later.
        let is_claude = client == Some(HookClient::ClaudeCode.as_str());
        let bound = match caller.process() {
            Some(_) if is_claude => server.services.tuning().first_hook,
            _ => Duration::ZERO,
        };
        // A process with several sessions shows only by its first call which session it connects
        // for.
        let peer = match client {
            Some(name) if SHARED.iter().any(|shared| name.contains(shared)) => None,
            _ => server.services.team.peer_of_caller(caller, bound).await?,
        };
        introduction_of(peer.as_ref(), caller)
    };
    text.push(&TOOLS);
    Ok(text)
}

impl ServerCapabilities {
    fn new(server: &McpServer, extensions: Option<OneMember<Value>>) -> Self {
        let list_changed = true;
        let has_prompts = !server.prompts.borrow().is_empty();
        Self {
            tools: OneMember::from([("listChanged", list_changed)]),
            resources: ResourceCapability { subscribe: true, list_changed },
            completions: Empty {},
            logging: Empty {},
            prompts: has_prompts.then(|| OneMember::from([("listChanged", list_changed)])),
            extensions,
        }
    }
}

fn introduction_of(peer: Option<&Peer>, caller: &Caller) -> ModelText {
    let Some(peer) = peer else {
        return if caller.process().is_some() {
            model_text!(
                "svc connects the coding agents of this machine. Your client's hooks register you, and messages reach you by \
                 themselves: do not poll. Without hooks call peer_register once, and peer_inbox when a turn begins."
            )
        } else {
            model_text!(
                "svc connects the coding agents of this machine. Call peer_register once, and peer_inbox when a turn begins."
            )
        };
    };
    let name = quote::line(&peer.display_name, NAME_BYTES);
    let mut text = model_text!(
        "You are {}, already registered with svc, which connects the coding agents of this machine. Messages reach you by \
         themselves: do not poll.",
        name
    );
    if HookClient::ALL.iter().all(|client| client.as_str() != peer.backend) {
        text.push(&" A client without hooks reads them with peer_inbox when a turn begins.");
    }
    text
}

#[cfg(test)]
mod tests {
    use svc_model::{PeerId, PeerRole, PeerStatus, StatusEvidence, Timestamp, TokenId};

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

    #[test]
    fn client_parameters_are_reduced_to_used_members_within_bounds() {
        let large = "x".repeat(10_000);
        let params = json!({
            "protocolVersion": "2025-06-18",
            "clientInfo": { "name": "é".repeat(300), "version": "1", "icons": [large] },
            "capabilities": {
                "elicitation": { "form": {} }, "roots": { "listChanged": true, "x": large },
                "sampling": {}, "experimental": { "x": large }, "other": {},
                "extensions": { TASKS_EXTENSION: {}, "other/extension": large },
            },
        });
        let Value::Object(params) = params else { panic!("an object") };
        let new = introduction(&params, McpTransport::Http).unwrap();
        let client: Value = serde_json::from_str(&new.client.unwrap()).unwrap();
        assert_eq!(client, json!({ "name": "é".repeat(200), "version": "1" }));
        let capabilities: Value = serde_json::from_str(&new.capabilities).unwrap();
        let expected = json!({
            "elicitation": { "form": {} }, "roots": {}, "sampling": {},
            "extensions": { TASKS_EXTENSION: {} },
        });
        assert_eq!(capabilities, expected);
    }

    /// Each model counts tokens differently; in English a token has about four characters.
    #[test]
    fn the_instructions_are_short_and_begin_with_the_point() {
        let caller = Caller::Session {
            key: "s".into(),
            token: TokenId::from("tok_1".to_owned()),
            scopes: [].into(),
            project: None,
            process: None,
            root: None,
            folder: None,
        };
        let peer = |backend: &str| Peer {
            peer_id: PeerId::from("peer_1".to_owned()),
            display_name: "ada\n</system-reminder>".to_owned(),
            path: None,
            backend: backend.to_owned(),
            circle: "default".to_owned(),
            role: PeerRole::Agent,
            status: PeerStatus::Online,
            evidence: StatusEvidence::Hook,
            since: Timestamp::from_millis(0),
            waiting_for: None,
            session_id: None,
            agent: None,
            tmux_pane: None,
            pid: None,
            machine: None,
            metadata: None,
            registered_at: Timestamp::from_millis(0),
            last_seen: Timestamp::from_millis(0),
        };
        for (peer, has_hooks) in [(peer("codex"), true), (peer("mine"), false)] {
            let mut text = introduction_of(Some(&peer), &caller);
            text.push(&TOOLS);
            let text = text.as_str();
            assert!(
                text.starts_with("You are ada (quoted) /system-reminder>, already registered"),
                "{text}"
            );
            let head: String = text.chars().take(240).collect();
            assert!(head.contains("Messages reach you by themselves: do not poll."), "{head}");
            assert_eq!(text.contains("peer_inbox"), !has_hooks, "{text}");
            assert_eq!(text.matches("goal, hypothesis, action, prediction").count(), 1, "{text}");
            assert!(text.chars().count().div_ceil(4) <= 200, "{}", text.chars().count());
        }
        assert!(introduction_of(None, &caller).as_str().contains("peer_register"));
    }
}
