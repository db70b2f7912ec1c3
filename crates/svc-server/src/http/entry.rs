//! Which requests the daemon accepts, and from whom.
//!
//! [`EntryRules`] check `Host` and `Origin`: by DNS rebinding every web page can reach a loopback
//! port. [`identify`] makes the caller of a request from its token, its process, or the cookie of a
//! browser that the operator signed in. The functions of method and path at the end say which
//! routes need no credential, how large a body may be, which responses may be streams, and which
//! requests wait for the daemon's start. Routes that read much take turns between callers: see
//! `Api::list`.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderValue, Method, Request, Uri, header, request::Parts, uri::Authority};
use svc_core::service::{Credential, access::Access, process::RequestSender};
use svc_model::{Caller, LocalProcess, PROCESS_HEADER, PROCESS_TOKENS_PATH, TokenId, limits};
use svc_sys::connection_owner::{ConnectionOwner, is_own_address};
use svc_wire::sse;

use super::{Code, Problem};
use crate::web::Accept;

const SIGN_IN: &str = "/login";
/// The route of the daemon's proof, which clients request before they send a token.
pub(super) const DAEMON_PROOF: &str = "/v1/daemon_proof";
/// The route of the log, which gives a page or a feed.
pub(super) const EVENTS: &str = "/v1/events";
const VIEWS: &str = "/ui/";
pub(super) const FILES: &str = "/assets/";

/// Maximum number of cookies of the daemon's name that are tried: a browser sends one for each
/// folder of the path.
const TRIED_COOKIES: usize = 16;

/// Which hosts, origins and users a request may come from.
#[derive(Debug, Clone, Default)]
pub struct EntryRules {
    pub listen: Vec<SocketAddr>,
    /// Further names that a `Host` header may have, with or without a port.
    pub allowed_hosts: Vec<String>,
    /// Further origins that an `Origin` header may name.
    pub allowed_origins: Vec<String>,
    /// Requests of this user's programs act as the operator without a token. On loopback only.
    pub no_auth: bool,
    /// The name of the page, which no unauthenticated response contains.
    pub page_host: Option<String>,
    /// Users whose programs forward the requests of others.
    pub proxy_users: Vec<u32>,
}

