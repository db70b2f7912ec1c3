//! HTTP clients for servers at a URL and for issuers of tokens.

use std::{
    net::IpAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use oauth2::{HttpRequest, HttpResponse};
use reqwest::{
    Client, Response, StatusCode, Url,
    header::{ACCEPT, CONTENT_TYPE, HeaderValue},
    redirect::{Action, Attempt, Policy},
};
use serde_json::Value;
use svc_sys::telemetry;
use svc_wire::choose_tls;

const CONNECT: Duration = Duration::from_secs(10);
/// Maximum number of redirects that are followed, all within one server.
const MAX_REDIRECTS: usize = 5;

/// Clients for servers on this machine, which use no proxy, and for all others. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct HttpClients(Arc<Made>);

/// Created on first use: a client reads all certificates of the system, which would delay a start,
/// and most daemons need none.
#[derive(Debug, Default)]
struct Made {
    near: OnceLock<Client>,
    far: OnceLock<Client>,
}

impl HttpClients {
    pub(super) fn for_url(&self, url: &Url) -> reqwest::Result<&Client> {
        let (made, is_near) =
            if is_loopback(url) { (&self.0.near, true) } else { (&self.0.far, false) };
        if let Some(client) = made.get() {
            return Ok(client);
        }
        choose_tls();
        let builder = Client::builder()
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .redirect(Policy::custom(within_server))
            .user_agent(concat!("svc/", env!("CARGO_PKG_VERSION")));
        let builder = if is_near { builder.no_proxy() } else { builder };
        let client = builder.build()?;
        Ok(made.get_or_init(|| client))
    }
}

pub(super) fn is_loopback(url: &Url) -> bool {
    match url.host_str() {
        Some("localhost") => true,
        Some(host) => {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        }
        None => false,
    }
}

/// Follows a redirect within its origin only, so that no part of a request is sent elsewhere.
fn within_server(attempt: Attempt<'_>) -> Action {
    let is_same =
        attempt.previous().last().is_some_and(|from| from.origin() == attempt.url().origin());
    let keeps_body = matches!(attempt.status().as_u16(), 307 | 308);
    if is_same && keeps_body && attempt.previous().len() <= MAX_REDIRECTS {
        attempt.follow()
    } else {
        attempt.stop()
    }
}

/// The error of a request without its URL, which may hold a secret.
pub(super) fn problem_of(error: reqwest::Error) -> String {
    let error = error.without_url();
    if error.is_timeout() {
        return "it did not answer in time".to_owned();
    }
    telemetry::chain(&error)
}

/// The first bytes of a body, and whether there are more.
pub(super) async fn read_body(
    response: &mut Response,
    most: usize,
) -> reqwest::Result<(Vec<u8>, bool)> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        let room = most - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            return Ok((body, true));
        }
    }
    Ok((body, false))
}

/// Deadline of one request.
const BOUND: Duration = Duration::from_secs(30);
/// Largest response, in bytes.
const MAX_ANSWER: usize = 1024 * 1024;

/// The issuer cannot be reached. The text is for people, and quotes nothing of the issuer's
/// response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct IssuerUnreachable(pub(super) String);

/// Parses a URL that tokens may be sent to; the error says why they may not.
pub(super) fn safe_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|_| format!("{text:?} is no URL"))?;
    match url.scheme() {
        "https" => Ok(url),
        "http" if is_loopback(&url) => Ok(url),
        _ => Err(format!("{text}: only https is safe, or http on this machine")),
    }
}

/// Whether a URL leads to this machine by its text, in any spelling.
fn names_this_machine(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    if let Ok(address) = host.parse::<IpAddr>() {
        let address = address.to_canonical();
        // A connection to 0.0.0.0 arrives on this machine, too.
        return address.is_loopback() || address.is_unspecified();
    }
    let name = host.trim_end_matches('.');
    name == "localhost" || name.ends_with(".localhost")
}

/// Like `safe_url`, for an address that was read at `from`. A remote server must not name an
/// address of this machine: programs here trust whoever reaches them.
pub(super) fn url_named_at(text: &str, from: &Url) -> Result<Url, String> {
    let url = safe_url(text)?;
    if names_this_machine(&url) && !is_loopback(from) {
        return Err(format!("{text}: it is on this machine, and who names it is not"));
    }
    Ok(url)
}

async fn send(
    clients: &HttpClients,
    request: HttpRequest,
) -> Result<HttpResponse, IssuerUnreachable> {
    let url = safe_url(&request.uri().to_string()).map_err(IssuerUnreachable)?;
    let host = url.host_str().unwrap_or_default().to_owned();
    let failed = |problem: String| IssuerUnreachable(format!("{host} cannot be asked: {problem}"));
    let (parts, body) = request.into_parts();
    let client = clients.for_url(&url).map_err(|error| failed(problem_of(error)))?;
    let sending = client.request(parts.method, url.clone()).headers(parts.headers).body(body);
    let answering = async {
        let mut response = sending.send().await.map_err(problem_of)?;
        let (body, is_cut) = read_body(&mut response, MAX_ANSWER).await.map_err(problem_of)?;
        if is_cut {
            return Err("its answer is larger than 1 MiB".to_owned());
        }
        Ok::<_, String>((response.status(), response.headers().clone(), body))
    };
    let answer = tokio::time::timeout(BOUND, answering).await;
    let answer = answer.map_err(|_| failed(format!("no answer within {} s", BOUND.as_secs())))?;
    let (status, headers, body) = answer.map_err(failed)?;
    if status.is_redirection() {
        return Err(failed("it redirects elsewhere, which is not followed".to_owned()));
    }
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        return Err(failed(format!("it answered HTTP {}", status.as_u16())));
    }
    let mut response = HttpResponse::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}

pub(super) fn sender(
    clients: &HttpClients,
) -> impl Fn(HttpRequest) -> BoxFuture<'static, Result<HttpResponse, IssuerUnreachable>>
+ Send
+ Sync
+ 'static {
    let clients = clients.clone();
    move |request| {
        let clients = clients.clone();
        Box::pin(async move { send(&clients, request).await })
    }
}

/// A request with method GET for JSON.
fn request_to(url: &Url, body: Vec<u8>) -> Result<HttpRequest, IssuerUnreachable> {
    let mut request = HttpRequest::new(body);
    *request.uri_mut() =
        url.as_str().parse().map_err(|_| IssuerUnreachable(format!("{url} is no address")))?;
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
    Ok(request)
}

/// Fetches a document of metadata; `None` if there is none.
pub(super) async fn metadata(
    clients: &HttpClients,
    url: &Url,
) -> Result<Option<Value>, IssuerUnreachable> {
    let response = send(clients, request_to(url, Vec::new())?).await?;
    if !response.status().is_success() {
        return Ok(None);
    }
    Ok(serde_json::from_slice(response.body()).ok().filter(Value::is_object))
}

pub(super) async fn post(
    clients: &HttpClients,
    url: &Url,
    kind: &'static str,
    body: Bytes,
) -> Result<HttpResponse, IssuerUnreachable> {
    let mut request = request_to(url, body.to_vec())?;
    *request.method_mut() = reqwest::Method::POST;
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    send(clients, request).await
}
