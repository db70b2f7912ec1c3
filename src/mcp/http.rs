//! The way in and out: `/mcp` for every revision and for bare calls, `/sse` and `/messages` for 2024-11-05.

use std::{borrow::Cow, sync::Arc, time::Instant};

use axum::{
    Extension, Router,
    body::Body,
    extract::{Request as HttpRequest, State},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json, value::RawValue};
use tracing::Instrument as _;

use super::{
    Mcp, RpcError,
    bodies::{self, Accept, CallStream, Listen},
    calls::{Answer, Origin, Pending, Reply, answer_error, stream_of},
    dispatch::Context,
    ladder,
    message::{
        INVALID_REQUEST, Incoming, Parsed, Request, SESSION_NOT_FOUND, error_text,
        notification_text, parse, result_text,
    },
    metrics,
    notices::{Notices, Wants},
    session::Session,
};
use crate::{
    domain::{
        CallId, Caller, StreamName, limits,
        mcp::{self, Revision},
    },
    service::{Error, mcp::NewMcpSession},
    store::McpTransport,
    web::{self, Code, Problem, RouteName},
};

static METHOD: HeaderName = HeaderName::from_static(mcp::METHOD);
static NAME: HeaderName = HeaderName::from_static(mcp::NAME);
static SESSION_ID: HeaderName = HeaderName::from_static(mcp::SESSION_ID);
/// By which the operator says for which session a call is made.
pub(super) const ACTS_FOR: &str = "svc-session-id";

/// The routes.
pub fn router(mcp: Mcp) -> Router {
    let streamable = post(take).get(listen).delete(end);
    Router::new()
        .route("/mcp", streamable.layer(RouteName::layer("/mcp")))
        .route("/sse", get(open_sse).post(fall_back).layer(RouteName::layer("/sse")))
        .route("/messages", post(take_message).layer(RouteName::layer("/messages")))
        .with_state(mcp)
}

/// `POST /mcp`.
async fn take(
    State(mcp): State<Mcp>,
    Extension(caller): Extension<Caller>,
    request: HttpRequest,
) -> Response {
    let (parts, body) = request.into_parts();
    let headers = parts.headers;
    let body = match read(&mcp, &headers, body).await {
        Ok(body) => body,
        Err(problem) => return problem.into_response(),
    };
    let accept = Accept::of(&headers);
    let Ok(text) = web::text_of(&body) else {
        return refuse(None, &parse_error("the body is not UTF-8"), accept);
    };
    match parse(text) {
        Err((id, error)) => refuse(id.as_deref(), &error, accept),
        Ok(Parsed::One(Incoming::Request(request))) => {
            mcp.take_request(caller, headers, accept, request).await
        }
        Ok(Parsed::One(other)) => Box::pin(mcp.take_other(&caller, &headers, accept, other)).await,
        Ok(Parsed::Batch(all)) => Box::pin(mcp.take_batch(caller, headers, accept, all)).await,
    }
}

async fn read(mcp: &Mcp, headers: &HeaderMap, body: Body) -> Result<bytes::Bytes, Problem> {
    if !web::is_json(headers) {
        return Err(Problem::new(
            Code::UnsupportedMediaType,
            "the body must be JSON: Content-Type: application/json",
        ));
    }
    web::read(body, limits::BODY_BYTES, mcp.services.tuning().body_stall).await
}

fn parse_error(message: &'static str) -> RpcError {
    RpcError::new(super::message::PARSE_ERROR, message).status(400)
}

fn refuse(id: Option<&RawValue>, error: &RpcError, accept: Accept) -> Response {
    bodies::whole(error_text(id, error), error.status, accept)
}

fn no_session() -> RpcError {
    // 404 and not 400: it is what makes a client begin anew.
    RpcError::new(SESSION_NOT_FOUND, "there is no such session: begin with initialize").status(404)
}

/// What is counted of a request, and told on its response.
struct Asked {
    method: String,
    name: Option<String>,
    counted: Counted,
}

/// What is counted of a request.
#[derive(Clone)]
struct Counted {
    method: &'static str,
    /// The name where it is one that we know.
    name: Arc<str>,
    era: &'static str,
    started: Instant,
}

