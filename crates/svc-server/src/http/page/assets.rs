//! The files of the page.

use std::sync::LazyLock;

use axum::{
    body::Body,
    extract::Path,
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use sha2::{Digest as _, Sha256};

use crate::http::{Code, Problem, api::Api, openapi::Operation};

/// A file, plain and compressed. The build script makes the list of them.
struct Asset {
    /// Its path below the folder of the files.
    name: &'static str,
    plain: &'static [u8],
    gzip: &'static [u8],
}

static ASSETS: &[Asset] = &include!(concat!(env!("OUT_DIR"), "/page_assets.rs"));

/// The entity tags of the files, in the order of the files.
static TAGS: LazyLock<Vec<String>> =
    LazyLock::new(|| ASSETS.iter().map(|asset| tag_of(asset.plain)).collect());

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
    // The tag says whether a file is unchanged; a new daemon brings new files.
    (header::CACHE_CONTROL, "no-cache"),
];

pub(super) fn routes(api: Api) -> Api {
    let html = "text/html";
    let page = |summary| Operation::new(summary).open().answer_with(200, "The page", html);
    api.get("/", page("The page, where it begins"), show_page)
        .get("/ui/{*view}", page("The page, at one of its views"), show_page)
        .get("/login", page("What gives the code or ticket of `svc open` back"), show_login)
        .get(
            "/assets/{*file}",
            Operation::new("A file of the page").open().answer_with(
                200,
                "The file",
                "text/javascript",
            ),
            show_file,
        )
}

async fn show_page(method: Method, headers: HeaderMap) -> Result<Response, Problem> {
    serve("index.html", &method, &headers)
}

async fn show_login(method: Method, headers: HeaderMap) -> Result<Response, Problem> {
    serve("login.html", &method, &headers)
}

async fn show_file(
    Path(file): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    serve(&file, &method, &headers)
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

fn tag_of(bytes: &[u8]) -> String {
    hex::encode(&Sha256::digest(bytes)[..12])
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

/// Whether the client accepts gzip with a weight above 0.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).any(|part| {
        let mut words = part.split(';').map(str::trim);
        let is_gzip = words.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let is_refused = words
            .filter_map(|word| word.split_once('='))
            .any(|(name, weight)| name.trim() == "q" && weight.trim().parse() == Ok(0.0_f32));
        is_gzip && !is_refused
    })
}

/// Whether the client has the file already.
fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let values = headers.get_all(header::IF_NONE_MATCH).iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|known| known.trim().trim_start_matches("W/"))
        .any(|known| known == tag || known == "*")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::bounds::FILES;

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

    /// Every file that a file names must exist.
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
