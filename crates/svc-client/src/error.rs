//! Errors between a client and the daemon, as sentences for a person.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use http::StatusCode;
use serde::{Deserialize, Deserializer};
use svc_wire::sse::SseError;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no daemon is running at {url}; start one with `svc start`")]
    NotRunning { url: String },
    /// The connection failed, or broke before the response was complete.
    #[error("the connection to {url} failed: {problem}; see `svc status`")]
    Connection {
        url: String,
        problem: String,
        /// The request was sent and may have been carried out.
        sent: bool,
    },
    #[error("{url} did not answer within {seconds} s; see `svc status` and `svc logs`")]
    Timeout { url: String, seconds: u64 },
    /// The socket or its listener belongs to another user.
    #[error("{0}: no token was sent; run as the user who runs the daemon")]
    Foreign(String),
    /// The listener at the URL did not prove that it knows the token.
    #[error("no token was sent to {url}: {problem}")]
    Unproven {
        url: String,
        problem: String,
        /// The listener is a daemon that does not know this token.
        is_unknown_token: bool,
    },
    #[error("{0}")]
    Problem(Box<ClientProblem>),
    #[error("{url} answered in an unexpected way: {problem}; is it an svc daemon of this version?")]
    Unexpected { url: String, problem: String },
    #[error("the event stream of {url} is broken")]
    Stream { url: String, source: SseError },
    #[error("cannot use the URL `{url}`: {problem} (from --url or SVC_URL)")]
    BadUrl { url: String, problem: String },
    /// An id or a name in the path is empty, so the path would mean another one.
    #[error("an id or a name is blank: say which one is meant")]
    BlankName,
    #[error(
        "an agent has no token for {url}: set SVC_TOKEN (`svc mcp-config --session NAME --env SVC_TOKEN` makes one), or leave \
         the URL out"
    )]
    NoAgentToken { url: String },
    /// Other users own the data folder or can write it.
    #[error("{0}")]
    DataFolder(String),
    #[error("cannot use the token in {path}: {problem}", path = path.display())]
    TokenFile {
        /// A file or a variable.
        path: PathBuf,
        problem: String,
    },
}

impl ClientError {
    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::NotRunning { .. } | Self::Connection { .. } | Self::Timeout { .. } => true,
            Self::Problem(problem) => problem.is_transient(),
            _ => false,
        }
    }

    /// The daemon's error response, if there was one.
    pub fn problem(&self) -> Option<&ClientProblem> {
        match self {
            Self::Problem(problem) => Some(problem),
            _ => None,
        }
    }

    /// Whether the daemon refuses the token.
    pub fn is_refused_token(&self) -> bool {
        self.status() == Some(StatusCode::UNAUTHORIZED)
            || matches!(self, Self::Unproven { is_unknown_token: true, .. })
    }

    pub fn status(&self) -> Option<StatusCode> {
        self.problem().map(|problem| problem.status)
    }

    pub fn retry_after(&self) -> Option<Duration> {
        self.problem().and_then(|problem| problem.retry_after)
    }
}

/// An error response: an RFC 9457 document, or the first line of another body.
/// `Display` has the detail and the remedy, if there is one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClientProblem {
    #[serde(skip)]
    pub status: StatusCode,
    /// The document's `type`, if it has one.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub title: Option<String>,
    /// Error code, such as `not_found`; empty if the document has none.
    #[serde(deserialize_with = "text_or_empty")]
    pub code: String,
    #[serde(deserialize_with = "text_or_empty")]
    pub detail: String,
    /// The cause in a word, where `code` does not say it.
    pub reason: Option<String>,
    /// Whether the daemon says that the same request may do better later.
    pub retryable: Option<bool>,
    /// The field that caused the error.
    pub field: Option<String>,
    pub request_id: Option<String>,
    #[serde(skip)]
    pub retry_after: Option<Duration>,
    /// Source of the token that was sent; the remedy of a 401 depends on it.
    #[serde(skip)]
    pub token: TokenSource,
}

/// A member that may be `null`.
fn text_or_empty<'de, D: Deserializer<'de>>(source: D) -> Result<String, D::Error> {
    Option::deserialize(source).map(Option::unwrap_or_default)
}

impl ClientProblem {
    /// A problem as a daemon would state it.
    pub fn stated(status: StatusCode, code: &str, detail: &str) -> Self {
        let body = serde_json::json!({ "code": code, "detail": detail }).to_string();
        Self::parse(status, None, body.as_bytes(), TokenSource::Withheld)
    }

