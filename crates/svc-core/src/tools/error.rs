//! Results and errors of tools.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};
use svc_model::{Caller, quote};
use svc_sys::telemetry;
use svc_wire::mcp;

use crate::service;

/// What kind of failure it is. The words are a contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorType {
    /// An argument breaks a rule.
    ValidationError,
    /// There is no such thing.
    NotFound,
    /// The call does not fit the present state.
    Conflict,
    /// Not for this caller.
    Forbidden,
    /// Not now: the daemon restarts, a bound is reached, the disk is full. The same call may do
    /// better later.
    Unavailable,
    /// A fault of the daemon.
    InternalError,
    /// The session has an active record already.
    ActiveGhapExists,
    /// There are too few records to say anything; `have` and `need` say how many.
    InsufficientData,
}

/// A failure as the caller sees it: `structuredContent.error` of a result with `isError`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ToolError {
    /// What kind of failure it is.
    #[serde(rename = "type")]
    pub kind: ErrorType,
    /// What went wrong and what to do, for people and models.
    pub message: String,
    /// The argument that breaks a rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What that argument may be: a list of values, or a range in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Box<Value>>,
    /// How much there is, if there is too little.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub have: Option<u64>,
    /// How much it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub need: Option<u64>,
    /// Why, in a word: `limit_reached`, or the setting that hides a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// Whether the same call may do better later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
}

impl ToolError {
    /// An error of this kind. `Unavailable` is retryable, unless [`Self::retryable`] sets it
    /// otherwise.
    pub fn new(kind: ErrorType, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            kind,
            message,
            field: None,
            allowed: None,
            have: None,
            need: None,
            reason: None,
            retryable: (kind == ErrorType::Unavailable).then_some(true),
        }
    }

    /// The error of a call that began and whose outcome is unknown. A repeat may do its work twice.
    pub fn unknown_outcome(message: impl Into<String>) -> Self {
        Self::new(ErrorType::Unavailable, message)
            .retryable(false)
            .allowed(serde_json::json!({ "outcome": "unknown" }))
    }

    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(ErrorType::ValidationError, message) }
    }

    #[must_use]
    pub fn allowed(self, allowed: impl Into<Value>) -> Self {
        Self { allowed: Some(Box::new(allowed.into())), ..self }
    }

    #[must_use]
    pub fn retryable(self, retryable: bool) -> Self {
        Self { retryable: Some(retryable), ..self }
    }

    /// The caller lacks the scope of a tool. The text says how a person grants it.
    pub fn needs_scope(caller: &Caller, tool: &str, scope: &str) -> Self {
        let advice = caller.scope_advice(scope);
        Self::new(ErrorType::Forbidden, format!("{tool} needs the scope `{scope}`: {advice}"))
    }

    pub fn internal() -> Self {
        Self::new(ErrorType::InternalError, "internal error: the daemon's log says more")
    }
}

impl From<service::Error> for ToolError {
    fn from(error: service::Error) -> Self {
        use service::Error;
        let text = || error.to_string();
        let because = |kind, reason| Self { reason: Some(reason), ..Self::new(kind, text()) };
        let kind = match &error {
            Error::Invalid { field, .. } => return Self::invalid(field.clone(), text()),
            Error::NotYours { field, .. } => {
                let field = Some(field.clone());
                return Self { field, ..Self::new(ErrorType::Forbidden, text()) };
            }
            Error::Ambiguous { candidates, .. } => {
                let ids: Vec<&str> = candidates.iter().map(|one| one.id.as_str()).collect();
                return Self::new(ErrorType::ValidationError, text()).allowed(ids);
            }
            Error::NotFound { .. } => ErrorType::NotFound,
            Error::InsufficientData { have, need } => {
                let error = Self::new(ErrorType::InsufficientData, text());
                return Self { have: Some(*have), need: Some(*need), ..error };
            }
            Error::Conflict(_) | Error::SessionWithoutPeer => ErrorType::Conflict,
            Error::Unconfirmed { .. } => return because(ErrorType::Conflict, "confirm"),
            Error::WaitCycle(_) => return because(ErrorType::Conflict, "wait_cycle"),
            Error::ActiveGhap { .. } => ErrorType::ActiveGhapExists,
            Error::Forbidden(_) | Error::Unauthorized => ErrorType::Forbidden,
            Error::Unseen(denial) => return because(ErrorType::Forbidden, denial.as_str()),
            Error::LimitReached(_) => return because(ErrorType::Unavailable, "limit_reached"),
            Error::OutcomeUnknown { may_repeat, .. } => {
                return Self::unknown_outcome(text()).retryable(*may_repeat);
            }
            Error::StoreUnavailable(_) => {
                return because(ErrorType::Unavailable, "store_unavailable");
            }
            Error::NotNow(_) | Error::Unavailable(_) | Error::StorageFull(_) => {
                ErrorType::Unavailable
            }
            Error::Internal(_) => {
                tracing::error!(error = telemetry::chain(&error), "a tool failed");
                ErrorType::InternalError
            }
        };
        Self::new(kind, format!("{error}{}", tool_hint(&error)))
    }
}

/// Names the tools that help after this error, as the end of its sentence.
fn tool_hint(error: &service::Error) -> &'static str {
    use service::{Error, ResourceKind};
    match error {
        Error::NotFound { kind, .. } => match kind {
            ResourceKind::Peer | ResourceKind::ReportingPeer => ": peer_list shows who is here",
            ResourceKind::Task => ": TaskList shows what there is",
            ResourceKind::MessageToPeer => ": peer_inbox shows what there is",
            _ => "",
        },
        Error::SessionWithoutPeer => ": call peer_register first",
        Error::ActiveGhap { .. } => ": resolve it with resolve_ghap, or change it with update_ghap",
        _ => "",
    }
}

