//! A browser is signed in: `svc open` gets a code, the page gives it back once, and the browser gets a cookie.

use axum::{
    Extension,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use http::header;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cookie::{BrowserToken, given, taken};
use crate::{
    domain::{Caller, Timestamp, TokenId},
    http::{App, Code, EntryRules, Problem, api::Api, body::Json, openapi::Operation},
    service::access::LoginCode,
};
use axum::extract::FromRequest as _;

pub(super) fn routes(api: Api) -> Api {
    let on_code =
        Operation::new("Make a code that signs a browser in, once, within 60 s (operator)");
    let on_sign_in = Operation::new("Sign a browser in with a code: the answer sets a cookie")
        .open()
        .body::<SignIn>()
        .answer::<SignedIn>(200, "Signed in; 403 for a code that is wrong, used or old");
    let on_sign_out = Operation::new("Sign the browser out that asks, by its cookie").answer_with(
        204,
        "Signed out",
        "application/json",
    );
    api.post("/v1/login_codes", on_code.answer::<LoginCode>(201, "The code, shown once"), make_code)
        .post("/login", on_sign_in, sign_in)
        .delete("/login", on_sign_out, sign_out)
}

async fn make_code(
    State(app): State<App>,
    caller: Caller,
) -> Result<(StatusCode, Json<LoginCode>), Problem> {
    Ok((StatusCode::CREATED, Json(app.services.access.make_login_code(&caller).await?)))
}

#[derive(Deserialize, JsonSchema)]
struct SignIn {
    /// The code after `#` in the URL of `svc open`.
    code: String,
}

#[derive(Serialize, JsonSchema)]
struct SignedIn {
    /// The browser's row, to revoke it.
    token_id: TokenId,
    /// When it is signed out by itself.
    expires_at: Timestamp,
}

async fn sign_in(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    // Another site may not decide who this browser is.
    EntryRules::check_own_site(&parts)?;
    let Json(SignIn { code }) =
        Json::from_request(Request::from_parts(parts.clone(), body), &app).await?;
    let browser = app.services.access.sign_in(code.trim()).await?;
    let cookie = given(&browser, &parts);
    let answer = SignedIn { token_id: browser.token_id, expires_at: browser.expires_at };
    Ok(([(header::SET_COOKIE, cookie)], Json(answer)).into_response())
}

async fn sign_out(
    State(app): State<App>,
    caller: Caller,
    browser: Option<Extension<BrowserToken>>,
    request: Request,
) -> Result<Response, Problem> {
    let Some(Extension(BrowserToken(id))) = browser else {
        let why = "this signs out the browser that asks, and you came without its cookie";
        return Err(Problem::new(Code::Conflict, why));
    };
    app.services.access.revoke_token(&caller, id.as_str()).await?;
    let (parts, _) = request.into_parts();
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, taken(&parts))]).into_response())
}
