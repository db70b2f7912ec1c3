//! JSON-RPC 2.0, without a transport: messages that come in, messages that go out, errors, and the
//! members that a revision adds to every result.
//!
//! What the daemon does not have to understand stays raw JSON, so that the result of a tool reaches
//! the client byte for byte.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::{
    Map, Value, json,
    value::{RawValue, to_raw_value},
};
use svc_core::service;
use svc_model::{NUL_REFUSED, json_has_nul, limits};
use svc_sys::telemetry;
use svc_wire::{
    json_rpc::{JsonRpcEnvelope, JsonRpcWriter, METHOD_NOT_FOUND},
    mcp::{Revision, meta},
};

use crate::web::field_with_nul;
pub(crate) use svc_wire::json_rpc::{INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR};

/// The `error` member of a response, and the HTTP status that goes with it.
#[derive(Debug, Clone, Serialize)]
pub struct RpcError {
    pub code: i64,
    pub message: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// HTTP status; 200 for errors of handlers.
    #[serde(skip)]
    pub(crate) status: u16,
}

/// Legacy sessions only: other servers give this code for an unknown session.
pub(crate) const SESSION_NOT_FOUND: i64 = -32001;
/// Legacy sessions only; since 2026-07-28 it is [`INVALID_PARAMS`].
pub(crate) const RESOURCE_NOT_FOUND: i64 = -32002;
/// The caller's token was revoked before the answer was ready.
pub(crate) const UNAUTHORIZED: i64 = -32003;
/// A bound of the caller is reached (HTTP status 429), or the message is too large (413).
const LIMIT_REACHED: i64 = -32010;
const HEADER_MISMATCH: i64 = -32020;
const MISSING_CAPABILITY: i64 = -32021;
const UNSUPPORTED_VERSION: i64 = -32022;

impl RpcError {
    pub fn new(code: i64, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), data: None, status: 200 }
    }

    pub fn invalid_params(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }

    #[must_use]
    pub fn data(self, data: Value) -> Self {
        Self { data: Some(data), ..self }
    }

    pub(crate) fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// The message is larger than its bound.
    pub(crate) fn too_large(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(LIMIT_REACHED, message)
            .data(json!({ "code": "payload_too_large", "retryable": false }))
            .status(413)
    }

    pub(crate) fn internal() -> Self {
        Self::new(INTERNAL_ERROR, "internal error")
    }

    pub(crate) fn unknown_method(method: &str) -> Self {
        Self::new(METHOD_NOT_FOUND, format!("there is no method {:?}", shortened(method)))
    }

    pub(crate) fn header_mismatch(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(HEADER_MISMATCH, message).status(400)
    }

    pub(crate) fn unsupported_version(requested: &str) -> Self {
        let supported: Vec<&str> = Revision::MODERN.into_iter().map(Revision::as_str).collect();
        Self::new(UNSUPPORTED_VERSION, "unsupported protocol version")
            .data(json!({ "supported": supported, "requested": shortened(requested) }))
            .status(400)
    }

    pub(crate) fn missing_capability(required: &Value) -> Self {
        Self::new(MISSING_CAPABILITY, "the client has not declared a capability that this needs")
            .data(json!({ "requiredCapabilities": required }))
            .status(400)
    }
}

/// The first 64 characters of a client's word, to repeat it in an error.
pub(crate) fn shortened(word: &str) -> String {
    word.chars().take(64).collect()
}

impl From<service::Error> for RpcError {
    fn from(error: service::Error) -> Self {
        use service::Error;
        match &error {
            Error::Invalid { .. } | Error::NotFound { .. } => {
                Self::invalid_params(error.to_string())
            }
            Error::LimitReached(_) => Self::new(LIMIT_REACHED, error.to_string())
                .data(json!({ "code": "limit_reached", "retryable": true }))
                .status(429),
            Error::StoreUnavailable(cause) => Self::new(INTERNAL_ERROR, error.to_string())
                .data(json!({ "code": Error::code_of_server(cause), "retryable": true }))
                .status(503),
            Error::OutcomeUnknown { may_repeat, .. } => {
                Self::new(INTERNAL_ERROR, error.to_string())
                    .data(json!({ "code": "outcome_unknown", "retryable": may_repeat }))
                    .status(503)
            }
            Error::Internal(_) | Error::Unavailable(_) | Error::StorageFull(_) => {
                tracing::error!(error = telemetry::chain(&error), "a request failed");
                Self::new(INTERNAL_ERROR, error.to_string())
            }
            _ => Self::new(INTERNAL_ERROR, error.to_string()),
        }
    }
}