impl Counted {
    fn count(&self, mcp: &Mcp, outcome: &'static str) {
        let elapsed = self.started.elapsed();
        mcp.metrics.observe(self.method, Arc::clone(&self.name), self.era, outcome, elapsed);
    }
}

impl Asked {
    fn tell(&self, response: &mut Response) {
        echo(response, &METHOD, &self.method);
        if let Some(name) = &self.name {
            echo(response, &NAME, name);
        }
    }
}

fn echo(response: &mut Response, name: &HeaderName, value: &str) {
    let value = mcp::encode_value(value);
    // A client's head has a bound, and what is longer than this is no name of ours.
    let short = value.len() <= limits::SHORT_TEXT_BYTES;
    if let Some(value) = HeaderValue::from_str(&value).ok().filter(|_| short) {
        response.headers_mut().insert(name.clone(), value);
    }
}

impl Mcp {
    async fn take_request(
        &self,
        caller: Caller,
        headers: HeaderMap,
        accept: Accept,
        request: Request,
    ) -> Response {
        let name = ladder::resolve(&headers, &request.method, &request.params);
        let known = name.as_deref().filter(|name| match request.method.as_str() {
            "tools/call" => self.catalogue.find(&caller, name).is_some(),
            "prompts/get" => self.prompts.borrow().iter().any(|it| it.name == *name),
            _ => false,
        });
        let counted = Counted {
            method: metrics::known(&request.method),
            name: known.unwrap_or_default().into(),
            era: "bare",
            started: Instant::now(),
        };
        let mut asked = Asked { method: request.method.clone(), name, counted };
        let span = tracing::debug_span!(
            "mcp",
            mcp.method = asked.method,
            mcp.name = asked.name.as_deref().unwrap_or_default(),
            mcp.era = tracing::field::Empty,
        );
        let id = request.id.clone();
        let answered = self
            .respond(&caller, &headers, accept, request, &mut asked.counted)
            .instrument(span)
            .await;
        let mut response = answered.unwrap_or_else(|error| {
            asked.counted.count(self, "error");
            refuse(Some(&id), &error, accept)
        });
        asked.tell(&mut response);
        response
    }

    /// Finds the era, and answers as it does.
    ///
    /// What is rare, or waits, is boxed: a call that is answered at once does not carry the room for it about.
    async fn respond(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
        accept: Accept,
        request: Request,
        asked: &mut Counted,
    ) -> Result<Response, RpcError> {
        let origin = self.origin(caller, headers, &request).await;
        asked.era = match &origin {
            Ok(Origin::Modern(_)) => "modern",
            Ok(Origin::Legacy(_)) => "legacy",
            Ok(Origin::Bare) if request.method == "initialize" => "legacy",
            Ok(Origin::Bare) => "bare",
            Err(_) => "none",
        };
        tracing::Span::current().record("mcp.era", asked.era);
        let origin = origin?;
        if request.method == "initialize" && !matches!(origin, Origin::Modern(_)) {
            let (session, answer) = Box::pin(self.initialize(caller, &request)).await?;
            asked.count(self, "ok");
            let mut response = bodies::whole(answer, 200, accept);
            if let Ok(id) = HeaderValue::from_str(session.id.as_str()) {
                response.headers_mut().insert(SESSION_ID.clone(), id);
            }
            return Ok(response);
        }
        let acts_for = acts_for(caller, headers, &origin)?;
        let context = Context { caller: caller.clone(), origin, acts_for };
        if request.method == "subscriptions/listen" && matches!(context.origin, Origin::Modern(_)) {
            let listen = Box::pin(self.subscribe_and_listen(&context, &request)).await?;
            asked.count(self, "ok");
            let mut response = listen.response(self);
            response.extensions_mut().insert(web::Endless);
            return Ok(response);
        }
        if request.method != "tools/call" {
            let members = Box::pin(self.answer(&context, &request)).await?;
            asked.count(self, "ok");
            return Ok(bodies::whole(result_text(&request.id, &members), 200, accept));
        }
        let Context { caller, origin, acts_for } = context;
        let id = request.id.clone();
        match self.call_tool(&caller, origin, acts_for, headers, request).await? {
            Reply::Pending(pending) => {
                let (mcp, asked) = (self.clone(), asked.clone());
                let done = move |answer: &Answer| asked.count(&mcp, answer.outcome);
                Ok(bodies::pending(self, id, pending, accept, done).await)
            }
            Reply::Stream { call, stream, session } => {
                Box::pin(self.follow_call(id, call, stream, session, accept)).await
            }
        }
    }

