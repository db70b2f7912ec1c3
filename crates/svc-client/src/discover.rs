//! Finds the daemon: its address, and the token to use.

use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use svc_model::check_secret;
use svc_sys::config::{Env, Paths};
use svc_sys::{bounded_file, private_file};

use super::error::{ClientError, TokenSource};

/// Largest `daemon.json`, in bytes.
const MAX_DAEMON_FILE: u64 = 64 * 1024;

/// Finds a daemon and its token. The token is read for every connection, as a restart may change
/// it.
#[derive(Debug, Clone)]
pub struct Discovery {
    home: PathBuf,
    endpoint: Endpoint,
    token: Option<Token>,
    token_file: PathBuf,
}

#[derive(Debug, Clone)]
pub struct DaemonTarget {
    pub endpoint: Endpoint,
    pub token: Option<Token>,
    pub token_source: TokenSource,
    /// On the socket, in place of a token: the pid of the client's process.
    pub process: Option<u32>,
}

/// A bearer token; `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// `daemon.json`: the daemon writes it once it listens, and removes it at its exit. It is for
/// people. It names the daemon's process, but never decides where a secret is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonFile {
    pub pid: i32,
    pub url: String,
    pub version: String,
    /// New at every start.
    pub boot_id: String,
    /// Time in RFC 3339.
    pub started_at: String,
    /// The database file, or the address of the server without its password. A daemon of an earlier
    /// version does not write it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub db: Option<String>,
}

impl Discovery {
    /// The URL of `--url`, else of `SVC_URL`, else the socket in the data folder. The token of
    /// `SVC_TOKEN`, else that of the token file, which [`Self::agent_target`] and
    /// [`Self::open_target`] do not use. Reads no file yet.
    ///
    /// Fails if the given URL or the token in the environment is invalid.
    pub fn new(
        paths: &Paths,
        token_file: PathBuf,
        env: &Env,
        url_flag: Option<&str>,
    ) -> Result<Self, ClientError> {
        let text = |name: &str| env.os(name).map(|value| value.to_string_lossy().into_owned());
        let endpoint = match url_flag.map(str::to_owned).or_else(|| text("SVC_URL")) {
            Some(url) => Endpoint::Tcp(Url::parse(&url)?),
            None => Endpoint::Socket(paths.socket.clone()),
        };
        let token = text("SVC_TOKEN")
            .map(|token| Token::parse(&token, Path::new("SVC_TOKEN")))
            .transpose()?;
        Ok(Self { endpoint, home: paths.home.clone(), token, token_file })
    }

    /// Uses the token in this file instead of any other token.
    #[must_use]
    pub fn with_token_file(self, file: PathBuf) -> Self {
        Self { token: None, token_file: file, ..self }
    }

    /// The URL from the flag or the environment, if one is given.
    pub fn fixed(&self) -> Option<&Url> {
        match &self.endpoint {
            Endpoint::Socket(_) => None,
            Endpoint::Tcp(url) => Some(url),
        }
    }

    /// Fails with [`ClientError::TokenFile`] if the token file exists but cannot be used.
    pub fn target(&self) -> Result<DaemonTarget, ClientError> {
        if self.fixed().is_none() || self.token.is_none() {
            self.check_home()?;
        }
        let (token, token_source) = match &self.token {
            Some(token) => (Some(token.clone()), TokenSource::Env),
            None => match Token::read(&self.token_file)? {
                Some(token) => (Some(token), TokenSource::File(self.token_file.clone())),
                None => (None, TokenSource::Missing(self.token_file.clone())),
            },
        };
        Ok(DaemonTarget { endpoint: self.endpoint.clone(), token, token_source, process: None })
    }

    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// The target for processes of a client rather than the operator: with the token of
    /// `SVC_TOKEN`, else the socket, where the daemon sees that this process belongs to the client.
    ///
    /// Fails with [`ClientError::NoAgentToken`] if a URL is given without a token.
    pub fn agent_target(&self, client: u32) -> Result<DaemonTarget, ClientError> {
        if self.has_token() {
            return self.target();
        }
        let open = self.open_target()?;
        Ok(DaemonTarget { token_source: TokenSource::Process, process: Some(client), ..open })
    }

