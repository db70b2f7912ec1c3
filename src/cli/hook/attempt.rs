//! One event, from the payload to the daemon's answer, within a deadline. An event that the daemon
//! may not have by then is spooled.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use svc_model::hook::{self, HookClient, HookFormat, UnexpectedOutput, session_of};
use svc_model::{Clock as _, HookId, Ids, ProcessIdentity, SystemClock};
use svc_sys::config::Env;
use svc_sys::session_secret::SessionSecrets;
use svc_sys::spool::SPOOLED_PROCESS;
use svc_sys::{process_list, telemetry};
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::delivery::{self, PendingEvent, Receipt, deliver};
use super::io::{HookLog, read_payload};
use crate::cli::context::Context;

/// Events at which a person waits for the session, so the hook starts a daemon if none runs. Each
/// may be the first event of a process that resumes a session.
const STARTING_EVENTS: [&str; 4] =
    [SESSION_START, "UserPromptSubmit", "BeforeAgent", "chat.message"];
/// The only starting event at which a prompt does not wait for a cold daemon.
const SESSION_START: &str = "SessionStart";

pub(super) struct HookJob {
    pub(super) context: Context,
    pub(super) client: HookClient,
    /// The client's name of the event, if it is on the command line.
    pub(super) event_name: Option<String>,
    pub(super) format: HookFormat,
    /// The id of an earlier delivery, if this one is a repeat.
    pub(super) again: Option<String>,
}

pub(super) struct HookAnswer {
    /// The text to print, if any; or why the daemon's answer is not printed.
    pub(super) output: Result<Option<String>, UnexpectedOutput>,
    pub(super) event: Option<PendingEvent>,
    /// The id of a prompt that the hook is to hold, with the client's payload.
    pub(super) held: Option<(String, Value)>,
}

/// Error codes for scripts when an event has no answer. The details are in the log.
const DEADLINE_PASSED: &str = "server_timeout";
const REQUEST_FAILED: &str = "request_failed";

/// Delivers the event; returns the answer if it comes before the deadline, counted from `started`.
pub(super) fn attempt(
    job: &HookJob,
    log: &HookLog,
    started: Instant,
) -> Result<HookAnswer, &'static str> {
    let attempted = catch_unwind(AssertUnwindSafe(|| {
        let runtime = match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return Err(failed(job, log, None, (REQUEST_FAILED, error.to_string()))),
        };
        let answer = runtime.block_on(run(job, log, started));
        // A read that takes too long must not hold up the hook.
        runtime.shutdown_background();
        answer
    }));
    let panicked = || (REQUEST_FAILED, "it panicked".to_owned());
    attempted.unwrap_or_else(|_| Err(failed(job, log, None, panicked())))
}

/// Notes why there is no answer, and returns the code for scripts.
fn failed(
    job: &HookJob,
    log: &HookLog,
    event_name: Option<&str>,
    (failure, problem): AttemptError,
) -> &'static str {
    let event_name = event_name.or(job.event_name.as_deref()).unwrap_or("?");
    log.note(&format!("{} {event_name}", job.client.as_str()), &problem);
    failure
}

