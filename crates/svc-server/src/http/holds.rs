//! Requests that hooks and plugins keep open: a hook holds a prompt of its session, and a plugin
//! receives texts for the sessions of its process. Both responses are lines of JSON, sent one at a
//! time.

use std::convert::Infallible;

use axum::{body::Body, response::Response};
use futures_util::stream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use svc_core::service::{
    handovers::{PluginHold, PluginReport},
    prompts::{HeldPrompt, HeldPromptState, OPEN_PROMPT_INTERVAL},
};
use svc_model::{Caller, MessageId};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{
    App, Problem,
    api::{Api, Operation},
    request::{ItemRequest, Json, JsonResult, json_lines},
};

pub(super) fn routes(api: Api) -> Api {
    let lines = |summary| Operation::new(summary).media(200, "application/x-ndjson");
    let texts = "Be given texts for the sessions of one's own process, for a plugin";
    let report_one = "Report the result of a text that a plugin was given";
    api.post(
        "/v1/prompts/{id}/hold",
        lines("Hold a prompt of one's own session, for its hook"),
        hold_prompt,
    )
    .post("/v1/prompts/{id}/printed", "Say that the answer to a held prompt is printed", printed)
    .post("/v1/handovers/hold", lines(texts), hold_texts)
    .post("/v1/handovers/{id}/report", report_one, report)
}

/// What a hold is told.
trait Hold: Send + 'static {
    /// The next line, and whether it is the last.
    fn next_line(&mut self) -> impl Future<Output = (Value, bool)> + Send;
}

fn state(word: &str) -> Value {
    json!({ "state": word })
}

/// `open` at once, then the lines of the hold, until the last one or the daemon's stop.
fn hold_response(stop: CancellationToken, hold: impl Hold) -> Response {
    let lines = stream::unfold((hold, true, false), move |(mut hold, is_first, is_over)| {
        let stop = stop.clone();
        async move {
            if is_over {
                return None;
            }
            let (line, is_last) = if is_first {
                (state("open"), false)
            } else {
                stop.run_until_cancelled(hold.next_line()).await?
            };
            Some((Ok::<_, Infallible>(format!("{line}\n")), (hold, false, is_last)))
        }
    });
    json_lines(Body::from_stream(lines))
}

async fn hold_prompt(item: ItemRequest) -> Result<Response, Problem> {
    let prompt = item.app.services.prompts.hold(&item.caller, &item.id).await?;
    Ok(hold_response(item.app.stop.clone(), prompt))
}

impl Hold for HeldPrompt {
    async fn next_line(&mut self) -> (Value, bool) {
        match self.next().await {
            HeldPromptState::Open => (state("open"), false),
            // The hook prints the answer while this connection is open.
            HeldPromptState::Answered(answer) => {
                (json!({ "state": "answer", "answer": answer }), false)
            }
            HeldPromptState::Printed | HeldPromptState::Over => (state("over"), true),
        }
    }
}

/// What was reported is noted.
#[derive(Serialize, JsonSchema)]
struct Noted {
    /// The request, or the hand-over.
    id: String,
}

async fn printed(item: ItemRequest) -> JsonResult<Noted> {
    item.app.services.prompts.printed(&item.caller, &item.id).await?;
    Ok(Json(Noted { id: item.id }))
}

async fn hold_texts(app: App, caller: Caller) -> Result<Response, Problem> {
    Ok(hold_response(app.stop.clone(), app.services.handovers.hold(&caller)?))
}

impl Hold for PluginHold {
    async fn next_line(&mut self) -> (Value, bool) {
        match timeout(OPEN_PROMPT_INTERVAL, self.next()).await {
            Ok(Some(word)) => (json!(word), false),
            Ok(None) => (state("over"), true),
            Err(_) => (state("open"), false),
        }
    }
}

/// What a plugin says of a hand-over.
#[derive(Deserialize, JsonSchema)]
struct HandoverReport {
    /// Result of the hand-over, or the answer to where the messages are.
    state: ReportedState,
    /// Of `shows`: the messages that are in the session.
    #[serde(default)]
    messages: Vec<MessageId>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ReportedState {
    Taken,
    Refused,
    Unknown,
    Shows,
    Unreadable,
}

async fn report(item: ItemRequest, Json(input): Json<HandoverReport>) -> JsonResult<Noted> {
    let report = match input.state {
        ReportedState::Taken => PluginReport::Taken,
        ReportedState::Refused => PluginReport::Refused,
        ReportedState::Unknown => PluginReport::Unknown,
        ReportedState::Shows => PluginReport::Shows(input.messages),
        ReportedState::Unreadable => PluginReport::Unreadable,
    };
    item.app.services.handovers.report(&item.caller, &item.id, report)?;
    Ok(Json(Noted { id: item.id }))
}
