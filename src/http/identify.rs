//! Who is asking: the one place where a request becomes a caller.

use http::{HeaderMap, Method, header, request::Parts};

use super::{
    App, Code, EntryRules, Problem, client_user, daemon_proof,
    page::{self, BrowserToken},
};
use crate::{
    domain::{Caller, LocalProcess, PROCESS_HEADER, PROCESS_TOKENS_PATH},
    service::Credential,
};

/// Who is asking, as far as anybody is asked.
#[derive(Debug, Default)]
pub(super) struct Identified {
    pub(super) caller: Option<Caller>,
    /// What showed it; nothing under `--no-auth`.
    pub(super) credential: Option<Credential>,
    /// The browser that asks by its cookie.
    pub(super) browser: Option<BrowserToken>,
}

impl Identified {
    fn with(caller: Caller, credential: Credential) -> Self {
        Self { caller: Some(caller), credential: Some(credential), browser: None }
    }
}

/// Who is asking.
pub(super) async fn identify(
    rules: &EntryRules,
    app: &App,
    request: &Parts,
) -> Result<Identified, Problem> {
    let is_open = is_open(&request.method, request.uri.path());
    let no_auth = rules.no_auth;
    if no_auth && !is_open {
        rules.check_site(&request.headers)?;
    }
    if is_open && !no_auth {
        return Ok(Identified::default());
    }
    let local = request.extensions.get::<LocalProcess>();
    let has_token = request.headers.contains_key(header::AUTHORIZATION);
    if let Some(process) = local.filter(|_| !has_token) {
        // Who asks for a token has none, and the socket shows who it is.
        if request.method == Method::POST && request.uri.path() == PROCESS_TOKENS_PATH {
            return Ok(Identified::default());
        }
        if let Some(client) = request.headers.get(PROCESS_HEADER) {
            let client = client.to_str().ok().and_then(|pid| pid.trim().parse().ok());
            let client =
                client.ok_or_else(|| Problem::malformed("Svc-Process: is no id of a process"))?;
            let access = &app.services.access;
            let (caller, credential) = access.caller_of_process(*process, client).await?;
            return Ok(Identified::with(caller, credential));
        }
    }
    if no_auth {
        // Whoever shows a session's token goes on as that session.
        let known = match bearer(&request.headers) {
            Some(token) => app.services.access.authenticate(token).await?,
            None => None,
        };
        let operator = Identified { caller: Some(Caller::Operator), ..Identified::default() };
        return Ok(
            known.map_or(operator, |(caller, credential)| Identified::with(caller, credential))
        );
    }
    // Over the socket come no browsers.
    if local.is_none()
        && !has_token
        && let Some(secret) = page::browser_secret(request)
    {
        return identify_browser(app, rules, request, secret).await;
    }
    let refused = || {
        Problem::new(Code::Unauthorized, "a valid token is needed: Authorization: Bearer <token>")
    };
    let token = bearer(&request.headers).ok_or_else(refused)?;
    if let Some(name) = placeholder(token) {
        let detail = format!("the variable {name} is not set where this request comes from");
        return Err(Problem::new(Code::Unauthorized, detail));
    }
    let (caller, credential) =
        app.services.access.authenticate(token).await?.ok_or_else(refused)?;
    Ok(Identified::with(caller, credential))
}

/// The operator, who signed this browser in; if the request is the page's own.
async fn identify_browser(
    app: &App,
    rules: &EntryRules,
    request: &Parts,
    secret: &str,
) -> Result<Identified, Problem> {
    EntryRules::check_page(request)?;
    // A proxy that the person has allowed may be another user's.
    if !rules.is_proxied(request) && !client_user::may_use_cookie(&request.extensions) {
        let why = "this cookie comes from a program of another user of this machine";
        return Err(Problem::new(Code::Forbidden, why));
    }
    let Some((caller, credential, id)) = app.services.access.authenticate_browser(secret).await?
    else {
        let why = "this browser is not signed in any more: `svc open` signs it in";
        return Err(Problem::new(Code::Unauthorized, why));
    };
    if request.method == Method::POST && makes_credentials(request.uri.path()) {
        // A cookie ends after hours, and with it what was done by it.
        let why = "a browser makes no credentials: ask with the operator token, such as by `svc`";
        return Err(Problem::new(Code::Forbidden, why));
    }
    let browser = Some(BrowserToken(id));
    Ok(Identified { browser, ..Identified::with(caller, credential) })
}

/// Whether a POST there is answered with a token, or a code that becomes one.
fn makes_credentials(path: &str) -> bool {
    matches!(path, "/v1/tokens" | "/v1/token/rotate" | "/v1/login_codes")
}

/// Routes that ask for no token: the health check, the files of the page and its sign-in, the proof that comes before a
/// token, and `/.well-known/`: clients probe it for OAuth metadata, and a 401 there would start a login.
fn is_open(method: &Method, path: &str) -> bool {
    if method == Method::POST && (path == daemon_proof::PATH || path == "/login") {
        return true;
    }
    let reads = method == Method::GET || method == Method::HEAD;
    reads && (path == "/health" || path.starts_with("/.well-known/") || page::is_file(path))
}

/// RFC 6750 2.1; the scheme's name is case-insensitive (RFC 9110 11.1). Two headers are as good as none.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (value, None) = (values.next()?, values.next()) else {
        return None;
    };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// The variable that a client should have put a token in place of: it sends `${NAME}` as it is where there is none.
fn placeholder(token: &str) -> Option<&str> {
    let name = token.strip_prefix("${")?.strip_suffix('}')?;
    let name = name.split(":-").next()?;
    let fits = name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    (fits && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_tokens_by_table() {
        for (value, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Basic abc", None),
            ("Bearer", None),
            ("Bearer ", None),
            ("abc", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            assert_eq!(bearer(&headers), token, "{value:?}");
        }
    }
}
