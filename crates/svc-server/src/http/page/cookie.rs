//! The cookie of a browser that the operator signed in.

use http::{HeaderValue, header, request::Parts, uri::Authority};
use svc_core::service::access::BrowserSignIn;
use svc_model::{TokenId, limits};

use crate::http::entry::named_host;

/// The browser whose cookie a request came with: an extension of the request.
#[derive(Debug, Clone)]
pub(in crate::http) struct BrowserToken(pub(in crate::http) TokenId);

/// Most cookies of our name that are tried: a browser sends one for each folder of the path at
/// most.
const TRIED: usize = 16;

/// The secrets in cookies of our name. A page on another port of the same name can set such a
/// cookie for a longer path, which comes first and hides ours, so each is tried. What has not the
/// form of a secret is left out.
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
    fn secrets_of_one_port_by_table() {
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
