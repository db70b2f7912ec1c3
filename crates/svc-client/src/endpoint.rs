//! Where a daemon listens.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use super::error::ClientError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// The Unix socket in a data folder.
    Socket(PathBuf),
    /// A given URL: perhaps the daemon of another data folder or machine.
    Tcp(Url),
}

impl Endpoint {
    /// Value of the `Host` header.
    pub(super) fn authority(&self) -> String {
        match self {
            Self::Socket(_) => "localhost".to_owned(),
            Self::Tcp(url) => url.authority(),
        }
    }

    /// The request target of a path.
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

    /// An unspecified address becomes the loopback one.
    pub fn from_listener(address: SocketAddr) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        let host = match ip {
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

    /// If so, the address of a connected socket is that of the daemon.
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

const HEX: [char; 16] =
    ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];

/// Percent-encodes a path segment or query value.
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(HEX[usize::from(byte >> 4)]);
            out.push(HEX[usize::from(byte & 0xf)]);
        }
    }
    out
}

/// Appends the members of an object that have a value.
///
/// # Panics
/// If it has no JSON form, or is no object.
pub fn with_object(path: &str, object: &impl Serialize) -> String {
    let object = serde_json::to_value(object).expect("a query has a JSON form");
    let members = object.as_object().expect("a query is an object").iter().map(|(name, value)| {
        let value = match value {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };
        (name.as_str(), value)
    });
    let members: Vec<_> = members.collect();
    let parameters: Vec<_> =
        members.iter().map(|(name, value)| (*name, value.as_deref())).collect();
    with_query(path, &parameters)
}

/// Appends the parameters that have a value.
pub fn with_query(path: &str, parameters: &[(&str, Option<&str>)]) -> String {
    let mut out = path.to_owned();
    let mut separator = if path.contains('?') { '&' } else { '?' };
    for (name, value) in parameters {
        if let Some(value) = value {
            out.push(separator);
            out.push_str(name);
            out.push('=');
            out.push_str(&encode(value));
            separator = '&';
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

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