impl EntryRules {
    /// Checks `Host` and `Origin`. Any `Host` is valid on the Unix socket: no web page reaches it.
    pub(super) fn check_origin<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        let forbidden = |what: &str, hint: &str| {
            Err(Problem::new(Code::Forbidden, format!("this {what} is not allowed here: {hint}")))
        };
        let headers = request.headers();
        let named = named_host(headers, request.uri());
        let extensions = request.extensions();
        let is_local = extensions.get::<LocalProcess>().is_some();
        let reached = match extensions.get() {
            Some(RequestSender::Tcp { to, .. }) => Some(to.ip()),
            _ => None,
        };
        // A header that another name of the target replaces must be good, too.
        let is_own = |host: &str| self.is_own_host(host, reached);
        let mut hosts = headers.get_all(header::HOST).iter();
        let are_own = hosts.all(|host| host.to_str().is_ok_and(is_own));
        let is_allowed = is_local || are_own && named.is_some_and(is_own);
        if !is_allowed {
            return forbidden("Host", "see --allowed-host");
        }
        let mut origins = headers.get_all(header::ORIGIN).iter();
        match (origins.next(), origins.next()) {
            (None, _) => Ok(()),
            (Some(origin), None) if origin.to_str().is_ok_and(|it| self.is_own_origin(it)) => {
                Ok(())
            }
            _ => forbidden("Origin", "see --allowed-origin"),
        }
    }

    pub(super) fn is_allowed_origin(&self, headers: &HeaderMap) -> bool {
        let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
        origin.is_some_and(|origin| is_listed(&self.allowed_origins, origin))
    }

    /// Under `no_auth`, refuses requests that a browser sends for a page of another site: nothing
    /// else distinguishes them from the person's. A page whose origin the person has allowed may
    /// send any request, as it may with a token.
    fn check_site(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let own = |site: &HeaderValue| matches!(site.as_bytes(), b"same-origin" | b"none");
        if headers.get_all("sec-fetch-site").iter().all(own) || self.is_allowed_origin(headers) {
            return Ok(());
        }
        let text = "with --no-auth, requests from other sites are refused (Sec-Fetch-Site): see --allowed-origin";
        Err(Problem::new(Code::Forbidden, text))
    }

    /// Refuses a request with a cookie that another site may have caused. The page proves itself by
    /// a header, which other origins cannot send, or the browser says that the request is from the
    /// page's own origin.
    fn check_page(request: &Parts) -> Result<(), Problem> {
        let headers = &request.headers;
        let is_said = headers.get("svc-page").is_some_and(|value| value == "1");
        if !is_said && !headers.contains_key("sec-fetch-site") {
            let why = "a cookie counts only with the header Svc-Page: 1";
            return Err(Problem::new(Code::Forbidden, why));
        }
        Self::check_own_site(request)
    }

    /// Refuses requests that a browser marks as from another origin.
    pub(super) fn check_own_site(request: &Parts) -> Result<(), Problem> {
        let refuse = |why: &str| Err(Problem::new(Code::Forbidden, why));
        let headers = &request.headers;
        let mut sites = headers.get_all("sec-fetch-site").iter();
        if !sites.all(|site| site == "same-origin") {
            return refuse("this is for requests of the page itself (Sec-Fetch-Site)");
        }
        let host = named_host(headers, &request.uri);
        let is_own = |origin: &HeaderValue| {
            let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
            origin.is_some_and(|(_, name)| host.is_some_and(|host| host.eq_ignore_ascii_case(name)))
        };
        if !headers.get_all(header::ORIGIN).iter().all(is_own) {
            return refuse("this is for requests of the page itself (Origin)");
        }
        Ok(())
    }

    /// The host and port that the request names, if they are the address at which the request
    /// reached the daemon, or an allowed host. `None` for a request that another program
    /// forwards: it names that program's address.
    pub(super) fn own_authority<B>(&self, request: &Request<B>) -> Option<OwnAuthority> {
        let named = named_host(request.headers(), request.uri())?;
        let Some(RequestSender::Tcp { to: address, .. }) = request.extensions().get() else {
            return None;
        };
        // A listener on all addresses reports IPv4 as IPv6.
        let is_reached = |named: SocketAddr| {
            named.port() == address.port()
                && named.ip().to_canonical() == address.ip().to_canonical()
        };
        let is_address = named.parse::<SocketAddr>().is_ok_and(is_reached);
        let authority = named.parse::<Authority>().ok();
        let name = authority.as_ref().map_or(named, Authority::host);
        let is_allowed = !named.contains('@')
            && (is_listed(&self.allowed_hosts, named) || is_listed(&self.allowed_hosts, name));
        (is_address || is_allowed).then(|| OwnAuthority(named.to_owned()))
    }

    /// Whether a `Host` is the daemon's, in a request that `reached` this address.
    fn is_own_host(&self, host: &str, reached: Option<IpAddr>) -> bool {
        if is_listed(&self.allowed_hosts, host) {
            return true;
        }
        // The address itself, as most clients send it.
        let knows = |ip| self.knows_address(ip, reached);
        if host.parse::<SocketAddr>().is_ok_and(|address| knows(address.ip())) {
            return true;
        }
        let Ok(authority) = host.parse::<Authority>() else { return false };
        if authority.as_str().contains('@') {
            return false;
        }
        let name = authority.host();
        self.is_loopback_name(name)
            || is_listed(&self.allowed_hosts, name)
            || address(name).is_some_and(knows)
    }

    /// Whether it is a loopback or listen address; for a listener on all addresses, any address of
    /// this machine.
    fn knows_address(&self, ip: IpAddr, reached: Option<IpAddr>) -> bool {
        let ip = ip.to_canonical();
        let is_ours = |listen: &SocketAddr| {
            let listen = listen.ip().to_canonical();
            listen == ip
                || (listen.is_unspecified()
                    && (reached.is_some_and(|to| to.to_canonical() == ip) || is_own_address(ip)))
        };
        ip.is_loopback() || self.listen.iter().any(is_ours)
    }

    /// Whether it is `localhost`, a loopback address or the page's own name. No other name below
    /// `localhost` counts: a browser would send that name's cookies to any server of this machine.
    fn is_loopback_name(&self, name: &str) -> bool {
        name.eq_ignore_ascii_case("localhost")
            || self.page_host.as_ref().is_some_and(|host| host.eq_ignore_ascii_case(name))
            || address(name).is_some_and(|ip| ip.to_canonical().is_loopback())
    }

    fn is_own_origin(&self, origin: &str) -> bool {
        if is_listed(&self.allowed_origins, origin) {
            return true;
        }
        let Some((scheme, authority)) = origin.split_once("://") else { return false };
        let Ok(authority) = authority.parse::<Authority>() else { return false };
        matches!(scheme, "http" | "https")
            && !authority.as_str().contains('@')
            && self.is_loopback_name(authority.host())
    }
}