    /// The answer of a call that is on record: its stream, or what stands at the end of it.
    async fn follow_call(
        &self,
        id: Box<RawValue>,
        call: CallId,
        stream: StreamName,
        session: Arc<Session>,
        accept: Accept,
    ) -> Result<Response, RpcError> {
        let follow = self.services.log.follow(stream, 0).await?;
        let hung_up = self.calls.get(&call).map(|running| running.wire.hung_up.subscribe());
        let stream = CallStream { follow, call, session, hung_up };
        if accept.streams() {
            return Ok(stream.response(self));
        }
        let request = id.clone();
        let answer = async move {
            match stream.answer().await {
                Some(text) => Answer { text, status: 200, outcome: "ok" },
                None => answer_error(
                    &request,
                    &RpcError::new(INVALID_REQUEST, "the call was cancelled"),
                ),
            }
        };
        let pending = Pending { answer: Box::pin(answer), messages: None };
        Ok(bodies::pending(self, id, pending, accept, |_| {}).await)
    }

    async fn origin(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
        request: &Request,
    ) -> Result<Origin, RpcError> {
        if let Some(modern) = ladder::modern(headers, &request.method, &request.params)? {
            ladder::check_headers(headers, request)?;
            return Ok(Origin::Modern(modern));
        }
        ladder::check_legacy_version(headers)?;
        if request.method == "initialize" {
            return Ok(Origin::Bare);
        }
        match self.session_of(caller, headers).await? {
            Some(session) => Ok(Origin::Legacy(session)),
            None => Ok(Origin::Bare),
        }
    }

    /// The session that the headers name; an error if there is none of that id.
    async fn session_of(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
    ) -> Result<Option<Arc<Session>>, RpcError> {
        let Some(id) = headers.get(&SESSION_ID) else { return Ok(None) };
        let id = id.to_str().map_err(|_| no_session())?;
        let session = self.session(caller, id).await?;
        session
            .filter(|session| session.transport == McpTransport::Http)
            .map(Some)
            .ok_or_else(no_session)
    }

    async fn initialize(
        &self,
        caller: &Caller,
        request: &Request,
    ) -> Result<(Arc<Session>, String), RpcError> {
        let (revision, client, capabilities) = introduction(&request.params)?;
        let new = NewMcpSession { transport: McpTransport::Http, revision, client, capabilities };
        let session = self.open_session(caller, new).await?;
        Ok((session, result_text(&request.id, &self.welcome(revision))))
    }

    /// Notifications, and answers to our questions.
    async fn take_other(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
        accept: Accept,
        other: Incoming,
    ) -> Response {
        let (method, params) = match &other {
            Incoming::Notification { method, params } => (method.clone(), Some(params)),
            _ => (String::new(), None),
        };
        let session = if ladder::is_modern(headers, params) {
            if params.is_none() {
                let error = RpcError::new(INVALID_REQUEST, "nothing was asked that this answers");
                return refuse(None, &error.status(400), accept);
            }
            // Whatever session it may name, it has none.
            None
        } else {
            let session = async {
                ladder::check_legacy_version(headers)?;
                self.session_of(caller, headers).await
            };
            match session.await {
                Ok(session) => session,
                Err(error) => return refuse(None, &error, accept),
            }
        };
        self.take_in(session.as_deref(), other);
        let mut response = StatusCode::ACCEPTED.into_response();
        if !method.is_empty() {
            echo(&mut response, &METHOD, &method);
        }
        response
    }

    fn take_in(&self, session: Option<&Session>, other: Incoming) {
        match (session, other) {
            (Some(session), Incoming::Response { id, outcome }) => {
                self.questions.answer(&session.id, &id, outcome);
            }
            (Some(session), Incoming::Notification { method, params })
                if method == "notifications/cancelled" =>
            {
                // One for a call that is over is harmless: a client sends it for each.
                if let Some(id) = params.get("requestId")
                    && let Some((_, running)) = self.calls.of_request(&session.id, id)
                {
                    running.cancel.cancel();
                }
            }
            _ => {}
        }
    }

