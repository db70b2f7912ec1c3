//! Maps errors to exit codes and sentences; no other file does.

use std::process::ExitCode;

use clap::error::ErrorKind;
use serde_json::{Value, json};
use svc_client::{ClientError, ClientProblem};
use svc_install::document::DocumentError;
use svc_sys::config::ConfigError;
use svc_sys::telemetry;

use super::naming::{self, AdvisedError};
use super::output::{self, OutputClosed};
use super::terminal;

/// Another daemon or migrator holds the lock of this database.
pub const ALREADY_RUNNING: u8 = 3;
/// `svc migrate --check` found migrations that are not applied.
pub const MIGRATIONS_PENDING: u8 = 4;

const USAGE: u8 = 2;

/// The arguments parse but make no sense together. Exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// What a command ends with: its exit code, or the error that becomes one.
pub type ExitResult = anyhow::Result<ExitCode>;

/// Another process holds the database. Exit code 3.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct DatabaseInUse(pub(super) String);

/// Prints the error, if there is one, and returns the exit code. With `is_json` the error is one
/// line of JSON.
pub(super) fn code(result: ExitResult, is_json: bool) -> ExitCode {
    let error = match result {
        Ok(code) => return code,
        Err(error) => error,
    };
    if error.is::<OutputClosed>() {
        // A closed pipe, as in `svc … | head`, is no failure.
        return ExitCode::SUCCESS;
    }
    let is_usage = error.is::<UsageError>()
        || error.is::<ConfigError>()
        || matches!(
            client_error(&error),
            Some(ClientError::BadUrl { .. } | ClientError::BlankName)
        )
        || client_error(&error).and_then(ClientError::problem).is_some_and(is_refused_value);
    let advised = error.downcast_ref::<AdvisedError>().map(ToString::to_string);
    let several = client_error(&error).filter(|_| !is_json).and_then(naming::candidates);
    let advised = advised.or(several);
    let has_lines = advised.is_some() || error.is::<ConfigError>() || is_in_toml(&error);
    let text = advised.unwrap_or_else(|| telemetry::chain(&*error));
    if is_json {
        document(&problem(&error, &text, is_usage));
    } else if has_lines {
        // Only the person's own file may be quoted over several lines, which are sanitised one by
        // one. An error of the daemon may quote text of others.
        output::notes(&format!("error: {text}"));
    } else {
        // The command line's own text may contain colours.
        output::note(&format!("error: {}", terminal::without_colours(&text)));
    }
    match () {
        () if is_usage => ExitCode::from(USAGE),
        () if error.is::<DatabaseInUse>() => ExitCode::from(ALREADY_RUNNING),
        () => ExitCode::FAILURE,
    }
}

/// Prints the reason of an exit with a code of its own.
pub(super) fn note_failure(text: &str, is_json: bool) {
    if is_json {
        document(&problem_of("failed", "Error", text, false));
    } else {
        output::note(&format!("svc: {text}"));
    }
}

/// Prints an error of the argument parser; help and the version are no failures.
pub(super) fn usage(error: &clap::Error, is_json: bool) -> ExitCode {
    if !error.use_stderr() && is_json {
        let document = match error.kind() {
            ErrorKind::DisplayVersion => json!({ "version": env!("CARGO_PKG_VERSION") }),
            _ => json!({ "help": error.render().to_string() }),
        };
        return code(output::json(&document).map(|()| ExitCode::SUCCESS), true);
    }
    if !error.use_stderr() || !is_json {
        // A closed output is no failure.
        error.print().ok();
        return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
    }
    let text = error.render().to_string();
    document(&problem_of("usage", "Usage error", &sentence(&text), false));
    ExitCode::from(USAGE)
}