fn is_listed(allowed: &[String], name: &str) -> bool {
    allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
}

#[derive(Debug, Clone)]
pub(super) struct OwnAuthority(pub(super) String);

/// The host and port that a request is for. Those of an absolute target replace `Host` (RFC 9112
/// 3.2.2).
fn named_host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return None;
    }
    let target = uri.authority().map(Authority::as_str);
    target.or_else(|| first.and_then(|host| host.to_str().ok()))
}

/// Parses an address in the notation of URLs, where IPv6 is in brackets.
fn address(name: &str) -> Option<IpAddr> {
    name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name).parse().ok()
}

#[derive(Debug, Default)]
pub(super) struct Identified {
    pub(super) caller: Option<Caller>,
    /// The credential; `None` under `--no-auth`.
    pub(super) credential: Option<Credential>,
    pub(super) browser: Option<BrowserToken>,
    pub(super) signs_in: Option<ConnectionOwner>,
}

impl Identified {
    fn with(caller: Caller, credential: Credential) -> Self {
        Self { caller: Some(caller), credential: Some(credential), ..Self::default() }
    }
}

/// Identifies the sender of a request: the one place where a request becomes a caller.
pub(super) async fn identify(
    rules: &EntryRules,
    access: &Access,
    request: &Parts,
) -> Result<Identified, Problem> {
    let (path, is_post) = (request.uri.path(), request.method == Method::POST);
    if is_open(&request.method, path) {
        let signs_in = (is_post && path == SIGN_IN).then(|| connection_owner(rules, request));
        return Ok(Identified { signs_in, ..Identified::default() });
    }
    if rules.no_auth {
        rules.check_site(&request.headers)?;
    }
    let local = request.extensions.get::<LocalProcess>();
    let has_token = request.headers.contains_key(header::AUTHORIZATION);
    if let Some(process) = local.filter(|_| !has_token) {
        // A request for a token comes without one; the socket identifies the process.
        if is_post && path == PROCESS_TOKENS_PATH {
            return Ok(Identified::default());
        }
        if let Some(client) = request.headers.get(PROCESS_HEADER) {
            let client = client.to_str().ok().and_then(|pid| pid.trim().parse().ok());
            let client =
                client.ok_or_else(|| Problem::malformed("Svc-Process: is no id of a process"))?;
            let (caller, credential) = access.caller_of_process(*process, client).await?;
            return Ok(Identified::with(caller, credential));
        }
    }
    if rules.no_auth {
        // The bearer of a session's token is that session, and not the operator.
        if let Some(token) = bearer(&request.headers)
            && let Some((caller, credential)) = access.authenticate(token).await?
        {
            check_process(rules, request, &caller)?;
            return Ok(Identified::with(caller, credential));
        }
        let end = connection_owner(rules, request);
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
        let secrets = browser_secrets(request);
        if !secrets.is_empty() {
            return identify_browser(access, rules, request, &secrets).await;
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
    let (caller, credential) = access.authenticate(token).await?.ok_or_else(refused)?;
    check_process(rules, request, &caller)?;
    Ok(Identified::with(caller, credential))
}

/// Whose program is at the other end of the connection. A request without a connection is refused.
fn connection_owner(rules: &EntryRules, request: &Parts) -> ConnectionOwner {
    let extensions = &request.extensions;
    if extensions.get::<LocalProcess>().is_some() {
        // The socket accepts connections of this user only.
        return ConnectionOwner::ThisUser;
    }
    match extensions.get() {
        Some(RequestSender::Tcp { from, to }) => {
            ConnectionOwner::of_connection(*from, *to, &rules.proxy_users)
        }
        _ => ConnectionOwner::Refused("it came by no connection"),
    }
}

/// Refuses the token of a local process to programs of other users and to other machines.
fn check_process(rules: &EntryRules, request: &Parts, caller: &Caller) -> Result<(), Problem> {
    if caller.process().is_none() {
        return Ok(());
    }
    connection_owner(rules, request).refusal_of_local_token().map_or(Ok(()), |why| {
        let text = format!("this token was made for a process of the daemon's user: {why}");
        Err(Problem::new(Code::Forbidden, text))
    })
}

/// The operator, who signed this browser in, if the request is the page's own.
async fn identify_browser(
    access: &Access,
    rules: &EntryRules,
    request: &Parts,
    secrets: &[&str],
) -> Result<Identified, Problem> {
    EntryRules::check_page(request)?;
    let mut signed_in = None;
    for secret in secrets {
        signed_in = access.authenticate_browser(secret).await?;
        if signed_in.is_some() {
            break;
        }
    }
    let Some((caller, credential, id)) = signed_in else {
        let why = "this browser is not signed in any more: `svc open` signs it in";
        return Err(Problem::new(Code::Unauthorized, why));
    };
    // After the look-up: an invalid cookie must not cause a read of the kernel's list of sockets.
    if let Some(why) = connection_owner(rules, request).refusal() {
        let text = format!("this cookie does not count here: {why}");
        return Err(Problem::new(Code::Forbidden, text));
    }
    if request.method == Method::POST && makes_credentials(request.uri.path()) {
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

/// The variable's name in a token of the form `${NAME}`, which a client sends unchanged if the
/// variable is not set.
fn placeholder(token: &str) -> Option<&str> {
    let name = token.strip_prefix("${")?.strip_suffix('}')?;
    let name = name.split(":-").next()?;
    let fits = name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    (fits && !name.is_empty()).then_some(name)
}

/// The browser whose cookie a request has, as an extension of the request.
#[derive(Debug, Clone)]
pub(super) struct BrowserToken(pub(super) TokenId);

/// The secrets in cookies with the daemon's cookie name. A page on another port of the same host
/// can set such a cookie for a longer path, which comes first, so each is tried. A value without
/// the form of a secret is skipped.
fn browser_secrets(request: &Parts) -> Vec<&str> {
    let name = cookie_name(request);
    let values = request.headers.get_all(header::COOKIE).iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter_map(|(key, secret)| (key == name).then_some(secret))
        .filter(|secret| !secret.is_empty() && secret.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .take(TRIED_COOKIES)
        .collect()
}

/// The name of the daemon's cookie. It has the port, since cookies belong to a host and not to a
/// port: two daemons on one machine need different names.
pub(super) fn cookie_name(request: &Parts) -> String {
    let host = named_host(&request.headers, &request.uri);
    let host = host.and_then(|host| host.parse::<Authority>().ok());
    let port = host.and_then(|host| host.port_u16()).unwrap_or(80);
    format!("svc_page_{port}")
}

/// Whether a route needs no credential: the health check, the page's files and sign-in, the
/// daemon's proof, and `/.well-known/`, where clients look for OAuth metadata: a 401 would start a
/// login.
fn is_open(method: &Method, path: &str) -> bool {
    if path.starts_with("/.well-known/") {
        return true;
    }
    if method == Method::POST {
        return path == DAEMON_PROOF || path == SIGN_IN;
    }
    let is_page =
        matches!(path, "/" | SIGN_IN) || path.starts_with(VIEWS) || path.starts_with(FILES);
    (is_page || path == "/health") && (method == Method::GET || method == Method::HEAD)
}

/// Whether a POST to the path returns a token, or a code that can be traded for one.
fn makes_credentials(path: &str) -> bool {
    matches!(path, "/v1/tokens" | "/v1/token/rotate" | "/v1/login_codes" | "/v1/login_tickets")
}

/// The limit of a body in bytes. It is smaller for a sender without a credential.
pub(super) fn body_bytes(path: &str, is_known: bool) -> usize {
    match path {
        _ if !is_known => limits::OPEN_BODY_BYTES,
        _ if path.starts_with("/v1/") => limits::V1_BODY_BYTES,
        _ => limits::BODY_BYTES,
    }
}

/// Whether the response to a GET may be a stream. On other routes `Accept` has no effect: else a
/// request for a list would count as a stream.
pub(super) fn may_stream(path: &str, headers: &HeaderMap) -> bool {
    matches!(path, "/mcp" | "/sse" | "/v1/biam/subscribe") || path == EVENTS && wants_feed(headers)
}

/// Whether a reader of the log wants it as a feed, and not as a page.
pub(super) fn wants_feed(headers: &HeaderMap) -> bool {
    Accept::from_headers(headers).prefers(sse::MEDIA_TYPE, "application/json")
}

/// Whether a request waits while the daemon starts. An MCP client that resumes a broken stream
/// tries twice and then waits for ever.
pub(super) fn waits_for_start(path: &str) -> bool {
    matches!(path, "/mcp" | "/sse" | "/messages")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> EntryRules {
        EntryRules {
            listen: vec!["192.0.2.7:6334".parse().unwrap()],
            allowed_hosts: vec!["svc.example".to_owned(), "team.example:8443".to_owned()],
            allowed_origins: vec!["https://board.example".to_owned()],
            no_auth: false,
            page_host: Some("svc-0123456789.localhost".to_owned()),
            proxy_users: Vec::new(),
        }
    }

    #[test]
    fn hosts_are_allowed_by_table() {
        for (host, known) in [
            ("127.0.0.1:6334", true),
            ("localhost", true),
            ("LOCALHOST:1", true),
            ("[::1]:6334", true),
            ("192.0.2.7:6334", true),
            ("[::ffff:127.0.0.1]:6334", true),
            ("svc-0123456789.localhost:6334", true),
            ("SVC-0123456789.localhost", true),
            ("svc-0123456780.localhost:6334", false),
            ("a.svc-0123456789.localhost:6334", false),
            ("other.localhost:6334", false),
            ("svc.example", true),
            ("svc.example:99", true),
            ("team.example:8443", true),
            ("team.example:8444", false),
            ("192.0.2.8:6334", false),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("user@localhost", false),
            ("", false),
            ("a b", false),
        ] {
            assert_eq!(rules().is_own_host(host, None), known, "{host}");
        }
        let none = EntryRules { page_host: None, ..rules() };
        assert!(!none.is_own_host("svc-0123456789.localhost", None));
        assert!(!none.is_own_host("", None));
    }

    #[test]
    fn host_of_an_absolute_target_replaces_the_header() {
        for (target, host, passes) in [
            ("/v1/health", Some("localhost"), true),
            ("/v1/health", None, false),
            ("http://127.0.0.1:6334/v1/health", None, true),
            ("http://localhost/v1/health", Some("127.0.0.1"), true),
            ("http://evil.example/v1/health", Some("127.0.0.1"), false),
            ("http://evil.example/v1/health", None, false),
            ("http://localhost/v1/health", Some("evil.example"), false),
            ("http://user@localhost/v1/health", Some("localhost"), false),
        ] {
            let mut request = Request::builder().uri(target);
            if let Some(host) = host {
                request = request.header(header::HOST, host);
            }
            let request = request.body(()).unwrap();
            let checked = rules().check_origin(&request);
            assert_eq!(checked.is_ok(), passes, "{target} {host:?}");
        }
        let twice = Request::builder().uri("http://localhost/").header(header::HOST, "localhost");
        let twice = twice.header(header::HOST, "localhost").body(()).unwrap();
        assert!(rules().check_origin(&twice).is_err(), "two headers");
    }

    #[test]
    fn wildcard_listener_allows_each_address_of_the_machine() {
        let all = EntryRules { listen: vec!["0.0.0.0:6334".parse().unwrap()], ..rules() };
        // The reached address belongs to this machine, also behind a port mapping.
        let reached: IpAddr = "203.0.113.213".parse().unwrap();
        assert!(all.is_own_host("203.0.113.213:6334", Some(reached)));
        assert!(!rules().is_own_host("203.0.113.213:6334", Some(reached)));
        assert!(!all.is_own_host("evil.example:6334", Some(reached)));
        assert!(!all.is_own_host("other.localhost:6334", Some(reached)));
    }

    #[test]
    fn own_authority_must_match_the_reached_address() {
        let own = |host: &str, address: &str| {
            let mut request = Request::builder().header(header::HOST, host).body(()).unwrap();
            let (from, to) = ("192.0.2.1:1".parse().unwrap(), address.parse().unwrap());
            request.extensions_mut().insert(RequestSender::Tcp { from, to });
            rules().own_authority(&request).is_some()
        };
        for (host, address, expected) in [
            ("127.0.0.1:6334", "127.0.0.1:6334", true),
            ("[::1]:6334", "[::1]:6334", true),
            ("192.0.2.7:6334", "192.0.2.7:6334", true),
            ("127.0.0.1:6335", "127.0.0.1:6334", false),
            ("127.0.0.2:6334", "127.0.0.1:6334", false),
            ("[::1]:6334", "127.0.0.1:6334", false),
            ("127.0.0.1", "127.0.0.1:6334", false),
            // The name may resolve to another address with a listener of its own.
            ("localhost:6334", "127.0.0.1:6334", false),
            ("svc.example:1", "10.0.0.1:6334", true),
            ("team.example:8443", "10.0.0.1:6334", true),
            ("team.example:8444", "10.0.0.1:6334", false),
            ("user@svc.example", "10.0.0.1:6334", false),
            ("evil.example:6334", "10.0.0.1:6334", false),
        ] {
            assert_eq!(own(host, address), expected, "{host} at {address}");
        }
        let request = Request::builder().header(header::HOST, "127.0.0.1:1").body(()).unwrap();
        assert!(rules().own_authority(&request).is_none(), "over the socket there is no address");
    }

    #[test]
    fn origins_are_allowed_by_table() {
        for (origin, known) in [
            ("http://localhost:3000", true),
            ("http://127.0.0.1", true),
            ("http://svc-0123456789.localhost:6334", true),
            ("http://other.localhost:6334", false),
            ("https://[::1]:8443", true),
            ("https://board.example", true),
            ("https://board.example.evil", false),
            ("http://evil.example", false),
            ("http://localhost@evil.example", false),
            ("null", false),
            ("file://", false),
            ("", false),
        ] {
            assert_eq!(rules().is_own_origin(origin), known, "{origin}");
        }
    }

    #[test]
    fn fetch_sites_are_allowed_by_table() {
        for (sites, origin, passes) in [
            (&[][..], None, true),
            (&["none"], None, true),
            (&["same-origin"], Some("http://127.0.0.1:6334"), true),
            (&["same-site"], None, false),
            (&["cross-site"], None, false),
            (&["cross-site"], Some("http://localhost:3000"), false),
            (&["cross-site"], Some("https://board.example"), true),
            (&["same-origin", "cross-site"], None, false),
            (&["SAME-ORIGIN"], None, false),
            (&[""], None, false),
        ] {
            let mut headers = HeaderMap::new();
            for site in sites {
                headers.append("sec-fetch-site", site.parse().unwrap());
            }
            headers.extend(origin.map(|origin| (header::ORIGIN, origin.parse().unwrap())));
            assert_eq!(rules().check_site(&headers).is_ok(), passes, "{sites:?} {origin:?}");
        }
    }

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

    #[test]
    fn cookie_secrets_are_found_by_name_and_form() {
        for (host, cookies, secrets) in [
            ("127.0.0.1:6334", &["svc_page_6334=abc"][..], &["abc"][..]),
            ("127.0.0.1:6334", &["a=b; svc_page_6334=abc; c=d"], &["abc"][..]),
            ("127.0.0.1:6334", &["a=b", "svc_page_6334=abc"], &["abc"][..]),
            ("board.example", &["svc_page_80=abc"], &["abc"][..]),
            ("127.0.0.1:6335", &["svc_page_6334=abc"], &[]),
            ("127.0.0.1:6334", &["svc_page_6334="], &[]),
            ("127.0.0.1:6334", &["svc_page_6334=abd; svc_page_6334=abc"], &["abd", "abc"]),
            ("127.0.0.1:6334", &["svc_page_6334=abd", "svc_page_6334=abc"], &["abd", "abc"]),
            ("127.0.0.1:6334", &["svc_page_6334=\"x y\"; svc_page_6334=abc"], &["abc"]),
            ("127.0.0.1:6334", &["xsvc_page_6334=abc"], &[]),
            ("127.0.0.1:6334", &[], &[]),
        ] {
            let mut request = Request::builder().header(header::HOST, host);
            for cookie in cookies {
                request = request.header(header::COOKIE, *cookie);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(browser_secrets(&parts), secrets, "{host} {cookies:?}");
        }
        let many = vec!["svc_page_80=ab"; 1000].join("; ");
        let (parts, ()) =
            Request::builder().header(header::COOKIE, many).body(()).unwrap().into_parts();
        assert_eq!(browser_secrets(&parts).len(), TRIED_COOKIES);
    }
}
