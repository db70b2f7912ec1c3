//! One event, from the payload to the daemon's answer, within a deadline.
//!
//! A worker thread reads and delivers the event. The main thread waits for it until the deadline,
//! and then spools the event that the daemon may not have.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use svc_model::hook::{self, HookClient, HookFormat, UnexpectedOutput, session_of};
use svc_model::{Clock as _, HookId, Ids, ProcessIdentity, SystemClock};
use svc_sys::config::Env;
use svc_sys::session_secret::SessionSecrets;
use svc_sys::spool::SPOOLED_PROCESS;
use svc_sys::{process_list, telemetry};

use super::delivery::{self, DeliveryError, PendingEvent, deliver};
use super::io::{HookLog, PrintFormat, read_payload};
use crate::cli::context::Context;

/// Poll interval of the main thread for the event's name, on which the deadline depends.
const DEADLINE_POLL: Duration = Duration::from_millis(20);
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
    pub(super) format: PrintFormat,
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

#[derive(Default)]
struct AttemptState {
    event_name: Option<String>,
    /// The event, once the payload is read.
    event: Option<PendingEvent>,
    receipt: Receipt,
    /// How long the event may wait for a daemon that is not ready.
    cold_wait: Option<Duration>,
    /// The session that begins with the event, if a script is to be told its id.
    begins: Option<String>,
}

/// Whether the daemon received the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Receipt {
    /// The daemon may have the event, and may have answered.
    #[default]
    Unknown,
    NotReceived,
    /// Delivering the event again would change nothing.
    Refused,
}

/// Delivers the event; returns the answer if it comes before the deadline, counted from `started`.
pub(super) fn attempt(
    job: HookJob,
    log: &HookLog,
    started: Instant,
) -> Result<HookAnswer, &'static str> {
    let home = job.context.paths.home.clone();
    let env = job.context.env.clone();
    let client = job.client.as_str();
    let state = AttemptState { event_name: job.event_name.clone(), ..AttemptState::default() };
    let state = Arc::new(Mutex::new(state));
    let (sender, outcome) = mpsc::channel();
    let shared = Arc::clone(&state);
    std::thread::spawn(move || sender.send(work(&job, &shared)).ok());
    let result = wait_for(&outcome, || deadline(&env, &lock(&state)), started);
    let mut state = lock(&state);
    let event = state.event.take();
    match result {
        Ok((output, held)) => Ok(HookAnswer { output, event, held }),
        Err((failure, problem)) => {
            match (event, state.receipt) {
                (Some(event), Receipt::Unknown) => delivery::keep_unprinted(&home, &event, log),
                (Some(event), Receipt::NotReceived) => delivery::keep(&home, &event.arguments, log),
                (None, _) | (_, Receipt::Refused) => {}
            }
            log.note(&format!("{client} {}", state.event_name.as_deref().unwrap_or("?")), &problem);
            match state.begins.take().filter(|_| state.receipt != Receipt::Refused) {
                // The event is spooled, and the daemon takes this session id from it later.
                Some(session) => {
                    let started = json!({ "type": "session_started", "session_id": session });
                    let output = Ok(Some(started.to_string()));
                    Ok(HookAnswer { output, event: None, held: None })
                }
                None => Err(failure),
            }
        }
    }
}

/// The worker thread's result, or why there is none before the deadline.
fn wait_for<T>(
    outcome: &mpsc::Receiver<Result<T, String>>,
    deadline: impl Fn() -> Duration,
    started: Instant,
) -> Result<T, (&'static str, String)> {
    loop {
        let deadline = deadline();
        let left = deadline.saturating_sub(started.elapsed());
        let step = left.min(DEADLINE_POLL);
        match outcome.recv_timeout(step) {
            Ok(result) => return result.map_err(|problem| (REQUEST_FAILED, problem)),
            Err(RecvTimeoutError::Timeout) if left > step => {}
            Err(RecvTimeoutError::Timeout) => {
                let problem = format!("not done within {deadline:?}");
                return Err((DEADLINE_PASSED, problem));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err((REQUEST_FAILED, "it panicked".to_owned()));
            }
        }
    }
}

/// The text to print, or why the answer is not printed; and the prompt to hold.
type WorkResult = (Result<Option<String>, UnexpectedOutput>, Option<(String, Value)>);

