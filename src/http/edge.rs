//! The edge: what happens to every request before a route sees it, and to every response on its way out.
//!
//! In this order: an id, the Host and Origin checks (against DNS rebinding and other people's web pages), whether
//! we are ready at all, who is asking; then the route; then metrics and, for failures, the body.

use std::{
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Instant,
};

use axum::{
    Router,
    body::Body,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{HeaderName, HeaderValue, Method, Request, Uri, header, request::Parts};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::{sync::SetOnce, time::timeout};
use tower::ServiceExt as _;
use tracing::Instrument as _;

use super::{
    App, Code, EntryRules, Problem,
    admission::{admit, held_body},
    daemon_proof,
    identify::{Identified, identify},
    listener::Transport,
    metrics::APPEND,
    routes, tasks,
};
use crate::{
    domain::{BudgetKind, Caller, Timestamp, limits},
    service::{Credential, Services},
    web::{self, AdapterRoutes, DirectPost, MCP, RouteName},
};

/// Everything in front of the routes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Edge(Arc<SharedEdge>);

#[derive(Debug)]
struct SharedEdge {
    rules: EntryRules,
    /// Set when the daemon is ready. Until then the answer is 503, never 404; MCP clients are let wait.
    serving: SetOnce<Serving>,
    draining: AtomicBool,
    boot: String,
    requests: AtomicU64,
}

/// What answers requests.
#[derive(Debug)]
struct Serving {
    app: App,
    router: Router,
    post_mcp: Option<DirectPost>,
}

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

impl Edge {
    /// An edge that answers 503 until [`Self::ready`]. `boot` tells this process's request ids from another's.
    pub fn new(rules: EntryRules, boot: &str) -> Self {
        Self(Arc::new(SharedEdge {
            rules,
            serving: SetOnce::new(),
            draining: AtomicBool::new(false),
            boot: boot.chars().rev().take(8).collect(),
            requests: AtomicU64::new(0),
        }))
    }

    /// From here on requests reach the routes: ours, and those of `others`.
    pub fn ready(&self, app: App, others: AdapterRoutes) {
        let AdapterRoutes { table, post_mcp } = others;
        let router = routes::router(app.clone(), table);
        // Called once, by whoever composes the program.
        self.0.serving.set(Serving { app, router, post_mcp }).ok();
    }

    /// From here on new requests are answered 503: we are going down.
    pub fn drain(&self) {
        self.0.draining.store(true, Relaxed);
    }

    /// The time. Before there is anything to answer there is none.
    pub(super) fn now(&self) -> Timestamp {
        let serving = self.0.serving.get();
        serving.map_or(Timestamp::from_millis(0), |serving| serving.app.services.now())
    }

    /// Answers a request that came in by this way.
    pub async fn handle(&self, mut request: Request<Incoming>, transport: Transport) -> Response {
        transport.describe(request.extensions_mut());
        self.answer(request.map(Body::new)).await
    }

    /// Answers a request whose body may come from anywhere.
    pub async fn answer(&self, request: Request<Body>) -> Response {
        let exchange = Exchange::begin(self, &request);
        let Exchange { id, method, uri, started } = &exchange;
        let span = tracing::debug_span!("request", %method, path = uri.path(), request_id = id);
        let (response, route) = self.pass(request).instrument(span).await;
        let response = exchange.end(response);
        if let Some(Serving { app, .. }) = self.0.serving.get() {
            app.metrics.observe(method, route, response.status(), started.elapsed());
        }
        exchange.log(&response);
        response
    }

    /// What answers this request, if anything does now.
    async fn serving(&self, path: &str) -> Result<&Serving, Problem> {
        let Some(serving) = self.serving_for(path).await else {
            return Err(Problem::new(Code::Unavailable, "the daemon is starting"));
        };
        if self.0.draining.load(Relaxed) {
            return Err(Problem::new(Code::Unavailable, "the daemon is going down"));
        }
        Ok(serving)
    }

    /// The answer, and the name of its route.
    async fn pass(&self, request: Request<Body>) -> (Response, &'static str) {
        self.answer_by_route(request)
            .await
            .unwrap_or_else(|problem| (problem.into_response(), RouteName::NONE))
    }

    async fn answer_by_route(
        &self,
        mut request: Request<Body>,
    ) -> Result<(Response, &'static str), Problem> {
        self.0.rules.check_origin(&request)?;
        let serving = self.serving(request.uri().path()).await?;
        let Serving { app, .. } = serving;
        if request.uri().path() == daemon_proof::PATH
            && let Some(authority) = self.0.rules.own_authority(&request)
        {
            request.extensions_mut().insert(authority);
        }
        let (parts, body) = request.into_parts();
        let is_get = parts.method == Method::GET;
        let Identified { caller, credential, browser } =
            identify(&self.0.rules, app, &parts).await?;
        let admission = match &caller {
            Some(caller) => Some(admit(&app.services, caller, &parts, &body.size_hint())?),
            None => None,
        };
        let (response, route) =
            if let (Some(route), Some(caller)) = (serving.direct_route(&parts), &caller) {
                let work = serving.answer_direct(route, caller, parts, body);
                let answer = AssertUnwindSafe(work).catch_unwind().await;
                (answer.unwrap_or_else(routes::panicked), route.name())
            } else {
                request = Request::from_parts(parts, body);
                if let Some(caller) = &caller {
                    request.extensions_mut().insert(caller.clone());
                }
                if let Some(browser) = browser {
                    request.extensions_mut().insert(browser);
                }
                let response = match serving.router.clone().oneshot(request).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                };
                let route = RouteName::of(&response);
                (response, route)
            };
        let mut stream = admission.and_then(|admission| admission.stream);
        if is_endless(&response)
            && stream.is_none()
            && let Some(caller) = &caller
        {
            stream = app.services.hold(caller, BudgetKind::Streams, 1)?;
        }
        let response = match credential {
            // An answer to a call is given, also if the call was the end of its session.
            Some(credential) if is_event_stream(&response) && (is_get || is_endless(&response)) => {
                let services = app.services.clone();
                response.map(|body| {
                    let body = Body::new(WhileGood::new(body, credential, services));
                    held_body(body, stream)
                })
            }
            _ => response,
        };
        Ok((response, route))
    }

    /// What answers requests, if it is there. A client that comes back to a broken stream tries it twice and then waits
    /// for ever, so who speaks MCP to a daemon that starts is let wait for it.
    async fn serving_for(&self, path: &str) -> Option<&Serving> {
        let serving = &self.0.serving;
        match serving.get() {
            None if matches!(path, "/mcp" | "/sse" | "/messages") => {
                timeout(limits::START_PATIENCE, serving.wait()).await.ok()
            }
            known => known,
        }
    }
}

