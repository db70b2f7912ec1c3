//! What the HTTP adapters share: bounded bodies, `Accept`, the names of routes, the bodies of
//! streams, and errors on the wire: RFC 9457 problem details with a stable code. The HTTP statuses
//! of all REST errors are in this file.

use std::{borrow::Cow, convert::Infallible, pin::Pin, time::Duration};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::{Bytes, BytesMut};
use futures_util::{future::OptionFuture, stream};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use svc_core::service;
use svc_model::{NUL_REFUSED, json_has_nul, json_weight, limits};
use svc_store::StoreError;
use svc_sys::telemetry;
use svc_wire::sse;
use tokio::{
    sync::Semaphore,
    time::{Instant, Sleep, sleep},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tower::util::MapResponseLayer;

/// Marks a request whose `X-Request-Id` its client has given.
#[derive(Debug, Clone, Copy)]
pub struct GivenRequestId;

/// Marks a stream that ends with its caller's token, although it does not answer a GET.
#[derive(Debug, Clone)]
pub enum EndsWithToken {
    /// It has no end of its own.
    Endless,
    /// It ends with the answer to a request that cannot end its own session. If the token ends
    /// before, this part tells the client why, in the form of the stream.
    Answer(Option<Bytes>),
}

/// The pattern of the route that responded, for metrics: a path would make a series for each id.
#[derive(Debug, Clone, Copy)]
pub struct RouteName(&'static str);

impl RouteName {
    /// The name if no route matched.
    pub const NONE: &str = "";

    /// A layer that adds the name to every response of the route.
    pub fn layer(
        name: &'static str,
    ) -> MapResponseLayer<impl Fn(Response) -> Response + Clone + Send + Sync + 'static> {
        MapResponseLayer::new(move |mut response: Response| {
            response.extensions_mut().insert(Self(name));
            response
        })
    }

    /// The name in a response, or `NONE`.
    pub fn from_response<B>(response: &http::Response<B>) -> &'static str {
        response.extensions().get::<Self>().map_or(Self::NONE, |route| route.0)
    }
}

/// The media types that a client accepts (RFC 9110, 12.5.1). Borrows the headers and parses them on
/// each call, so that it allocates nothing.
///
/// No client is refused for a header that breaks the grammar: a range that does not parse matches
/// nothing, and a weight that does not parse is 1. Parameters of a range other than its weight are
/// ignored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Accept<'a>(&'a HeaderMap);

/// How specifically a range matches a media type. The most specific of several decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Closeness {
    Anything,
    Family,
    Exact,
}

impl<'a> Accept<'a> {
    pub(crate) fn from_headers(headers: &'a HeaderMap) -> Self {
        Self(headers)
    }

    /// The weight of `media_type`, from 0 (excluded) to 1; `None` if no range matches it.
    pub(crate) fn weight(self, media_type: &str) -> Option<f32> {
        self.closest(media_type).map(|(_, weight)| weight)
    }

    /// Whether the client accepts `media_type` and not by `*/*` alone.
    pub(crate) fn names(self, media_type: &str) -> bool {
        self.closest(media_type)
            .is_some_and(|(closeness, weight)| closeness > Closeness::Anything && weight > 0.0)
    }

    /// Whether the client names `media_type` itself, and weighs it no less than `default`.
    pub(crate) fn prefers(self, media_type: &str, default: &str) -> bool {
        self.closest(media_type).is_some_and(|(closeness, weight)| {
            closeness == Closeness::Exact
                && weight > 0.0
                && self.weight(default).is_none_or(|other| weight >= other)
        })
    }

    fn closest(self, media_type: &str) -> Option<(Closeness, f32)> {
        let (family, _) = media_type.split_once('/')?;
        let values = self.0.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let matching = values.flat_map(|value| value.split(',')).filter_map(|item| {
            let mut parts = item.split(';').map(str::trim);
            let range = parts.next()?;
            let closeness = match range.split_once('/')? {
                _ if range.eq_ignore_ascii_case(media_type) => Closeness::Exact,
                ("*", "*") => Closeness::Anything,
                (of, "*") if of.eq_ignore_ascii_case(family) => Closeness::Family,
                _ => return None,
            };
            Some((closeness, parts.find_map(weight_of).unwrap_or(1.0)))
        });
        // A range may occur several times, with other parameters: the greatest weight counts.
        matching.max_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)))
    }
}

