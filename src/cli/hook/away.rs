//! What is done while no daemon is there.

use std::path::Path;

use serde_json::Value;

use super::super::{context::Context, daemon};
use super::report::Report;
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

/// Starts a daemon and does not wait for it. Of several that are started at one moment, one stays.
pub(super) fn start_daemon(context: &Context) -> anyhow::Result<()> {
    daemon::start_unattended(context)
}