#[derive(Debug)]
pub enum Failure {
    /// A failure that is reported to the model.
    Tool(ToolError),
    /// The tool needs an answer from the client first. The adapter asks, and runs the tool again
    /// with the answer: see [`Call::ask`](super::Call::ask).
    NeedsInput,
    /// The client lacks a capability that the tool needs (-32021). An object of client
    /// capabilities.
    MissingCapability(Value),
    /// The request itself is wrong: a JSON-RPC error in place of a result.
    Protocol { code: i64, message: Cow<'static, str>, data: Option<Value> },
}

impl Failure {
    /// The client did not declare the tasks extension, which the tool needs.
    pub fn needs_tasks() -> Self {
        Self::MissingCapability(serde_json::json!({ "extensions": { mcp::TASKS_EXTENSION: {} } }))
    }
}

impl From<ToolError> for Failure {
    fn from(error: ToolError) -> Self {
        Self::Tool(error)
    }
}

impl From<service::Error> for Failure {
    fn from(error: service::Error) -> Self {
        Self::Tool(error.into())
    }
}

#[derive(Debug, Clone)]
pub enum Output {
    Object(Box<RawValue>),
    /// The whole result of a child server, byte for byte.
    Verbatim(Box<RawValue>),
    Content {
        content: Vec<Value>,
        structured: Option<Value>,
        is_error: bool,
    },
}

impl Output {
    pub(super) fn from_result(result: &impl Serialize) -> Result<Self, Failure> {
        let json = serde_json::value::to_raw_value(result).map_err(|_| ToolError::internal())?;
        Ok(Self::Object(json))
    }

    /// Quotes all strings for a model: see [`quote`].
    pub(super) fn plain(mut self) -> Self {
        match &mut self {
            Self::Object(object) => {
                if let Cow::Owned(json) = quote::json(object.get()) {
                    match RawValue::from_string(json) {
                        Ok(plain) => *object = plain,
                        // Unreachable: only strings were replaced, by strings.
                        Err(_) => return Self::error(&ToolError::internal()),
                    }
                }
            }
            Self::Verbatim(_) => {}
            Self::Content { content, structured, .. } => {
                content.iter_mut().chain(structured).for_each(quote::value);
            }
        }
        self
    }

    pub fn text(text: impl Into<String>) -> Self {
        let block = json!({ "type": "text", "text": text.into() });
        Self::Content { content: vec![block], structured: None, is_error: false }
    }

    /// A failure that is reported to the model.
    pub fn error(error: &ToolError) -> Self {
        let mut structured = json!({ "error": error });
        quote::value(&mut structured);
        let block = json!({ "type": "text", "text": structured.to_string() });
        Self::Content { content: vec![block], structured: Some(structured), is_error: true }
    }

    pub fn is_error(&self) -> bool {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Verdict {
            #[serde(default)]
            is_error: bool,
        }
        match self {
            Self::Object(_) => false,
            Self::Content { is_error, .. } => *is_error,
            Self::Verbatim(result) => {
                serde_json::from_str(result.get()).is_ok_and(|Verdict { is_error }| is_error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use svc_model::GhapId;

    use crate::service::ResourceKind;

    use super::*;

    #[test]
    fn an_unavailable_error_says_whether_it_is_retryable() {
        let retryable =
            |error: ToolError| serde_json::to_value(error).unwrap()["retryable"].clone();
        let full = service::Error::LimitReached("full".to_owned());
        let away = service::Error::NotNow("the agent's host is away".to_owned());
        for (error, expected) in [
            (ToolError::from(full), Value::Bool(true)),
            (ToolError::from(away), Value::Bool(true)),
            (ToolError::new(ErrorType::Unavailable, "away"), Value::Bool(true)),
            (ToolError::unknown_outcome("it ended"), Value::Bool(false)),
            (ToolError::new(ErrorType::Conflict, "no"), Value::Null),
            (ToolError::internal(), Value::Null),
        ] {
            assert_eq!(retryable(error.clone()), expected, "{error:?}");
        }
    }

    #[test]
    fn an_error_names_the_tool_that_helps() {
        let not_found = |kind| service::Error::not_found(kind, "x");
        let active = service::Error::ActiveGhap { id: GhapId::from("ghap_1".to_owned()) };
        for (error, kind, message) in [
            (
                not_found(ResourceKind::Peer),
                ErrorType::NotFound,
                "there is no peer \"x\": peer_list shows who is here",
            ),
            (
                not_found(ResourceKind::ReportingPeer),
                ErrorType::NotFound,
                "there is no peer \"x\": peer_list shows who is here",
            ),
            (
                not_found(ResourceKind::MessageToPeer),
                ErrorType::NotFound,
                "there is no message for this peer \"x\": peer_inbox shows what there is",
            ),
            (not_found(ResourceKind::Message), ErrorType::NotFound, "there is no message \"x\""),
            (
                service::Error::SessionWithoutPeer,
                ErrorType::Conflict,
                "this session has no peer yet: call peer_register first",
            ),
            (
                active,
                ErrorType::ActiveGhapExists,
                "this session has an active record, ghap_1: resolve it with resolve_ghap, or change it with update_ghap",
            ),
        ] {
            let error = ToolError::from(error);
            assert_eq!((error.kind, error.message.as_str()), (kind, message));
        }
    }
}