/// The first paragraph of the parser's error on one line: the tips and the usage after it are for
/// people.
fn sentence(text: &str) -> String {
    let text = text.trim().strip_prefix("error: ").unwrap_or(text);
    let first = text.split("\n\n").next().unwrap_or_default();
    first.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether the daemon refused the value of an argument, which is a usage error: only the daemon
/// knows the allowed values. A name that is unknown or ambiguous is no such value, since it depends
/// on the data.
fn is_refused_value(problem: &ClientProblem) -> bool {
    matches!(problem.status.as_u16(), 400 | 422)
        && problem.code == "invalid_request"
        && !naming::is_about_a_name(problem)
}

/// Whether a file of the person is not TOML: the parser quotes the faulty line below its message.
fn is_in_toml(error: &anyhow::Error) -> bool {
    let is_it = |cause: &DocumentError| matches!(cause, DocumentError::Invalid("TOML", _));
    error.chain().any(|cause| cause.downcast_ref().is_some_and(is_it))
}

fn client_error(error: &anyhow::Error) -> Option<&ClientError> {
    error.chain().find_map(|cause| cause.downcast_ref())
}

/// The error as a problem document (RFC 9457). An error of the daemon keeps what the daemon says,
/// but for its detail, which may have advice here.
fn problem(error: &anyhow::Error, text: &str, is_usage: bool) -> Value {
    let client = client_error(error);
    if let Some(problem) = client.and_then(ClientError::problem) {
        let title = problem.title.as_deref().or_else(|| problem.status.canonical_reason());
        let is_transient = client.is_some_and(ClientError::is_transient);
        let retryable = problem.retryable.unwrap_or(is_transient);
        let mut document = problem_of(&problem.code, title.unwrap_or("Error"), text, retryable);
        let further = json!({
            "type": problem.kind, "status": problem.status.as_u16(), "field": problem.field,
            "reason": problem.reason, "request_id": problem.request_id,
        });
        for (name, value) in further.as_object().into_iter().flatten() {
            if !value.is_null() {
                document[name] = value.clone();
            }
        }
        return document;
    }
    match client {
        _ if is_usage => problem_of("usage", "Usage error", text, false),
        _ if error.is::<DatabaseInUse>() => {
            problem_of("already_running", "The database is in use", text, false)
        }
        Some(client) if client.is_transient() => {
            problem_of("unavailable", "No daemon answers", text, true)
        }
        _ => problem_of("failed", "Error", text, false),
    }
}

fn problem_of(code: &str, title: &str, text: &str, retryable: bool) -> Value {
    json!({
        "type": "about:blank", "title": title, "detail": text, "code": code, "retryable": retryable, "error": text,
    })
}

/// JSON on standard error: standard output has results only.
fn document(problem: &Value) {
    output::note(&problem.to_string());
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn usage_error_is_one_sentence_in_json() {
        let text = "error: unrecognized subcommand 'foo'\n\n  tip: a similar one exists\n\nUsage: svc [OPTIONS]\n";
        assert_eq!(sentence(text), "unrecognized subcommand 'foo'");
        let missing =
            "error: the following required arguments were not provided:\n  <ID>\n\nUsage: x";
        assert_eq!(sentence(missing), "the following required arguments were not provided: <ID>");
    }

    #[test]
    fn unknown_or_ambiguous_name_is_no_usage_error() {
        let problem = |detail: &str| {
            ClientProblem::stated(http::StatusCode::UNPROCESSABLE_ENTITY, "invalid_request", detail)
        };
        for (detail, is_usage) in [
            ("status: \"lost\" is not online, busy, idle or offline", true),
            ("\"01m8\" names 2 tasks: a (x), b (y); name one by its id", false),
            ("instance: there is no instance \"nobody\"; there are: claude", false),
        ] {
            assert_eq!(is_refused_value(&problem(detail)), is_usage, "{detail}");
        }
    }

    #[test]
    fn error_is_a_problem_document_in_json() {
        let usage = anyhow::Error::new(UsageError("--after x: not a number".to_owned()));
        let document = problem(&usage, "--after x: not a number", true);
        assert_eq!(document["code"], "usage");
        assert_eq!(document["error"], document["detail"]);
        let absent = ClientError::NotRunning { url: "http://127.0.0.1:1".to_owned() };
        let absent = Err::<(), _>(absent).context("while looking").expect_err("an error");
        let document = problem(&absent, "text", false);
        assert_eq!(
            (&document["code"], &document["retryable"]),
            (&json!("unavailable"), &json!(true))
        );
        let other = problem(&anyhow::anyhow!("a file is missing"), "text", false);
        assert_eq!((&other["code"], &other["retryable"]), (&json!("failed"), &json!(false)));
    }
}
