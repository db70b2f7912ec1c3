//! JSON-RPC errors, and their codes.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Value, json};
use svc_core::service;
use svc_sys::telemetry;
use svc_wire::json_rpc::METHOD_NOT_FOUND;
pub(crate) use svc_wire::json_rpc::{INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR};
use svc_wire::mcp::Revision;

/// The `error` member of a response, and the HTTP status that goes with it.
#[derive(Debug, Clone, Serialize)]
pub struct RpcError {
    /// The code.
    pub code: i64,
    /// What is wrong.
    pub message: Cow<'static, str>,
    /// More about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// HTTP status; 200 for errors of handlers.
    #[serde(skip)]
    pub(crate) status: u16,
}

/// Legacy sessions only: servers in the field answer so to a session that they do not know.
pub(crate) const SESSION_NOT_FOUND: i64 = -32001;
/// Legacy sessions only; 2026-07-28 has [`INVALID_PARAMS`] for it.
pub(crate) const RESOURCE_NOT_FOUND: i64 = -32002;
/// The caller's token is no longer good, as its answer is there.
pub(crate) const UNAUTHORIZED: i64 = -32003;
/// A bound of the caller's is reached, or the message is too large. The HTTP status tells which.
const LIMIT_REACHED: i64 = -32010;
const HEADER_MISMATCH: i64 = -32020;
const MISSING_CAPABILITY: i64 = -32021;
const UNSUPPORTED_VERSION: i64 = -32022;

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

    pub(crate) fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// A message that is larger than what it may be.
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

/// The beginning of a client's own word, to repeat it in an error.
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
            Error::Internal(_) | Error::Unavailable(_) | Error::StorageFull(_) => {
                tracing::error!(error = telemetry::chain(&error), "a request failed");
                Self::new(INTERNAL_ERROR, error.to_string())
            }
            _ => Self::new(INTERNAL_ERROR, error.to_string()),
        }
    }
}