/// The value of a parameter that is a weight (RFC 9110, 12.4.2).
fn weight_of(parameter: &str) -> Option<f32> {
    let weight = parameter.strip_prefix(['q', 'Q'])?.strip_prefix('=')?;
    weight.parse().ok().filter(|weight| (0.0..=1.0).contains(weight))
}

/// How much of a body that is too large is still read, as a multiple of the limit: a client that is
/// busy sending would not see the response.
const DRAINED: usize = 4;

/// A body as text. The whole text is checked, since a parser skips some strings without decoding
/// them.
pub(crate) fn text_of(bytes: &[u8]) -> Result<&str, Problem> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| Problem::malformed(format!("the body is not JSON: {error}")))?;
    if is_too_heavy(text) {
        return Err(Problem::new(Code::PayloadTooLarge, TOO_HEAVY));
    }
    if json_has_nul(text) {
        return Err(Problem::invalid(field_with_nul(text).unwrap_or_default(), NUL_REFUSED));
    }
    Ok(text)
}

/// The path of the first string in this JSON that contains U+0000, in the form that errors use.
pub(crate) fn field_with_nul(json: &str) -> Option<String> {
    path_to_nul(&serde_json::from_str(json).unwrap_or_default())
}

fn path_to_nul(value: &Value) -> Option<String> {
    let below = |name: String, value| {
        let rest = path_to_nul(value)?;
        let dot = if rest.is_empty() || rest.starts_with('[') { "" } else { "." };
        Some(format!("{name}{dot}{rest}"))
    };
    match value {
        Value::String(text) => text.contains('\0').then(String::new),
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(at, item)| below(format!("[{at}]"), item))
        }
        Value::Object(members) => members.iter().find_map(|(name, value)| {
            if name.contains('\0') { Some(name.clone()) } else { below(name.clone(), value) }
        }),
        _ => None,
    }
}

/// The message for a body whose values would need too much memory.
pub(crate) const TOO_HEAVY: &str =
    "the body has too many values; nothing of it was stored: send it in several requests";

/// Whether the values of a JSON text would need more memory than a request may use.
pub(crate) fn is_too_heavy(text: &str) -> bool {
    text.len() > limits::JSON_UNWEIGHED_BYTES && json_weight(text) > limits::JSON_WEIGHT_BYTES
}

/// Refuses a body whose `Content-Type` is not JSON. Parameters are allowed (RFC 9110 8.3), and
/// `+json` counts as JSON.
pub(crate) fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json")
        || (essence.len() > 5 && essence.to_ascii_lowercase().ends_with("+json"))
    {
        return Ok(());
    }
    let why = "the body must be JSON: Content-Type: application/json";
    Err(Problem::new(Code::UnsupportedMediaType, why))
}

/// Bounds how many large bodies are parsed at once outside the runtime's threads.
static LARGE_BODIES: Semaphore = Semaphore::const_new(2);