#[derive(Debug)]
pub(crate) enum ClientBody {
    Single(ClientMessage),
    /// JSON-RPC batch, as in the revisions before 2025-06-18.
    Batch(Vec<Result<ClientMessage, UnreadableMessage>>),
}

#[derive(Debug)]
pub(crate) enum ClientMessage {
    Request(ClientRequest),
    Notification {
        method: String,
        params: Map<String, Value>,
    },
    /// The answer to a question of the daemon's: its result, or its error.
    Response {
        id: Value,
        outcome: Result<Value, Value>,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct ClientRequest {
    /// A string or a number, as it came.
    pub(crate) id: Box<RawValue>,
    pub(crate) method: String,
    pub(crate) params: Map<String, Value>,
    /// The params as they came, if a child server may answer the request.
    pub(crate) raw_params: Option<Arc<RawValue>>,
}

#[derive(Debug)]
pub(crate) struct UnreadableMessage {
    pub(crate) id: Option<Box<RawValue>>,
    pub(crate) error: RpcError,
}

pub(crate) fn parse_body(body: &str) -> Result<ClientBody, UnreadableMessage> {
    if !body.trim_start().starts_with('[') {
        return parse_message(body).map(ClientBody::Single);
    }
    let batch: Vec<&RawValue> = serde_json::from_str(body).map_err(|error| not_json(&error))?;
    if batch.is_empty() || batch.len() > limits::MCP_BATCH {
        let most = limits::MCP_BATCH;
        let error = invalid(format!("a batch has from 1 to {most} messages"));
        return Err(UnreadableMessage { id: None, error });
    }
    Ok(ClientBody::Batch(batch.into_iter().map(|raw| parse_message(raw.get())).collect()))
}

fn parse_message(text: &str) -> Result<ClientMessage, UnreadableMessage> {
    let envelope = match JsonRpcEnvelope::parse_with_nulls(text.as_bytes()) {
        Ok(envelope) => envelope,
        Err(error) => {
            return Err(match serde_json::from_str::<Value>(text) {
                Err(error) => not_json(&error),
                Ok(value) => {
                    let id = value.get("id").filter(|id| id.is_string() || id.is_number());
                    let error = invalid(format!("not a JSON-RPC message: {error}"));
                    UnreadableMessage { id: id.and_then(|id| to_raw_value(id).ok()), error }
                }
            });
        }
    };
    let unreadable = |error| {
        let id = envelope.id.filter(|id| is_id(id)).map(ToOwned::to_owned);
        Err(UnreadableMessage { id, error })
    };
    if !envelope.says_version() {
        return unreadable(invalid("jsonrpc: must be \"2.0\""));
    }
    if json_has_nul(text) {
        let error = match field_with_nul(text) {
            Some(field) => RpcError::invalid_params(format!("{field}: {NUL_REFUSED}"))
                .data(json!({ "field": field })),
            None => RpcError::invalid_params(NUL_REFUSED),
        };
        return unreadable(error.status(422));
    }
    let value = |raw: &RawValue| serde_json::from_str::<Value>(raw.get()).unwrap_or(Value::Null);
    match (envelope.method, envelope.id) {
        (Some(method), _)
            if method == "initialize"
                && envelope
                    .params
                    .is_some_and(|raw| raw.get().len() > limits::MCP_INTRODUCTION_BYTES) =>
        {
            let most = limits::MCP_INTRODUCTION_BYTES;
            let message = format!("params: a client describes itself in at most {most} bytes");
            unreadable(RpcError::too_large(message))
        }
        (Some(method), id) => {
            let params = match envelope.params.map(|raw| serde_json::from_str(raw.get())) {
                None => Map::new(),
                Some(Ok(params)) => params,
                Some(Err(error)) => {
                    // An object that is too deep, or has half of a surrogate pair, is unreadable.
                    let text = if error.is_data() {
                        "params: must be an object".to_owned()
                    } else {
                        format!("params: {error}")
                    };
                    return unreadable(RpcError::invalid_params(text).status(400));
                }
            };
            match id {
                None => Ok(ClientMessage::Notification { method, params }),
                Some(id) if is_id(id) => {
                    let id = id.to_owned();
                    let may_pass =
                        matches!(&*method, "tools/call" | "resources/read" | "prompts/get");
                    let raw_params = envelope.params.filter(|_| may_pass);
                    let raw_params = raw_params.map(|raw| Arc::from(raw.to_owned()));
                    Ok(ClientMessage::Request(ClientRequest { id, method, params, raw_params }))
                }
                Some(_) => unreadable(invalid("id: must be a string or a number")),
            }
        }
        (None, Some(id)) if envelope.result.is_some() || envelope.error.is_some() => {
            let outcome = match (envelope.result, envelope.error) {
                (_, Some(error)) => Err(value(error)),
                (Some(result), None) => Ok(value(result)),
                (None, None) => Err(Value::Null),
            };
            Ok(ClientMessage::Response { id: value(id), outcome })
        }
        (None, _) => unreadable(invalid("method: is missing")),
    }
}

fn is_id(raw: &RawValue) -> bool {
    matches!(raw.get().as_bytes().first(), Some(b'"' | b'-' | b'0'..=b'9'))
}

fn not_json(error: &serde_json::Error) -> UnreadableMessage {
    let error = RpcError::new(PARSE_ERROR, format!("the body is not JSON: {error}"));
    UnreadableMessage { id: None, error: error.status(400) }
}

fn invalid(message: impl Into<Cow<'static, str>>) -> RpcError {
    RpcError::new(INVALID_REQUEST, message).status(400)
}

/// The member `name` of the params, which may be an object, or absent, or null.
pub(crate) fn object_or_empty(
    value: Option<Value>,
    name: &str,
) -> Result<Map<String, Value>, RpcError> {
    match value {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(object)) => Ok(object),
        Some(_) => Err(RpcError::invalid_params(format!("params.{name}: must be an object"))),
    }
}

pub(crate) fn text_param<'a>(
    params: &'a Map<String, Value>,
    name: &str,
) -> Result<&'a str, RpcError> {
    let value = params.get(name).and_then(Value::as_str);
    value.ok_or_else(|| RpcError::invalid_params(format!("params.{name}: must be a string")))
}