    /// JSON-RPC batch, as in the revisions before 2025-06-18: one after the other, and the answers in one array.
    async fn take_batch(
        &self,
        caller: Caller,
        headers: HeaderMap,
        accept: Accept,
        all: Vec<Result<Incoming, super::message::Refusal>>,
    ) -> Response {
        let session = async {
            let none =
                || RpcError::new(INVALID_REQUEST, "this revision has no batches").status(400);
            if ladder::is_modern(&headers, None) {
                return Err(none());
            }
            let version = ladder::check_legacy_version(&headers)?;
            let session = self.session_of(&caller, &headers).await?;
            let revision = session.as_ref().map(|session| session.revision()).or(version);
            let batches = revision.is_none_or(|revision| revision < Revision::V2025_06_18);
            if batches { Ok(session) } else { Err(none()) }
        };
        let session = match session.await {
            Ok(session) => session,
            Err(error) => return refuse(None, &error, accept),
        };
        let mut answers = Vec::new();
        for one in all {
            match one {
                Err((id, error)) => answers.push(error_text(id.as_deref(), &error)),
                Ok(Incoming::Request(request)) => {
                    answers
                        .push(self.answer_alone(&caller, &headers, session.clone(), request).await);
                }
                Ok(other) => self.take_in(session.as_deref(), other),
            }
        }
        if answers.is_empty() {
            return StatusCode::ACCEPTED.into_response();
        }
        bodies::whole(format!("[{}]", answers.join(",")), 200, accept)
    }

    /// A request answered with one message and nothing on the way.
    async fn answer_alone(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
        session: Option<Arc<Session>>,
        request: Request,
    ) -> String {
        let id = request.id.clone();
        let origin = session.map_or(Origin::Bare, Origin::Legacy);
        let answer = async {
            let acts_for = acts_for(caller, headers, &origin)?;
            if request.method != "tools/call" {
                let context = Context { caller: caller.clone(), origin, acts_for };
                let members = self.answer(&context, &request).await?;
                return Ok(result_text(&request.id, &members));
            }
            match self.call_tool(caller, origin, acts_for, headers, request).await? {
                Reply::Pending(pending) => Ok(pending.answer.await.text),
                Reply::Stream { call, stream, session } => {
                    let follow = self.services.log.follow(stream, 0).await?;
                    let stream = CallStream { follow, call, session, hung_up: None };
                    let cancelled = || RpcError::new(INVALID_REQUEST, "the call was cancelled");
                    stream.answer().await.ok_or_else(cancelled)
                }
            }
        };
        let answer: Result<String, RpcError> = Box::pin(answer).await;
        answer.unwrap_or_else(|error| error_text(Some(&id), &error))
    }

    /// `subscriptions/listen`.
    async fn subscribe_and_listen(
        &self,
        context: &Context,
        request: &Request,
    ) -> Result<Listen, RpcError> {
        let Some(filter) = request.params.get("notifications").and_then(Value::as_object) else {
            return Err(RpcError::invalid_params("params.notifications: must be an object"));
        };
        let wanted = |name: &str| filter.get(name).and_then(Value::as_bool).unwrap_or(false);
        let mut wants = Wants {
            tools: wanted("toolsListChanged"),
            prompts: wanted("promptsListChanged") && !self.prompts.borrow().is_empty(),
            resources: wanted("resourcesListChanged"),
            ..Wants::default()
        };
        let mut honoured = Map::new();
        for (name, granted) in [
            ("toolsListChanged", wants.tools),
            ("promptsListChanged", wants.prompts),
            ("resourcesListChanged", wants.resources),
        ] {
            if granted {
                honoured.insert(name.to_owned(), true.into());
            }
        }
        let uris: Vec<&str> = texts(filter, "resourceSubscriptions")?;
        let mut granted = Vec::new();
        for uri in uris {
            if let Some(stream) = self.resources.iter().find_map(|provider| provider.stream_of(uri))
            {
                wants.uris.entry(stream.as_str().to_owned()).or_default().insert(uri.to_owned());
                granted.push(uri);
            }
        }
        if !granted.is_empty() {
            honoured.insert("resourceSubscriptions".to_owned(), json!(granted));
        }
        let has_tasks = matches!(&context.origin, Origin::Modern(modern) if modern.has_tasks());
        let mut granted = Vec::new();
        for id in texts(filter, "taskIds")? {
            let task = self.services.mcp.call(&context.caller, id).await?.filter(|row| row.is_task);
            if let Some(row) = task.filter(|_| has_tasks) {
                granted.push(row.call_id.as_str().to_owned());
                wants.tasks.push(row.call_id);
            }
        }
        if !granted.is_empty() {
            honoured.insert("taskIds".to_owned(), json!(granted));
        }
        let notices = Notices::new(self, &context.caller, wants, None).await?;
        let subscription: Value = serde_json::from_str(request.id.get()).unwrap_or_default();
        let meta = json!({ mcp::meta::SUBSCRIPTION_ID: subscription });
        let params = json!({ "_meta": meta, "notifications": honoured });
        Ok(Listen {
            acknowledged: Some(notification_text(
                "notifications/subscriptions/acknowledged",
                &params,
            )),
            notices: Box::new(notices),
            subscription,
        })
    }
}

