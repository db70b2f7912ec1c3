//! `svc hook wait`: runs beside an idle Claude Code session (`asyncRewake`) until a message comes for it, and wakes it by
//! ending with exit code 2 and the message on standard error.

use std::process::ExitCode;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::hook_log::HookLog;
use super::revival::DaemonRevival;
use super::waiting_client::WaitingClient;
use super::{offline, payload, print};
use crate::cli::context::Context;
use crate::cli::process;
use crate::client::{Client, ClientError, backoff, encode};
use crate::config::Flags;
use crate::domain::{Clock as _, HookId, Ids, SystemClock};
use crate::process_list;

/// The exit code that Claude Code takes for "wake up".
const WAKE: u8 = 2;
/// How many requests without an answer are remembered.
const MAX_UNANSWERED: usize = 500;
/// How often the waiter looks whether its client still runs.
const PARENT_POLL: Duration = Duration::from_secs(2);
/// How long a waiter lets the hook of the same start go first: what waits already goes with that, and only a question wakes.
const AFTER_START: Duration = Duration::from_millis(500);

/// The daemon's answer to one request.
#[derive(Debug, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum WaitAnswer {
    /// A message came for the session.
    Message {
        text: String,
        /// Of an earlier daemon there is none.
        #[serde(default)]
        headline: String,
    },
    /// None came within the daemon's time limit.
    Nothing,
    /// Another waiter has taken this one's place.
    Retired,
    /// The session is over.
    Over,
}

/// Waits. Exit code 2 if a message came, else 0.
pub(super) fn run(context: &Context) -> ExitCode {
    let log = HookLog::of(context);
    let result = payload::read().and_then(|payload| {
        let config = context.config(&Flags::default()).map_err(|error| format!("{error:#}"))?;
        let client = WaitingClient::of(process_list::client_of_this().as_ref());
        if !client.can_be_woken(*config.hooks_wake, &context.env, &payload) {
            return Ok(None);
        }
        let session = payload.get("session_id").and_then(Value::as_str).map(str::to_owned);
        let session = session.ok_or("the payload has no session_id")?;
        let is_start = payload.get("hook_event_name").is_some_and(|name| name == "SessionStart");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        runtime
            .block_on(async {
                tokio::select! {
                    wake_up = wait(context, &session, is_start, &log) => wake_up,
                    () = orphaned() => Ok(None),
                }
            })
            .map(|wake_up| wake_up.map(|wake_up| (session, wake_up)))
    });
    match result {
        Ok(Some((session, WakeUp { text, request }))) => {
            if let Err(error) = print::print_line(std::io::stderr(), &text) {
                log.note("wait", &format!("standard error: {error}"));
                offline::note_unprinted(&context.paths.home, &session, &request, &log);
            }
            ExitCode::from(WAKE)
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(problem) => {
            log.note("wait", &problem);
            ExitCode::SUCCESS
        }
    }
}

/// Returns when the process that started this one is gone.
async fn orphaned() {
    let parent = rustix::process::getppid();
    while rustix::process::getppid() == parent {
        sleep(PARENT_POLL).await;
    }
}

/// A message that ends the wait.
#[derive(Debug)]
struct WakeUp {
    text: String,
    /// The id of the request that it answers.
    request: String,
}

async fn wait(
    context: &Context,
    session: &str,
    is_start: bool,
    log: &HookLog,
) -> Result<Option<WakeUp>, String> {
    // The id begins with the time, so that a later waiter's is greater; so is a later request's of one waiter.
    let waiter = HookId::new(&Ids::random(), SystemClock.now());
    let mut request = waiter.to_string();
    if is_start {
        sleep(AFTER_START).await;
    }
    // Requests that the daemon may have answered without being heard.
    let mut unanswered = offline::unprinted(&context.paths.home, session);
    let path = format!("/v1/sessions/{}/wait", encode(session));
    let (mut failures, mut renewals) = (0, 0);
    let mut revival = DaemonRevival::default();
    loop {
        let body = json!({ "waiter": request, "lost": unanswered });
        let error = match post(context, &path, &body).await {
            Ok(WaitAnswer::Message { text, headline }) => {
                // Versions before 2.1.139 show all of it to the person, whose eye falls on the first line.
                let text = format!("{headline}\n{text}").trim_start().to_owned();
                return Ok(Some(WakeUp { text, request }));
            }
            Ok(WaitAnswer::Nothing) => {
                failures = 0;
                unanswered.clear();
                revival.is_there();
                continue;
            }
            Ok(WaitAnswer::Retired | WaitAnswer::Over) => return Ok(None),
            Err(error) => error,
        };
        if let ClientError::Connection { sent: true, .. }
        | ClientError::Timeout { .. }
        | ClientError::Unexpected { .. } = error
        {
            renewals += 1;
            let next = format!("{waiter}.{renewals:06}");
            unanswered.truncate(MAX_UNANSWERED);
            unanswered.insert(0, std::mem::replace(&mut request, next));
        }
        // The daemon is away, or does not know of the session's start yet.
        if !error.is_transient() && !is_unknown_session(&error) {
            return Err(error.to_string());
        }
        if let ClientError::NotRunning { .. } = error {
            revival.is_away(context, log).await;
        }
        sleep(backoff(failures, error.retry_after())).await;
        failures += 1;
    }
}

async fn post(context: &Context, path: &str, body: &Value) -> Result<WaitAnswer, ClientError> {
    let unusable = |error: anyhow::Error| ClientError::NotRunning { url: format!("{error:#}") };
    let discovery = context.discovery().map_err(unusable)?;
    let target = discovery.agent_target(process::client_or_own())?;
    Client::new(target).post(path, body).await
}

fn is_unknown_session(error: &ClientError) -> bool {
    matches!(error, ClientError::Problem(problem) if problem.status == StatusCode::NOT_FOUND)
}