pub(crate) fn raw_json(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).expect("it has a JSON form")
}

pub(crate) fn cursor(params: &Map<String, Value>) -> Result<Option<&str>, RpcError> {
    match params.get("cursor") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(cursor)) => Ok(Some(cursor)),
        Some(_) => Err(RpcError::invalid_params("params.cursor: must be a string")),
    }
}

/// Refuses a cursor for a list that is not paged: the list has given none.
pub(crate) fn refuse_cursor(params: &Map<String, Value>) -> Result<(), RpcError> {
    match cursor(params)? {
        None => Ok(()),
        Some(_) => Err(RpcError::invalid_params("params.cursor: is none of this list's")),
    }
}

pub(crate) fn result_message(id: &RawValue, result: &impl Serialize) -> String {
    JsonRpcWriter::new().id(id).result(result).into_text()
}

/// The answer to a request that failed. `id` is `null` where none could be read.
pub(crate) fn error_message(id: Option<&RawValue>, error: &RpcError) -> String {
    JsonRpcWriter::new().id(&id).error(error).into_text()
}

pub(crate) fn notification_message(method: &str, params: &impl Serialize) -> String {
    JsonRpcWriter::new().method(method).params(params).into_text()
}

pub(crate) fn request_message(id: &str, method: &str, params: &Value) -> String {
    JsonRpcWriter::new().id(id).method(method).params(params).into_text()
}

/// The era of a request. Its answer depends on whether it is modern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestEra {
    /// Of a stateless revision.
    Modern,
    /// In a session.
    Legacy,
    /// Neither a session nor a revision.
    Bare,
    /// Refused before the era was known.
    Unknown,
}

impl RequestEra {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Modern => "modern",
            Self::Legacy => "legacy",
            Self::Bare => "bare",
            Self::Unknown => "none",
        }
    }
}

