//! `svc hook wait`: runs beside an idle Claude Code session (`asyncRewake`) until a message for the
//! session arrives. Then it wakes the session by exit code 2, with the message on standard error.
//!
//! A waiter also restarts a daemon that was killed while all sessions were idle, as no other
//! process of svc runs then. A daemon that ends by itself (`svc stop`, a signal, a log-out) removes
//! `daemon.json`, so the file without its process shows that the daemon was killed.

use std::cell::RefCell;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use http::StatusCode;
use rustix::process::Pid;
use serde::Deserialize;
use serde_json::{Value, json};
use svc_client::{Client, ClientError, backoff, encode};
use svc_model::{Clock as _, HookId, Ids, ProcessIdentity, SystemClock, limits};
use svc_server::daemon::{stays_stopped, was_killed};
use svc_sys::config::Flags;
use svc_sys::{process_list, telemetry};
use tokio::time::{Instant, sleep};

use super::delivery;
use super::io::{HookLog, print_line, read_payload};
use super::waiting_client::{WaitingClient, precedes_turn};
use crate::cli::context::Context;
use crate::cli::{daemon, program};

/// The exit code that Claude Code takes for "wake up".
const WAKE: u8 = 2;
/// Most requests without a response that are remembered.
const MAX_UNANSWERED: usize = 500;
/// Poll interval for the end of the client.
const CLIENT_POLL: Duration = Duration::from_secs(1);
/// Deadline for telling the daemon that a message was shown to nobody.
const GIVE_BACK: Duration = Duration::from_secs(3);
/// Delay before the first request. It lets the hook of the same event deliver the messages that
/// wait already; at the start of a session only a question wakes.
const AFTER_HOOK: Duration = Duration::from_millis(500);

#[derive(Debug, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum WaitAnswer {
    Message {
        text: String,
        /// Empty from an earlier daemon.
        #[serde(default)]
        headline: String,
    },
    /// No message came within the daemon's time limit.
    Nothing,
    /// Another waiter has replaced this one.
    Retired,
    Over,
}

