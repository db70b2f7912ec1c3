//! Projects and their folders: the operator lists them, and moves a folder.

use schemars::JsonSchema;
use serde::Deserialize;
use svc_core::service::Page;
use svc_model::{Caller, MovedFolder, PageQuery, Project};

use super::{
    App, Problem,
    api::Api,
    body::{Json, Query},
    openapi::Operation,
};

pub(super) fn routes(api: Api) -> Api {
    let on_list = Operation::new("Projects with their folders, by name (operator, read_all)");
    let on_move =
        Operation::new("Let a folder follow the remote that its repository has now (operator)");
    let on_move = on_move.body::<FolderToMove>();
    api.get("/v1/projects", on_list.page_of::<Project>("A page of projects"), list).post(
        "/v1/projects/move",
        on_move.answer::<MovedFolder>(200, "Where it is now"),
        move_folder,
    )
}

#[derive(Deserialize, JsonSchema)]
struct FolderToMove {
    /// An absolute folder of the daemon's machine.
    folder: String,
}

async fn list(
    app: App,
    caller: Caller,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<Project>>, Problem> {
    Ok(Json(app.services.projects.list(&caller, &page).await?))
}

async fn move_folder(
    app: App,
    caller: Caller,
    Json(input): Json<FolderToMove>,
) -> Result<Json<MovedFolder>, Problem> {
    Ok(Json(app.services.projects.move_folder(&caller, &input.folder).await?))
}
