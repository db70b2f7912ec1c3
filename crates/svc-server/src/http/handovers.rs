//! `/v1/handovers`: plugins of clients that are given texts for the sessions of their process.

use std::convert::Infallible;

use axum::{
    body::Body,
    extract::Path,
    http::{HeaderValue, header},
    response::Response,
};
use futures_util::stream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use svc_core::service::{
    handovers::{PluginHold, PluginReport},
    prompts::PROMPT_PULSE,
};
use svc_model::{Caller, MessageId};
use tokio::time::timeout;

use super::{App, Problem, api::Api, body::Json, openapi::Operation};

pub(super) fn routes(api: Api) -> Api {
    let on_hold =
        Operation::new("Be given texts for the sessions of one's own process, for a plugin");
    let on_hold = on_hold.answer_with(
        200,
        "A line each second, open, and one for each text: give, or look; over ends it",
        "application/x-ndjson",
    );
    let on_report = Operation::new("Say what became of a text that a plugin was given");
    let on_report = on_report.body::<HandoverReport>().answer::<ReportedHandover>(200, "Noted");
    api.post("/v1/handovers/hold", on_hold, hold).post(
        "/v1/handovers/{id}/report",
        on_report,
        report,
    )
}

/// A plugin's line.
struct HandoverFeed {
    line: PluginHold,
    is_first: bool,
    is_over: bool,
}

async fn hold(app: App, caller: Caller) -> Result<Response, Problem> {
    let line = app.services.handovers.hold(&caller)?;
    let stop = app.stop.clone();
    let feed = HandoverFeed { line, is_first: true, is_over: false };
    let lines = stream::unfold((feed, stop), |(mut feed, stop)| async move {
        if feed.is_over {
            return None;
        }
        let word = if std::mem::take(&mut feed.is_first) {
            json!({ "state": "open" })
        } else {
            let word = tokio::select! {
                word = timeout(PROMPT_PULSE, feed.line.next()) => word,
                () = stop.cancelled() => return None,
            };
            match word {
                Ok(Some(word)) => json!(word),
                Ok(None) => {
                    feed.is_over = true;
                    json!({ "state": "over" })
                }
                Err(_) => json!({ "state": "open" }),
            }
        };
        Some((Ok::<_, Infallible>(format!("{word}\n")), (feed, stop)))
    });
    let mut response = Response::new(Body::from_stream(lines));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

/// What a plugin says of a hand-over.
#[derive(Deserialize, JsonSchema)]
struct HandoverReport {
    /// What became of the text, or of the question where it is.
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

/// A text of which a plugin has told.
#[derive(Serialize, JsonSchema)]
struct ReportedHandover {
    handover_id: String,
}

async fn report(
    app: App,
    caller: Caller,
    Path(id): Path<String>,
    Json(input): Json<HandoverReport>,
) -> Result<Json<ReportedHandover>, Problem> {
    let report = match input.state {
        ReportedState::Taken => PluginReport::Taken,
        ReportedState::Refused => PluginReport::Refused,
        ReportedState::Unknown => PluginReport::Unknown,
        ReportedState::Shows => PluginReport::Shows(input.messages),
        ReportedState::Unreadable => PluginReport::Unreadable,
    };
    app.services.handovers.report(&caller, &id, report)?;
    Ok(Json(ReportedHandover { handover_id: id }))
}