/// Parses a body into values. A large one is parsed on a blocking thread: on a runtime with one
/// thread all other requests would wait for it.
pub(crate) async fn parse_body<T: Send + 'static>(
    body: Bytes,
    parse: impl FnOnce(&[u8]) -> T + Send + 'static,
) -> T {
    if body.len() <= limits::BODY_AT_ONCE_BYTES {
        return parse(&body);
    }
    let _turn = LARGE_BODIES.acquire().await.expect("is never closed");
    match tokio::task::spawn_blocking(move || parse(&body)).await {
        Ok(parsed) => parsed,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Reads a body up to `limit` bytes. Fails if nothing arrives for `stall`.
pub(crate) async fn read(mut body: Body, limit: usize, stall: Duration) -> Result<Bytes, Problem> {
    let too_large = || {
        let why = format!("the body has more than {limit} bytes; nothing of it was stored");
        Problem::new(Code::PayloadTooLarge, why)
    };
    let drained = limit.saturating_mul(DRAINED);
    if body.size_hint().lower() > drained as u64 {
        return Err(too_large());
    }
    let (mut bytes, mut len) = (BytesMut::new(), 0);
    while len <= drained {
        let Ok(frame) = tokio::time::timeout(stall, body.frame()).await else {
            let why = format!("nothing more of the body came for {} s", stall.as_secs_f32());
            return Err(Problem::new(Code::RequestTimeout, why));
        };
        let Some(frame) = frame else {
            return if len > limit { Err(too_large()) } else { Ok(bytes.freeze()) };
        };
        let frame =
            frame.map_err(|error| Problem::malformed(format!("the body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        len += data.len();
        if len <= limit {
            bytes.extend_from_slice(&data);
        }
    }
    Err(too_large())
}

/// What a stream consists of.
pub(crate) trait StreamSource: Send + 'static {
    /// Waits for the next part; `None` at the end. Cancel safe.
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>, service::Error>> + Send;

    /// The last part when the daemon stops.
    fn last_words(&mut self) -> Option<Bytes> {
        None
    }

    /// Sent when the stream was silent for long.
    fn keep_alive(&mut self) -> &'static str {
        sse::KEEP_ALIVE
    }
}

/// The body of a stream: ends it, keeps it alive and reports its errors. A connection pulls its
/// parts, so a reader that does not read costs only its cursor, and nobody waits for it.
pub(crate) struct StreamBody<S> {
    source: S,
    /// Sent before the source's parts.
    first: Option<String>,
    /// Cancelled when the session that the stream belongs to is closed.
    closed: Option<CancellationToken>,
    /// Kept between two parts, so that a busy stream does not register with it for each.
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    timer: SilenceTimer,
    is_over: bool,
}

impl<S: StreamSource> StreamBody<S> {
    /// `silence` is how long the stream may be silent before it sends a comment.
    pub(crate) fn new(
        stop: &CancellationToken,
        silence: Duration,
        first: Option<String>,
        source: S,
    ) -> Self {
        let (stop, timer) = (Box::pin(stop.clone().cancelled_owned()), SilenceTimer::new(silence));
        Self { source, first, closed: None, stop, timer, is_over: false }
    }

    /// Ends with a session.
    pub(crate) fn until_closed(self, closed: CancellationToken) -> Self {
        Self { closed: Some(closed), ..self }
    }

    pub(crate) fn into_body(self) -> Body {
        Body::from_stream(stream::unfold(self, |mut body| async move {
            let part = body.next().await?;
            Some((Ok::<_, Infallible>(part), body))
        }))
    }

    /// The response whose parts are server-sent events.
    pub(crate) fn into_events(self) -> Response {
        let mut response = Response::new(self.into_body());
        sse::announce(response.headers_mut());
        response
    }

    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first.into());
        }
        if self.is_over {
            return None;
        }
        let closed = self.closed.as_ref().map(CancellationToken::cancelled);
        let part = tokio::select! {
            biased;
            () = &mut self.stop => {
                self.is_over = true;
                self.source.last_words()?
            }
            Some(()) = OptionFuture::from(closed) => return None,
            next = self.source.next() => match next {
                Ok(part) => part?,
                Err(error) => {
                    // The client resumes with its last id, and gets the error if it persists.
                    tracing::error!(error = telemetry::chain(&error), "a stream broke off");
                    return None;
                }
            },
            () = self.timer.due() => Bytes::from_static(self.source.keep_alive().as_bytes()),
        };
        self.timer.restart();
        Some(part)
    }
}

/// Tells when a stream has been silent for so long that its client or a proxy may give it up.
pub(crate) struct SilenceTimer {
    silence: Duration,
    /// When the stream last sent something.
    last: Instant,
    /// Follows `last` only when it expires, so that a busy stream does not reset it for each part.
    sleep: Pin<Box<Sleep>>,
}

impl SilenceTimer {
    pub(crate) fn new(silence: Duration) -> Self {
        Self { silence, last: Instant::now(), sleep: Box::pin(sleep(silence)) }
    }

