//! `/v1/sessions/{id}/history`: the conversation of a session.

use axum::extract::Path;
use svc_core::service::conversations::{SessionHistory, SessionHistoryQuery};
use svc_model::Caller;

use super::{
    App, Problem,
    api::Api,
    body::{Json, Query},
    openapi::Operation,
};

pub(super) fn routes(api: Api) -> Api {
    let on_history =
        Operation::new("What was said in a session, by its key").query::<SessionHistoryQuery>();
    let on_history = on_history.answer::<SessionHistory>(200, "The texts, the oldest first");
    api.list("/v1/sessions/{id}/history", on_history, history)
}

async fn history(
    app: App,
    caller: Caller,
    Path(id): Path<String>,
    Query(query): Query<SessionHistoryQuery>,
) -> Result<Json<SessionHistory>, Problem> {
    let own = app.services.team.default_session(&caller).await?;
    let history = app.services.conversations.history(&caller, own.as_deref(), &id, &query).await?;
    Ok(Json(history))
}
