//! `/v1/prompts`: hooks that hold the prompts of their clients.

use std::convert::Infallible;

use axum::{
    body::Body,
    extract::Path,
    http::{HeaderValue, header},
    response::Response,
};
use futures_util::stream;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use svc_core::service::prompts::{HeldPrompt, HeldPromptState};
use svc_model::Caller;

use super::{App, Problem, api::Api, body::Json, openapi::Operation};

pub(super) fn routes(api: Api) -> Api {
    let on_hold = Operation::new("Hold a prompt of one's own session, for its hook");
    let on_hold = on_hold.answer_with(
        200,
        "A line each second: open, answer or over; the last two end it",
        "application/x-ndjson",
    );
    let on_printed = Operation::new("Say that the answer to a held prompt is printed");
    let on_printed = on_printed.answer::<PrintedPrompt>(200, "Noted");
    api.post("/v1/prompts/{id}/hold", on_hold, hold).post(
        "/v1/prompts/{id}/printed",
        on_printed,
        printed,
    )
}

/// A hold and what is said of it.
struct PromptFeed {
    prompt: HeldPrompt,
    /// The next line, if it is known.
    next: Option<Value>,
    is_over: bool,
}

async fn hold(app: App, caller: Caller, Path(id): Path<String>) -> Result<Response, Problem> {
    let prompt = app.services.prompts.hold(&caller, &id).await?;
    let stop = app.stop.clone();
    let feed = PromptFeed { prompt, next: Some(json!({ "state": "open" })), is_over: false };
    let lines = stream::unfold((feed, stop), |(mut feed, stop)| async move {
        if let Some(line) = feed.next.take() {
            return Some((Ok::<_, Infallible>(format!("{line}\n")), (feed, stop)));
        }
        if feed.is_over {
            // The answer is printed while this end of the connection is open.
            return None;
        }
        let state = tokio::select! {
            state = feed.prompt.next() => state,
            () = stop.cancelled() => return None,
        };
        let line = match state {
            HeldPromptState::Open => json!({ "state": "open" }),
            HeldPromptState::Answered(answer) => json!({ "state": "answer", "answer": answer }),
            HeldPromptState::Printed | HeldPromptState::Over => {
                feed.is_over = true;
                json!({ "state": "over" })
            }
        };
        Some((Ok(format!("{line}\n")), (feed, stop)))
    });
    let mut response = Response::new(Body::from_stream(lines));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

/// A prompt whose answer is printed.
#[derive(Serialize, JsonSchema)]
struct PrintedPrompt {
    request_id: String,
}

async fn printed(
    app: App,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<PrintedPrompt>, Problem> {
    app.services.prompts.printed(&caller, &id).await?;
    Ok(Json(PrintedPrompt { request_id: id }))
}
