//! `/v1/tools`: lists the tools that models call. MCP calls them.

use svc_core::{
    service::{Page, check},
    tools::Descriptor,
};
use svc_model::{Caller, PageQuery, ToolFilter};

use super::{
    App, Problem,
    api::Api,
    body::{Json, Query},
    openapi::Operation,
};

pub(super) fn routes(api: Api) -> Api {
    let on_list = Operation::new("Tools that the caller may call, by name").query::<ToolFilter>();
    api.get("/v1/tools", on_list.page_of::<Descriptor>("A page of tools"), list)
}

async fn list(
    app: App,
    caller: Caller,
    Query(filter): Query<ToolFilter>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<Descriptor>>, Problem> {
    let limit = check::limit(page.limit)? as usize;
    let after: Option<String> = check::cursor(page.cursor.as_deref())?;
    let mut open = app.tools.open_to(&caller);
    open.sort_by(|a, b| a.name().cmp(b.name()));
    let mut rest = open.into_iter().filter(|tool| {
        // The tool in the cursor may be gone.
        after.as_deref().is_none_or(|after| tool.name() > after)
            && filter.family.as_deref().is_none_or(|family| tool.family_name() == family)
    });
    let items: Vec<Descriptor> =
        rest.by_ref().take(limit).map(|tool| Descriptor::from_tool(&tool)).collect();
    let more = rest.next().is_some();
    let next_cursor = items.last().filter(|_| more).map(|last| check::make_cursor(&last.name));
    Ok(Json(Page { items, next_cursor }))
}