fn texts<'a>(object: &'a Map<String, Value>, name: &str) -> Result<Vec<&'a str>, RpcError> {
    let wrong = || {
        RpcError::invalid_params(format!("params.notifications.{name}: must be a list of strings"))
    };
    match object.get(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(all)) => all.iter().map(|one| one.as_str().ok_or_else(wrong)).collect(),
        Some(_) => Err(wrong()),
    }
}

/// What a client says of itself: the revision to be agreed on, its name, and what it can do, both as JSON.
fn introduction(
    params: &Map<String, Value>,
) -> Result<(Revision, Option<String>, String), RpcError> {
    let asked = match params.get("protocolVersion") {
        Some(Value::String(asked)) => Some(asked.as_str()),
        None => None,
        Some(_) => {
            return Err(RpcError::invalid_params("params.protocolVersion: must be a string"));
        }
    };
    let latest = Revision::LEGACY[Revision::LEGACY.len() - 1];
    let revision = asked.and_then(Revision::parse).filter(|it| !it.is_modern()).unwrap_or(latest);
    let client = params.get("clientInfo").filter(|info| info.is_object()).map(Value::to_string);
    let capabilities = match params.get("capabilities") {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(capabilities @ Value::Object(_)) => capabilities.to_string(),
        Some(_) => return Err(RpcError::invalid_params("params.capabilities: must be an object")),
    };
    Ok((revision, client, capabilities))
}

/// For whom a call is made: the token's session, the one that the operator names, or the MCP session.
fn acts_for(
    caller: &Caller,
    headers: &HeaderMap,
    origin: &Origin,
) -> Result<Option<Arc<str>>, RpcError> {
    let named = match headers.get(ACTS_FOR).map(HeaderValue::to_str) {
        None => None,
        Some(Ok(named)) if !named.trim().is_empty() && named.len() <= limits::SHORT_TEXT_BYTES => {
            Some(named.trim())
        }
        Some(_) => {
            return Err(
                RpcError::invalid_params("Svc-Session-Id: is no id of a session").status(400)
            );
        }
    };
    match (caller.session(), named) {
        (Some(own), Some(named)) if own != named => {
            let text =
                format!("Svc-Session-Id: this token speaks for session {own:?} and for no other");
            Err(RpcError::new(INVALID_REQUEST, Cow::Owned(text)).status(403))
        }
        (Some(own), _) => Ok(Some(own.into())),
        (None, Some(named)) => Ok(Some(named.into())),
        (None, None) => Ok(match origin {
            Origin::Legacy(session) => Some(session.id.as_str().into()),
            Origin::Bare | Origin::Modern(_) => None,
        }),
    }
}

/// `GET /mcp`: the standalone stream of a session, or the rest of a call's.
async fn listen(
    State(mcp): State<Mcp>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    match listen_to(&mcp, &caller, &headers).await {
        Ok(response) => response,
        Err(problem) => problem,
    }
}

