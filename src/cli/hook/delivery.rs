//! How an event reaches the daemon: the one request of a hook, the wait of a prompt for a daemon
//! that is not ready, and the spool for events that no daemon received.

use std::cell::Cell;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use svc_client::{Client, ClientError};
use svc_model::hook::HookFormat;
use svc_model::{ProcessIdentity, limits};
use svc_server::daemon::{live_file, stays_stopped};
use svc_sys::config::Flags;
use svc_sys::spool::{HookSpool, SPOOLED_PROCESS, SPOOLED_UNPRINTED};
use svc_sys::{private_file, telemetry};
use svc_wire::json_rpc::JsonRpcWriter;
use tokio::time::sleep;

use super::io::HookLog;
use crate::cli::context::Context;
use crate::cli::{ALREADY_RUNNING, daemon};

/// Whether the daemon received an event that has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Receipt {
    /// The daemon may have the event, and may have answered: the response is missing, or is an
    /// error that passes, such as an internal one of the daemon.
    Unknown,
    /// Nothing was sent, because no daemon runs.
    NotReceived,
    /// Delivering the event again would change nothing.
    Refused,
}

/// Why an event has no answer, with a text for the log.
pub(super) type DeliveryError = (Receipt, String);

/// Delivers an event of the client's process. The daemon's answer may be empty.
pub(super) async fn deliver(
    context: &Context,
    pid: u32,
    input: &Value,
) -> Result<Value, DeliveryError> {
    let target = context
        .agent_discovery()
        .and_then(|discovery| discovery.agent_target(pid))
        .map_err(|error| (Receipt::NotReceived, error.to_string()))?;
    let params = json!({ "name": "hook_event", "arguments": input });
    let body = JsonRpcWriter::new().id(&1).method("tools/call").params(&params).into_bytes();
    let reply = Client::new(target)
        .exchange(Method::POST, "/mcp", Some(body.into()))
        .await
        .map_err(|error| match error {
            ClientError::Connection { sent: false, .. }
            | ClientError::NotRunning { .. }
            | ClientError::Foreign(_)
            | ClientError::Unproven { .. } => (Receipt::NotReceived, error.to_string()),
            error => (Receipt::Unknown, error.to_string()),
        })?;
    // A budget that is used up is free again later. The refused thing may have been the answer.
    if reply.status.is_server_error() || reply.status == StatusCode::TOO_MANY_REQUESTS {
        return Err((Receipt::Unknown, reply.problem().to_string()));
    }
    if !reply.status.is_success() {
        return Err((Receipt::Refused, reply.problem().to_string()));
    }
    let response: Value = reply.json().map_err(|error| (Receipt::Refused, error.to_string()))?;
    answer_in(response)
}

fn answer_in(mut response: Value) -> Result<Value, DeliveryError> {
    let result = &response["result"];
    if result["isError"] == true || result.is_null() {
        let error = &result["structuredContent"]["error"];
        let message = error["message"].as_str().or_else(|| response["error"]["message"].as_str());
        let message = message.unwrap_or("empty response").to_owned();
        // Such an error is possible after the daemon stored the event.
        let is_the_daemons =
            ["internal_error", "unavailable"].iter().any(|kind| error["type"] == **kind);
        let receipt = if is_the_daemons { Receipt::Unknown } else { Receipt::Refused };
        return Err((receipt, message));
    }
    Ok(response["result"]["structuredContent"].take())
}

/// How long a prompt waits with `--format spec`: a script always wants an answer.
const SCRIPT_WAIT: Duration = Duration::from_secs(30);
/// Poll interval for the daemon, which cannot notify a hook that may have ended.
const POLL: Duration = Duration::from_millis(25);

/// How long a prompt may wait for a daemon that is not ready; `None` if a daemon is ready, or if
/// this hook must not start one.
pub(super) fn wait_for_daemon(context: &Context, format: HookFormat) -> Option<Duration> {
    // A daemon at a URL is not ours to start.
    let is_local = context.agent_discovery().is_ok_and(|discovery| discovery.fixed().is_none());
    if !is_local || live_file(&context.paths).is_some() || stays_stopped(&context.paths) {
        return None;
    }
    if format == HookFormat::Spec {
        return Some(SCRIPT_WAIT);
    }
    // If the configuration is invalid, no daemon starts.
    let config = context.config(&Flags::default()).ok()?;
    Some(Duration::from_secs(config.hooks_cold_wait.value)).filter(|wait| !wait.is_zero())
}

/// Delivers an event as soon as a daemon is ready. `receipt` tells a caller that stops waiting
/// whether a daemon may have received the event.
pub(super) async fn deliver_when_ready(
    context: &Context,
    process: u32,
    arguments: &Value,
    receipt: &Cell<Receipt>,
) -> Result<Value, DeliveryError> {
    let mut daemon: Option<Child> = None;
    loop {
        receipt.set(Receipt::Unknown);
        let problem = match deliver(context, process, arguments).await {
            Err((Receipt::NotReceived, problem)) => problem,
            delivered => return delivered,
        };
        receipt.set(Receipt::NotReceived);
        let failed = |why: &str| (Receipt::NotReceived, format!("{problem}; {why}"));
        if let Some(daemon) = &mut daemon {
            if has_failed(daemon) {
                return Err(failed("it did not start: see svc.log"));
            }
        } else {
            let started = start_daemon(context);
            daemon = started.map_err(|error| failed(&telemetry::chain(&*error)))?;
            if daemon.is_none() {
                return Err(failed("it is to stay stopped"));
            }
        }
        sleep(POLL).await;
    }
}

