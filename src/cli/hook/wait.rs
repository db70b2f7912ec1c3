//! `svc hook wait`: runs beside an idle Claude Code session (`asyncRewake`) until a message comes for it, and wakes it by
//! ending with exit code 2 and the message on standard error.

use std::process::ExitCode;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::{context::Context, output};
use super::{input, report::Report};
use crate::client::{Client, ClientError, backoff, encode};
use crate::config::Env;
use crate::domain::{Clock as _, HookId, Ids, SystemClock};

/// What Claude Code takes for "wake up".
const WAKE: u8 = 2;
/// What Claude Code names its sessions that run from a program: `claude -p` and the Agent SDK. They end only when all
/// hooks have, so a waiter would keep them for ever.
const HEADLESS: &str = "sdk-";
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
        runtime.block_on(async {
            tokio::select! {
                text = wait(context, &session) => text,
                () = orphaned() => Ok(None),
            }
        })
    });
    match woken {
        Ok(Some(text)) => {
            output::note(&text);
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

async fn wait(context: &Context, session: &str) -> Result<Option<String>, String> {
    // Begins with the time, so that a later waiter's is greater.
    let body = json!({ "waiter": HookId::new(&Ids::random(), SystemClock.now()) });
    let path = format!("/v1/sessions/{}/wait", encode(session));
    let mut failures = 0;
    loop {
        match ask(context, &path, &body).await {
            Ok(Waited::Message { text }) => return Ok(Some(text)),
            Ok(Waited::Nothing) => failures = 0,
            Ok(Waited::Retired | Waited::Over) => return Ok(None),
            // The daemon is away, or has not heard of the session's start yet.
            Err(error) if error.is_transient() || is_unknown(&error) => {
                sleep(backoff(failures, error.retry_after())).await;
                failures += 1;
            }
            Err(error) => return Err(error.to_string()),
        }
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
