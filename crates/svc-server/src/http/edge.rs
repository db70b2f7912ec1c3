//! The edge: accepts connections, serves each with hyper, streams included, and passes every
//! request and every response through its layers. Not with `axum::serve`, which allows neither this
//! shutdown nor the bounds of connections.
//!
//! The layers, from the outside in:
//!
//! 1. a request id, which the client may give (`X-Request-Id`), and its `traceparent`; the response
//!    has both;
//! 2. a span and a log line, without tokens and bodies;
//! 3. the body of a failure, and the request metrics;
//! 4. the rules for `Host` and `Origin`, against DNS rebinding and foreign web pages; then CORS,
//!    for the origins that the person has allowed and for no other;
//! 5. readiness: 503 while the daemon starts or shuts down;
//! 6. identification: the caller of the request;
//! 7. admission: what the request holds of its caller's budget;
//! 8. the table of routes, at the end of this file, below a layer that catches panics. Bodies are
//!    read there, with bounds of bytes and of time.

use std::{
    any::Any,
    convert::Infallible,
    pin::{Pin, pin},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    response::{IntoResponse as _, Response},
};
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{HeaderName, HeaderValue, Method, Request, header};
use http_body::Body as _;
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::rt::{TokioIo, TokioTimer};
use svc_core::service::process::RequestSender;
use svc_model::{NUL_REFUSED, limits};
use svc_sys::telemetry;
use tokio::{sync::SetOnce, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::{Layer as _, ServiceBuilder, ServiceExt as _, service_fn};
use tower_http::{
    catch_panic::CatchPanicLayer,
    cors::{AllowHeaders, AllowOrigin, CorsLayer},
    propagate_header::PropagateHeaderLayer,
    request_id::{MakeRequestId, PropagateRequestIdLayer, RequestId, SetRequestIdLayer},
    trace::TraceLayer,
};
use tracing::Span;

use super::{
    App, Code, EntryRules, Problem, access,
    admission::Admission,
    agents,
    api::{Api, Operation},
    connection::{ClientConnection, ClientIo, ClientSocket, ConnectionBounds, Listener},
    entry::{self, Identified, identify},
    events, health, journal, page, peers, sources, tasks,
};
use crate::web::{GivenRequestId, RouteName};

#[derive(Debug, Clone)]
pub struct Edge(Arc<SharedEdge>);

#[derive(Debug)]
struct SharedEdge {
    rules: EntryRules,
    cors: CorsLayer,
    /// Set when the daemon is ready. Until then the response is 503, never 404; MCP clients wait.
    serving: SetOnce<Serving>,
    draining: AtomicBool,
    /// Requests without a response, on all connections.
    under_way: TaskTracker,
    boot: String,
    requests: AtomicU64,
}

#[derive(Debug)]
struct Serving {
    app: App,
    router: Router,
}

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
static TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");

/// Longest request id, and longest `traceparent`, that is accepted from a client, in bytes.
const TAKEN_ID_BYTES: usize = 128;

/// During shutdown, a connection is closed when it has had no request and has written no byte for
/// this long.
const HALF_A_HEAD: Duration = Duration::from_secs(1);

/// Serves until `stop`; then accepts no more connections and lets open ones finish their requests.
/// `connections` tracks when the last one has ended.
pub async fn serve(
    listener: Listener,
    bounds: ConnectionBounds,
    edge: Edge,
    stop: CancellationToken,
    connections: TaskTracker,
) {
    let accept = async {
        loop {
            let slot = bounds.slot().await;
            match listener.next().await {
                Ok((socket, sender)) => {
                    let (client, edge, stop) = (bounds.connection(), edge.clone(), stop.clone());
                    connections.spawn(async move {
                        connection(socket, sender, client, edge, stop).await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    // Most likely out of file descriptors: a pause lets others close.
                    tracing::warn!(error = telemetry::chain(&error), "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    };
    tokio::select! {
        () = accept => {}
        () = stop.cancelled() => {}
    }
}

/// Serves a connection to its end. During shutdown an idle connection stays open until every
/// request on any connection has its response: a request on it then gets a 503 with a retry, while
/// a closed connection would not say whether the request arrived.
async fn connection(
    socket: ClientSocket,
    sender: RequestSender,
    client: Arc<ClientConnection>,
    edge: Edge,
    stop: CancellationToken,
) {
    let io = ClientIo::new(socket, Arc::clone(&client), edge.body_stall());
    let requests = Arc::clone(&client);
    let draining = edge.clone();
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        let (edge, client) = (edge.clone(), Arc::clone(&requests));
        let under_way = (client.begin(), edge.0.under_way.token());
        // Boxed, so that an idle connection does not hold the memory of a request's future.
        Box::pin(async move {
            client.flows().await;
            let extensions = request.extensions_mut();
            extensions.insert(sender);
            if let RequestSender::Local(process) = sender {
                extensions.insert(process);
            }
            extensions.insert(client);
            let mut response = edge.answer(request.map(Body::new)).await;
            if edge.0.draining.load(Relaxed) {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
            }
            drop(under_way);
            Ok::<_, Infallible>(response)
        })
    });
    let mut served = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits::HEAD_TIMEOUT)
            .max_buf_size(limits::CONNECTION_BUFFER_BYTES)
            .serve_connection(TokioIo::new(io), service)
    );
    let ended = tokio::select! {
        ended = serve_until_closed(served.as_mut(), &client) => Some(ended),
        () = stop.cancelled() => {
            draining.drain();
            tokio::select! {
                ended = served.as_mut() => Some(ended),
                () = draining.0.under_way.wait() => None,
            }
        }
    };
    let ended = if let Some(ended) = ended {
        ended
    } else {
        served.as_mut().graceful_shutdown();
        finish(served.as_mut(), &client).await
    };
    client.leave();
    if let Err(error) = ended {
        // The client disconnected, or does not speak HTTP.
        tracing::debug!(error = telemetry::chain(&error), "a connection ended early");
    }
}

async fn finish<F: Future<Output = Result<(), hyper::Error>>>(
    mut served: Pin<&mut F>,
    client: &ClientConnection,
) -> Result<(), hyper::Error> {
    loop {
        let writes = client.writes();
        tokio::select! {
            ended = served.as_mut() => return ended,
            () = tokio::time::sleep(HALF_A_HEAD) => {}
        }
        if !client.is_at_work() && client.writes() == writes {
            // The client has sent half of a request head, or does not read its response.
            return Ok(());
        }
    }
}

async fn serve_until_closed<F: Future<Output = Result<(), hyper::Error>>>(
    mut served: Pin<&mut F>,
    client: &ClientConnection,
) -> Result<(), hyper::Error> {
    loop {
        tokio::select! {
            ended = served.as_mut() => return ended,
            () = client.closed() => {}
        }
        // On a busy machine the client's request may have arrived unread.
        tokio::task::yield_now().await;
        if let Some(ended) = served.as_mut().now_or_never() {
            return ended;
        }
        if client.is_to_go() {
            return Ok(());
        }
    }
}

impl Edge {
    /// Responds with 503 until [`Self::ready`]. `boot` makes request ids unique to this process.
    pub fn new(rules: EntryRules, boot: &str) -> Self {
        let cors = cors(&rules.allowed_origins);
        Self(Arc::new(SharedEdge {
            rules,
            cors,
            serving: SetOnce::new(),
            draining: AtomicBool::new(false),
            under_way: TaskTracker::new(),
            boot: boot.chars().rev().take(8).collect(),
            requests: AtomicU64::new(0),
        }))
    }

    /// Opens the routes: those of this crate, and `others`.
    pub fn ready(&self, app: App, others: Router) {
        let router = api().finish().0.with_state(app.clone()).merge(others);
        let router = router
            .fallback(async || {
                Problem::new(Code::NotFound, "there is no such path: see /openapi.json")
            })
            .method_not_allowed_fallback(async || {
                Problem::new(Code::MethodNotAllowed, "this path has other methods: see Allow")
            })
            .layer(CatchPanicLayer::custom(panicked));
        // Called once, by the composition.
        self.0.serving.set(Serving { app, router }).ok();
    }

    /// From here on new requests get 503: the daemon shuts down.
    pub fn drain(&self) {
        self.0.draining.store(true, Relaxed);
        self.0.under_way.close();
    }

    fn body_stall(&self) -> Duration {
        let serving = self.0.serving.get();
        serving.map_or(limits::BODY_STALL, |it| it.app.services.tuning().body_stall)
    }

    pub async fn answer(&self, request: Request<Body>) -> Response {
        let edge = &*self.0;
        let layers = ServiceBuilder::new()
            .map_request(keep_plain_ids)
            .layer(SetRequestIdLayer::x_request_id(edge))
            .layer(PropagateRequestIdLayer::x_request_id())
            .layer(PropagateHeaderLayer::new(TRACE_PARENT.clone()))
            .layer(
                TraceLayer::new_for_http()
                    .make_span_with(span_of)
                    .on_request(())
                    .on_response(log_response)
                    .on_body_chunk(())
                    .on_eos(())
                    .on_failure(()),
            )
            .service_fn(move |request| async move {
                Ok::<_, Infallible>(edge.respond_and_count(request).await)
            });
        let Ok(response) = layers.oneshot(request).await;
        response.map(Body::new)
    }
}

impl SharedEdge {
    /// Responds to a request: renders the body of a failure, and counts the response in the
    /// metrics.
    async fn respond_and_count(&self, request: Request<Body>) -> Response {
        let started = Instant::now();
        let (method, path) = (request.method().clone(), request.uri().clone());
        let id = request.headers().get(&REQUEST_ID).cloned();
        let mut response = self.respond_if_allowed(request).await;
        if let Some(problem) = response.extensions_mut().remove::<Problem>() {
            let id = id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default();
            let rendered = problem.render(path.path(), id);
            let (mut bare, _) = std::mem::replace(&mut response, rendered).into_parts();
            // Headers of the layers stay: `Allow`, and those of CORS. The body has another length.
            bare.headers.remove(header::CONTENT_LENGTH);
            response.headers_mut().extend(bare.headers);
            *response.extensions_mut() = bare.extensions;
        }
        if let Some(Serving { app, .. }) = self.serving.get() {
            let route = RouteName::from_response(&response);
            app.metrics.observe(&method, route, response.status(), started.elapsed());
        }
        response
    }

    async fn respond_if_allowed(&self, request: Request<Body>) -> Response {
        if let Err(problem) = self.rules.check_origin(&request) {
            return problem.into_response();
        }
        if !self.rules.is_allowed_origin(request.headers()) {
            return self.respond_by_route(request).await;
        }
        let inner = service_fn(move |request| async move {
            Ok::<_, Infallible>(self.respond_by_route(request).await)
        });
        let Ok(response) = self.cors.layer(inner).oneshot(request).await;
        response
    }

    /// Boxed, since it is large and has two callers: so it exists once in the program.
    fn respond_by_route(&self, request: Request<Body>) -> BoxFuture<'_, Response> {
        Box::pin(async move { self.route(request).await.unwrap_or_else(Problem::into_response) })
    }

    async fn route(&self, mut request: Request<Body>) -> Result<Response, Problem> {
        let Serving { app, router } = self.serving(request.uri().path()).await?;
        if request.uri().path() == entry::DAEMON_PROOF
            && let Some(authority) = self.rules.own_authority(&request)
        {
            request.extensions_mut().insert(authority);
        }
        let (mut parts, body) = request.into_parts();
        let client = parts.extensions.remove::<Arc<ClientConnection>>();
        let check = client.as_ref().and_then(|client| client.check());
        let identified = identify(&self.rules, &app.services.access, &parts).await;
        match (&identified, client) {
            (Ok(Identified { caller: Some(_), .. }), Some(client)) => client.is_known(),
            (Err(problem), Some(client)) if problem.is_refused_caller() => client.is_unknown(),
            _ => {}
        }
        drop(check);
        let identified = identified?;
        let size = body.size_hint();
        let admission = Admission::take(&app.services, &identified, &parts, &size)?;
        if parts.uri.path().contains("%00") {
            return Err(Problem::invalid("", NUL_REFUSED));
        }
        let mut query = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
        if let Some((field, _)) = query.find(|(_, text)| text.contains('\0')) {
            return Err(Problem::invalid(field, NUL_REFUSED));
        }
        parts.extensions.insert(app.clone());
        if let Some(caller) = identified.caller {
            app.services.team.note_call(&caller).await;
            parts.extensions.insert(caller);
        }
        if let Some(browser) = identified.browser {
            parts.extensions.insert(browser);
        }
        if let Some(end) = identified.signs_in {
            parts.extensions.insert(end);
        }
        let Ok(response) = router.clone().oneshot(Request::from_parts(parts, body)).await;
        Ok(admission.answer(response).await)
    }

    async fn serving(&self, path: &str) -> Result<&Serving, Problem> {
        let serving = match self.serving.get() {
            None if entry::waits_for_start(path) => {
                timeout(limits::START_TIMEOUT, self.serving.wait()).await.ok()
            }
            known => known,
        };
        match serving {
            None => Err(Problem::new(Code::Unavailable, "the daemon is starting")),
            Some(_) if self.draining.load(Relaxed) => {
                Err(Problem::new(Code::Unavailable, "the daemon is going down"))
            }
            Some(serving) => Ok(serving),
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the signature is tower-http's")]
fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let message = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    tracing::error!(message, "a handler panicked");
    Problem::new(Code::Internal, "internal error").into_response()
}

/// CORS for the origins that the person has allowed. They send tokens, and no cookies.
fn cors(origins: &[String]) -> CorsLayer {
    let origins = origins.to_vec();
    let is_listed = move |origin: &HeaderValue, _: &http::request::Parts| {
        let origin = origin.as_bytes();
        origins.iter().any(|allowed| allowed.as_bytes().eq_ignore_ascii_case(origin))
    };
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(is_listed))
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([
            REQUEST_ID.clone(),
            header::RETRY_AFTER,
            header::WWW_AUTHENTICATE,
            HeaderName::from_static("mcp-session-id"),
        ])
        .max_age(limits::PREFLIGHT_AGE)
}

impl MakeRequestId for &SharedEdge {
    fn make_request_id<B>(&mut self, _: &Request<B>) -> Option<RequestId> {
        let number = self.requests.fetch_add(1, Relaxed);
        HeaderValue::from_str(&format!("{}-{number:x}", self.boot)).ok().map(RequestId::new)
    }
}

/// Keeps a client's ids if they are short and plain: they go into the log and into responses.
fn keep_plain_ids(mut request: Request<Body>) -> Request<Body> {
    for name in [&REQUEST_ID, &TRACE_PARENT] {
        let mut values = request.headers().get_all(name).iter();
        let is_plain = match (values.next(), values.next()) {
            (None, _) => continue,
            (Some(id), None) => {
                (1..=TAKEN_ID_BYTES).contains(&id.len())
                    && id.as_bytes().iter().all(u8::is_ascii_graphic)
            }
            (Some(_), Some(_)) => false,
        };
        if !is_plain {
            request.headers_mut().remove(name);
        }
    }
    if request.headers().contains_key(&REQUEST_ID) {
        request.extensions_mut().insert(GivenRequestId);
    }
    request
}

/// Leaves out the query, which may hold a secret, and the secret parts of the path.
fn span_of(request: &Request<Body>) -> Span {
    let text = |name| request.headers().get(name).and_then(|id| id.to_str().ok());
    tracing::debug_span!(
        "request",
        method = %request.method(),
        path = logged_path(request.uri().path()),
        request_id = text(&REQUEST_ID),
        traceparent = text(&TRACE_PARENT),
    )
}

fn logged_path(path: &str) -> &str {
    if path.starts_with("/a/") { "/a/…" } else { path }
}

fn log_response(response: &Response, elapsed: Duration, _: &Span) {
    tracing::debug!(
        status = response.status().as_u16(),
        elapsed_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
        "answered"
    );
}

fn api() -> Api {
    let api = [
        health::routes,
        peers::routes,
        tasks::routes,
        agents::routes,
        events::routes,
        journal::routes,
        access::routes,
        page::routes,
        sources::routes,
    ]
    .into_iter()
    .fold(Api::new(), |api, add| add(api));
    let document = Operation::new("This description (OpenAPI 3.1)").media(200, "application/json");
    api.get("/openapi.json", document, show_document)
}

/// Built by the first request: most daemons are never asked for it.
static DOCUMENT: LazyLock<String> = LazyLock::new(|| api().finish().1.to_string());

async fn show_document() -> Response {
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], DOCUMENT.as_str()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_ids_are_kept_if_short_and_plain() {
        for (ids, is_taken) in [
            (&["abc-1"][..], true),
            (&["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"], true),
            (&[""], false),
            (&["a b"], false),
            (&["a", "b"], false),
            (&[&"x".repeat(129)], false),
        ] {
            for name in [&REQUEST_ID, &TRACE_PARENT] {
                let mut request = Request::new(Body::empty());
                for id in ids {
                    request.headers_mut().append(name, id.parse().unwrap());
                }
                let request = keep_plain_ids(request);
                assert_eq!(request.headers().contains_key(name), is_taken, "{ids:?}");
            }
        }
    }

    #[test]
    fn attached_file_token_is_not_logged() {
        assert_eq!(logged_path("/a/token"), "/a/…");
        assert_eq!(logged_path("/v1/a/b"), "/v1/a/b");
    }
}