    pub(super) fn parse(
        status: StatusCode,
        retry_after: Option<Duration>,
        body: &[u8],
        token: TokenSource,
    ) -> Self {
        let mut problem: Self = serde_json::from_slice(body).unwrap_or_else(|_| {
            let text = String::from_utf8_lossy(body);
            let first = text.lines().next().unwrap_or_default().trim();
            Self { detail: first.chars().take(300).collect(), ..Self::default() }
        });
        if problem.detail.is_empty() {
            let title = problem.title.as_deref().or(status.canonical_reason());
            problem.detail = title.unwrap_or("error").to_owned();
        }
        Self { status, retry_after, token, ..problem }
    }

    fn is_transient(&self) -> bool {
        self.status.is_server_error()
            || matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
    }

    fn remedy(&self) -> Option<String> {
        match self.status {
            StatusCode::UNAUTHORIZED => Some(match &self.token {
                TokenSource::Env => {
                    "the token came from SVC_TOKEN; unset it to use the operator's token file"
                        .to_owned()
                }
                TokenSource::File(path) => format!(
                    "the token came from {}; the daemon may have another token_file, or be another user's (`svc status`)",
                    path.display()
                ),
                TokenSource::Missing(path) => format!(
                    "there is no token in {}; set SVC_TOKEN, or run as the user who runs the daemon",
                    path.display()
                ),
                TokenSource::Withheld => "no token was sent".to_owned(),
                TokenSource::Process => "the daemon does not know this client's process".to_owned(),
            }),
            StatusCode::INSUFFICIENT_STORAGE => {
                Some("free some disk space or raise store.max_bytes".to_owned())
            }
            // Waiting does not help, as time alone does not empty an inbox.
            StatusCode::TOO_MANY_REQUESTS if self.detail.starts_with("the inbox of ") => Some(
                "nothing was sent: `svc message inbox NAME` shows what waits there, and `svc message ack NAME ID` makes room"
                    .to_owned(),
            ),
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                Some(match self.retry_after {
                    Some(wait) => format!("try again in {} s", wait.as_secs().max(1)),
                    None => "try again shortly".to_owned(),
                })
            }
            status if status.is_server_error() => {
                let id = self.request_id.as_deref().unwrap_or("-");
                Some(format!("the daemon's log has more (`svc logs`, request {id})"))
            }
            _ => None,
        }
    }
}

impl fmt::Display for ClientProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.detail.trim_end_matches('.'))?;
        if let Some(field) = &self.field
            && !self.detail.contains(field.as_str())
        {
            write!(f, " (field `{field}`)")?;
        }
        if self.code.is_empty() {
            write!(f, " ({})", self.status)?;
        }
        match self.remedy() {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum TokenSource {
    Env,
    File(PathBuf),
    /// The token file does not exist.
    Missing(PathBuf),
    /// The request carries no token.
    #[default]
    Withheld,
    /// The client's process identifies itself by the socket, or has a token of its own.
    Process,
}

impl fmt::Display for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env => f.write_str("the token in SVC_TOKEN"),
            Self::File(path) => write!(f, "the token in {}", path.display()),
            Self::Missing(path) => write!(f, "a token that would be in {}", path.display()),
            Self::Withheld => f.write_str("a token"),
            Self::Process => f.write_str("the token of this client's process"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_body_becomes_a_sentence_for_a_person() {
        let path = PathBuf::from("/h/token");
        let cases: &[(u16, &str, &str)] = &[
            (
                404,
                r#"{"code":"not_found","detail":"task task_1 does not exist."}"#,
                "task task_1 does not exist",
            ),
            (
                422,
                r#"{"code":"invalid_request","detail":"must not be blank","field":"text"}"#,
                "must not be blank (field `text`)",
            ),
            (
                401,
                r#"{"code":"unauthorized","detail":"bad token"}"#,
                "bad token; the token came from /h/token",
            ),
            (500, r#"{"code":"internal","title":"Internal","request_id":"r1"}"#, "request r1"),
            (502, "<html>bad gateway</html>\nmore", "<html>bad gateway</html> (502 Bad Gateway)"),
            (409, "", "Conflict (409 Conflict)"),
            (
                429,
                r#"{"code":"limit_reached","detail":"the inbox of ann holds 3 messages already"}"#,
                "already; nothing was sent: `svc message inbox NAME`",
            ),
            (429, r#"{"code":"limit_reached","detail":"too fast"}"#, "too fast; try again"),
        ];
        for (status, body, expected) in cases {
            let status = StatusCode::from_u16(*status).expect("a status");
            let token = TokenSource::File(path.clone());
            let problem = ClientProblem::parse(status, None, body.as_bytes(), token);
            assert!(problem.to_string().contains(expected), "{problem}");
        }
    }
}