/// Whether a started daemon has ended for another reason than that one already runs.
fn has_failed(daemon: &mut Child) -> bool {
    let ended = daemon.try_wait().ok().flatten();
    ended.is_some_and(|status| status.code() != Some(i32::from(ALREADY_RUNNING)))
}

/// An event that the daemon may not have received.
pub(super) struct PendingEvent {
    pub(super) session: String,
    /// The arguments for a later delivery, with the event's time.
    pub(super) arguments: Value,
}

/// Appends the arguments of an event that the daemon did not receive to the spool.
pub(super) fn keep(home: &Path, line: &Value, log: &HookLog) {
    keep_all(home, &[line.to_string()], log);
}

fn keep_all(home: &Path, lines: &[String], log: &HookLog) {
    let kept =
        private_file::prepare_home(home).and_then(|()| HookSpool::in_home(home).append_all(lines));
    match kept {
        Ok(kept) if kept == lines.len() => {}
        Ok(_) => log.note("spool", "an event was dropped: too many events wait for the daemon"),
        Err(error) => log.note("spool", &format!("an event was dropped: {error}")),
    }
}

/// Spools an event that the daemon may have answered, with a note that the answer was not printed.
pub(super) fn keep_unprinted(home: &Path, event: &PendingEvent, log: &HookLog) {
    // If the event did arrive, the daemon drops this copy by its id.
    let mut line = event.arguments.clone();
    line[SPOOLED_UNPRINTED] = json!(event.session);
    keep(home, &line, log);
}

/// Notes in the spool that a waiter did not print the answers which the daemon may have given to a
/// session of a client's process. All notes are one write and one sync.
pub(super) fn note_unprinted(
    home: &Path,
    (session, process): (&str, Option<&ProcessIdentity>),
    ids: &[String],
    log: &HookLog,
) {
    let note = |id| json!({ "id": id, SPOOLED_UNPRINTED: session, SPOOLED_PROCESS: process });
    let notes: Vec<String> = ids.iter().map(|id| note(id).to_string()).collect();
    keep_all(home, &notes, log);
}

/// The ids of a session's events whose answers were not printed, the latest first.
pub(super) fn unprinted(home: &Path, session: &str) -> Vec<String> {
    // Most lines are events, and long, and a hook has no time to parse those of other sessions. Its
    // own may have the same text within their payload.
    let note = format!("\"{SPOOLED_UNPRINTED}\":{}", json!(session));
    let id_of = |line: &[u8]| {
        let event: Value = serde_json::from_slice(line).ok()?;
        let is_own = event[SPOOLED_UNPRINTED] == session;
        event["id"].as_str().filter(|_| is_own).map(str::to_owned)
    };
    let ids = HookSpool::in_home(home).find_last(&note, limits::HOOKS_LOST, id_of);
    ids.unwrap_or_default().into_iter().rev().collect()
}

/// Starts a daemon without waiting for it; `None` if it has to stay stopped. Of several daemons
/// that start concurrently, one remains.
pub(super) fn start_daemon(context: &Context) -> anyhow::Result<Option<Child>> {
    if stays_stopped(&context.paths) {
        return Ok(None);
    }
    daemon::start_unattended(context).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_notes_of_the_session_itself_are_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let (own, other) = ("s \"1\" \\é", "s");
        let log = HookLog::in_home(Some(folder.path()));
        let payload = json!({ SPOOLED_UNPRINTED: own });
        for line in [
            json!({ "id": "first", "payload": {}, SPOOLED_UNPRINTED: own }),
            json!({ "id": "foreign", SPOOLED_UNPRINTED: other }),
            json!({ "id": "event", "payload": payload }),
            json!({ "id": "quoted", "payload": payload, SPOOLED_UNPRINTED: other }),
            json!({ "id": "last", SPOOLED_UNPRINTED: own, SPOOLED_PROCESS: null }),
        ] {
            keep(folder.path(), &line, &log);
        }
        assert_eq!(unprinted(folder.path(), own), ["last", "first"]);
        assert_eq!(unprinted(folder.path(), other), ["quoted", "foreign"]);
        // Events of other sessions follow, and a waiter that ends.
        let event = json!({ "id": "event", "payload": { "text": "x".repeat(300_000) } });
        (0..10).for_each(|_| keep(folder.path(), &event, &log));
        let requests: Vec<String> = (0..500).map(|number| format!("request-{number}")).collect();
        note_unprinted(folder.path(), (other, None), &requests, &log);
        assert_eq!(unprinted(folder.path(), own), ["last", "first"]);
        let of_other = unprinted(folder.path(), other);
        assert_eq!(of_other.len(), 502);
        assert_eq!((&*of_other[0], &*of_other[501]), ("request-499", "foreign"));
    }
}
