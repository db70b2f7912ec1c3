//! What a hook does when no daemon answers: it keeps the event, and may start a daemon.

use std::path::Path;
use std::process::Child;

use serde::Deserialize;
use serde_json::{Value, json};
use svc_model::limits;
use svc_server::daemon::stays_stopped;
use svc_sys::hook_spool::{HookSpool, SPOOLED_UNPRINTED};
use svc_sys::private_file;

use super::hook_log::HookLog;
use crate::cli::context::Context;
use crate::cli::daemon;

/// An event that the daemon may not have.
#[derive(Debug)]
pub(super) struct PendingEvent {
    /// The client's session.
    pub(super) session: String,
    /// The arguments under which it is delivered later; they have its time.
    pub(super) arguments: Value,
}

/// Keeps an event that the daemon does not have.
pub(super) fn keep(home: &Path, event: &PendingEvent, log: &HookLog) {
    keep_line(home, &event.arguments, log);
}

fn keep_line(home: &Path, line: &Value, log: &HookLog) {
    let line = line.to_string();
    let kept =
        private_file::prepare_home(home).and_then(|()| HookSpool::in_home(home).append(&line));
    match kept {
        Ok(true) => {}
        Ok(false) => log.note("spool", "an event was dropped: too many events wait for the daemon"),
        Err(error) => log.note("spool", &format!("an event was dropped: {error}")),
    }
}

/// Keeps an event that the daemon may have answered, with a note that the answer was not printed.
pub(super) fn keep_unprinted(home: &Path, event: &PendingEvent, log: &HookLog) {
    // The id makes sure that an event which did arrive counts once.
    let mut line = event.arguments.clone();
    line[SPOOLED_UNPRINTED] = json!(event.session);
    keep_line(home, &line, log);
}

/// Notes that the answer which the daemon may have given to a waiter was not printed.
pub(super) fn note_unprinted(home: &Path, session: &str, id: &str, log: &HookLog) {
    keep_line(home, &json!({ "id": id, SPOOLED_UNPRINTED: session }), log);
}

/// A line of an event whose answer was not printed.
#[derive(Debug, Deserialize)]
struct UnprintedEvent {
    id: String,
    /// The client's session.
    unprinted: String,
}

/// The ids of a session's events whose answers were not printed.
pub(super) fn unprinted(home: &Path, session: &str) -> Vec<String> {
    let lines = HookSpool::in_home(home).latest().unwrap_or_default();
    let noted = lines.iter().filter_map(|line| serde_json::from_str::<UnprintedEvent>(line).ok());
    let own = noted.filter(|event| event.unprinted == session);
    own.map(|event| event.id).take(limits::HOOKS_LOST).collect()
}

/// Starts a daemon and does not wait for it; `None` if it is to stay stopped. Of several that are
/// started at one moment, one stays.
pub(super) fn start_daemon(context: &Context) -> anyhow::Result<Option<Child>> {
    if stays_stopped(&context.paths) {
        return Ok(None);
    }
    daemon::start_unattended(context).map(Some)
}
