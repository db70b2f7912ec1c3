//! Tokens: the operator mints, lists and revokes them; the Unix socket mints those of clients'
//! processes.

use axum::{Extension, extract::Path, http::StatusCode};
use schemars::JsonSchema;
use serde::Serialize;
use svc_core::service::{
    Page,
    access::{MintedToken, NewProcessToken, NewToken, ProcessToken, TokenInfo},
};
use svc_model::{Caller, LocalProcess, PROCESS_TOKENS_PATH, PageQuery};

use super::{
    App, Code, Problem,
    api::Api,
    body::{Json, Query},
    openapi::Operation,
};

pub(super) fn routes(api: Api) -> Api {
    let on_mint = Operation::new("Make a session token (operator)").body::<NewToken>();
    let on_list = Operation::new("Session tokens, the latest first (operator, read_all)");
    let on_revoke = Operation::new("Take a session token back (operator)");
    let on_rotate = Operation::new("Make a new operator token in place of the old one (operator)");
    let on_trade = Operation::new(
        "Get a token for the client's process that started the one that asks (Unix socket, without a token)",
    );
    let on_trade = on_trade.body::<NewProcessToken>();
    let api =
        api.post(PROCESS_TOKENS_PATH, on_trade.answer::<ProcessToken>(201, "Shown once"), trade);
    api.post("/v1/tokens", on_mint.answer::<MintedToken>(201, "Shown once"), mint)
        .get("/v1/tokens", on_list.page_of::<TokenInfo>("A page of tokens"), list)
        .delete("/v1/tokens/{id}", on_revoke.answer::<TokenInfo>(200, "Revoked"), revoke)
        .post("/v1/token/rotate", on_rotate.answer::<Rotated>(200, "Counts at once"), rotate)
}

async fn mint(
    app: App,
    caller: Caller,
    Json(input): Json<NewToken>,
) -> Result<(StatusCode, Json<MintedToken>), Problem> {
    let folder = input.project.as_deref();
    let of_servers = app.sources.as_ref().map(|sources| sources.in_folder(folder).scopes());
    let of_servers = of_servers.unwrap_or_default();
    let minted = app.services.access.mint_token(&caller, input, &of_servers).await?;
    Ok((StatusCode::CREATED, Json(minted)))
}

/// Over TCP the daemon cannot see which process asks.
async fn trade(
    app: App,
    process: Option<Extension<LocalProcess>>,
    Json(input): Json<NewProcessToken>,
) -> Result<(StatusCode, Json<ProcessToken>), Problem> {
    let Some(Extension(process)) = process else {
        let text = "process tokens are given on the Unix socket in the data folder alone: svc.sock";
        return Err(Problem::new(Code::Forbidden, text));
    };
    Ok((StatusCode::CREATED, Json(app.services.access.trade(process, input).await?)))
}

async fn list(
    app: App,
    caller: Caller,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<TokenInfo>>, Problem> {
    Ok(Json(app.services.access.list_tokens(&caller, &page).await?))
}

async fn revoke(
    app: App,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<TokenInfo>, Problem> {
    Ok(Json(app.services.access.revoke_token(&caller, &id).await?))
}

#[derive(Serialize, JsonSchema)]
struct Rotated {
    token: String,
}

async fn rotate(app: App, caller: Caller) -> Result<Json<Rotated>, Problem> {
    Ok(Json(Rotated { token: app.services.access.rotate_operator_token(&caller).await? }))
}