    /// The socket without a credential.
    ///
    /// Fails with [`ClientError::NoAgentToken`] if a URL is given.
    pub fn open_target(&self) -> Result<DaemonTarget, ClientError> {
        if let Some(url) = self.fixed() {
            return Err(ClientError::NoAgentToken { url: url.to_string() });
        }
        self.check_home()?;
        Ok(DaemonTarget::without_token(self.endpoint.clone()))
    }

    /// A user who can write the data folder could put their own socket or token there.
    fn check_home(&self) -> Result<(), ClientError> {
        private_file::check_folder(&self.home)
            .map_err(|error| ClientError::DataFolder(error.to_string()))
    }
}

impl DaemonTarget {
    pub fn without_token(endpoint: Endpoint) -> Self {
        Self { endpoint, token: None, token_source: TokenSource::Withheld, process: None }
    }
}

impl Token {
    /// `source` is a file or a variable, for the error. Fails if the token is blank or cannot be
    /// sent in a header.
    pub fn parse(text: &str, source: &Path) -> Result<Self, ClientError> {
        let token = text.trim();
        let is_valid = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        if is_valid {
            return Ok(Self(token.to_owned()));
        }
        Err(ClientError::TokenFile {
            path: source.to_path_buf(),
            problem: "it holds no token (one line of letters and digits)".to_owned(),
        })
    }

    /// The token in a file; `None` if the file does not exist.
    pub fn read(path: &Path) -> Result<Option<Self>, ClientError> {
        let bad = |problem: String| ClientError::TokenFile { path: path.to_path_buf(), problem };
        let text = private_file::read_secret(path).map_err(|error| bad(error.to_string()))?;
        let Some(text) = text else { return Ok(None) };
        let token = Self::parse(&text, path)?;
        check_secret(&token.0).map_err(|fault| bad(format!("it {fault}")))?;
        Ok(Some(token))
    }

    /// The token's text, for the header, or for a person who asked for it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl DaemonFile {
    /// `None` if the file does not exist or is incomplete.
    pub fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&bounded_file::read(path, MAX_DAEMON_FILE).ok()??).ok()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// The Unix socket in a data folder.
    Socket(PathBuf),
    /// A given URL, perhaps of the daemon of another data folder or machine.
    Tcp(Url),
}

impl Endpoint {
    pub(super) fn authority(&self) -> String {
        match self {
            Self::Socket(_) => "localhost".to_owned(),
            Self::Tcp(url) => url.authority(),
        }
    }

    pub(super) fn path(&self, path: &str) -> String {
        match self {
            Self::Socket(_) => path.to_owned(),
            Self::Tcp(url) => url.path(path),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Tcp(url) => url.fmt(f),
        }
    }
}

/// `http://host:port`, with an optional path prefix, without a trailing slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    host: String,
    port: u16,
    prefix: String,
}

impl Url {
    /// Parses `http://host[:port][/prefix]`; the port defaults to 80.
    ///
    /// Fails with [`ClientError::BadUrl`] on anything else, `https` included.
    pub fn parse(text: &str) -> Result<Self, ClientError> {
        let bad = |problem: &str| ClientError::BadUrl {
            url: text.to_owned(),
            problem: problem.to_owned(),
        };
        let uri: http::Uri = text.trim().parse().map_err(|_| bad("it is not a URL"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(bad(
                    "only http:// is spoken here; use a local port that a tunnel or proxy carries",
                ));
            }
            _ => return Err(bad("it does not start with http://")),
        }
        let authority = uri.authority().ok_or_else(|| bad("it names no host"))?;
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(bad("a user name or a query has no place in it"));
        }
        let host = authority.host();
        if host.is_empty() {
            return Err(bad("it names no host"));
        }
        Ok(Self {
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(80),
            prefix: uri.path().trim_end_matches('/').to_owned(),
        })
    }

    /// The URL of a listener. An unspecified address is replaced with the loopback address.
    pub fn from_listener(address: SocketAddr) -> Self {
        let host = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.to_string(),
            IpAddr::V6(ip) if ip.is_unspecified() => format!("[{}]", Ipv6Addr::LOCALHOST),
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        Self { host, port: address.port(), prefix: String::new() }
    }

    /// `host:port`.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Host without brackets, and port.
    pub fn socket(&self) -> (&str, u16) {
        (self.host.trim_start_matches('[').trim_end_matches(']'), self.port)
    }

    /// If true, the address of a connected socket is the address of the daemon.
    pub(super) fn is_address_or_localhost(&self) -> bool {
        self.host.eq_ignore_ascii_case("localhost") || self.socket().0.parse::<IpAddr>().is_ok()
    }

    /// The request target of a path.
    pub fn path(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}{}", self.host, self.port, self.prefix)
    }
}

