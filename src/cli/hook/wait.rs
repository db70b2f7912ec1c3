//! `svc hook wait`: runs beside an idle Claude Code session (`asyncRewake`) until a message comes for it, and wakes it by
//! ending with exit code 2 and the message on standard error.

use std::process::ExitCode;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::context::Context;
use super::{away, input, print, report::Report};
use crate::client::{Client, ClientError, backoff, encode};
use crate::config::Env;
use crate::domain::{Clock as _, HookId, Ids, SystemClock};

/// What Claude Code takes for "wake up".
const WAKE: u8 = 2;
/// What Claude Code names its sessions that run from a program: `claude -p` and the Agent SDK. They end only when all
/// hooks have, so a waiter would keep them for ever.
const HEADLESS: &str = "sdk-";
/// Of questions that nobody answered, how many are remembered.
const KEPT: usize = 500;
/// How often it is looked whether the client still lives.
const LOOK: Duration = Duration::from_secs(2);

#[derive(Debug, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum Waited {
    Message { text: String },
    Nothing,
    Retired,
    Over,
}

/// Waits. Exit code 2 if a message came, else 0.
pub(super) fn run(context: &Context) -> ExitCode {
    if is_headless(&context.env) {
        return ExitCode::SUCCESS;
    }
    let report = Report::of(context);
    let woken = input::read().and_then(|payload| {
        let session = payload.get("session_id").and_then(Value::as_str).map(str::to_owned);
        let session = session.ok_or("the payload has no session_id")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        runtime
            .block_on(async {
                tokio::select! {
                    text = wait(context, &session) => text,
                    () = orphaned() => Ok(None),
                }
            })
            .map(|woken| woken.map(|woken| (session, woken)))
    });
    match woken {
        Ok(Some((session, Woken { text, question }))) => {
            if let Err(error) = print::whole(std::io::stderr(), &text) {
                report.note("wait", &format!("standard error: {error}"));
                away::note_lost(&context.paths.home, &session, &question, &report);
            }
            ExitCode::from(WAKE)
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(problem) => {
            report.note("wait", &problem);
            ExitCode::SUCCESS
        }
    }
}

/// Whether nobody would type the next prompt. `SVC_HOOK_WAIT=always` is for programs that keep such a session open, and
/// end it themselves.
fn is_headless(env: &Env) -> bool {
    let text = |name: &str| env.text(name).ok().flatten();
    text("CLAUDE_CODE_ENTRYPOINT").is_some_and(|it| it.starts_with(HEADLESS))
        && text("SVC_HOOK_WAIT") != Some("always")
}

/// Returns when the process that started this one is gone.
async fn orphaned() {
    let parent = rustix::process::getppid();
    while rustix::process::getppid() == parent {
        sleep(LOOK).await;
    }
}

/// A message came.
#[derive(Debug)]
struct Woken {
    text: String,
    /// Which question it is the answer to.
    question: String,
}

async fn wait(context: &Context, session: &str) -> Result<Option<Woken>, String> {
    // Begins with the time, so that a later waiter's is greater; and of one waiter, a later question's.
    let waiter = HookId::new(&Ids::random(), SystemClock.now());
    let mut question = waiter.to_string();
    // Questions that the daemon may have answered, and nobody heard it.
    let mut lost = away::lost(&context.paths.home, session);
    let path = format!("/v1/sessions/{}/wait", encode(session));
    let (mut failures, mut unheard) = (0, 0);
    loop {
        let body = json!({ "waiter": question, "lost": lost });
        let error = match ask(context, &path, &body).await {
            Ok(Waited::Message { text }) => return Ok(Some(Woken { text, question })),
            Ok(Waited::Nothing) => {
                failures = 0;
                lost.clear();
                continue;
            }
            Ok(Waited::Retired | Waited::Over) => return Ok(None),
            Err(error) => error,
        };
        if let ClientError::Connection { sent: true, .. }
        | ClientError::Timeout { .. }
        | ClientError::Unexpected { .. } = error
        {
            unheard += 1;
            let next = format!("{waiter}.{unheard:06}");
            lost.truncate(KEPT);
            lost.insert(0, std::mem::replace(&mut question, next));
        }
        // The daemon is away, or has not heard of the session's start yet.
        if !error.is_transient() && !is_unknown(&error) {
            return Err(error.to_string());
        }
        sleep(backoff(failures, error.retry_after())).await;
        failures += 1;
    }
}

async fn ask(context: &Context, path: &str, body: &Value) -> Result<Waited, ClientError> {
    let unusable = |error: anyhow::Error| ClientError::NotRunning { url: format!("{error:#}") };
    let discovery = context.discovery().map_err(unusable)?;
    let target = discovery.target()?;
    if !discovery.is_fixed() && target.daemon.is_none() {
        return Err(ClientError::NotRunning { url: target.url.to_string() });
    }
    Client::new(target).post(path, body).await
}

fn is_unknown(error: &ClientError) -> bool {
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
}
