//! Holds a prompt of Claude Code beside its dialog until somebody answers it in svc or in the
//! dialog.
//!
//! The client uses the hook's output as the answer unless the person answers first. This module
//! builds the output from the client's payload; the daemon says which option was chosen.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use http::{HeaderMap, Method};
use serde::Deserialize as _;
use serde_json::{Value, json};
use svc_client::{Client, encode};
use svc_model::hook::{AnswerRequest, ClaudePrompt};
use svc_sys::lines::LineSplitter;
use svc_wire::mcp_request::McpRequest;
use tokio::time::timeout;

use super::io::{HookLog, print_line};
use super::wait::HookStarter;
use crate::cli::context::Context;
use crate::cli::program;

/// After this much silence the daemon counts as gone, and the hook stops holding the prompt.
const SILENCE: Duration = Duration::from_secs(2);
/// Longest line, in bytes: an answer in words.
const MAX_LINE: usize = 1024 * 1024;

pub(super) fn hold(context: &Context, request: &str, payload: &Value, log: &HookLog) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let held = runtime
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(follow(context, request, payload)));
    if let Err(problem) = held {
        log.note("claude PermissionRequest", &problem.to_string());
    }
}

async fn follow(context: &Context, request: &str, payload: &Value) -> Result<()> {
    let starter = HookStarter::of_this();
    let prompt = ClaudePrompt::read(payload).context("the payload names no tool")?;
    let target = context.agent_discovery()?.agent_target(program::client_or_own())?;
    let client = Client::new(target);
    let path = format!("/v1/prompts/{}/hold", encode(request));
    let body = json!({}).to_string().into();
    let hold = McpRequest { method: Method::POST, headers: HeaderMap::new(), body };
    let mut stream = timeout(SILENCE, client.open(&path, &hold)).await.context("no answer")??;
    if !stream.status.is_success() {
        bail!("{}", stream.collect().await?.problem());
    }
    let mut lines = LineSplitter::dropping_excess(MAX_LINE);
    loop {
        let chunk = tokio::select! {
            chunk = timeout(SILENCE, stream.chunk()) => chunk,
            () = starter.gone() => return Ok(()),
        };
        let Some(chunk) = chunk.context("the daemon is silent")?? else { return Ok(()) };
        let mut words = Vec::new();
        lines.push(&chunk, |line| words.push(serde_json::from_slice::<Value>(line.bytes)));
        for word in words {
            let word = word?;
            match word["state"].as_str() {
                // Nobody has answered yet.
                Some("open") => {}
                Some("over") => return Ok(()),
                Some("answer") => {
                    let answer = AnswerRequest::deserialize(&word["answer"])?;
                    return print_answer(&client, request, &prompt, &answer).await;
                }
                _ => bail!("the daemon says something unknown"),
            }
        }
    }
}

/// Prints the answer for the client, and tells the daemon so.
async fn print_answer(
    client: &Client,
    request: &str,
    prompt: &ClaudePrompt,
    answer: &AnswerRequest,
) -> Result<()> {
    let output = prompt
        .output(answer)
        .map_err(|refused| anyhow!("the prompt takes no such answer: {refused:?}"))?;
    print_line(std::io::stdout(), &output.to_string())?;
    let path = format!("/v1/prompts/{}/printed", encode(request));
    let told = timeout(SILENCE, client.post::<Value>(&path, &json!({}))).await;
    told.context("the daemon was not told that the answer is printed")??;
    Ok(())
}
