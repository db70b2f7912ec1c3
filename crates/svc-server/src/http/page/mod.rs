//! The page for the person who runs a team: its files, and the sign-in of a browser.
//!
//! The files are served unchanged from `assets/`, as ECMAScript modules. They need no token and
//! hold none of the daemon's data: the page reads that from `/v1` as every client does, with a
//! cookie that `entry` checks. `svc open` gets a code or a ticket, the page trades it once, and the
//! browser gets the cookie.

use std::sync::LazyLock;

use axum::{
    Extension,
    body::Body,
    extract::{FromRequest as _, Path, Request},
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, request::Parts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use svc_core::service::access::{LoginCode, LoginTicket, SignInKey, TokenInfo};
use svc_model::{Caller, Timestamp, TokenId, limits};
use svc_sys::connection_owner::ConnectionOwner;

use super::{
    App, Code, EntryRules, Problem,
    api::{Api, Operation},
    entry::{BrowserToken, cookie_name},
    request::{Json, StatusResult},
};

/// A file, plain and compressed. The build script makes the list of them.
struct Asset {
    name: &'static str,
    plain: &'static [u8],
    gzip: &'static [u8],
}

static ASSETS: &[Asset] = &include!(concat!(env!("OUT_DIR"), "/page_assets.rs"));

/// The entity tags of the files, in the order of the files.
static TAGS: LazyLock<Vec<String>> = LazyLock::new(|| {
    ASSETS.iter().map(|asset| hex::encode(&Sha256::digest(asset.plain)[..12])).collect()
});

/// The policy: only the page's own scripts run, and no other page may frame or observe it.
const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    // Browsers revalidate a file by its tag, since another version of the daemon has other files.
    (header::CACHE_CONTROL, "no-cache"),
];

pub(super) fn routes(api: Api) -> Api {
    let page = |summary| Operation::new(summary).open().media(200, "text/html");
    let show_page =
        async |method: Method, headers: HeaderMap| serve("index.html", &method, &headers);
    let show_login =
        async |method: Method, headers: HeaderMap| serve("login.html", &method, &headers);
    let show_file = async |Path(file): Path<String>, method: Method, headers: HeaderMap| {
        serve(&file, &method, &headers)
    };
    let file = Operation::new("A file of the page").open().media(200, "text/javascript");
    let code = Operation::new("Make a code that signs a browser in, once, within 60 s (operator)");
    let ticket = Operation::new(
        "Make a ticket that signs a browser of the daemon's user in, once, within 60 s (operator)",
    );
    let enter =
        Operation::new("Sign a browser in with a code or a ticket: the answer sets a cookie");
    let leave = Operation::new("Sign the browser out that asks, by its cookie");
    api.get("/", page("The page, where it begins"), show_page)
        .get("/ui/{*view}", page("The page, at one of its views"), show_page)
        .get("/login", page("What gives the code or ticket of `svc open` back"), show_login)
        .get("/assets/{*file}", file, show_file)
        .post("/v1/login_codes", code.statuses(&[201]), make_code)
        .post("/v1/login_tickets", ticket.statuses(&[201]), make_ticket)
        .post("/login", enter.open().body::<SignIn>().answer::<SignedIn>(200), sign_in)
        .delete("/login", leave.media(204, ""), sign_out)
}

fn serve(name: &str, method: &Method, request: &HeaderMap) -> Result<Response, Problem> {
    let known = ASSETS.iter().zip(TAGS.iter()).find(|(asset, _)| asset.name == name);
    let (asset, tag) =
        known.ok_or_else(|| Problem::new(Code::NotFound, "the page has no such file"))?;
    let is_compressed = takes_gzip(request);
    // Representations that differ in a byte need different tags (RFC 9110 8.8.3).
    let tag = if is_compressed { format!("\"{tag}-gz\"") } else { format!("\"{tag}\"") };
    let bytes = if is_compressed { asset.gzip } else { asset.plain };
    let mut response = if is_known(request, &tag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        // The length in a response to HEAD is that of the body which GET would have.
        let body = if method == Method::HEAD { Body::empty() } else { Body::from(bytes) };
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type(name)));
        headers.insert(header::CONTENT_LENGTH, bytes.len().into());
        if is_compressed {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    headers.insert(header::ETAG, HeaderValue::from_str(&tag).expect("hexadecimal digits"));
    Ok(response)
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    }
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    listed(headers, header::ACCEPT_ENCODING).any(|part| {
        let mut words = part.split(';').map(str::trim);
        let is_gzip = words.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let is_refused = words
            .filter_map(|word| word.split_once('='))
            .any(|(name, weight)| name.trim() == "q" && weight.trim().parse() == Ok(0.0_f32));
        is_gzip && !is_refused
    })
}

fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    listed(headers, header::IF_NONE_MATCH)
        .map(|known| known.trim().trim_start_matches("W/"))
        .any(|known| known == tag || known == "*")
}

/// The items of a header whose value is a list.
fn listed(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(','))
}

async fn make_code(app: App, caller: Caller) -> StatusResult<LoginCode> {
    Ok((StatusCode::CREATED, Json(app.services.access.make_login_code(&caller).await?)))
}

async fn make_ticket(app: App, caller: Caller) -> StatusResult<LoginTicket> {
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
    let cookie = set_cookie(&parts, &browser.token, limits::BROWSER_TTL.as_secs());
    let TokenInfo { token_id, expires_at, .. } = browser.info;
    let answer = SignedIn { token_id, expires_at };
    Ok(([(header::SET_COOKIE, cookie)], Json(answer)).into_response())
}

/// Refuses programs of other users. A ticket was in the arguments of a process, which every user of
/// the machine can read, so it is not valid through a proxy or from another machine either.
fn check_sender(end: Option<ConnectionOwner>, key: &SignInKey<'_>) -> Result<(), Problem> {
    let end = end.unwrap_or(ConnectionOwner::Refused("it came by no connection"));
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
    let cookie = set_cookie(&request.into_parts().0, "", 0);
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

/// The `Set-Cookie` header that signs a browser in for these seconds; out with 0.
fn set_cookie(request: &Parts, secret: &str, seconds: u64) -> HeaderValue {
    let name = cookie_name(request);
    let text = format!("{name}={secret}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds}");
    HeaderValue::from_str(&text).expect("letters, digits and signs")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::entry::FILES;

    #[test]
    fn gzip_is_sent_only_if_accepted() {
        for (value, takes) in [
            ("gzip, deflate, br", true),
            ("deflate, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip; q=0.000", false),
            ("br", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, value.parse().unwrap());
            assert_eq!(takes_gzip(&headers), takes, "{value}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }

    /// The sizes of all files together, in bytes: compressed, and in the program.
    #[test]
    fn page_files_stay_within_their_size_bounds() {
        let sum = |of: fn(&Asset) -> usize| ASSETS.iter().map(of).sum::<usize>();
        let (sent, held) =
            (sum(|asset| asset.gzip.len()), sum(|asset| asset.gzip.len() + asset.plain.len()));
        assert!(sent <= 250_000, "{sent}");
        assert!(held <= 512 * 1024, "{held}");
    }

    #[test]
    fn every_file_that_a_page_file_names_exists() {
        let mut named = 0;
        for asset in ASSETS {
            let text = String::from_utf8_lossy(asset.plain);
            let parts = text.split(['"', '\'', '`']);
            for path in parts.filter_map(|part| part.strip_prefix(FILES)) {
                if path.is_empty() {
                    continue;
                }
                named += 1;
                assert!(
                    ASSETS.iter().any(|asset| asset.name == path),
                    "{} names {path}",
                    asset.name
                );
            }
        }
        assert!(named > 5, "{named}");
    }

    /// The content security policy refuses inline scripts and styles.
    #[test]
    fn documents_have_no_inline_scripts_or_styles() {
        for asset in ASSETS.iter().filter(|asset| media_type(asset.name).starts_with("text/html")) {
            let text = String::from_utf8_lossy(asset.plain);
            assert!(!text.contains("<style") && !text.contains(" style="), "{}", asset.name);
            for script in text.split("<script").skip(1) {
                assert!(script.trim_start().starts_with("type=\"module\" src="), "{script}");
            }
            assert!(!text.contains(" on"), "{}: a handler of events in the document", asset.name);
            assert!(!text.contains("http"), "{}: something from elsewhere", asset.name);
        }
    }
}
