//! JSON-RPC 2.0 messages, read as raw JSON: what is not ours to understand stays as it came.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json, value::RawValue};

use crate::domain::mcp::Revision;

/// What a client sent.
#[derive(Debug)]
pub(super) enum Incoming {
    Request(Request),
    Notification {
        method: String,
        params: Map<String, Value>,
    },
    /// The answer to a question of ours.
    Response {
        id: Value,
        outcome: Result<Value, Value>,
    },
}

/// A request: something that wants an answer.
#[derive(Debug, Clone)]
pub(super) struct Request {
    /// As it came: a string or a number.
    pub(super) id: Box<RawValue>,
    pub(super) method: String,
    pub(super) params: Map<String, Value>,
}

/// A JSON-RPC error, and the HTTP status that goes with it where that matters.
#[derive(Debug, Clone)]
pub struct RpcError {
    /// The code.
    pub code: i64,
    /// What is wrong.
    pub message: Cow<'static, str>,
    /// More about it.
    pub data: Option<Value>,
    /// HTTP status; 200 for errors of handlers.
    pub(super) status: u16,
}

pub(super) const PARSE_ERROR: i64 = -32700;
pub(super) const INVALID_REQUEST: i64 = -32600;
pub(super) const METHOD_NOT_FOUND: i64 = -32601;
pub(super) const INVALID_PARAMS: i64 = -32602;
pub(super) const INTERNAL_ERROR: i64 = -32603;
/// Legacy sessions only: what the field's servers say of a session that they do not know.
pub(super) const SESSION_NOT_FOUND: i64 = -32001;
/// Legacy sessions only; 2026-07-28 says invalid params.
pub(super) const RESOURCE_NOT_FOUND: i64 = -32002;
pub(super) const HEADER_MISMATCH: i64 = -32020;
pub(super) const MISSING_CAPABILITY: i64 = -32021;
pub(super) const UNSUPPORTED_VERSION: i64 = -32022;

impl RpcError {
    /// An error of a handler.
    pub fn new(code: i64, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), data: None, status: 200 }
    }

    /// The parameters are not what they must be.
    pub fn invalid_params(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }

    /// The same, with more about it.
    #[must_use]
    pub fn data(self, data: Value) -> Self {
        Self { data: Some(data), ..self }
    }

    pub(super) fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    pub(super) fn unknown_method(method: &str) -> Self {
        let method: String = method.chars().take(64).collect();
        Self::new(METHOD_NOT_FOUND, format!("there is no method {method:?}"))
    }

    pub(super) fn header_mismatch(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(HEADER_MISMATCH, message).status(400)
    }

    pub(super) fn unsupported_version(requested: &str) -> Self {
        let requested: String = requested.chars().take(64).collect();
        let supported: Vec<&str> = Revision::MODERN.into_iter().map(Revision::as_str).collect();
        Self::new(UNSUPPORTED_VERSION, "unsupported protocol version")
            .data(json!({ "supported": supported, "requested": requested }))
            .status(400)
    }

    pub(super) fn missing_capability(required: &Value) -> Self {
        Self::new(MISSING_CAPABILITY, "the client has not declared a capability that this needs")
            .data(json!({ "requiredCapabilities": required }))
            .status(400)
    }

    /// The `error` member.
    pub(super) fn to_json(&self) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        error
    }
}

impl From<crate::service::Error> for RpcError {
    fn from(error: crate::service::Error) -> Self {
        use crate::service::Error;
        match &error {
            Error::Invalid { .. } | Error::NotFound { .. } => {
                Self::invalid_params(error.to_string())
            }
            Error::Internal(_) | Error::Unavailable(_) | Error::StorageFull(_) => {
                tracing::error!(error = crate::telemetry::chain(&error), "a request failed");
                Self::new(INTERNAL_ERROR, error.to_string())
            }
            _ => Self::new(INTERNAL_ERROR, error.to_string()),
        }
    }
}

/// A message as text, to whom it may concern.
pub(super) fn result_text(id: &RawValue, members: &str) -> String {
    // In one piece: an answer may be large, and formatting would make room for it bit by bit.
    ["{\"jsonrpc\":\"2.0\",\"id\":", id.get(), ",\"result\":{", members, "}}"].concat()
}

/// An error as a message. Without an id where none could be read.
pub(super) fn error_text(id: Option<&RawValue>, error: &RpcError) -> String {
    let id = id.map_or("null", RawValue::get);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{}}}"#, error.to_json())
}