/// A route that is answered past the table of routes. These two are most of what a busy daemon is asked; they need no
/// extensions, no parameters of a path, and no future in a box for each layer. All checks come before.
#[derive(Debug, Clone, Copy)]
enum DirectRoute<'a> {
    Append,
    Mcp(&'a DirectPost),
}

impl DirectRoute<'_> {
    const fn name(self) -> &'static str {
        match self {
            Self::Append => APPEND,
            Self::Mcp(_) => MCP,
        }
    }
}

impl Serving {
    fn direct_route(&self, request: &Parts) -> Option<DirectRoute<'_>> {
        if request.method != Method::POST {
            return None;
        }
        match request.uri.path() {
            MCP => self.post_mcp.as_ref().map(DirectRoute::Mcp),
            path => tasks::appended_task(path).map(|_| DirectRoute::Append),
        }
    }

    async fn answer_direct(
        &self,
        route: DirectRoute<'_>,
        caller: &Caller,
        request: Parts,
        body: Body,
    ) -> Response {
        match route {
            DirectRoute::Append => tasks::append_directly(&self.app, caller, &request, body).await,
            DirectRoute::Mcp(post) => post.answer(caller.clone(), request.headers, body).await,
        }
    }
}

/// A request and its answer, as both are recorded.
struct Exchange {
    id: String,
    method: Method,
    uri: Uri,
    started: Instant,
}

impl Exchange {
    fn begin<B>(edge: &Edge, request: &Request<B>) -> Self {
        let number = edge.0.requests.fetch_add(1, Relaxed);
        Self {
            id: format!("{}-{number:x}", edge.0.boot),
            method: request.method().clone(),
            uri: request.uri().clone(),
            started: Instant::now(),
        }
    }

    /// The answer as it goes out: with the request's id, and a body if it is a failure.
    fn end(&self, mut response: Response) -> Response {
        if let Some(problem) = response.extensions_mut().remove::<Problem>() {
            let bare = std::mem::replace(&mut response, problem.render(self.uri.path(), &self.id));
            if let Some(allow) = bare.headers().get(header::ALLOW) {
                response.headers_mut().insert(header::ALLOW, allow.clone());
            }
            *response.extensions_mut() = bare.extensions().clone();
        }
        if let Ok(id) = HeaderValue::from_str(&self.id) {
            response.headers_mut().insert(REQUEST_ID.clone(), id);
        }
        response
    }

    fn log(&self, response: &Response) {
        tracing::debug!(
            request_id = self.id,
            method = %self.method,
            path = self.uri.path(),
            status = response.status().as_u16(),
            elapsed_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX),
            "answered"
        );
    }
}

/// The body of a stream, which ends when who asked for it could not ask any more: with the next event or comment,
/// which is not told.
struct WhileGood {
    body: Body,
    credential: Credential,
    services: Services,
    /// When the credential was last looked at.
    checked_at: Instant,
    /// A look at it, and the frame that waits for what it says.
    check: Option<(Frame<Bytes>, BoxFuture<'static, bool>)>,
    is_over: bool,
}

impl WhileGood {
    fn new(body: Body, credential: Credential, services: Services) -> Self {
        let checked_at = Instant::now();
        Self { body, credential, services, checked_at, check: None, is_over: false }
    }
}

impl http_body::Body for WhileGood {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        if this.check.is_none() && !this.is_over {
            let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
            let Some(Ok(frame)) = frame else { return Poll::Ready(frame) };
            this.is_over = this.services.access.is_over(&this.credential);
            if this.is_over || this.checked_at.elapsed() < limits::TOKEN_CACHE {
                return Poll::Ready((!this.is_over).then_some(Ok(frame)));
            }
            let (services, credential) = (this.services.clone(), this.credential.clone());
            let look = async move { services.access.is_good(&credential).await };
            this.check = Some((frame, look.boxed()));
        }
        let Some((_, look)) = &mut this.check else { return Poll::Ready(None) };
        let is_good = ready!(look.as_mut().poll(cx));
        this.checked_at = Instant::now();
        this.is_over = !is_good;
        let frame = this.check.take().map(|(frame, _)| frame);
        Poll::Ready(frame.filter(|_| is_good).map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.check.is_none() && (self.is_over || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        // It may end before its time.
        SizeHint::default()
    }
}

fn is_endless(response: &Response) -> bool {
    response.extensions().get::<web::Endless>().is_some()
}

/// Whether the answer is a stream of events.
pub(super) fn is_event_stream(response: &Response) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}
