//! `/v1/sessions/{id}/history`: what was said in a session.

use axum::extract::{Path, State};
use schemars::JsonSchema;
use serde::Deserialize;
use svc_core::service::conversations::{SessionHistory, SessionHistoryQuery};
use svc_model::{Caller, limits};

use super::{
    App, Problem,
    api::Api,
    body::{Json, Query},
    openapi::Operation,
};

pub(super) fn routes(api: Api) -> Api {
    let on_history =
        Operation::new("What was said in a session, by its key").query::<HistoryOfSession>();
    let on_history = on_history.answer::<SessionHistory>(200, "The texts, the oldest first");
    api.list("/v1/sessions/{id}/history", on_history, history)
}

#[derive(Deserialize, JsonSchema)]
struct HistoryOfSession {
    /// How many of the last texts: 1 to 500, by default 50.
    #[schemars(extend("minimum" = 1, "maximum" = limits::PAGE_MAX, "default" = limits::PAGE_DEFAULT))]
    limit: Option<u32>,
    /// The `before` of the page that one has: older texts.
    before: Option<String>,
    /// Also calls of tools and their results.
    include_tools: Option<bool>,
}

async fn history(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Query(query): Query<HistoryOfSession>,
) -> Result<Json<SessionHistory>, Problem> {
    let query = SessionHistoryQuery {
        limit: query.limit,
        before: query.before,
        with_tools: query.include_tools.unwrap_or(false),
    };
    let own = app.services.team.default_session(&caller).await?;
    let history = app.services.conversations.history(&caller, own.as_deref(), &id, &query).await?;
    Ok(Json(history))
}
