//! Checks `Host` and `Origin`: by DNS rebinding every web page can reach a loopback port.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderValue, Request, Uri, header, request::Parts, uri::Authority};
use svc_model::LocalProcess;
use svc_sys::connection_owner::is_own_address;

use super::{Code, Problem, listener::LocalAddress};

/// Which hosts, origins and users a request may come from.
#[derive(Debug, Clone, Default)]
pub struct EntryRules {
    /// Addresses that the daemon listens on.
    pub listen: Vec<SocketAddr>,
    /// Further names that a `Host` header may have, with or without a port.
    pub allowed_hosts: Vec<String>,
    /// Further origins that an `Origin` header may name.
    pub allowed_origins: Vec<String>,
    /// This user's programs are the operator without a token. On loopback only.
    pub no_auth: bool,
    /// The host name of the page, which no unauthenticated response contains.
    pub page_host: Option<String>,
    /// Users whose programs forward the requests of others.
    pub proxy_users: Vec<u32>,
}

impl EntryRules {
    /// Checks the `Host` and `Origin` headers. On the Unix socket any `Host` is valid: no web page
    /// can reach it.
    pub(super) fn check_origin<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        let forbidden = |what: &str, hint: &str| {
            Err(Problem::new(Code::Forbidden, format!("this {what} is not allowed here: {hint}")))
        };
        let headers = request.headers();
        let named = named_host(headers, request.uri());
        let extensions = request.extensions();
        let is_local = extensions.get::<LocalProcess>().is_some();
        let reached = extensions.get::<LocalAddress>().map(|LocalAddress(address)| address.ip());
        if !is_local && !named.is_some_and(|host| self.is_own_host(host, reached)) {
            return forbidden("Host", "see --allowed-host");
        }
        let mut origins = headers.get_all(header::ORIGIN).iter();
        match (origins.next(), origins.next()) {
            (None, _) => Ok(()),
            (Some(origin), None)
                if origin.to_str().is_ok_and(|origin| self.is_own_origin(origin)) =>
            {
                Ok(())
            }
            _ => forbidden("Origin", "see --allowed-origin"),
        }
    }

    /// Whether the request has an origin that the person has allowed.
    pub(super) fn is_allowed_origin(&self, headers: &HeaderMap) -> bool {
        let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
        origin.is_some_and(|origin| is_listed(&self.allowed_origins, origin))
    }

    /// Under `no_auth`, refuses requests that a browser sends for a page of another site: nothing
    /// else distinguishes them from the person's.
    ///
    /// A page whose origin the person has allowed may send any request, as it may with a token.
    pub(super) fn check_site(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let own = |site: &HeaderValue| matches!(site.as_bytes(), b"same-origin" | b"none");
        let is_allowed = |origin: &HeaderValue| {
            origin.to_str().is_ok_and(|origin| is_listed(&self.allowed_origins, origin))
        };
        if headers.get_all("sec-fetch-site").iter().all(own)
            || headers.get(header::ORIGIN).is_some_and(is_allowed)
        {
            return Ok(());
        }
        let text = "with --no-auth, requests from other sites are refused (Sec-Fetch-Site): see --allowed-origin";
        Err(Problem::new(Code::Forbidden, text))
    }

    /// Refuses a request with a cookie that another site may have caused. The page proves itself by
    /// a header, which other origins cannot send, or the browser says that the request is from the
    /// page's own origin.
    pub(super) fn check_page(request: &Parts) -> Result<(), Problem> {
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

    /// The host and port that the request names, if they are the daemon's address that the request
    /// reached, or allowed for a proxy. A request through another program names that program's
    /// address.
    pub(super) fn own_authority<B>(&self, request: &Request<B>) -> Option<OwnAuthority> {
        let named = named_host(request.headers(), request.uri())?;
        let LocalAddress(address) = request.extensions().get()?;
        // A listener on all addresses reports IPv4 as IPv6.
        let is_reached = |named: SocketAddr| {
            named.port() == address.port()
                && named.ip().to_canonical() == address.ip().to_canonical()
        };
        let is_address = named.parse::<SocketAddr>().is_ok_and(is_reached);
        (is_address || self.allows_host(named)).then(|| OwnAuthority(named.to_owned()))
    }

    fn allows_host(&self, host: &str) -> bool {
        let name = host.parse::<Authority>().ok();
        let name = name.as_ref().map_or(host, |authority| authority.host());
        !host.contains('@')
            && (is_listed(&self.allowed_hosts, host) || is_listed(&self.allowed_hosts, name))
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
        let Ok(authority) = host.parse::<Authority>() else {
            return false;
        };
        if authority.as_str().contains('@') {
            return false;
        }
        let name = authority.host();
        self.is_loopback_name(name)
            || is_listed(&self.allowed_hosts, name)
            || address(name).is_some_and(knows)
    }

    /// A loopback address, a listen address or, for a listener on all addresses, any address of
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

    /// `localhost`, a loopback address or the page's own name. No other name below `localhost`: a
    /// browser would send that name's cookies to any server of this machine.
    fn is_loopback_name(&self, name: &str) -> bool {
        name.eq_ignore_ascii_case("localhost")
            || self.page_host.as_ref().is_some_and(|host| host.eq_ignore_ascii_case(name))
            || address(name).is_some_and(|ip| ip.to_canonical().is_loopback())
    }

    fn is_own_origin(&self, origin: &str) -> bool {
        if is_listed(&self.allowed_origins, origin) {
            return true;
        }
        let Some((scheme, authority)) = origin.split_once("://") else {
            return false;
        };
        let Ok(authority) = authority.parse::<Authority>() else {
            return false;
        };
        matches!(scheme, "http" | "https")
            && !authority.as_str().contains('@')
            && self.is_loopback_name(authority.host())
    }
}

fn is_listed(allowed: &[String], name: &str) -> bool {
    allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
}

/// Host and port of a request, which are the daemon's.
#[derive(Debug, Clone)]
pub(super) struct OwnAuthority(pub(super) String);

/// The host and port that a request names.
pub(super) fn named_host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().ok(),
        (None, None) => uri.authority().map(Authority::as_str),
        _ => None,
    }
}

/// Parses an address in the notation of URLs, where IPv6 is in brackets.
fn address(name: &str) -> Option<IpAddr> {
    name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name).parse().ok()
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
            request.extensions_mut().insert(LocalAddress(address.parse().unwrap()));
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
}