    /// Restarts the timer: the stream has sent something.
    pub(crate) fn restart(&mut self) {
        self.last = Instant::now();
    }

    /// Waits until a comment is due. Cancel safe.
    pub(crate) async fn due(&mut self) {
        loop {
            self.sleep.as_mut().await;
            let due = self.last + self.silence;
            if due <= Instant::now() {
                return;
            }
            self.sleep.as_mut().reset(due);
        }
    }
}

/// What kind of failure it is. The text is a contract; new ones may be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The request does not fit the present state.
    Conflict,
    /// Not for this caller.
    Forbidden,
    /// Another daemon has taken the database; nothing was changed.
    Fenced,
    /// A fault of the daemon.
    Internal,
    /// The request breaks a rule.
    InvalidRequest,
    /// A bound is reached.
    LimitReached,
    /// The path has other methods.
    MethodNotAllowed,
    /// There is no such thing.
    NotFound,
    /// The database did not answer whether the change took place.
    OutcomeUnknown,
    /// The body is too large.
    PayloadTooLarge,
    /// The body did not come.
    RequestTimeout,
    /// The database has no room left.
    StorageFull,
    /// The server of the database does not answer; nothing was changed.
    StoreUnavailable,
    /// No token, or not a valid one.
    Unauthorized,
    /// The daemon starts, stops, or waits for the database.
    Unavailable,
    /// The body is not JSON.
    UnsupportedMediaType,
}

impl Code {
    /// The code on the wire, and its usual status.
    const fn row(self) -> (&'static str, StatusCode) {
        use StatusCode as S;
        match self {
            Self::Conflict => ("conflict", S::CONFLICT),
            Self::Forbidden => ("forbidden", S::FORBIDDEN),
            Self::Fenced => ("fenced", S::SERVICE_UNAVAILABLE),
            Self::Internal => ("internal", S::INTERNAL_SERVER_ERROR),
            Self::InvalidRequest => ("invalid_request", S::UNPROCESSABLE_ENTITY),
            Self::LimitReached => ("limit_reached", S::TOO_MANY_REQUESTS),
            Self::MethodNotAllowed => ("method_not_allowed", S::METHOD_NOT_ALLOWED),
            Self::NotFound => ("not_found", S::NOT_FOUND),
            Self::OutcomeUnknown => ("outcome_unknown", S::SERVICE_UNAVAILABLE),
            Self::PayloadTooLarge => ("payload_too_large", S::PAYLOAD_TOO_LARGE),
            Self::RequestTimeout => ("request_timeout", S::REQUEST_TIMEOUT),
            Self::StorageFull => ("storage_full", S::INSUFFICIENT_STORAGE),
            Self::StoreUnavailable => ("store_unavailable", S::SERVICE_UNAVAILABLE),
            Self::Unauthorized => ("unauthorized", S::UNAUTHORIZED),
            Self::Unavailable => ("unavailable", S::SERVICE_UNAVAILABLE),
            Self::UnsupportedMediaType => ("unsupported_media_type", S::UNSUPPORTED_MEDIA_TYPE),
        }
    }

    /// Whether the same request may succeed later.
    const fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Fenced
                | Self::LimitReached
                | Self::RequestTimeout
                | Self::StorageFull
                | Self::StoreUnavailable
                | Self::Unavailable
        )
    }
}

/// A failure as a response. The edge adds the request's id and writes the body.
#[derive(Debug, Clone)]
pub struct Problem {
    code: Code,
    status: StatusCode,
    /// The field that breaks a rule.
    field: Option<String>,
    /// What went wrong, without the field.
    reason: String,
    /// The cause as a code, if the kind of failure does not say it.
    cause: Option<&'static str>,
    /// The same request does nothing twice, although the kind of failure does not say it.
    may_repeat: bool,
}

