//! `svc hook wait`: runs beside an idle Claude Code session (`asyncRewake`) until a message comes for it, and wakes it by
//! ending with exit code 2 and the message on standard error.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::process::ExitCode;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use svc_install::ClientVersion;
use tokio::time::sleep;

use super::hook_log::HookLog;
use super::{offline, payload, print};
use crate::cli::context::Context;
use crate::cli::process;
use crate::client::{Client, ClientError, backoff, encode};
use crate::config::Env;
use crate::domain::{Clock as _, HookId, Ids, SystemClock};

/// The exit code that Claude Code takes for "wake up".
const WAKE: u8 = 2;
/// Prefix of the entry points of sessions that a program runs: `claude -p` and the Agent SDK. Such a session ends only
/// when all its hooks have, so a waiter would keep it for ever.
const HEADLESS: &str = "sdk-";
/// How many requests without an answer are remembered.
const MAX_UNANSWERED: usize = 500;
/// The first version of Claude Code that runs the waiter beside the session. An earlier one would wait for it at the end of
/// each turn.
const REWAKE_SINCE: ClientVersion = ClientVersion([2, 1, 64]);
/// Bytes at the end of a transcript in which its version is looked for.
const MAX_TRANSCRIPT: u64 = 1024 * 1024;
/// How often the waiter looks whether its client still runs.
const PARENT_POLL: Duration = Duration::from_secs(2);

/// The daemon's answer to one request.
#[derive(Debug, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum WaitAnswer {
    /// A message came for the session.
    Message { text: String },
    /// None came within the daemon's time limit.
    Nothing,
    /// Another waiter has taken this one's place.
    Retired,
    /// The session is over.
    Over,
}

/// Waits. Exit code 2 if a message came, else 0.
pub(super) fn run(context: &Context) -> ExitCode {
    if is_headless(&context.env) {
        return ExitCode::SUCCESS;
    }
    let log = HookLog::of(context);
    let result = payload::read().and_then(|payload| {
        if client_version(&payload).is_some_and(|version| version < REWAKE_SINCE) {
            return Ok(None);
        }
        let session = payload.get("session_id").and_then(Value::as_str).map(str::to_owned);
        let session = session.ok_or("the payload has no session_id")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        runtime
            .block_on(async {
                tokio::select! {
                    wake_up = wait(context, &session) => wake_up,
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

/// Whether a program runs the session. `SVC_HOOK_WAIT=always` is for programs that keep such a session open and end it
/// themselves.
fn is_headless(env: &Env) -> bool {
    let text = |name: &str| env.text(name).ok().flatten();
    text("CLAUDE_CODE_ENTRYPOINT").is_some_and(|entry| entry.starts_with(HEADLESS))
        && text("SVC_HOOK_WAIT") != Some("always")
}

/// The version of Claude Code that runs the session, as the last record in its transcript that has one says it.
fn client_version(payload: &Value) -> Option<ClientVersion> {
    let mut file = File::open(payload.get("transcript_path")?.as_str()?).ok()?;
    let length = file.metadata().ok()?.len();
    let begin = length.saturating_sub(MAX_TRANSCRIPT);
    file.seek(SeekFrom::Start(begin)).ok()?;
    let mut end = Vec::new();
    file.take(MAX_TRANSCRIPT).read_to_end(&mut end).ok()?;
    // Of the first line there may be only a part, which is then no JSON.
    end.split(|byte| *byte == b'\n').rev().find_map(|line| {
        let record: Value = serde_json::from_slice(line).ok()?;
        ClientVersion::parse(record.get("version")?.as_str()?)
    })
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

async fn wait(context: &Context, session: &str) -> Result<Option<WakeUp>, String> {
    // The id begins with the time, so that a later waiter's is greater; so is a later request's of one waiter.
    let waiter = HookId::new(&Ids::random(), SystemClock.now());
    let mut request = waiter.to_string();
    // Requests that the daemon may have answered without being heard.
    let mut unanswered = offline::unprinted(&context.paths.home, session);
    let path = format!("/v1/sessions/{}/wait", encode(session));
    let (mut failures, mut renewals) = (0, 0);
    loop {
        let body = json!({ "waiter": request, "lost": unanswered });
        let error = match post(context, &path, &body).await {
            Ok(WaitAnswer::Message { text }) => return Ok(Some(WakeUp { text, request })),
            Ok(WaitAnswer::Nothing) => {
                failures = 0;
                unanswered.clear();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_without_a_person_is_not_kept_open() {
        let cases: [(&[(&str, &str)], bool); 5] = [
            (&[], false),
            (&[("CLAUDE_CODE_ENTRYPOINT", "cli")], false),
            (&[("CLAUDE_CODE_ENTRYPOINT", "sdk-cli")], true),
            (&[("CLAUDE_CODE_ENTRYPOINT", "sdk-ts")], true),
            (&[("CLAUDE_CODE_ENTRYPOINT", "sdk-cli"), ("SVC_HOOK_WAIT", "always")], false),
        ];
        for (variables, headless) in cases {
            let env = variables.iter().copied().collect();
            assert_eq!(is_headless(&env), headless, "{variables:?}");
        }
    }

    #[test]
    fn the_transcript_says_which_version_runs_the_session() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.jsonl");
        let version = |text: &str| {
            std::fs::write(&path, text).expect("writes");
            client_version(&json!({ "transcript_path": path })).map(|version| version.to_string())
        };
        assert_eq!(version(""), None);
        let resumed =
            "{\"version\":\"2.0.0\"}\n{\"version\":\"2.1.330\"}\n{\"a\":{\"version\":\"1.0.0\"}}\n";
        assert_eq!(version(resumed).as_deref(), Some("2.1.330"));
        let long = format!(
            "{{\"version\":\"2.1.1\",\"a\":\"{}\"}}\n{{\"version\":\"2.0.60\"}}",
            "x".repeat(2_000_000)
        );
        assert_eq!(version(&long).as_deref(), Some("2.0.60"));
        assert_eq!(client_version(&json!({ "transcript_path": "/nowhere" })), None);
        assert!(
            ClientVersion([2, 0, 60]) < REWAKE_SINCE && ClientVersion([2, 1, 138]) > REWAKE_SINCE
        );
    }
}