/// Why there is no result: an error code, and a text for the log.
type AttemptError = (&'static str, String);

/// The result of `work` if it comes before the deadline.
async fn in_time<T>(
    limit: Duration,
    started: Instant,
    work: impl Future<Output = Result<T, String>>,
) -> Result<T, AttemptError> {
    match timeout(limit.saturating_sub(started.elapsed()), work).await {
        Ok(result) => result.map_err(|problem| (REQUEST_FAILED, problem)),
        Err(_) => Err((DEADLINE_PASSED, format!("not done within {limit:?}"))),
    }
}

async fn run(job: &HookJob, log: &HookLog, started: Instant) -> Result<HookAnswer, &'static str> {
    let (env, home) = (&job.context.env, &job.context.paths.home);
    let read = async {
        let read = spawn_blocking(read_payload).await;
        read.unwrap_or_else(|error| Err(error.to_string()))
    };
    let limit = deadline(env, job.event_name.as_deref(), None);
    let payload = in_time(limit, started, read).await;
    let mut payload = payload.map_err(|error| failed(job, log, None, error))?;
    let in_payload = payload.get("hook_event_name").or_else(|| payload.get("hook"));
    let event_name = in_payload.and_then(Value::as_str).map(str::to_owned);
    let event_name = event_name.or_else(|| job.event_name.clone());
    let is_start = event_name.as_deref() == Some(SESSION_START);
    let begins = is_start && job.format == HookFormat::Spec && job.again.is_none();
    if begins && session_of(job.client, &payload).is_none() {
        payload["session_id"] = json!(Ids::random().uuid(SystemClock.now()).to_string());
    }
    let starts = event_name.as_deref().is_some_and(|name| STARTING_EVENTS.contains(&name));
    let waits = starts && !is_start && job.again.is_none();
    let cold_wait = if waits { delivery::wait_for_daemon(&job.context, job.format) } else { None };
    let process = process_list::client_of_this();
    let (mut arguments, event) = arguments(job, process.as_ref(), starts, &payload);
    let process = process.map_or_else(std::process::id, |process| process.pid);
    let receipt = Cell::new(Receipt::Unknown);
    let delivery = async {
        // The spool may be long.
        let (spool_home, session) = (home.clone(), event.session.clone());
        let unprinted = spawn_blocking(move || delivery::unprinted(&spool_home, &session)).await;
        if let Some(unprinted) = unprinted.ok().filter(|ids| !ids.is_empty()) {
            arguments["lost"] = json!(unprinted);
        }
        let delivered = match cold_wait {
            Some(_) => {
                delivery::deliver_when_ready(&job.context, process, &arguments, &receipt).await
            }
            None => deliver(&job.context, process, &arguments).await,
        };
        delivered.map_err(|(last, problem)| {
            receipt.set(last);
            if last == Receipt::NotReceived
                && starts
                && cold_wait.is_none()
                && let Err(error) = delivery::start_daemon(&job.context)
            {
                return format!("{problem}; {}", telemetry::chain(&*error));
            }
            problem
        })
    };
    let limit = deadline(env, event_name.as_deref(), cold_wait);
    let delivered = in_time(limit, started, delivery).await;
    let failure = match delivered {
        Ok(answer) => return Ok(answered(job, payload, event, &answer)),
        Err(error) => failed(job, log, event_name.as_deref(), error),
    };
    match receipt.get() {
        Receipt::Unknown => delivery::keep_unprinted(home, &event, log),
        Receipt::NotReceived => delivery::keep(home, &event.arguments, log),
        Receipt::Refused => {}
    }
    if !begins || receipt.get() == Receipt::Refused {
        return Err(failure);
    }
    // The event is spooled, and the daemon takes this session id from it later.
    let started = json!({ "type": "session_started", "session_id": event.session });
    Ok(HookAnswer { output: Ok(Some(started.to_string())), event: None, held: None })
}

fn answered(job: &HookJob, payload: Value, event: PendingEvent, answer: &Value) -> HookAnswer {
    let event = Some(event);
    if let Some(id) = answer[hook::HELD_REQUEST].as_str() {
        return HookAnswer { output: Ok(None), event, held: Some((id.to_owned(), payload)) };
    }
    let read = || hook::read(job.client, job.event_name.as_deref(), &payload).ok();
    HookAnswer { output: hook::checked_output(read, job.format, answer), event, held: None }
}

/// The arguments of the tool call, and the event to spool if the daemon does not get it now.
fn arguments(
    job: &HookJob,
    process: Option<&ProcessIdentity>,
    starts: bool,
    payload: &Value,
) -> (Value, PendingEvent) {
    let now = SystemClock.now();
    let id = job.again.clone().unwrap_or_else(|| HookId::new(&Ids::random(), now).to_string());
    let session = session_of(job.client, payload).unwrap_or_default();
    let mut arguments = json!({ "client": job.client, "id": id, "payload": payload });
    let secret = starts.then(|| SessionSecrets::in_home(&job.context.paths.home).read(&session));
    for (name, value) in [
        ("secret", secret.flatten().map(Value::from)),
        ("event", job.event_name.clone().map(Value::from)),
        ("format", (job.format == HookFormat::Spec).then(|| json!("spec"))),
        ("tmux_pane", text_of(&job.context.env, "TMUX_PANE").map(Value::from)),
        ("pid", process.map(|process| Value::from(process.pid))),
    ] {
        if let Some(value) = value {
            arguments[name] = value;
        }
    }
    let mut dated = arguments.clone();
    dated["at"] = json!(now);
    if job.again.is_some() {
        // A repeat carries the event's time: the daemon does not answer it, and nothing is printed.
        arguments.clone_from(&dated);
    }
    // By a later delivery the process may be gone, and the socket does not identify it then.
    dated[SPOOLED_PROCESS] = json!(process);
    (arguments, PendingEvent { session, arguments: dated })
}

fn text_of<'a>(env: &'a Env, name: &str) -> Option<&'a str> {
    env.text(name).ok().flatten()
}

/// Deadline of a hook, counted from its start. `SVC_HOOK_DEADLINE_MS` sets it on slow machines.
fn deadline(env: &Env, event_name: Option<&str>, cold_wait: Option<Duration>) -> Duration {
    let given = text_of(env, "SVC_HOOK_DEADLINE_MS").and_then(|text| text.parse().ok());
    let usual = Duration::from_millis(given.unwrap_or(match event_name {
        Some(SESSION_START | "session.created") => 80,
        Some("SessionEnd" | "session.deleted") => 300,
        _ => 150,
    }));
    cold_wait.map_or(usual, |wait| wait.max(usual))
}
