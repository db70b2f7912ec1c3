//! The daemon's proof that it knows a token: over TCP a client demands it before it sends the
//! token.

use axum::Extension;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{ProofQuestion, TokenFingerprint};

use super::{
    App, Code, Problem, api::Api, body::Json, bounds, entry::OwnAuthority, openapi::Operation,
};

pub(super) fn routes(api: Api) -> Api {
    let prove = Operation::new("Prove that this daemon knows a token, before the token is sent")
        .open()
        .body::<ProofRequest>()
        .answer::<ProofAnswer>(
            200,
            "The proof; 404 if no such token is good here, 403 if `Host` is not an address of this daemon",
        );
    api.post(bounds::DAEMON_PROOF, prove, answer_proof)
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

async fn answer_proof(
    app: App,
    authority: Option<Extension<OwnAuthority>>,
    Json(request): Json<ProofRequest>,
) -> Result<Json<ProofAnswer>, Problem> {
    let token = TokenFingerprint::parse(&request.token)
        .ok_or_else(|| Problem::invalid("token", "must be 16 hexadecimal digits"))?;
    let Some(Extension(OwnAuthority(authority))) = authority else {
        return Err(Problem::new(
            Code::Forbidden,
            "the request's Host is not the address at which this daemon was reached: see --allowed-host",
        ));
    };
    let question = ProofQuestion { nonce: &request.nonce, authority: &authority };
    if !question.has_nonce() {
        return Err(Problem::invalid("nonce", "must be 64 hexadecimal digits"));
    }
    let hash = app.services.access.good_token(&token).await?;
    let hash = hash.ok_or_else(|| Problem::new(Code::NotFound, "no such token is good here"))?;
    Ok(Json(ProofAnswer { proof: question.answer(&hash) }))
}
