//! Signs a browser in: `svc open` gets a code or a ticket, the page trades it once, and the browser
//! gets a cookie.

use axum::{
    Extension,
    extract::Request,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use http::header;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_core::service::access::{LoginCode, LoginTicket, SignInKey};
use svc_model::{Caller, Timestamp, TokenId};
use svc_sys::connection_owner::OtherEnd;

use super::cookie::{BrowserToken, given, taken};
use crate::http::{App, Code, EntryRules, Problem, api::Api, body::Json, openapi::Operation};
use axum::extract::FromRequest as _;

pub(super) fn routes(api: Api) -> Api {
    let on_code =
        Operation::new("Make a code that signs a browser in, once, within 60 s (operator)");
    let on_ticket = Operation::new(
        "Make a ticket that signs a browser of the daemon's user in, once, within 60 s (operator)",
    );
    let on_sign_in =
        Operation::new("Sign a browser in with a code or a ticket: the answer sets a cookie")
            .open()
            .body::<SignIn>()
            .answer::<SignedIn>(
                200,
                "Signed in; 403 for a code or ticket that is wrong, used or old, and for programs of other users",
            );
    let on_sign_out = Operation::new("Sign the browser out that asks, by its cookie").answer_with(
        204,
        "Signed out",
        "application/json",
    );
    api.post("/v1/login_codes", on_code.answer::<LoginCode>(201, "The code, shown once"), make_code)
        .post(
            "/v1/login_tickets",
            on_ticket.answer::<LoginTicket>(201, "The ticket, shown once"),
            make_ticket,
        )
        .post("/login", on_sign_in, sign_in)
        .delete("/login", on_sign_out, sign_out)
}

async fn make_code(app: App, caller: Caller) -> Result<(StatusCode, Json<LoginCode>), Problem> {
    Ok((StatusCode::CREATED, Json(app.services.access.make_login_code(&caller).await?)))
}

async fn make_ticket(app: App, caller: Caller) -> Result<(StatusCode, Json<LoginTicket>), Problem> {
    Ok((StatusCode::CREATED, Json(app.services.access.make_login_ticket(&caller).await?)))
}

/// Exactly one of the two.
#[derive(Deserialize, JsonSchema)]
struct SignIn {
    /// The code after `#` in the URL that `svc open` prints.
    code: Option<String>,
    /// The ticket in the URL that `svc open` opens. Good on a connection of a program of the
    /// daemon's user alone.
    ticket: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct SignedIn {
    /// The browser's row, to revoke it.
    token_id: TokenId,
    /// When it is signed out by itself.
    expires_at: Timestamp,
}

async fn sign_in(app: App, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    // Another site must not decide which browser this is.
    EntryRules::check_own_site(&parts)?;
    let Json(SignIn { code, ticket }) =
        Json::from_request(Request::from_parts(parts.clone(), body), &app).await?;
    let key = match (&code, &ticket) {
        (Some(code), None) => SignInKey::Code(code.trim()),
        (None, Some(ticket)) => SignInKey::Ticket(ticket.trim()),
        _ => return Err(Problem::invalid("code", "give either a code or a ticket")),
    };
    // Before the key is used up: an attempt by another user must not invalidate it.
    check_sender(parts.extensions.get().copied(), &key)?;
    let browser = app.services.access.sign_in(key).await?;
    let cookie = given(&browser, &parts);
    let answer = SignedIn { token_id: browser.token_id, expires_at: browser.expires_at };
    Ok(([(header::SET_COOKIE, cookie)], Json(answer)).into_response())
}

/// Refuses programs of other users. A ticket was in the arguments of a process, which every user of
/// the machine can read, so it is not valid through a proxy or from another machine either.
fn check_sender(end: Option<OtherEnd>, key: &SignInKey<'_>) -> Result<(), Problem> {
    let end = end.unwrap_or(OtherEnd::Refused("it came by no connection"));
    let why = match key {
        SignInKey::Ticket(_) if !end.is_this_user() => {
            end.refusal().or(Some("a ticket is for a browser on the daemon's machine"))
        }
        _ => end.refusal(),
    };
    why.map_or(Ok(()), |why| {
        Err(Problem::new(Code::Forbidden, format!("this signs no browser in: {why}")))
    })
}

async fn sign_out(
    app: App,
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
