//! Errors become exit codes and sentences here, and nowhere else.

use std::process::ExitCode;

use super::output::{self, OutputClosed};
use crate::config::ConfigError;

/// Another daemon or migrator has this database.
pub const ALREADY_RUNNING: u8 = 3;
/// `svc migrate --check` found migrations that are not applied.
pub const MIGRATIONS_PENDING: u8 = 4;

const USAGE: u8 = 2;

/// The command was understood and makes no sense. Exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Prints the error, if there is one, and gives the exit code.
pub(super) fn code(result: anyhow::Result<ExitCode>) -> ExitCode {
    let error = match result {
        Ok(code) => return code,
        Err(error) => error,
    };
    if error.is::<OutputClosed>() {
        // `svc … | head` is no failure.
        return ExitCode::SUCCESS;
    }
    // Only a file of the person's own is quoted over several lines. What a daemon answers may quote others.
    let text = format!("error: {error:#}");
    if error.is::<ConfigError>() {
        output::notes(&text);
    } else {
        output::note(&text);
    }
    if error.is::<UsageError>() || error.is::<ConfigError>() {
        return ExitCode::from(USAGE);
    }
    ExitCode::FAILURE
}
