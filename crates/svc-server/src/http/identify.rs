//! Identification: the one place where a request becomes a caller.

use http::{HeaderMap, Method, header, request::Parts};
use svc_core::service::Credential;
use svc_model::{Caller, LocalProcess, PROCESS_HEADER, PROCESS_TOKENS_PATH};
use svc_sys::connection_owner::OtherEnd;

use super::{
    App, Code, EntryRules, Problem, bounds,
    listener::{ClientAddress, LocalAddress},
    page::{self, BrowserToken},
};

/// The sender of a request.
#[derive(Debug, Default)]
pub(super) struct Identified {
    pub(super) caller: Option<Caller>,
    /// The credential; `None` under `--no-auth`.
    pub(super) credential: Option<Credential>,
    /// The browser that sent a cookie.
    pub(super) browser: Option<BrowserToken>,
    /// The sender of a sign-in, which needs no credential.
    pub(super) signs_in: Option<OtherEnd>,
}

impl Identified {
    fn with(caller: Caller, credential: Credential) -> Self {
        Self { caller: Some(caller), credential: Some(credential), ..Self::default() }
    }
}

/// Identifies the sender of a request.
pub(super) async fn identify(
    rules: &EntryRules,
    app: &App,
    request: &Parts,
) -> Result<Identified, Problem> {
    if bounds::is_open(&request.method, request.uri.path()) {
        let is_sign_in = request.method == Method::POST && request.uri.path() == bounds::SIGN_IN;
        let signs_in = is_sign_in.then(|| other_end(rules, request));
        return Ok(Identified { signs_in, ..Identified::default() });
    }
    let no_auth = rules.no_auth;
    if no_auth {
        rules.check_site(&request.headers)?;
    }
    let local = request.extensions.get::<LocalProcess>();
    let has_token = request.headers.contains_key(header::AUTHORIZATION);
    if let Some(process) = local.filter(|_| !has_token) {
        // A request for a token comes without one; the socket identifies the process.
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
        // A session's token makes its bearer that session.
        if let Some(token) = bearer(&request.headers)
            && let Some((caller, credential)) = app.services.access.authenticate(token).await?
        {
            check_process_token(rules, request, &caller)?;
            return Ok(Identified::with(caller, credential));
        }
        let end = other_end(rules, request);
        if !end.is_this_user() {
            let why = end.refusal().unwrap_or("it passes on the requests of others");
            let text =
                format!("with no_auth only programs of the daemon's own user need no token: {why}");
            return Err(Problem::new(Code::Forbidden, text));
        }
        return Ok(Identified { caller: Some(Caller::Operator), ..Identified::default() });
    }
    // Browsers cannot use the Unix socket.
    if local.is_none() && !has_token {
        let secrets = page::browser_secrets(request);
        if !secrets.is_empty() {
            return identify_browser(app, rules, request, &secrets).await;
        }
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
    check_process_token(rules, request, &caller)?;
    Ok(Identified::with(caller, credential))
}

/// The process at the other end of the request's connection. A request without a known connection
/// is refused.
fn other_end(rules: &EntryRules, request: &Parts) -> OtherEnd {
    let extensions = &request.extensions;
    if extensions.get::<LocalProcess>().is_some() {
        // The socket accepts connections of this user only.
        return OtherEnd::ThisUser;
    }
    match (extensions.get::<ClientAddress>(), extensions.get::<LocalAddress>()) {
        (Some(ClientAddress(from)), Some(LocalAddress(to))) => {
            OtherEnd::of_connection(*from, *to, &rules.proxy_users)
        }
        _ => OtherEnd::Refused("it came by no connection"),
    }
}

/// Refuses the token of a local process to programs of other users and to other machines.
fn check_process_token(
    rules: &EntryRules,
    request: &Parts,
    caller: &Caller,
) -> Result<(), Problem> {
    if caller.process().is_none() {
        return Ok(());
    }
    match other_end(rules, request).refusal_of_local_token() {
        None => Ok(()),
        Some(why) => {
            let text = format!("this token was made for a process of the daemon's user: {why}");
            Err(Problem::new(Code::Forbidden, text))
        }
    }
}

/// The operator, who signed this browser in, if the request is the page's own.
async fn identify_browser(
    app: &App,
    rules: &EntryRules,
    request: &Parts,
    secrets: &[&str],
) -> Result<Identified, Problem> {
    EntryRules::check_page(request)?;
    let mut signed_in = None;
    for secret in secrets {
        signed_in = app.services.access.authenticate_browser(secret).await?;
        if signed_in.is_some() {
            break;
        }
    }
    let Some((caller, credential, id)) = signed_in else {
        let why = "this browser is not signed in any more: `svc open` signs it in";
        return Err(Problem::new(Code::Unauthorized, why));
    };
    // After the look-up, so that an invalid cookie does not cause a read of the kernel's list of
    // sockets.
    if let Some(why) = other_end(rules, request).refusal() {
        return Err(Problem::new(
            Code::Forbidden,
            format!("this cookie does not count here: {why}"),
        ));
    }
    if request.method == Method::POST && bounds::makes_credentials(request.uri.path()) {
        // A cookie expires after hours; a credential that it created would outlast it.
        let why = "a browser makes no credentials: ask with the operator token, such as by `svc`";
        return Err(Problem::new(Code::Forbidden, why));
    }
    let browser = Some(BrowserToken(id));
    Ok(Identified { browser, ..Identified::with(caller, credential) })
}

/// RFC 6750 2.1; the scheme's name is case-insensitive (RFC 9110 11.1). Two headers count as none.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (value, None) = (values.next()?, values.next()) else {
        return None;
    };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// The variable whose name the client sent instead of its value: a client sends `${NAME}` unchanged
/// if the variable is not set.
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
    fn bearer_tokens_parse_by_table() {
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
