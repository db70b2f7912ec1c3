//! Errors on the wire: RFC 9457 problem details with a stable code. The HTTP statuses of all REST
//! errors are in this file.

use std::borrow::Cow;

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
use schemars::JsonSchema;
use serde::Serialize;
use svc_core::service;

/// What kind of failure it is. The text is a contract; new ones may be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The request does not fit the present state.
    Conflict,
    /// Not for this caller.
    Forbidden,
    /// A fault of the daemon.
    Internal,
    /// The request breaks a rule.
    InvalidRequest,
    /// A bound is reached.
    LimitReached,
    /// The path has other methods.
    MethodNotAllowed,
    /// There is no such thing.
    NotFound,
    /// The database did not answer whether the change took place.
    OutcomeUnknown,
    /// The body is too large.
    PayloadTooLarge,
    /// The body did not come.
    RequestTimeout,
    /// The database has no room left.
    StorageFull,
    /// The server of the database does not answer; nothing was changed.
    StoreUnavailable,
    /// No token, or not a valid one.
    Unauthorized,
    /// The daemon starts, stops, or waits for the database.
    Unavailable,
    /// The body is not JSON.
    UnsupportedMediaType,
}

impl Code {
    /// The code on the wire, its title for people, and its usual status.
    const fn row(self) -> (&'static str, &'static str, StatusCode) {
        use StatusCode as S;
        match self {
            Self::Conflict => ("conflict", "Conflict with the present state", S::CONFLICT),
            Self::Forbidden => ("forbidden", "Forbidden", S::FORBIDDEN),
            Self::Internal => ("internal", "Internal error", S::INTERNAL_SERVER_ERROR),
            Self::InvalidRequest => ("invalid_request", "Invalid request", S::UNPROCESSABLE_ENTITY),
            Self::LimitReached => ("limit_reached", "Limit reached", S::TOO_MANY_REQUESTS),
            Self::MethodNotAllowed => {
                ("method_not_allowed", "Method not allowed", S::METHOD_NOT_ALLOWED)
            }
            Self::NotFound => ("not_found", "Not found", S::NOT_FOUND),
            Self::OutcomeUnknown => ("outcome_unknown", "Outcome unknown", S::SERVICE_UNAVAILABLE),
            Self::PayloadTooLarge => {
                ("payload_too_large", "Payload too large", S::PAYLOAD_TOO_LARGE)
            }
            Self::RequestTimeout => ("request_timeout", "Request timeout", S::REQUEST_TIMEOUT),
            Self::StorageFull => ("storage_full", "Storage full", S::INSUFFICIENT_STORAGE),
            Self::StoreUnavailable => {
                ("store_unavailable", "Database unavailable", S::SERVICE_UNAVAILABLE)
            }
            Self::Unauthorized => ("unauthorized", "Unauthorized", S::UNAUTHORIZED),
            Self::Unavailable => ("unavailable", "Unavailable", S::SERVICE_UNAVAILABLE),
            Self::UnsupportedMediaType => {
                ("unsupported_media_type", "Unsupported media type", S::UNSUPPORTED_MEDIA_TYPE)
            }
        }
    }

    /// Whether the same request may succeed later.
    const fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::LimitReached
                | Self::RequestTimeout
                | Self::StorageFull
                | Self::StoreUnavailable
                | Self::Unavailable
        )
    }
}

/// A failure as a response. The edge adds the request's id and writes the body.
#[derive(Debug, Clone)]
pub struct Problem {
    code: Code,
    status: StatusCode,
    /// The field that breaks a rule.
    field: Option<String>,
    /// What went wrong, without the field.
    reason: String,
    /// The cause as a code, if the kind of failure does not say it.
    cause: Option<&'static str>,
    /// The same request does nothing twice, although the kind of failure does not say it.
    may_repeat: bool,
}

/// The body of a failure.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ProblemBody<'a> {
    /// Names the kind of failure; `/problems/<code>`.
    #[serde(rename = "type")]
    kind: String,
    /// The kind of failure, for people.
    title: &'a str,
    /// The HTTP status.
    status: u16,
    /// What went wrong this time.
    detail: &'a str,
    /// The path that was asked for.
    instance: &'a str,
    /// The kind of failure, for programs.
    code: Code,
    /// The field that breaks a rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    /// Why, in a word, where `code` does not say it: the setting that hides a session, or
    /// `confirm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    /// Whether the same request may do better later.
    retryable: bool,
    /// Also in the log.
    request_id: &'a str,
    /// The same as `detail`, for clients of earlier daemons.
    error: &'a str,
}

impl Problem {
    /// A failure of this kind, with its usual status.
    pub fn new(code: Code, reason: impl Into<String>) -> Self {
        let (_, _, status) = code.row();
        Self { code, status, field: None, reason: reason.into(), cause: None, may_repeat: false }
    }

