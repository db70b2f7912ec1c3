//! The cookie of a browser that the operator signed in.

use http::{HeaderValue, header, request::Parts, uri::Authority};
use svc_core::service::access::BrowserSignIn;
use svc_model::{TokenId, limits};

use crate::http::entry::named_host;

/// The browser whose cookie a request has, as an extension of the request.
#[derive(Debug, Clone)]
pub(in crate::http) struct BrowserToken(pub(in crate::http) TokenId);

/// Most cookies with the daemon's cookie name that are tried: a browser sends one for each folder
/// of the path at most.
const TRIED: usize = 16;

/// The secrets in cookies with the daemon's cookie name. A page on another port of the same host
/// can set such a cookie for a longer path, which comes first, so each is tried. A value without
/// the form of a secret is skipped.
pub(in crate::http) fn browser_secrets(request: &Parts) -> Vec<&str> {
    let name = name(request);
    let values = request.headers.get_all(header::COOKIE).iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter_map(|(key, secret)| (key == name).then_some(secret))
        .filter(|secret| !secret.is_empty() && secret.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .take(TRIED)
        .collect()
}

/// The `Set-Cookie` header that signs a browser in.
pub(super) fn given(browser: &BrowserSignIn, request: &Parts) -> HeaderValue {
    let seconds = limits::BROWSER_TTL.as_secs();
    cookie(request, &browser.secret, seconds)
}

/// The `Set-Cookie` header that signs a browser out.
pub(super) fn taken(request: &Parts) -> HeaderValue {
    cookie(request, "", 0)
}

fn cookie(request: &Parts, secret: &str, seconds: u64) -> HeaderValue {
    let name = name(request);
    let text = format!("{name}={secret}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds}");
    HeaderValue::from_str(&text).expect("letters, digits and signs")
}

/// The name has the port, since cookies belong to a host and not to a port: two daemons on one
/// machine need different names.
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
        assert_eq!(browser_secrets(&parts).len(), TRIED);
    }
}