/// The body of a failure.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ProblemBody<'a> {
    /// Names the kind of failure; `/problems/<code>`.
    #[serde(rename = "type")]
    kind: String,
    /// The kind of failure, for people.
    title: String,
    /// The HTTP status.
    status: u16,
    /// What went wrong this time.
    detail: &'a str,
    /// The path that was asked for.
    instance: &'a str,
    /// The kind of failure, for programs.
    code: Code,
    /// The field that breaks a rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    /// Why, in a word, where `code` does not say it: the setting that hides a session, or
    /// `confirm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    /// Whether the same request may do better later.
    retryable: bool,
    /// Also in the log.
    request_id: &'a str,
    /// The same as `detail`, for clients of earlier daemons.
    error: &'a str,
}

impl Problem {
    /// A failure of this kind, with its usual status.
    pub fn new(code: Code, reason: impl Into<String>) -> Self {
        let (_, status) = code.row();
        Self { code, status, field: None, reason: reason.into(), cause: None, may_repeat: false }
    }

    /// A request that does not parse (400); a value that breaks a rule is a 422.
    pub fn malformed(reason: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, ..Self::new(Code::InvalidRequest, reason) }
    }

    /// A value that breaks a rule.
    pub fn invalid(field: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        let field = Some(field.into()).filter(|field| !field.is_empty());
        Self { field, ..Self::new(Code::InvalidRequest, reason.to_string()) }
    }

    /// Prefixes the field with the member `parent` of the body.
    pub(crate) fn within(mut self, parent: &str) -> Self {
        self.field = Some(match self.field {
            Some(field) => format!("{parent}.{field}"),
            None => parent.to_owned(),
        });
        self
    }

    /// Whether the caller is refused, and not the state of the daemon or of the request.
    pub(crate) fn is_refused_caller(&self) -> bool {
        matches!(self.code, Code::Unauthorized | Code::Forbidden)
    }

    fn detail(&self) -> Cow<'_, str> {
        match &self.field {
            Some(field) => format!("{field}: {}", self.reason).into(),
            None => Cow::Borrowed(&self.reason),
        }
    }

    /// The complete response.
    pub(crate) fn render(&self, instance: &str, request_id: &str) -> Response {
        let detail = self.detail();
        let (code, _) = self.code.row();
        let body = ProblemBody {
            kind: format!("/problems/{code}"),
            title: title_of(code),
            status: self.status.as_u16(),
            detail: &detail,
            instance,
            code: self.code,
            field: self.field.as_deref(),
            reason: self.cause,
            retryable: self.code.is_retryable() || self.may_repeat,
            request_id,
            error: &detail,
        };
        let body = serde_json::to_vec(&body).expect("a problem has a JSON form");
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match self.code {
            Code::Unauthorized => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Code::Unavailable | Code::StoreUnavailable | Code::Fenced | Code::LimitReached => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

/// The code in words: `not_found` is `Not found`.
fn title_of(code: &str) -> String {
    let words = code.replace('_', " ");
    words[..1].to_ascii_uppercase() + &words[1..]
}

impl IntoResponse for Problem {
    /// A response without a body: only the edge knows the request's id.
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.status;
        response.extensions_mut().insert(self);
        response
    }
}

impl From<service::Error> for Problem {
    fn from(error: service::Error) -> Self {
        use service::{Error, ResourceKind};
        let with_cause =
            |code, cause| Self { cause: Some(cause), ..Self::new(code, error.to_string()) };
        let code = match &error {
            Error::NotFound { .. } => Code::NotFound,
            Error::Invalid { field, why } => return Self::invalid(field.clone(), why),
            Error::NotYours { field, why } => {
                let field = Some(field.clone());
                return Self { field, ..Self::new(Code::Forbidden, why.clone()) };
            }
            Error::Ambiguous { .. } => Code::InvalidRequest,
            Error::Conflict(_)
            | Error::SessionWithoutPeer
            | Error::ActiveGhap { .. }
            | Error::InsufficientData { .. } => Code::Conflict,
            Error::Unconfirmed { .. } => return with_cause(Code::Conflict, "confirm"),
            Error::WaitCycle(_) => return with_cause(Code::Conflict, "wait_cycle"),
            Error::Forbidden(_) => Code::Forbidden,
            Error::Unseen(denial) => return with_cause(Code::Forbidden, denial.as_str()),
            Error::Unauthorized => Code::Unauthorized,
            Error::LimitReached(_) => Code::LimitReached,
            Error::NotNow(_) | Error::Unavailable(_) => Code::Unavailable,
            Error::StoreUnavailable(StoreError::Fenced(_)) => Code::Fenced,
            Error::StoreUnavailable(_) => Code::StoreUnavailable,
            Error::OutcomeUnknown { may_repeat, .. } => {
                let unknown = Self::new(Code::OutcomeUnknown, error.to_string());
                return Self { may_repeat: *may_repeat, ..unknown };
            }
            Error::StorageFull(_) => Code::StorageFull,
            Error::Internal(_) => Code::Internal,
        };
        // A missing agent or participant is the caller's error and is not logged.
        if matches!(error, Error::Internal(_) | Error::Unavailable(_)) {
            tracing::error!(error = telemetry::chain(&error), "a request failed");
        }
        let hint = match &error {
            Error::NotFound { kind: ResourceKind::ReportingPeer, .. }
            | Error::SessionWithoutPeer => ": POST /v1/peers/register first",
            _ => "",
        };
        Self::new(code, format!("{error}{hint}"))
    }
}

#[cfg(test)]
mod tests {
    use svc_core::service::{Error, ResourceKind};

    use super::*;

    const JSON: &str = "application/json";
    const EVENTS: &str = "text/event-stream";

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (header::ACCEPT, value.parse().unwrap())).collect()
    }

    #[test]
    fn most_specific_range_decides_and_weight_zero_excludes() {
        for (values, json, events) in [
            (&[][..], None, None),
            (&["application/json"], Some(1.0), None),
            (&["application/json, text/event-stream"], Some(1.0), Some(1.0)),
            (&["application/json", "TEXT/Event-Stream;q=0.5"], Some(1.0), Some(0.5)),
            (&["*/*"], Some(1.0), Some(1.0)),
            (&["*/*;q=0.1, text/*;q=0.7, text/event-stream;q=0"], Some(0.1), Some(0.0)),
            (&["text/event-stream;q=0, text/*, */*;q=0"], Some(0.0), Some(0.0)),
            (&["application/* ; Q=0.25 , text/plain"], Some(0.25), None),
            (&["application/json;version=2;q=0.2, application/json;q=0.8"], Some(0.8), None),
            // A header that breaks the grammar excludes nothing.
            (&["application/json;q=x, *;q=0, text, , text/event-stream;q=7"], Some(1.0), Some(1.0)),
            (&["application/json;q=NaN"], Some(1.0), None),
        ] {
            let headers = headers(values);
            let accept = Accept::from_headers(&headers);
            assert_eq!(accept.weight(JSON), json, "{values:?}");
            assert_eq!(accept.weight(EVENTS), events, "{values:?}");
        }
    }

    #[test]
    fn named_type_is_preferred_if_its_weight_is_no_less_than_the_default() {
        for (value, preferred) in [
            ("text/event-stream", true),
            ("application/json, text/event-stream", true),
            ("text/event-stream, */*;q=0.1", true),
            ("text/event-stream;q=0.5", true),
            ("*/*", false),
            ("text/*", false),
            ("text/event-stream;q=0", false),
            ("text/event-stream;q=0.5, application/json", false),
            ("text/event-stream;q=0.5, */*", false),
            ("application/json", false),
        ] {
            let headers = headers(&[value]);
            assert_eq!(Accept::from_headers(&headers).prefers(EVENTS, JSON), preferred, "{value}");
        }
    }

    #[test]
    fn caller_without_a_peer_is_told_how_to_register() {
        for (error, text) in [
            (
                Error::not_found(ResourceKind::ReportingPeer, "x"),
                "there is no peer \"x\": POST /v1/peers/register first",
            ),
            (
                Error::SessionWithoutPeer,
                "this session has no peer yet: POST /v1/peers/register first",
            ),
            (Error::not_found(ResourceKind::Peer, "x"), "there is no peer \"x\""),
        ] {
            assert_eq!(Problem::from(error).detail(), text);
        }
    }
}