    /// A request that does not parse (400); a value that breaks a rule is a 422.
    pub fn malformed(reason: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, ..Self::new(Code::InvalidRequest, reason) }
    }

    /// A value that breaks a rule.
    pub fn invalid(field: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        let field = Some(field.into()).filter(|field| !field.is_empty());
        Self { field, ..Self::new(Code::InvalidRequest, reason.to_string()) }
    }

    /// Prefixes the field with the member `parent` of the body.
    pub(crate) fn within(mut self, parent: &str) -> Self {
        self.field = Some(match self.field {
            Some(field) => format!("{parent}.{field}"),
            None => parent.to_owned(),
        });
        self
    }

    fn detail(&self) -> Cow<'_, str> {
        match &self.field {
            Some(field) => format!("{field}: {}", self.reason).into(),
            None => Cow::Borrowed(&self.reason),
        }
    }

    /// The complete response.
    pub(crate) fn render(&self, instance: &str, request_id: &str) -> Response {
        let detail = self.detail();
        let (code, title, _) = self.code.row();
        let body = ProblemBody {
            kind: format!("/problems/{code}"),
            title,
            status: self.status.as_u16(),
            detail: &detail,
            instance,
            code: self.code,
            field: self.field.as_deref(),
            reason: self.cause,
            retryable: self.code.is_retryable() || self.may_repeat,
            request_id,
            error: &detail,
        };
        let body = serde_json::to_vec(&body).expect("a problem has a JSON form");
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match self.code {
            Code::Unauthorized => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Code::Unavailable | Code::StoreUnavailable | Code::LimitReached => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

impl IntoResponse for Problem {
    /// A response without a body: only the edge knows the request's id.
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.status;
        response.extensions_mut().insert(self);
        response
    }
}

impl From<service::Error> for Problem {
    fn from(error: service::Error) -> Self {
        use service::{Error, ResourceKind};
        let with_cause =
            |code, cause| Self { cause: Some(cause), ..Self::new(code, error.to_string()) };
        let code = match &error {
            Error::NotFound { .. } => Code::NotFound,
            Error::Invalid { field, why } => return Self::invalid(field.clone(), why),
            Error::NotYours { field, why } => {
                let field = Some(field.clone());
                return Self { field, ..Self::new(Code::Forbidden, why.clone()) };
            }
            Error::Ambiguous { .. } => Code::InvalidRequest,
            Error::Conflict(_)
            | Error::SessionWithoutPeer
            | Error::ActiveGhap { .. }
            | Error::InsufficientData { .. } => Code::Conflict,
            Error::Unconfirmed { .. } => return with_cause(Code::Conflict, "confirm"),
            Error::WaitCycle(_) => return with_cause(Code::Conflict, "wait_cycle"),
            Error::Forbidden(_) => Code::Forbidden,
            Error::Unseen(denial) => return with_cause(Code::Forbidden, denial.as_str()),
            Error::Unauthorized => Code::Unauthorized,
            Error::LimitReached(_) => Code::LimitReached,
            Error::NotNow(_) | Error::Unavailable(_) => Code::Unavailable,
            Error::StoreUnavailable(_) => Code::StoreUnavailable,
            Error::OutcomeUnknown { may_repeat, .. } => {
                let unknown = Self::new(Code::OutcomeUnknown, error.to_string());
                return Self { may_repeat: *may_repeat, ..unknown };
            }
            Error::StorageFull(_) => Code::StorageFull,
            Error::Internal(_) => Code::Internal,
        };
        // A missing agent or participant is the caller's error and is not logged.
        if matches!(error, Error::Internal(_) | Error::Unavailable(_)) {
            tracing::error!(error = svc_sys::telemetry::chain(&error), "a request failed");
        }
        let hint = match &error {
            Error::NotFound { kind: ResourceKind::ReportingPeer, .. }
            | Error::SessionWithoutPeer => ": POST /v1/peers/register first",
            _ => "",
        };
        Self::new(code, format!("{error}{hint}"))
    }
}

#[cfg(test)]
mod tests {
    use svc_core::service::{Error, ResourceKind};

    use super::*;

    #[test]
    fn caller_without_a_peer_is_told_how_to_register() {
        for (error, text) in [
            (
                Error::not_found(ResourceKind::ReportingPeer, "x"),
                "there is no peer \"x\": POST /v1/peers/register first",
            ),
            (
                Error::SessionWithoutPeer,
                "this session has no peer yet: POST /v1/peers/register first",
            ),
            (Error::not_found(ResourceKind::Peer, "x"), "there is no peer \"x\""),
        ] {
            assert_eq!(Problem::from(error).detail(), text);
        }
    }
}
