//! What a hook does when no daemon answers: it keeps the event, and may start a daemon.

use std::path::Path;
use std::process::Child;

use serde_json::Value;
use svc_model::limits;
use svc_server::daemon::stays_stopped;
use svc_sys::hook_spool::{HookSpool, UnprintedAnswer, UnprintedAnswers};
use svc_sys::private_file;

use super::hook_log::HookLog;
use crate::cli::context::Context;
use crate::cli::daemon;

/// An event that the daemon may not have.
#[derive(Debug)]
pub(super) struct PendingEvent {
    /// The client's session.
    pub(super) session: String,
    pub(super) id: String,
    /// The arguments under which it is delivered later; they have its time.
    pub(super) arguments: Value,
}

/// Keeps an event that the daemon does not have.
pub(super) fn keep(home: &Path, event: &PendingEvent, log: &HookLog) {
    let line = event.arguments.to_string();
    let kept =
        private_file::prepare_home(home).and_then(|()| HookSpool::in_home(home).append(&line));
    match kept {
        Ok(true) => {}
        Ok(false) => log.note("spool", "an event was dropped: too many events wait for the daemon"),
        Err(error) => log.note("spool", &format!("an event was dropped: {error}")),
    }
}

/// Keeps an event that the daemon may have answered, and notes that the answer was not printed.
pub(super) fn keep_unprinted(home: &Path, event: &PendingEvent, log: &HookLog) {
    note_unprinted(home, &event.session, &event.id, log);
    // The id makes sure that an event which did arrive counts once.
    keep(home, event, log);
}

/// Notes that the answer which the daemon may have given was not printed.
pub(super) fn note_unprinted(home: &Path, session: &str, id: &str, log: &HookLog) {
    let answer = UnprintedAnswer { session: session.to_owned(), id: id.to_owned() };
    let noted = private_file::prepare_home(home)
        .and_then(|()| UnprintedAnswers::in_home(home).append(&answer));
    if let Err(error) = noted {
        log.note("lost", &format!("what a hook did not print may not come again: {error}"));
    }
}

/// The ids of a session's events whose answers were not printed.
pub(super) fn unprinted(home: &Path, session: &str) -> Vec<String> {
    let noted = UnprintedAnswers::in_home(home).read().unwrap_or_default();
    let own = noted.answers().filter(|answer| answer.session == session);
    own.map(|answer| answer.id).take(limits::HOOKS_LOST).collect()
}

/// Starts a daemon and does not wait for it; `None` if it is to stay stopped. Of several that are started at one moment, one
/// stays.
pub(super) fn start_daemon(context: &Context) -> anyhow::Result<Option<Child>> {
    if stays_stopped(&context.paths) {
        return Ok(None);
    }
    daemon::start_unattended(context).map(Some)
}
