//! What is done while no daemon is there, or none that answers in time.

use std::path::Path;

use serde_json::Value;

use super::super::{context::Context, daemon};
use super::report::Report;
use crate::domain::limits;
use crate::hook_spool::Lost;
use crate::{hook_spool, private_file};

/// Keeps an event for a daemon that comes later.
pub(super) fn keep(home: &Path, event: &Value, report: &Report) {
    let kept =
        private_file::create_folder(home).and_then(|()| hook_spool::put(home, &event.to_string()));
    match kept {
        Ok(true) => {}
        Ok(false) => report.note("spool", "an event was dropped: too many wait for the daemon"),
        Err(error) => report.note("spool", &format!("an event was dropped: {error}")),
    }
}

/// Notes that nobody saw what the daemon may have answered to an event.
pub(super) fn note_lost(home: &Path, session: &str, id: &str, report: &Report) {
    let lost = Lost { session: session.to_owned(), id: id.to_owned() };
    let noted = private_file::create_folder(home).and_then(|()| hook_spool::put_lost(home, &lost));
    if let Err(error) = noted {
        report.note("lost", &format!("what a hook did not print may not come again: {error}"));
    }
}

/// The ids of a session's events whose answers nobody saw.
pub(super) fn lost(home: &Path, session: &str) -> Vec<String> {
    let text = hook_spool::read_lost(home).unwrap_or_default();
    let own = hook_spool::parse_lost(&text).filter(|lost| lost.session == session);
    own.map(|lost| lost.id).take(limits::HOOKS_LOST).collect()
}

/// Starts a daemon and does not wait for it. Of several that are started at one moment, one stays.
pub(super) fn start_daemon(context: &Context) -> anyhow::Result<()> {
    daemon::start_unattended(context)
}
