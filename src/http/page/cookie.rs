//! The cookie of a browser that the operator signed in.

use http::{HeaderValue, header, request::Parts, uri::Authority};

use crate::{
    domain::{TokenId, limits},
    http::entry::named_host,
    service::access::BrowserSignIn,
};

/// The browser whose cookie a request came with: an extension of the request.
#[derive(Debug, Clone)]
pub(in crate::http) struct BrowserToken(pub(in crate::http) TokenId);

/// The secret in the cookie of a request; `None` if there is none, or nobody can say which.
pub(in crate::http) fn browser_secret(request: &Parts) -> Option<&str> {
    let name = name(request);
    let values = request.headers.get_all(header::COOKIE).iter();
    let mut secrets = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter_map(|(key, secret)| (key == name).then_some(secret));
    match (secrets.next(), secrets.next()) {
        (Some(secret), None) if !secret.is_empty() => Some(secret),
        _ => None,
    }
}

/// Gives a browser its cookie.
pub(super) fn given(browser: &BrowserSignIn, request: &Parts) -> HeaderValue {
    let seconds = limits::BROWSER_TTL.as_secs();
    cookie(request, &browser.secret, seconds)
}

/// Takes it away.
pub(super) fn taken(request: &Parts) -> HeaderValue {
    cookie(request, "", 0)
}

fn cookie(request: &Parts, secret: &str, seconds: u64) -> HeaderValue {
    let name = name(request);
    let text = format!("{name}={secret}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds}");
    HeaderValue::from_str(&text).expect("letters, digits and signs")
}

/// A cookie belongs to a name and not to a port: two daemons on one machine take each its own.
fn name(request: &Parts) -> String {
    let host =
        named_host(&request.headers, &request.uri).and_then(|host| host.parse::<Authority>().ok());
    let port = host.and_then(|host| host.port_u16()).unwrap_or(80);
    format!("svc_page_{port}")
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn one_secret_for_one_port() {
        for (host, cookies, secret) in [
            ("127.0.0.1:6334", &["svc_page_6334=abc"][..], Some("abc")),
            ("127.0.0.1:6334", &["a=b; svc_page_6334=abc; c=d"], Some("abc")),
            ("127.0.0.1:6334", &["a=b", "svc_page_6334=abc"], Some("abc")),
            ("board.example", &["svc_page_80=abc"], Some("abc")),
            ("127.0.0.1:6335", &["svc_page_6334=abc"], None),
            ("127.0.0.1:6334", &["svc_page_6334="], None),
            ("127.0.0.1:6334", &["svc_page_6334=abc; svc_page_6334=abd"], None),
            ("127.0.0.1:6334", &["xsvc_page_6334=abc"], None),
            ("127.0.0.1:6334", &[], None),
        ] {
            let mut request = Request::builder().header(header::HOST, host);
            for cookie in cookies {
                request = request.header(header::COOKIE, *cookie);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(browser_secret(&parts), secret, "{host} {cookies:?}");
        }
    }
}
