//! Holds a prompt of Claude Code beside its dialog until somebody answers it, here or there.
//!
//! The client takes what the hook prints for the answer, if the person has not answered first. The
//! output is made here, from what the client told: the daemon says which option was chosen.

use std::time::Duration;

use http::{HeaderMap, Method};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use svc_client::{Client, ClientError, encode};
use svc_model::hook::{ClaudePrompt, PromptAnswer};
use svc_sys::lines::LineSplitter;
use svc_wire::mcp_request::McpRequest;
use tokio::time::timeout;

use super::hook_log::HookLog;
use super::print;
use super::wait::HookStarter;
use crate::cli::context::Context;
use crate::cli::process;

/// After this silence of the daemon nobody can answer here any more.
const SILENCE: Duration = Duration::from_secs(2);
/// Longest line, in bytes: an answer in words.
const MAX_LINE: usize = 1024 * 1024;

/// What the daemon says of a prompt.
#[derive(Debug, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum HeldPromptLine {
    /// Nobody has answered.
    Open,
    /// This is the answer.
    Answer { answer: HeldAnswer },
    /// It is over.
    Over,
}

#[derive(Debug, Deserialize)]
struct HeldAnswer {
    option_id: Option<String>,
    text: Option<String>,
    answers: Option<Map<String, Value>>,
}

/// Holds a request, and prints the answer if there is one.
pub(super) fn hold(context: &Context, request: &str, payload: &Value, log: &HookLog) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let held = runtime
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(follow(context, request, payload)));
    if let Err(problem) = held {
        log.note("claude PermissionRequest", &problem);
    }
}

async fn follow(context: &Context, request: &str, payload: &Value) -> Result<(), String> {
    let starter = HookStarter::of_this();
    let prompt = ClaudePrompt::read(payload).ok_or("the payload names no tool")?;
    let client = client(context)?;
    let path = format!("/v1/prompts/{}/hold", encode(request));
    let body = json!({}).to_string().into();
    let hold = McpRequest { method: Method::POST, headers: HeaderMap::new(), body };
    let opened = timeout(SILENCE, client.open(&path, &hold)).await;
    let mut stream = opened.map_err(|_| "no answer".to_owned())?.map_err(text)?;
    if !stream.status.is_success() {
        let reply = stream.collect().await.map_err(text)?;
        return Err(reply.problem().to_string());
    }
    let mut lines = LineSplitter::dropping_excess(MAX_LINE);
    loop {
        let chunk = tokio::select! {
            chunk = timeout(SILENCE, stream.chunk()) => chunk,
            // The client was killed, and nobody is asked any more.
            () = starter.gone() => return Ok(()),
        };
        let chunk = chunk.map_err(|_| "the daemon is silent".to_owned())?.map_err(text)?;
        let Some(chunk) = chunk else { return Ok(()) };
        let mut words = Vec::new();
        lines.push(&chunk, |line| words.push(serde_json::from_slice::<HeldPromptLine>(line.bytes)));
        for word in words {
            match word.map_err(|error| error.to_string())? {
                HeldPromptLine::Open => {}
                HeldPromptLine::Over => return Ok(()),
                HeldPromptLine::Answer { answer } => {
                    return print_answer(&client, request, &prompt, &answer).await;
                }
            }
        }
    }
}

/// Prints what the client takes for an answer, and says that it is printed.
async fn print_answer(
    client: &Client,
    request: &str,
    prompt: &ClaudePrompt,
    answer: &HeldAnswer,
) -> Result<(), String> {
    let output = prompt
        .output(PromptAnswer {
            option_id: answer.option_id.as_deref(),
            text: answer.text.as_deref(),
            answers: answer.answers.as_ref(),
        })
        .map_err(|refused| format!("the prompt takes no such answer: {refused:?}"))?;
    print::print_line(std::io::stdout(), &output.to_string()).map_err(|error| error.to_string())?;
    let path = format!("/v1/prompts/{}/printed", encode(request));
    let told = timeout(SILENCE, client.post::<Value>(&path, &json!({}))).await;
    told.map_err(|_| "the daemon was not told that the answer is printed".to_owned())?
        .map(drop)
        .map_err(text)
}

fn client(context: &Context) -> Result<Client, String> {
    let discovery = context.agent_discovery().map_err(text)?;
    Ok(Client::new(discovery.agent_target(process::client_or_own()).map_err(text)?))
}

#[expect(clippy::needless_pass_by_value, reason = "an argument of map_err")]
fn text(error: ClientError) -> String {
    error.to_string()
}