async fn listen_to(mcp: &Mcp, caller: &Caller, headers: &HeaderMap) -> Result<Response, Response> {
    let session = legacy_session(mcp, caller, headers).await?;
    // One that cannot be read is no place of ours.
    let last = headers.get("last-event-id").map_or(Ok(""), HeaderValue::to_str);
    let last = last.unwrap_or(".").trim();
    let failed = |error: Error| Problem::from(error).into_response();
    if last.is_empty() {
        return bodies::standalone(mcp, caller, session, None).await.map_err(failed);
    }
    let unknown = || {
        let text = "this session has no stream with that Last-Event-ID";
        Problem::new(Code::NotFound, text).into_response()
    };
    let (stream, place) = bodies::place(last).ok_or_else(unknown)?;
    if stream == bodies::standalone_of(&session) {
        return bodies::standalone(mcp, caller, session, Some(place)).await.map_err(failed);
    }
    let row = mcp.services.mcp.call(caller, stream).await.map_err(failed)?;
    let row = row.filter(|row| row.session_id.as_ref() == Some(&session.id)).ok_or_else(unknown)?;
    let name = stream_of(&row.call_id, &session);
    let end = mcp.services.log.stream_end(&name).await.map_err(failed)?.ok_or_else(unknown)?;
    if place > end.head {
        return Err(unknown());
    }
    if end.closed && place == end.head {
        // The client has it all, and would only come back for more.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let follow = mcp.services.log.follow(name, place).await.map_err(failed)?;
    let hung_up = mcp.calls.get(&row.call_id).map(|running| running.wire.hung_up.subscribe());
    Ok(CallStream { follow, call: row.call_id, session, hung_up }.response(mcp))
}

/// `DELETE /mcp`: the end of a session.
async fn end(
    State(mcp): State<Mcp>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    let session = match legacy_session(&mcp, &caller, &headers).await {
        Ok(session) => session,
        Err(problem) => return problem,
    };
    match mcp.close_session(&session).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => Problem::from(error).into_response(),
    }
}

/// The session of a request that is nothing without one.
async fn legacy_session(
    mcp: &Mcp,
    caller: &Caller,
    headers: &HeaderMap,
) -> Result<Arc<Session>, Response> {
    if ladder::is_modern(headers, None) || !headers.contains_key(&SESSION_ID) {
        let text = "without a session there is only POST: begin with initialize, and send its Mcp-Session-Id";
        let mut response = Problem::new(Code::MethodNotAllowed, text).into_response();
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return Err(response);
    }
    if let Err(error) = ladder::check_legacy_version(headers) {
        return Err(Problem::malformed(error.message).into_response());
    }
    match mcp.session_of(caller, headers).await {
        Ok(Some(session)) => Ok(session),
        Ok(None) => Err(Problem::new(Code::NotFound, no_session().message).into_response()),
        Err(error) if error.status == 404 => {
            Err(Problem::new(Code::NotFound, error.message).into_response())
        }
        Err(_) => {
            Err(Problem::new(Code::Unavailable, "the daemon cannot serve this now").into_response())
        }
    }
}

/// `GET /sse`: a session of 2024-11-05.
async fn open_sse(
    State(mcp): State<Mcp>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    let opened = async {
        let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
        if let Some((id, place)) = last.and_then(bodies::place)
            && let Some(session) = mcp.session(&caller, id).await?
            && session.transport == McpTransport::Sse
        {
            return Ok((session, place));
        }
        let new = NewMcpSession {
            transport: McpTransport::Sse,
            revision: Revision::V2024_11_05,
            client: None,
            capabilities: "{}".to_owned(),
        };
        Ok::<_, Error>((mcp.open_session(&caller, new).await?, 0))
    };
    let response = async {
        let (session, place) = opened.await?;
        let follow = mcp.services.log.follow(StreamName::of("mcp", &session.id), place).await?;
        let mut wants = Wants { tools: true, prompts: true, resources: true, ..Wants::default() };
        for (uri, stream) in mcp.services.mcp.resource_subscriptions(&session.id).await? {
            wants.uris.entry(stream).or_default().insert(uri);
        }
        let notices = Notices::new(&mcp, &caller, wants, None).await?;
        let endpoint = format!("/messages?session_id={}", session.id);
        Ok::<_, Error>(bodies::session_stream(&mcp, session, follow, notices, Some(endpoint)))
    };
    response.await.unwrap_or_else(|error| Problem::from(error).into_response())
}

