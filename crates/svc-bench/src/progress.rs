//! Progress, for a person at a terminal.

use std::io::{self, IsTerminal as _, Write as _};

/// Replaces the line that was shown before.
pub(crate) fn show(step: &str) {
    let mut stderr = io::stderr().lock();
    if stderr.is_terminal() {
        // A failure to print is ignored.
        write!(stderr, "\r\x1b[K{step}").and_then(|()| stderr.flush()).ok();
    }
}