/// All but the unreserved characters (RFC 3986).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Percent-encodes a path segment or query value.
pub fn encode(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// Appends the members of an object that are set to the query of a path.
///
/// # Panics
/// Panics if `object` has no JSON form or is not an object.
pub fn with_object(path: &str, object: &impl Serialize) -> String {
    let object = serde_json::to_value(object).expect("a query has a JSON form");
    let members = object.as_object().expect("a query is an object").iter();
    members.fold(path.to_owned(), |path, (name, value)| match value {
        Value::Null => path,
        Value::String(text) => with_query(&path, &[(name, Some(text.as_str()))]),
        other => with_query(&path, &[(name, Some(other.to_string().as_str()))]),
    })
}

/// Appends the parameters that have a value to the query of a path.
pub fn with_query(path: &str, parameters: &[(&str, Option<&str>)]) -> String {
    let mut out = path.to_owned();
    let given = parameters.iter().filter_map(|(name, value)| Some((name, (*value)?)));
    for (name, value) in given {
        let separator = if out.contains('?') { '&' } else { '?' };
        write!(out, "{separator}{name}={}", encode(value))
            .expect("writing to a string does not fail");
    }
    out
}

#[cfg(test)]
mod tests {
    use svc_sys::config::{Config, Flags};

    use super::*;

    fn discovery(
        home: &Path,
        env: &[(&str, &str)],
        url: Option<&str>,
    ) -> Result<Discovery, ClientError> {
        let env: Env = env.iter().copied().collect();
        let paths = Paths::resolve(&env, Some(home)).expect("a home is given");
        let config = Config::resolve(paths, &env, &Flags::default()).expect("is valid");
        Discovery::new(&config.paths, config.token_file.value, &env, url)
    }

    #[test]
    fn only_a_given_url_replaces_the_socket() {
        let home = tempfile::tempdir().expect("a folder");
        let socket = home.path().join("svc.sock").display().to_string();
        let daemon = DaemonFile {
            pid: i32::try_from(std::process::id()).expect("fits"),
            url: "http://127.0.0.1:9999".to_owned(),
            version: "0".to_owned(),
            boot_id: "b".to_owned(),
            started_at: "t".to_owned(),
            db: None,
        };
        let file = serde_json::to_vec(&daemon).expect("serialises");
        std::fs::write(home.path().join("daemon.json"), file).expect("writes");
        let cases = [
            (None, None, socket.as_str()),
            (Some(("SVC_LISTEN", "127.0.0.1:5")), None, &socket),
            (Some(("SVC_URL", "")), None, &socket),
            (Some(("SVC_URL", "http://e:1")), None, "http://e:1"),
            (Some(("SVC_URL", "http://e:1")), Some("http://f:1"), "http://f:1"),
        ];
        for (env, flag, expected) in cases {
            let discovery = discovery(home.path(), env.as_slice(), flag).expect("is valid");
            let target = discovery.target().expect("is valid");
            assert_eq!(target.endpoint.to_string(), expected, "{env:?} {flag:?}");
            assert_eq!(discovery.fixed().is_some(), expected.starts_with("http"));
        }
    }

    #[test]
    fn agent_target_never_has_the_operator_token() {
        let home = tempfile::tempdir().expect("a folder");
        std::fs::write(home.path().join("token"), "abc\n").expect("writes");
        let target = |env: &[(&str, &str)], url: Option<&str>| {
            discovery(home.path(), env, url).expect("is valid").agent_target(7)
        };
        let on_socket = target(&[], None).expect("the socket");
        assert_eq!((on_socket.token, on_socket.process), (None, Some(7)));
        let given = target(&[("SVC_TOKEN", "xyz")], Some("http://e:1")).expect("a URL and a token");
        assert_eq!((given.token.expect("it is given").expose(), given.process), ("xyz", None));
        let refused = target(&[], Some("http://e:1")).expect_err("the token file is not theirs");
        assert!(matches!(refused, ClientError::NoAgentToken { .. }), "{refused}");
    }

    #[test]
    fn token_is_read_from_the_environment_or_the_file() {
        let home = tempfile::tempdir().expect("a folder");
        let found =
            |env: &[(&str, &str)]| discovery(home.path(), env, None).and_then(|d| d.target());
        assert_eq!(
            found(&[]).expect("found").token_source,
            TokenSource::Missing(home.path().join("token"))
        );
        let write = |token: &str| {
            private_file::replace(&home.path().join("token"), token.as_bytes()).expect("writes");
        };
        let token = svc_model::new_secret();
        write(&format!("{token}\n"));
        let target = found(&[]).expect("found");
        assert_eq!(target.token.expect("read").expose(), token);
        assert_eq!(
            found(&[("SVC_TOKEN", "xyz")]).expect("found").token.expect("given").expose(),
            "xyz"
        );
        found(&[("SVC_TOKEN", "x y")]).expect_err("has a space");
        write("abc");
        let error = found(&[]).expect_err("can be guessed").to_string();
        assert!(error.contains("128 bits") && error.contains("/token"), "{error}");
        write("");
        found(&[]).expect_err("is empty");
    }

    #[test]
    fn folder_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let home = tempfile::tempdir().expect("a folder");
        std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o770))
            .expect("is ours");
        let found =
            |env: &[(&str, &str)], url| discovery(home.path(), env, url).and_then(|d| d.target());
        for (env, url) in
            [(&[][..], None), (&[("SVC_TOKEN", "t")], None), (&[], Some("http://e:1"))]
        {
            let error = found(env, url).expect_err("others can write it").to_string();
            assert!(error.contains("chmod 700 "), "{error}");
        }
        found(&[("SVC_TOKEN", "t")], Some("http://e:1")).expect("needs nothing of it");
    }

    #[test]
    fn only_http_urls_are_parsed() {
        let fine = [
            ("http://127.0.0.1:6334", "http://127.0.0.1:6334", "127.0.0.1"),
            ("http://[::1]:7/", "http://[::1]:7", "::1"),
            ("http://box/svc/", "http://box:80/svc", "box"),
        ];
        for (text, shown, host) in fine {
            let url = Url::parse(text).expect(text);
            assert_eq!((url.to_string().as_str(), url.socket().0), (shown, host));
        }
        for text in ["https://x", "x:1", "http://", "http://u@h", "http://h/?q", "", "ftp://h"] {
            assert!(Url::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn wildcard_listener_is_reached_by_loopback() {
        let cases = [
            ("0.0.0.0:5", "http://127.0.0.1:5"),
            ("[::]:5", "http://[::1]:5"),
            ("10.0.0.1:5", "http://10.0.0.1:5"),
        ];
        for (address, url) in cases {
            assert_eq!(Url::from_listener(address.parse().expect(address)).to_string(), url);
        }
    }

    #[test]
    fn queries_are_encoded_without_missing_values() {
        assert_eq!(
            with_query("/p", &[("a", None), ("b", Some("x y/é")), ("c", Some("1"))]),
            "/p?b=x%20y%2F%C3%A9&c=1"
        );
        assert_eq!(with_query("/p", &[("a", None)]), "/p");
        let object = serde_json::json!({ "a": null, "b": "x y", "c": 1, "d": false });
        assert_eq!(with_object("/p?e=1", &object), "/p?e=1&b=x%20y&c=1&d=false");
    }
}