/// A result with the members that a stateless revision adds.
#[derive(Debug, Serialize)]
pub(crate) struct EraResult<T> {
    #[serde(flatten)]
    members: T,
    #[serde(flatten)]
    stateless: Option<StatelessMembers>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StatelessMembers {
    result_type: ResultType,
    #[serde(flatten)]
    cache: Option<CacheHint>,
    #[serde(rename = "_meta")]
    meta: OneMember<ServerInfo>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResultType {
    Complete,
    /// The client has to answer questions, and to send the request again.
    InputRequired,
    Task,
}

/// How long a result may be kept, and by whom: only by its caller, since others may see another.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CacheHint {
    ttl_ms: u32,
    cache_scope: &'static str,
}

impl CacheHint {
    pub(crate) const fn private(ttl_ms: u32) -> Self {
        Self { ttl_ms, cache_scope: "private" }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Empty {}

/// The members of a result that has a single one.
pub(crate) type OneMember<T> = BTreeMap<&'static str, T>;

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct ServerInfo {
    name: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'static str>,
    version: &'static str,
}

pub(crate) const SERVER_INFO: ServerInfo =
    ServerInfo { name: "svc", title: Some("svc"), version: env!("CARGO_PKG_VERSION") };

impl<T: Serialize> EraResult<T> {
    pub(crate) fn complete(era: RequestEra, members: T, cache: Option<CacheHint>) -> Self {
        if era == RequestEra::Modern {
            return Self::stateless(ResultType::Complete, members, cache);
        }
        Self { members, stateless: None }
    }

    pub(crate) fn stateless(result_type: ResultType, members: T, cache: Option<CacheHint>) -> Self {
        let meta =
            OneMember::from([(meta::SERVER_INFO, ServerInfo { title: None, ..SERVER_INFO })]);
        let stateless = StatelessMembers { result_type, cache, meta };
        Self { members, stateless: Some(stateless) }
    }
}

/// A child server's result. For a stateless client the kind of the result is added, and how long it
/// may be kept where the server does not say so; all else passes byte for byte.
pub(crate) fn raw_in_era(
    result: &RawValue,
    era: RequestEra,
    cache: Option<CacheHint>,
) -> Cow<'_, RawValue> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Known<'a> {
        #[serde(borrow)]
        result_type: Option<&'a RawValue>,
        #[serde(borrow)]
        ttl_ms: Option<&'a RawValue>,
        #[serde(borrow)]
        cache_scope: Option<&'a RawValue>,
    }
    let text = result.get();
    let (RequestEra::Modern, Ok(known), Some(members)) =
        (era, serde_json::from_str::<Known<'_>>(text), text.strip_prefix('{'))
    else {
        return Cow::Borrowed(result);
    };
    let mut added = Vec::new();
    if known.result_type.is_none() {
        added.push("\"resultType\":\"complete\"".to_owned());
    }
    if let (Some(cache), None, None) = (cache, known.ttl_ms, known.cache_scope) {
        let CacheHint { ttl_ms, cache_scope } = cache;
        added.push(format!("\"ttlMs\":{ttl_ms},\"cacheScope\":\"{cache_scope}\""));
    }
    if added.is_empty() {
        return Cow::Borrowed(result);
    }
    let comma = if members.trim_start().starts_with('}') { "" } else { "," };
    match RawValue::from_string(format!("{{{}{comma}{members}", added.join(","))) {
        Ok(typed) => Cow::Owned(typed),
        Err(_) => Cow::Borrowed(result),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_by_table() {
        for (body, code, id) in [
            ("", PARSE_ERROR, None),
            ("{", PARSE_ERROR, None),
            ("[", PARSE_ERROR, None),
            ("[]", INVALID_REQUEST, None),
            ("3", INVALID_REQUEST, None),
            ("null", INVALID_REQUEST, None),
            ("{}", INVALID_REQUEST, None),
            (r#"{"id":1,"method":"ping"}"#, INVALID_REQUEST, Some("1")),
            (r#"{"jsonrpc":"1.0","id":"a","method":"ping"}"#, INVALID_REQUEST, Some("\"a\"")),
            (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, INVALID_REQUEST, None),
            (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, INVALID_REQUEST, None),
            (r#"{"jsonrpc":"2.0","id":1,"method":3}"#, INVALID_REQUEST, Some("1")),
            (r#"{"jsonrpc":"2.0","id":1}"#, INVALID_REQUEST, Some("1")),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}"#, INVALID_PARAMS, Some("1")),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":null}"#,
                INVALID_PARAMS,
                Some("1"),
            ),
        ] {
            let UnreadableMessage { id: named, error } = parse_body(body).unwrap_err();
            assert_eq!(error.code, code, "{body}: {error:?}");
            assert_eq!(named.as_deref().map(RawValue::get), id, "{body}");
            assert_eq!(error.status, 400, "{body}");
        }
    }

    #[test]
    fn params_that_cannot_be_read_are_not_called_something_else() {
        let deep = format!("{}1{}", "[".repeat(3000), "]".repeat(3000));
        for (params, word) in [
            (r#"{"a":"\ud800"}"#.to_owned(), "hex escape"),
            (format!(r#"{{"a":{deep}}}"#), "recursion"),
            ("[1]".to_owned(), "must be an object"),
        ] {
            let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{params}}}"#);
            let UnreadableMessage { error, .. } = parse_body(&body).unwrap_err();
            assert!(error.message.contains(word), "{error:?}");
        }
    }

    #[test]
    fn requests_notifications_responses_and_batches() {
        let body = r#"[{"jsonrpc":"2.0","id":"x","method":"ping"},
            {"jsonrpc":"2.0","method":"notifications/initialized"},
            {"jsonrpc":"2.0","id":1,"result":{}}, {"jsonrpc":"2.0","id":2,"error":{"code":1}}, 5]"#;
        let ClientBody::Batch(batch) = parse_body(body).unwrap() else { panic!("a batch") };
        let kinds: Vec<&str> = batch
            .iter()
            .map(|message| match message {
                Ok(ClientMessage::Request(_)) => "request",
                Ok(ClientMessage::Notification { .. }) => "notification",
                Ok(ClientMessage::Response { outcome: Ok(_), .. }) => "result",
                Ok(ClientMessage::Response { outcome: Err(_), .. }) => "error",
                Err(_) => "refused",
            })
            .collect();
        assert_eq!(kinds, ["request", "notification", "result", "error", "refused"]);
    }

    #[derive(Serialize)]
    struct Members<'a> {
        raw: &'a RawValue,
    }

    #[test]
    fn raw_results_get_what_their_era_needs_and_keep_all_else() {
        let cache = Some(CacheHint::private(0));
        for (result, era, cache, expected) in [
            (r#"{"a": 1.0}"#, RequestEra::Legacy, cache, r#"{"a": 1.0}"#),
            (r#"{"a": 1.0}"#, RequestEra::Modern, None, r#"{"resultType":"complete","a": 1.0}"#),
            ("{ }", RequestEra::Modern, None, r#"{"resultType":"complete" }"#),
            (
                "{}",
                RequestEra::Modern,
                cache,
                r#"{"resultType":"complete","ttlMs":0,"cacheScope":"private"}"#,
            ),
            (
                r#"{"ttlMs":5,"cacheScope":"public","resultType":"complete"}"#,
                RequestEra::Modern,
                cache,
                r#"{"ttlMs":5,"cacheScope":"public","resultType":"complete"}"#,
            ),
        ] {
            let raw = RawValue::from_string(result.to_owned()).unwrap();
            assert_eq!(raw_in_era(&raw, era, cache).get(), expected, "{result}");
        }
    }

    #[test]
    fn members_stand_beside_those_of_the_era() {
        let raw = RawValue::from_string("[1.0,  2]".to_owned()).unwrap();
        let result = EraResult::complete(RequestEra::Legacy, Members { raw: &raw }, None);
        let text = serde_json::to_string(&result).unwrap();
        assert_eq!(text, r#"{"raw":[1.0,  2]}"#);
        let cache = CacheHint::private(5);
        let result =
            EraResult::stateless(ResultType::InputRequired, Members { raw: &raw }, Some(cache));
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            serde_json::to_value(result).unwrap(),
            json!({
                "raw": [1.0, 2], "resultType": "input_required", "ttlMs": 5, "cacheScope": "private",
                "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "svc", "version": version } },
            })
        );
    }
}