/// A notification as a message.
pub(super) fn notification_text(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

/// `null` is a value, and not the same as nothing.
fn present<'de, D: Deserializer<'de>>(source: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(source).map(Some)
}

/// Why a message cannot be taken, with its id if it has one.
pub(super) type Refusal = (Option<Box<RawValue>>, RpcError);

/// What a body holds.
#[derive(Debug)]
pub(super) enum Parsed {
    One(Incoming),
    /// JSON-RPC batch, as in the revisions before 2025-06-18.
    Batch(Vec<Result<Incoming, Refusal>>),
}

/// Reads a body.
pub(super) fn parse(body: &str) -> Result<Parsed, Refusal> {
    if !body.trim_start().starts_with('[') {
        return one(body).map(Parsed::One);
    }
    let all: Vec<&RawValue> = serde_json::from_str(body).map_err(|error| not_json(&error))?;
    if all.is_empty() || all.len() > crate::domain::limits::MCP_BATCH {
        let most = crate::domain::limits::MCP_BATCH;
        return Err((None, invalid(format!("a batch has from 1 to {most} messages"))));
    }
    Ok(Parsed::Batch(all.into_iter().map(|message| one(message.get())).collect()))
}

fn one(text: &str) -> Result<Incoming, Refusal> {
    let envelope: Envelope<'_> = match serde_json::from_str(text) {
        Ok(envelope) => envelope,
        Err(error) => {
            return Err(match serde_json::from_str::<Value>(text) {
                Err(error) => not_json(&error),
                Ok(value) => (id_of(&value), invalid(format!("not a JSON-RPC message: {error}"))),
            });
        }
    };
    let id = envelope.id.map(ToOwned::to_owned);
    let known_id = id.clone().filter(|id| is_id(id));
    if envelope.jsonrpc.as_deref() != Some("2.0") {
        return Err((known_id, invalid("jsonrpc: must be \"2.0\"")));
    }
    let value = |raw: &RawValue| serde_json::from_str::<Value>(raw.get()).unwrap_or(Value::Null);
    match (envelope.method, id) {
        (Some(method), id) => {
            let params = match envelope.params.map(|raw| serde_json::from_str(raw.get())) {
                None => Map::new(),
                Some(Ok(params)) => params,
                Some(Err(_)) => {
                    return Err((
                        known_id,
                        RpcError::invalid_params("params: must be an object").status(400),
                    ));
                }
            };
            let method = method.into_owned();
            match id {
                None => Ok(Incoming::Notification { method, params }),
                Some(id) if is_id(&id) => Ok(Incoming::Request(Request { id, method, params })),
                Some(_) => Err((None, invalid("id: must be a string or a number"))),
            }
        }
        (None, Some(id)) if envelope.result.is_some() || envelope.error.is_some() => {
            let outcome = match (envelope.result, envelope.error) {
                (_, Some(error)) => Err(value(error)),
                (Some(result), None) => Ok(value(result)),
                (None, None) => Err(Value::Null),
            };
            Ok(Incoming::Response { id: value(&id), outcome })
        }
        (None, _) => Err((known_id, invalid("method: is missing"))),
    }
}

fn is_id(raw: &RawValue) -> bool {
    matches!(raw.get().as_bytes().first(), Some(b'"' | b'-' | b'0'..=b'9'))
}

fn id_of(value: &Value) -> Option<Box<RawValue>> {
    let id = value.get("id").filter(|id| id.is_string() || id.is_number())?;
    serde_json::value::to_raw_value(id).ok()
}

fn not_json(error: &serde_json::Error) -> Refusal {
    (None, RpcError::new(PARSE_ERROR, format!("the body is not JSON: {error}")).status(400))
}

fn invalid(message: impl Into<Cow<'static, str>>) -> RpcError {
    RpcError::new(INVALID_REQUEST, message).status(400)
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
            let (refused, error) = parse(body).unwrap_err();
            assert_eq!(error.code, code, "{body}: {error:?}");
            assert_eq!(refused.as_deref().map(RawValue::get), id, "{body}");
            assert_eq!(error.status, 400, "{body}");
        }
    }

    #[test]
    fn requests_notifications_responses_and_batches() {
        let body = r#"[{"jsonrpc":"2.0","id":"x","method":"ping"},
            {"jsonrpc":"2.0","method":"notifications/initialized"},
            {"jsonrpc":"2.0","id":1,"result":{}}, {"jsonrpc":"2.0","id":2,"error":{"code":1}}, 5]"#;
        let Parsed::Batch(all) = parse(body).unwrap() else { panic!("a batch") };
        let kinds: Vec<&str> = all
            .iter()
            .map(|message| match message {
                Ok(Incoming::Request(_)) => "request",
                Ok(Incoming::Notification { .. }) => "notification",
                Ok(Incoming::Response { outcome: Ok(_), .. }) => "result",
                Ok(Incoming::Response { outcome: Err(_), .. }) => "error",
                Err(_) => "refused",
            })
            .collect();
        assert_eq!(kinds, ["request", "notification", "result", "error", "refused"]);
    }
}
