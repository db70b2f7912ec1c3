//! Tokens and projects, which the operator administers; tokens of clients' processes, on the Unix
//! socket only; and the daemon's proof that it knows a token, which a client requests over TCP
//! before it sends the token.

use axum::{Extension, http::StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_core::service::access::{MintedToken, NewProcessToken, NewToken, TokenInfo};
use svc_model::{
    Caller, LocalProcess, MovedFolder, PROCESS_TOKENS_PATH, PageQuery, Project, ProofQuestion,
    TokenFingerprint,
};

use super::{
    App, Code, Problem,
    api::{Api, Operation},
    entry::{DAEMON_PROOF, OwnAuthority},
    request::{ItemRequest, Json, JsonResult, PageResult, Query, StatusResult},
};

pub(super) fn routes(api: Api) -> Api {
    let trade_one = Operation::new(
        "Get a token for the client's process that started the one that asks (Unix socket, without a token)",
    );
    let make = Operation::new("Make a session token (operator)").statuses(&[201]);
    let proof = Operation::new("Prove that this daemon knows a token, before the token is sent");
    api.post(PROCESS_TOKENS_PATH, trade_one.statuses(&[201]), trade)
        .post("/v1/tokens", make, mint)
        .get("/v1/tokens", "Session tokens, the latest first (operator, read_all)", tokens)
        .delete("/v1/tokens/{id}", "Take a session token back (operator)", revoke)
        .post("/v1/token/rotate", "Replace the operator token (operator)", rotate)
        .get("/v1/projects", "Projects with their folders, by name (operator, read_all)", projects)
        .post(
            "/v1/projects/move",
            "Let a folder follow the remote that its repository has now (operator)",
            move_folder,
        )
        .post(DAEMON_PROOF, proof.open(), prove)
}

async fn mint(app: App, caller: Caller, Json(input): Json<NewToken>) -> StatusResult<MintedToken> {
    let folder = input.project.as_deref();
    let of_servers =
        app.sources.as_ref().map(|sources| sources.in_folder(folder).scopes()).unwrap_or_default();
    let minted = app.services.access.mint_token(&caller, input, &of_servers).await?;
    Ok((StatusCode::CREATED, Json(minted)))
}

/// Over TCP the daemon cannot see which process asks.
async fn trade(
    app: App,
    process: Option<Extension<LocalProcess>>,
    Json(input): Json<NewProcessToken>,
) -> StatusResult<MintedToken> {
    let Some(Extension(process)) = process else {
        let why = "process tokens are given on the Unix socket in the data folder alone: svc.sock";
        return Err(Problem::new(Code::Forbidden, why));
    };
    Ok((StatusCode::CREATED, Json(app.services.access.trade(process, input).await?)))
}

async fn tokens(app: App, caller: Caller, Query(page): Query<PageQuery>) -> PageResult<TokenInfo> {
    Ok(Json(app.services.access.list_tokens(&caller, &page).await?))
}

async fn revoke(item: ItemRequest) -> JsonResult<TokenInfo> {
    Ok(Json(item.app.services.access.revoke_token(&item.caller, &item.id).await?))
}

#[derive(Serialize, JsonSchema)]
struct Rotated {
    token: String,
}

async fn rotate(app: App, caller: Caller) -> JsonResult<Rotated> {
    Ok(Json(Rotated { token: app.services.access.rotate_operator_token(&caller).await? }))
}

#[derive(Deserialize, JsonSchema)]
struct FolderToMove {
    /// An absolute folder of the daemon's machine.
    folder: String,
}

async fn projects(app: App, caller: Caller, Query(page): Query<PageQuery>) -> PageResult<Project> {
    Ok(Json(app.services.projects.list(&caller, &page).await?))
}

async fn move_folder(
    app: App,
    caller: Caller,
    Json(input): Json<FolderToMove>,
) -> JsonResult<MovedFolder> {
    Ok(Json(app.services.projects.move_folder(&caller, &input.folder).await?))
}

#[derive(Deserialize, JsonSchema)]
struct ProofRequest {
    /// The first 16 hexadecimal digits of the token's SHA-256.
    token: String,
    /// 64 hexadecimal digits, made up for this request.
    nonce: String,
}

#[derive(Serialize, JsonSchema)]
struct ProofAnswer {
    /// In hexadecimal digits, HMAC-SHA256 of `svc daemon proof 1`, the nonce and the request's
    /// `Host`, with line feeds between them; the key is the SHA-256 of the token.
    proof: String,
}

async fn prove(
    app: App,
    authority: Option<Extension<OwnAuthority>>,
    Json(request): Json<ProofRequest>,
) -> JsonResult<ProofAnswer> {
    let token = TokenFingerprint::parse(&request.token)
        .ok_or_else(|| Problem::invalid("token", "must be 16 hexadecimal digits"))?;
    let Some(Extension(OwnAuthority(authority))) = authority else {
        let why = "the request's Host is not the address at which this daemon was reached: see --allowed-host";
        return Err(Problem::new(Code::Forbidden, why));
    };
    let question = ProofQuestion { nonce: &request.nonce, authority: &authority };
    if !question.has_nonce() {
        return Err(Problem::invalid("nonce", "must be 64 hexadecimal digits"));
    }
    let hash = app.services.access.good_token(&token).await?;
    let hash = hash.ok_or_else(|| Problem::new(Code::NotFound, "no such token is good here"))?;
    Ok(Json(ProofAnswer { proof: question.answer(&hash) }))
}