/// Exit code 2 if a message came, else 0.
pub(super) fn run(context: &Context) -> ExitCode {
    let log = HookLog::in_home(Some(&context.paths.home));
    let result = read_payload().and_then(|payload| {
        let config =
            context.config(&Flags::default()).map_err(|error| telemetry::chain(&*error))?;
        let starter = HookStarter::of_this();
        let client = WaitingClient::from_process(starter.process.as_ref());
        if !client.can_be_woken(*config.hooks_wake, &context.env, &payload) {
            return Ok(false);
        }
        let session = payload.get("session_id").and_then(Value::as_str).map(str::to_owned);
        let session = session.ok_or("the payload has no session_id")?;
        let lets_hook_go_first = precedes_turn(&payload);
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

/// The processes that started a hook: its parent, which may be a shell, and the client.
pub(super) struct HookStarter {
    parent: Option<Pid>,
    process: Option<ProcessIdentity>,
}

impl HookStarter {
    pub(super) fn of_this() -> Self {
        Self { parent: rustix::process::getppid(), process: process_list::client_of_this() }
    }

    /// Whether the parent or the client has ended, so that nobody reads the hook's output.
    fn is_gone(&self) -> bool {
        rustix::process::getppid() != self.parent
            || self.process.as_ref().is_some_and(|process| !process_list::is_same_running(process))
    }

    /// Returns when the parent or the client has ended.
    pub(super) async fn gone(&self) {
        while !self.is_gone() {
            sleep(CLIENT_POLL).await;
        }
    }
}

struct Waiter<'a> {
    context: &'a Context,
    session: &'a str,
    starter: HookStarter,
    log: &'a HookLog,
}

impl Waiter<'_> {
    /// Waits and prints the message. Returns whether one came.
    async fn run(&self, lets_hook_go_first: bool) -> Result<bool, String> {
        // Ids grow with time, so waiters and the requests of one waiter are ordered by id.
        let waiter = HookId::new(&Ids::random(), SystemClock.now()).to_string();
        let requests = RefCell::new(vec![waiter.clone()]);
        let ended = tokio::select! {
            ended = self.wait(lets_hook_go_first, &waiter, &requests) => Some(ended),
            () = self.starter.gone() => None,
        };
        // The daemon may have answered each of these.
        let unseen = requests.take();
        let (text, request) = match ended {
            Some(Ok(Some(wake_up))) => wake_up,
            Some(Ok(None)) => return Ok(false),
            Some(Err(problem)) => {
                if unseen.len() > 1 {
                    self.give_back(&unseen).await;
                }
                return Err(problem);
            }
            None => {
                self.give_back(&unseen).await;
                return Ok(false);
            }
        };
        let problem = if self.starter.is_gone() {
            "the client is gone".to_owned()
        } else {
            match print_line(io::stderr(), &text) {
                Ok(()) => return Ok(true),
                Err(error) => format!("standard error: {error}"),
            }
        };
        self.log.note("wait", &problem);
        self.give_back(&[request]).await;
        Ok(true)
    }

    /// Tells the daemon that nobody saw the answers to requests, or leaves that to the session's
    /// next hook.
    async fn give_back(&self, requests: &[String]) {
        let body = json!({ "waiter": requests.last(), "lost": requests, "seconds": 1 });
        let path = self.path();
        let told = tokio::time::timeout(GIVE_BACK, post(self.context, &path, &body)).await;
        if !matches!(told, Ok(Ok(_))) {
            let (home, process) = (&self.context.paths.home, self.starter.process.as_ref());
            delivery::note_unprinted(home, (self.session, process), requests, self.log);
        }
    }

    fn path(&self) -> String {
        format!("/v1/sessions/{}/wait", encode(self.session))
    }

    /// Repeats requests until a message arrives. `requests` holds the ids of those whose answers
    /// may have been lost, and last the id of the current request. Returns the message and the id
    /// of the request that it answers.
    async fn wait(
        &self,
        lets_hook_go_first: bool,
        waiter: &str,
        requests: &RefCell<Vec<String>>,
    ) -> Result<Option<(String, String)>, String> {
        if lets_hook_go_first {
            sleep(AFTER_HOOK).await;
        }
        // Answers to the session's other hooks and earlier waiters.
        let mut unprinted = delivery::unprinted(&self.context.paths.home, self.session);
        let path = self.path();
        let (mut failures, mut renewals) = (0, 0);
        let mut restarter = DaemonRestarter::default();
        loop {
            let mut lost = requests.borrow().clone();
            let id = lost.pop().unwrap_or_default();
            lost.extend_from_slice(&unprinted);
            lost.truncate(limits::HOOKS_LOST);
            let body = json!({ "waiter": id, "lost": lost });
            let error = match post(self.context, &path, &body).await {
                Ok(WaitAnswer::Message { text, headline }) => {
                    // Claude Code before 2.1.139 shows all of the text to the person, hence the
                    // headline.
                    let text = format!("{headline}\n{text}").trim_start().to_owned();
                    return Ok(Some((text, id)));
                }
                Ok(WaitAnswer::Nothing) => {
                    failures = 0;
                    unprinted.clear();
                    *requests.borrow_mut() = vec![id];
                    restarter.note_present();
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
                let mut requests = requests.borrow_mut();
                requests.push(format!("{waiter}.{renewals:06}"));
                if requests.len() > MAX_UNANSWERED {
                    requests.remove(0);
                }
            }
            // The daemon is away, or does not know yet that the session has started.
            if !error.is_transient() && !is_unknown_session(&error) {
                return Err(error.to_string());
            }
            if let ClientError::NotRunning { .. } = error {
                restarter.note_away(self.context, self.log).await;
            }
            sleep(backoff(failures, error.retry_after())).await;
            failures += 1;
        }
    }
}

async fn post(context: &Context, path: &str, body: &Value) -> Result<WaitAnswer, ClientError> {
    let target = context.agent_discovery()?.agent_target(program::client_or_own())?;
    Client::new(target).post(path, body).await
}

fn is_unknown_session(error: &ClientError) -> bool {
    matches!(error, ClientError::Problem(problem) if problem.status == StatusCode::NOT_FOUND)
}

/// Grace period for a service manager or a person to restart the daemon.
const GRACE: Duration = Duration::from_secs(3);
/// Most starts by one waiter within [`STARTS_WINDOW`]. Limits the restarts of a daemon that crashes
/// at its start.
const STARTS: usize = 3;
const STARTS_WINDOW: Duration = Duration::from_mins(1);

/// When one waiter first noticed that the daemon is away, and its last starts.
#[derive(Debug, Default)]
struct DaemonRestarter {
    away_since: Option<Instant>,
    starts: Vec<Instant>,
}

impl DaemonRestarter {
    fn note_present(&mut self) {
        self.away_since = None;
    }

    /// Notes that no daemon runs. Starts one if the last was killed at least [`GRACE`] ago. Of
    /// several daemons that waiters start concurrently, one remains.
    async fn note_away(&mut self, context: &Context, log: &HookLog) {
        // A daemon at a URL may be on another machine.
        let is_local = context.agent_discovery().is_ok_and(|discovery| discovery.fixed().is_none());
        if !is_local || !was_killed(&context.paths) || stays_stopped(&context.paths) {
            self.away_since = None;
            return;
        }
        let is_long = self.away_since.get_or_insert_with(Instant::now).elapsed() >= GRACE;
        self.starts.retain(|at| at.elapsed() < STARTS_WINDOW);
        if !is_long || self.starts.len() >= STARTS {
            return;
        }
        self.starts.push(Instant::now());
        if let Err(error) = daemon::ensure_apart(context).await {
            let why = telemetry::chain(&*error);
            log.note("wait", &format!("the daemon was killed and could not be started: {why}"));
        }
        // The next outage begins with a grace period again.
        self.away_since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::context::GlobalFlags;

    #[tokio::test]
    async fn waiter_does_not_restart_a_daemon_that_was_stopped() {
        let folder = tempfile::tempdir().expect("a folder");
        let flags = GlobalFlags { home: Some(folder.path().to_owned()), ..GlobalFlags::default() };
        let context = Context::new(flags).expect("a context");
        let log = HookLog::in_home(Some(&context.paths.home));
        let mut restarter = DaemonRestarter::default();
        restarter.note_away(&context, &log).await;
        assert_eq!(restarter.away_since, None, "there never was one");
        let file =
            r#"{"pid":1,"url":"http://127.0.0.1:1","version":"0","boot_id":"b","started_at":"t"}"#;
        std::fs::write(&context.paths.daemon_json, file).expect("writes");
        restarter.note_away(&context, &log).await;
        let since = restarter.away_since.expect("it was killed");
        restarter.note_away(&context, &log).await;
        assert_eq!(restarter.away_since, Some(since), "others have time to start it");
        svc_server::daemon::forget_killed(&context.paths);
        restarter.note_away(&context, &log).await;
        assert_eq!(restarter.away_since, None, "somebody stopped it");
        assert!(restarter.starts.is_empty(), "nothing was started");
    }
}
