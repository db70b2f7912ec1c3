//! `/v1/tools`: what a model may ask of the daemon. Calling them is the business of MCP.

use axum::extract::State;
use schemars::JsonSchema;
use serde::Deserialize;
use svc_core::{
    service::{Page, check},
    tools::Descriptor,
};
use svc_model::{Caller, limits};

use super::{
    App, Problem,
    api::Api,
    body::{Json, Query},
    list::List,
    openapi::Operation,
};

pub(super) fn routes(api: Api) -> Api {
    let on_list = Operation::new("Tools that the caller may call, by name").query::<ListTools>();
    api.get("/v1/tools", on_list.answer::<List<Descriptor>>(200, "A page of tools"), list)
}

#[derive(Deserialize, JsonSchema)]
struct ListTools {
    /// Only this family, such as `peers` or `tasks`.
    family: Option<String>,
    /// 1 to 500, by default 50.
    #[schemars(extend("minimum" = 1, "maximum" = limits::PAGE_MAX, "default" = limits::PAGE_DEFAULT))]
    limit: Option<u32>,
    cursor: Option<String>,
}

async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ListTools>,
) -> Result<Json<List<Descriptor>>, Problem> {
    let limit = check::limit(query.limit)? as usize;
    let after: Option<String> = check::cursor(query.cursor.as_deref())?;
    let mut open = app.tools.open_to(&caller);
    open.sort_by(|a, b| a.name().cmp(b.name()));
    let mut rest = open.into_iter().filter(|tool| {
        // The name in a cursor need not be there any more.
        after.as_deref().is_none_or(|after| tool.name() > after)
            && query.family.as_deref().is_none_or(|family| tool.family_name() == family)
    });
    let items: Vec<Descriptor> =
        rest.by_ref().take(limit).map(|tool| Descriptor::of(&tool)).collect();
    let more = rest.next().is_some();
    let next_cursor = items.last().filter(|_| more).map(|last| check::make_cursor(&last.name));
    Ok(Json(Page { items, next_cursor }.into()))
}
