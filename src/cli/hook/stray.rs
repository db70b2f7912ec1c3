//! `svc` without arguments, called as a hook: versions of Claude Code before 2.1.139 ignore the
//! arguments of a hook that has them apart from its command, as earlier versions of `svc install`
//! wrote it.

use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use super::hook_log::HookLog;
use super::payload;

/// How long a payload may take to come. Who gives none and does not close standard input waits for
/// it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether standard input has the payload of a hook. `hooks.log` then has a line that says what to
/// do.
pub(in crate::cli) fn is_called_without_arguments(home: Option<&Path>) -> bool {
    if std::io::stdin().is_terminal() {
        return false;
    }
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(payload::read()).ok());
    let Ok(Ok(payload)) = receiver.recv_timeout(PATIENCE) else { return false };
    if payload.get("hook_event_name").is_none() && payload.get("session_id").is_none() {
        return false;
    }
    HookLog::in_home(home).note(
        "usage",
        "a client ran `svc` for a hook without its arguments; run `svc install` again",
    );
    true
}
