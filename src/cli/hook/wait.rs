//! `svc hook wait`: runs beside an idle Claude Code session (`asyncRewake`) until a message comes
//! for it, and wakes it by ending with exit code 2 and the message on standard error.

use std::cell::RefCell;
use std::process::ExitCode;
use std::time::Duration;

use http::StatusCode;
use rustix::process::Pid;
use serde::Deserialize;
use serde_json::{Value, json};
use svc_client::{Client, ClientError, backoff, encode};
use svc_model::{Clock as _, HookId, Ids, ProcessIdentity, SystemClock};
use svc_sys::config::Flags;
use svc_sys::process_list;
use tokio::time::sleep;

use super::hook_log::HookLog;
use super::revival::DaemonRevival;
use super::waiting_client::{WaitingClient, precedes_turn};
use super::{offline, payload, print};
use crate::cli::context::Context;
use crate::cli::process;

/// The exit code that Claude Code takes for "wake up".
const WAKE: u8 = 2;
/// How many requests without an answer are remembered.
const MAX_UNANSWERED: usize = 500;
/// How often the waiter looks whether its client still runs.
const CLIENT_POLL: Duration = Duration::from_secs(1);
/// How long the waiter tries to say that it has shown nobody what it was given.
const GIVE_BACK: Duration = Duration::from_secs(3);
/// How long a waiter lets the hook of the same event go first: what waits already goes with that,
/// and at the start of a session only a question wakes.
const AFTER_HOOK: Duration = Duration::from_millis(500);

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
    let log = HookLog::new(context);
    let result = payload::read().and_then(|payload| {
        let config = context.config(&Flags::default()).map_err(|error| format!("{error:#}"))?;
        let process = process_list::client_of_this();
        let client = WaitingClient::from_process(process.as_ref());
        if !client.can_be_woken(*config.hooks_wake, &context.env, &payload) {
            return Ok(false);
        }
        let session = payload.get("session_id").and_then(Value::as_str).map(str::to_owned);
        let session = session.ok_or("the payload has no session_id")?;
        let lets_hook_go_first = precedes_turn(&payload);
        let starter = HookStarter { parent: rustix::process::getppid(), process };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let waiter = Waiter { context, session: &session, starter, log: &log };
        runtime.block_on(waiter.run(lets_hook_go_first))
    });
    match result {
        Ok(true) => ExitCode::from(WAKE),
        Ok(false) => ExitCode::SUCCESS,
        Err(problem) => {
            log.note("wait", &problem);
            ExitCode::SUCCESS
        }
    }
}

/// Who started a hook: its parent, which may be a shell, and the client.
#[derive(Debug)]
pub(super) struct HookStarter {
    parent: Option<Pid>,
    process: Option<ProcessIdentity>,
}

impl HookStarter {
    pub(super) fn of_this() -> Self {
        Self { parent: rustix::process::getppid(), process: process_list::client_of_this() }
    }

    /// Whether nobody is there whom the hook could tell anything.
    fn is_gone(&self) -> bool {
        rustix::process::getppid() != self.parent
            || self.process.as_ref().is_some_and(|process| !process_list::is_same_running(process))
    }

    /// Returns when nobody is there.
    pub(super) async fn gone(&self) {
        while !self.is_gone() {
            sleep(CLIENT_POLL).await;
        }
    }
}

/// A message that ends the wait.
#[derive(Debug)]
struct WakeUp {
    text: String,
    /// The id of the request that it answers.
    request: String,
}

/// What a waiter waits with.
struct Waiter<'a> {
    context: &'a Context,
    session: &'a str,
    starter: HookStarter,
    log: &'a HookLog,
}

impl Waiter<'_> {
    /// Waits, and prints what came. Whether it did.
    async fn run(&self, lets_hook_go_first: bool) -> Result<bool, String> {
        // The id begins with the time, so that a later waiter's is greater; so is a later request's
        // of one waiter.
        let waiter = HookId::new(&Ids::random(), SystemClock.now()).to_string();
        let request = RefCell::new(waiter.clone());
        let wake_up = tokio::select! {
            wake_up = self.wait(lets_hook_go_first, &waiter, &request) => wake_up?,
            () = self.starter.gone() => {
                // It may have been given just now.
                let request = request.borrow().clone();
                self.give_back(&request).await;
                return Ok(false);
            }
        };
        let Some(WakeUp { text, request }) = wake_up else { return Ok(false) };
        let problem = if self.starter.is_gone() {
            "the client is gone".to_owned()
        } else {
            match print::print_line(std::io::stderr(), &text) {
                Ok(()) => return Ok(true),
                Err(error) => format!("standard error: {error}"),
            }
        };
        self.log.note("wait", &problem);
        self.give_back(&request).await;
        Ok(true)
    }

    /// Tells the daemon that nobody saw the answer to a request, or notes it for the session's next
    /// hook.
    async fn give_back(&self, request: &str) {
        let body = json!({ "waiter": request, "lost": [request], "seconds": 1 });
        let path = self.path();
        let told = tokio::time::timeout(GIVE_BACK, post(self.context, &path, &body)).await;
        if !matches!(told, Ok(Ok(_))) {
            offline::note_unprinted(&self.context.paths.home, self.session, request, self.log);
        }
    }

    fn path(&self) -> String {
        format!("/v1/sessions/{}/wait", encode(self.session))
    }

    /// Asks until a message comes. `request` is the id of the present question.
    async fn wait(
        &self,
        lets_hook_go_first: bool,
        waiter: &str,
        request: &RefCell<String>,
    ) -> Result<Option<WakeUp>, String> {
        if lets_hook_go_first {
            sleep(AFTER_HOOK).await;
        }
        // Requests that the daemon may have answered without being heard.
        let mut unanswered = offline::unprinted(&self.context.paths.home, self.session);
        let path = self.path();
        let (mut failures, mut renewals) = (0, 0);
        let mut revival = DaemonRevival::default();
        loop {
            let id = request.borrow().clone();
            let body = json!({ "waiter": id, "lost": unanswered });
            let error = match post(self.context, &path, &body).await {
                Ok(WaitAnswer::Message { text, headline }) => {
                    // Versions before 2.1.139 show all of it to the person, whose eye falls on the
                    // first line.
                    let text = format!("{headline}\n{text}").trim_start().to_owned();
                    return Ok(Some(WakeUp { text, request: id }));
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
                unanswered.truncate(MAX_UNANSWERED);
                unanswered.insert(0, request.replace(format!("{waiter}.{renewals:06}")));
            }
            // The daemon is away, or does not know of the session's start yet.
            if !error.is_transient() && !is_unknown_session(&error) {
                return Err(error.to_string());
            }
            if let ClientError::NotRunning { .. } = error {
                revival.is_away(self.context, self.log).await;
            }
            sleep(backoff(failures, error.retry_after())).await;
            failures += 1;
        }
    }
}

async fn post(context: &Context, path: &str, body: &Value) -> Result<WaitAnswer, ClientError> {
    let target = context.agent_discovery()?.agent_target(process::client_or_own())?;
    Client::new(target).post(path, body).await
}

fn is_unknown_session(error: &ClientError) -> bool {
    matches!(error, ClientError::Problem(problem) if problem.status == StatusCode::NOT_FOUND)
}
