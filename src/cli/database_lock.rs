//! The lock of the database, and the words for the person when another process has it.

use std::process::ExitCode;
use std::time::Duration;

use super::{ALREADY_RUNNING, output};
use crate::config::Paths;
use crate::daemon;
use crate::store::{DatabaseLock, LockError};

/// How long a daemon that has the lock may take to say who it is, before it is called a process.
const INTRODUCTION: Duration = Duration::from_secs(2);

/// Takes the lock. If another process has it, prints which one and `advice`, and gives the exit code.
pub(super) fn lock_database(
    paths: &Paths,
    advice: Option<&str>,
) -> anyhow::Result<Result<DatabaseLock, ExitCode>> {
    match DatabaseLock::acquire(&paths.lock) {
        Ok(lock) => return Ok(Ok(lock)),
        Err(LockError::Held) => {}
        Err(error) => return Err(error.into()),
    }
    let db = paths.db.display();
    let mut text = match daemon::lock_holder(paths, INTRODUCTION) {
        Some(file) => {
            format!("error: a daemon already runs on {db}: pid {}, {}", file.pid, file.url)
        }
        None => format!("error: another svc process is at work on {db}"),
    };
    text.extend(advice.into_iter().flat_map(|advice| ["; ", advice]));
    output::note(&text);
    Ok(Err(ExitCode::from(ALREADY_RUNNING)))
}
