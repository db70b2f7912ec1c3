//! The errors of a client, in words for the person at the terminal.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use svc_wire::sse::SseError;

use super::token_source::TokenSource;

/// A request without a usable answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing listens where the daemon should be.
    #[error("no daemon is running at {url}; start one with `svc start`")]
    NotRunning {
        /// Where it was looked for.
        url: String,
    },
    /// The connection failed for another reason, or broke before the answer was complete.
    #[error("the connection to {url} failed: {problem}; see `svc status`")]
    Connection {
        /// The daemon's URL.
        url: String,
        /// What the system or the HTTP library reports.
        problem: String,
        /// Whether the request may have been carried out.
        sent: bool,
    },
    /// No answer in time.
    #[error("{url} did not answer within {seconds} s; see `svc status` and `svc logs`")]
    Timeout {
        /// The daemon's URL.
        url: String,
        /// The time limit, in seconds.
        seconds: u64,
    },
    /// The socket, or the process that listens on it, is another user's.
    #[error("{0}: no token was sent; run as the user who runs the daemon")]
    Foreign(String),
    /// What listens at the URL did not prove to know the token.
    #[error("no token was sent to {url}: {problem}")]
    Unproven {
        /// The URL.
        url: String,
        /// What it did instead, and what may help.
        problem: String,
        /// Whether it is a daemon that knows no such token.
        is_unknown_token: bool,
    },
    /// The daemon answered with an error.
    #[error("{0}")]
    Problem(Box<ClientProblem>),
    /// The answer was not what this version of the protocol promises.
    #[error("{url} answered in an unexpected way: {problem}; is it an svc daemon of this version?")]
    Unexpected {
        /// The daemon's URL.
        url: String,
        /// What was wrong with the answer.
        problem: String,
    },
    /// An event stream that breaks its rules or bounds.
    #[error("the event stream of {url} is broken")]
    Stream {
        /// The daemon's URL.
        url: String,
        /// Which rule.
        source: SseError,
    },
    /// The URL given cannot be used.
    #[error("cannot use the URL `{url}`: {problem} (from --url or SVC_URL)")]
    BadUrl {
        /// As given.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An agent has no token for a daemon at a URL.
    #[error(
        "an agent has no token for {url}: set SVC_TOKEN (`svc mcp-config --session NAME --env SVC_TOKEN` makes one), or leave \
         the URL out"
    )]
    NoAgentToken {
        /// The URL.
        url: String,
    },
    /// Others own the data folder or can write it, so nothing in it can be relied on.
    #[error("{0}")]
    DataFolder(String),
    /// The token cannot be read or sent.
    #[error("cannot use the token in {path}: {problem}", path = path.display())]
    TokenFile {
        /// The file, or the variable's name.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

impl ClientError {
    /// Whether the same request may succeed later without anyone changing it.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::NotRunning { .. } | Self::Connection { .. } | Self::Timeout { .. } => true,
            Self::Problem(problem) => problem.is_transient(),
            _ => false,
        }
    }

    /// The daemon's answer, if it was one.
    pub fn problem(&self) -> Option<&ClientProblem> {
        match self {
            Self::Problem(problem) => Some(problem),
            _ => None,
        }
    }

    /// Whether the token is not, or no longer, one of the daemon's.
    pub fn is_refused_token(&self) -> bool {
        self.status() == Some(StatusCode::UNAUTHORIZED)
            || matches!(self, Self::Unproven { is_unknown_token: true, .. })
    }

    /// The status of the daemon's answer, if it was one.
    pub fn status(&self) -> Option<StatusCode> {
        self.problem().map(|problem| problem.status)
    }

    /// How long the daemon asked to wait before the next try.
    pub fn retry_after(&self) -> Option<Duration> {
        self.problem().and_then(|problem| problem.retry_after)
    }
}

/// An error answer: an RFC 9457 document, or the little that another body tells.
///
/// `Display` gives the detail and, where there is one, the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientProblem {
    /// The HTTP status.
    pub status: StatusCode,
    /// The stable code, such as `not_found`.
    pub code: String,
    /// What happened, for people.
    pub detail: String,
    /// The field at fault, if one is.
    pub field: Option<String>,
    /// The id under which the daemon logged the request.
    pub request_id: Option<String>,
    /// The daemon's `Retry-After`.
    pub retry_after: Option<Duration>,
    /// Which token the request carried; only for the remedy of a 401.
    pub token: TokenSource,
}

/// The body as RFC 9457 and earlier daemons have it.
#[derive(Deserialize)]
struct ProblemDocument {
    code: Option<String>,
    detail: Option<String>,
    title: Option<String>,
    error: Option<serde_json::Value>,
    field: Option<String>,
    request_id: Option<String>,
}

impl ClientProblem {
    /// Reads a problem from an answer's body, whatever its format.
    pub(super) fn parse(
        status: StatusCode,
        retry_after: Option<Duration>,
        body: &[u8],
        token: TokenSource,
    ) -> Self {
        let wire: Option<ProblemDocument> = serde_json::from_slice(body).ok();
        let fallback = status.canonical_reason().unwrap_or("error").to_owned();
        let Some(wire) = wire else {
            let text = String::from_utf8_lossy(body);
            let first = text.lines().next().unwrap_or_default().trim();
            let detail =
                if first.is_empty() { fallback } else { first.chars().take(300).collect() };
            let code = String::new();
            return Self {
                status,
                code,
                detail,
                field: None,
                request_id: None,
                retry_after,
                token,
            };
        };
        let error = wire.error.as_ref().and_then(serde_json::Value::as_str).map(str::to_owned);
        Self {
            status,
            code: wire.code.unwrap_or_default(),
            detail: wire.detail.or(error).or(wire.title).unwrap_or(fallback),
            field: wire.field,
            request_id: wire.request_id,
            retry_after,
            token,
        }
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
            // Time alone makes no room in it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_body_becomes_a_sentence_for_a_person() {
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
            let problem = ClientProblem::parse(
                status,
                None,
                body.as_bytes(),
                TokenSource::File(path.clone()),
            );
            assert!(problem.to_string().contains(expected), "{problem}");
        }
    }
}