/// `POST /sse`: clients that know both transports try this first, and some of them take nothing but 404 as the sign to
/// fall back to `GET`.
async fn fall_back() -> Problem {
    Problem::new(Code::NotFound, "POST goes to /mcp, or with GET /sse to the address that it gives")
}

/// `POST /messages?session_id=…`: answered on the session's stream, which has the answer before this has.
async fn take_message(
    State(mcp): State<Mcp>,
    Extension(caller): Extension<Caller>,
    request: HttpRequest,
) -> Response {
    let (parts, body) = request.into_parts();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let id = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "session_id");
    let Some((_, id)) = id else {
        return Problem::malformed("session_id: is missing; GET /sse gives the address to POST to")
            .into_response();
    };
    let session = match mcp.session(&caller, &id).await {
        Ok(session) => session.filter(|session| session.transport == McpTransport::Sse),
        Err(error) => return Problem::from(error).into_response(),
    };
    let Some(session) = session else {
        return Problem::new(Code::NotFound, "there is no such session: begin with GET /sse")
            .into_response();
    };
    let body = match read(&mcp, &parts.headers, body).await {
        Ok(body) => body,
        Err(problem) => return problem.into_response(),
    };
    let parsed = web::text_of(&body)
        .map_err(|_| (None, parse_error("the body is not UTF-8")))
        .and_then(parse);
    let all = match parsed {
        Ok(Parsed::One(one)) => vec![Ok(one)],
        Ok(Parsed::Batch(all)) => all,
        Err((id, error)) => return refuse(id.as_deref(), &error, Accept::of(&parts.headers)),
    };
    for one in all {
        if let Err(error) = mcp.take_legacy(&caller, &parts.headers, &session, one).await {
            return Problem::from(error).into_response();
        }
    }
    (StatusCode::ACCEPTED, "Accepted").into_response()
}

impl Mcp {
    async fn take_legacy(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
        session: &Arc<Session>,
        one: Result<Incoming, super::message::Refusal>,
    ) -> Result<(), Error> {
        let stream = StreamName::of("mcp", &session.id);
        let request = match one {
            Ok(Incoming::Request(request)) => request,
            Ok(other) => {
                self.take_in(Some(session), other);
                return Ok(());
            }
            Err((id, error)) => {
                return self.services.mcp.say(&stream, error_text(id.as_deref(), &error)).await;
            }
        };
        let name = ladder::resolve(headers, &request.method, &request.params);
        let label =
            name.filter(|name| self.catalogue.find(caller, name).is_some()).unwrap_or_default();
        let (method, started) = (request.method.clone(), Instant::now());
        let id = request.id.clone();
        let answered: Result<Option<String>, RpcError> = async {
            if request.method == "initialize" {
                let (revision, client, capabilities) = introduction(&request.params)?;
                self.describe_session(session, revision, client, capabilities).await?;
                return Ok(Some(result_text(&request.id, &self.welcome(revision))));
            }
            let origin = Origin::Legacy(Arc::clone(session));
            let acts_for = acts_for(caller, headers, &origin)?;
            if request.method != "tools/call" {
                let context = Context { caller: caller.clone(), origin, acts_for };
                let members = self.answer(&context, &request).await?;
                return Ok(Some(result_text(&request.id, &members)));
            }
            match self.call_tool(caller, origin, acts_for, headers, request).await? {
                // What may take time is on record, and answers for itself.
                Reply::Stream { .. } => Ok(None),
                Reply::Pending(pending) => Ok(Some(pending.answer.await.text)),
            }
        }
        .await;
        let outcome = if answered.is_ok() { "ok" } else { "error" };
        // What is on record is counted when it ends.
        if !matches!(answered, Ok(None)) {
            let method = metrics::known(&method);
            self.metrics.observe(method, label.into(), "legacy", outcome, started.elapsed());
        }
        match answered {
            Ok(None) => Ok(()),
            Ok(Some(text)) => self.services.mcp.say(&stream, text).await,
            Err(error) => self.services.mcp.say(&stream, error_text(Some(&id), &error)).await,
        }
    }
}