/// Fails if there is no answer.
fn work(job: &HookJob, state: &Mutex<AttemptState>) -> Result<WorkResult, String> {
    let mut payload = read_payload()?;
    let in_payload = payload.get("hook_event_name").or_else(|| payload.get("hook"));
    let event_name = in_payload.and_then(Value::as_str).map(str::to_owned);
    let event_name = event_name.or_else(|| job.event_name.clone());
    let is_start = event_name.as_deref() == Some(SESSION_START);
    let begins = is_start && job.format == PrintFormat::Spec && job.again.is_none();
    if begins && session_of(job.client, &payload).is_none() {
        payload["session_id"] = json!(Ids::random().uuid(SystemClock.now()).to_string());
    }
    let starts = event_name.as_deref().is_some_and(|name| STARTING_EVENTS.contains(&name));
    let waits = starts && !is_start && job.again.is_none();
    let cold_wait = if waits { delivery::wait_for_daemon(&job.context, job.format) } else { None };
    let process = process_list::client_of_this();
    let (mut arguments, event) = arguments(job, process.as_ref(), event_name.as_deref(), &payload);
    let process = process.map_or_else(std::process::id, |process| process.pid);
    let session = event.session.clone();
    {
        let mut state = lock(state);
        state.begins = begins.then(|| event.session.clone());
        state.event = Some(event);
        state.event_name.clone_from(&event_name);
        state.cold_wait = cold_wait;
    }
    // The spool may be long, and an event that is not known at the deadline is lost.
    let unprinted = delivery::unprinted(&job.context.paths.home, &session);
    if !unprinted.is_empty() {
        arguments["lost"] = json!(unprinted);
    }
    let note = |not_sent| {
        let receipt = if not_sent { Receipt::NotReceived } else { Receipt::Unknown };
        lock(state).receipt = receipt;
    };
    let delivered = match cold_wait {
        Some(_) => delivery::deliver_when_ready(&job.context, process, &arguments, note),
        None => deliver(&job.context, process, &arguments),
    };
    match delivered {
        Ok(answer) => {
            if let Some(id) = answer[hook::HELD_REQUEST].as_str() {
                return Ok((Ok(None), Some((id.to_owned(), payload))));
            }
            let event = || hook::read(job.client, job.event_name.as_deref(), &payload).ok();
            let format = match job.format {
                PrintFormat::Client => HookFormat::Client,
                PrintFormat::Spec => HookFormat::Spec,
            };
            Ok((hook::checked_output(event, format, &answer), None))
        }
        Err(DeliveryError::Unanswered(problem)) => Err(problem),
        Err(DeliveryError::Refused(problem)) => {
            lock(state).receipt = Receipt::Refused;
            Err(problem)
        }
        Err(DeliveryError::NotSent(problem)) => {
            lock(state).receipt = Receipt::NotReceived;
            if starts && cold_wait.is_none() {
                delivery::start_daemon(&job.context)
                    .map_err(|error| format!("{problem}; {}", telemetry::chain(&*error)))?;
            }
            Err(problem)
        }
    }
}

/// The arguments of the tool call, and the event to spool if the daemon does not get it now.
fn arguments(
    job: &HookJob,
    process: Option<&ProcessIdentity>,
    event_name: Option<&str>,
    payload: &Value,
) -> (Value, PendingEvent) {
    let now = SystemClock.now();
    let id = job.again.clone().unwrap_or_else(|| HookId::new(&Ids::random(), now).to_string());
    let session = session_of(job.client, payload).unwrap_or_default();
    let mut arguments = json!({ "client": job.client, "id": id, "payload": payload });
    let may_begin = event_name.is_some_and(|name| STARTING_EVENTS.contains(&name));
    let secret = may_begin.then(|| SessionSecrets::in_home(&job.context.paths.home).read(&session));
    for (name, value) in [
        ("secret", secret.flatten().map(Value::from)),
        ("event", job.event_name.clone().map(Value::from)),
        ("format", (job.format == PrintFormat::Spec).then(|| json!("spec"))),
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

fn lock(state: &Mutex<AttemptState>) -> MutexGuard<'_, AttemptState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text_of<'a>(env: &'a Env, name: &str) -> Option<&'a str> {
    env.text(name).ok().flatten()
}

/// Deadline of a hook, counted from its start. `SVC_HOOK_DEADLINE_MS` sets it on slow machines.
fn deadline(env: &Env, state: &AttemptState) -> Duration {
    let given = text_of(env, "SVC_HOOK_DEADLINE_MS").and_then(|text| text.parse().ok());
    let usual = Duration::from_millis(given.unwrap_or(match state.event_name.as_deref() {
        Some(SESSION_START | "session.created") => 80,
        Some("SessionEnd" | "session.deleted") => 300,
        _ => 150,
    }));
    state.cold_wait.map_or(usual, |wait| wait.max(usual))
}
