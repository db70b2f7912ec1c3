//! A prompt that comes while no daemon is ready: it starts one, unless another hook has, and waits
//! for it.

use std::process::Child;
use std::time::Duration;

use serde_json::Value;
use svc_server::daemon::{live_file, stays_stopped};
use svc_sys::config::Flags;

use super::args::PrintFormat;
use super::deliver::{DeliveryError, deliver};
use super::offline;
use crate::cli::ALREADY_RUNNING;
use crate::cli::context::Context;

/// How long a script's prompt waits, which asked for an answer in any case.
const SCRIPT_WAIT: Duration = Duration::from_secs(30);
/// How often the daemon is looked for. It has no way to tell a process that may be gone by then.
const POLL: Duration = Duration::from_millis(25);

/// How long a prompt may wait for a daemon that is not ready; `None` if one is, or if none is to be
/// started here.
pub(super) fn wait_for_daemon(context: &Context, format: PrintFormat) -> Option<Duration> {
    // A daemon at a URL is not ours to start.
    let is_local = context.agent_discovery().is_ok_and(|discovery| discovery.fixed().is_none());
    if !is_local || live_file(&context.paths).is_some() || stays_stopped(&context.paths) {
        return None;
    }
    if format == PrintFormat::Spec {
        return Some(SCRIPT_WAIT);
    }
    // With a mistake in the configuration no daemon starts.
    let config = context.config(&Flags::default()).ok()?;
    Some(Duration::from_secs(config.hooks_cold_wait.value)).filter(|wait| !wait.is_zero())
}

/// Delivers an event as soon as a daemon takes it. `not_sent` is called whenever it is certain that
/// none has it.
pub(super) fn deliver_when_ready(
    context: &Context,
    process: u32,
    arguments: &Value,
    mut not_sent: impl FnMut(bool),
) -> Result<Value, DeliveryError> {
    let mut daemon: Option<Child> = None;
    loop {
        not_sent(false);
        let problem = match deliver(context, process, arguments) {
            Err(DeliveryError::NotSent(problem)) => problem,
            delivered => return delivered,
        };
        not_sent(true);
        let failed = |why: &str| DeliveryError::NotSent(format!("{problem}; {why}"));
        if let Some(daemon) = &mut daemon {
            if has_failed(daemon) {
                return Err(failed("it did not start: see svc.log"));
            }
        } else {
            let started = offline::start_daemon(context);
            daemon = started.map_err(|error| failed(&format!("{error:#}")))?;
            if daemon.is_none() {
                return Err(failed("it is to stay stopped"));
            }
        }
        std::thread::sleep(POLL);
    }
}

/// Whether a daemon ended at its start, and not because another was quicker.
fn has_failed(daemon: &mut Child) -> bool {
    let ended = daemon.try_wait().ok().flatten();
    ended.is_some_and(|status| status.code() != Some(i32::from(ALREADY_RUNNING)))
}
