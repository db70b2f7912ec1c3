//! What handlers share (services, tools, metrics of requests), and what they take of a request:
//! this state, its caller, JSON bodies and query strings, bounded, with errors that name the field.
//! And responses of JSON.

use std::{convert::Infallible, fmt, marker::PhantomData, ops::Deref, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{FromRequest, FromRequestParts, Path},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header, request::Parts as RequestHead};
use http_body::Body as _;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, MapAccess, Visitor, value::MapAccessDeserializer},
};
use svc_core::{
    service::{Page, Services},
    tools::Catalogue,
};
use svc_model::{Caller, PageQuery, READ_ALL, Timestamp};
use svc_sources::SourceManager;
use tokio_util::sync::CancellationToken;

use super::{Code, Doctor, Problem, entry};
pub(super) use crate::web::text_of;
use crate::web::{self, EndsWithToken};

pub(super) const PREFIX: &str = "svc";

/// The state that handlers share. Each request clones it several times.
#[derive(Debug, Clone)]
pub struct App(Arc<AppState>);

#[derive(Debug)]
pub struct AppState {
    pub services: Services,
    pub tools: Arc<Catalogue>,
    /// Child MCP servers; `None` if there are none.
    pub sources: Option<SourceManager>,
    /// Runs `svc doctor`; `None` if the program does not exist.
    pub doctor: Option<Doctor>,
    pub metrics: Metrics,
    pub identity: Identity,
    pub stop: CancellationToken,
}

#[derive(Debug)]
pub struct Identity {
    /// Changes with each start.
    pub boot_id: String,
    pub pid: u32,
    pub started_at: Timestamp,
}

impl App {
    pub fn new(parts: AppState) -> Self {
        Self(Arc::new(parts))
    }
}

impl Deref for App {
    type Target = AppState;

    fn deref(&self) -> &AppState {
        &self.0
    }
}

impl FromRequestParts<App> for App {
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut RequestHead, app: &App) -> Result<Self, Infallible> {
        Ok(app.clone())
    }
}

impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut RequestHead, _: &App) -> Result<Self, Problem> {
        // The edge adds the extension for every route that needs a token.
        let caller = head.extensions.get::<Self>().cloned();
        caller.ok_or_else(|| Problem::new(Code::Unauthorized, "a valid token is needed"))
    }
}

/// Refuses callers who may not read everything.
pub(super) fn may_read_all(caller: &Caller) -> Result<(), Problem> {
    let why = "this is for the operator, or needs read_all";
    if caller.has_scope(READ_ALL) { Ok(()) } else { Err(Problem::new(Code::Forbidden, why)) }
}

/// Metrics of requests, in the registry that other adapters share.
#[derive(Debug)]
pub struct Metrics {
    /// For registrations by others, before the first request.
    pub registry: Registry,
    requests: Family<HttpRequestLabels, Counter>,
    seconds: Family<HttpRouteLabels, Histogram, fn() -> Histogram>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HttpRequestLabels {
    method: &'static str,
    route: &'static str,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HttpRouteLabels {
    route: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let requests = Family::default();
        let seconds = Family::new_with_constructor(histogram as fn() -> Histogram);
        registry.register("http_requests", "Requests answered", requests.clone());
        registry.register_with_unit(
            "http_request_duration",
            "Time to the head of the answer",
            Unit::Seconds,
            seconds.clone(),
        );
        Self { registry, requests, seconds }
    }
}

fn histogram() -> Histogram {
    Histogram::new([0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0])
}

impl Metrics {
    /// Counts a response. `route` is the pattern and not the path.
    pub(super) fn observe(
        &self,
        method: &Method,
        route: &'static str,
        status: StatusCode,
        elapsed: Duration,
    ) {
        let method = match *method {
            Method::GET => "GET",
            Method::POST => "POST",
            Method::DELETE => "DELETE",
            _ => "other",
        };
        let status = status.as_u16();
        self.requests.get_or_create(&HttpRequestLabels { method, route, status }).inc();
        self.seconds.get_or_create(&HttpRouteLabels { route }).observe(elapsed.as_secs_f64());
    }
}

pub(super) struct Json<T>(pub(super) T);

pub(super) type JsonResult<T> = Result<Json<T>, Problem>;
pub(super) type PageResult<T> = JsonResult<Page<T>>;
/// A response with a status of its own.
pub(super) type StatusResult<T> = Result<(StatusCode, Json<T>), Problem>;

pub(super) struct MaybeJson<T>(pub(super) Option<T>);

pub(super) struct Query<T>(pub(super) T);

/// A request about one thing, whose id is in the path.
pub(super) struct ItemRequest {
    pub(super) app: App,
    pub(super) caller: Caller,
    pub(super) id: String,
}

/// A request for a part of a list.
pub(super) struct ListRequest<F> {
    pub(super) app: App,
    pub(super) caller: Caller,
    pub(super) filter: F,
    pub(super) page: PageQuery,
}

pub(super) struct JsonBytes(pub(super) Bytes);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        json_response(serde_json::to_vec(&self.0).expect("a value of ours has a JSON form"))
    }
}

/// Apart, so that it exists once in the program and not for each type of value.
fn json_response(body: Vec<u8>) -> Response {
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], body).into_response()
}

/// A response of lines of JSON. It ends with its caller's token at the latest.
pub(super) fn json_lines(lines: Body) -> Response {
    let mut response = Response::new(lines);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response.extensions_mut().insert(EndsWithToken::Answer(None));
    response
}

impl FromRequest<App> for JsonBytes {
    type Rejection = Problem;

    async fn from_request(request: Request<Body>, app: &App) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        web::require_json(&parts.headers)?;
        read_body(&parts, body, app).await.map(Self)
    }
}

async fn read_body(head: &RequestHead, body: Body, app: &App) -> Result<Bytes, Problem> {
    let is_known = head.extensions.get::<Caller>().is_some();
    let limit = entry::body_bytes(head.uri.path(), is_known);
    web::read(body, limit, app.services.tuning().body_stall).await
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<App> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request<Body>, app: &App) -> Result<Self, Problem> {
        let JsonBytes(bytes) = JsonBytes::from_request(request, app).await?;
        web::parse_body(bytes, |bytes| parse_object(text_of(bytes)?)).await.map(Self)
    }
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<App> for MaybeJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request<Body>, app: &App) -> Result<Self, Problem> {
        if request.body().is_end_stream() {
            return Ok(Self(None));
        }
        let (head, body) = request.into_parts();
        read_optional(&head, body, app).await.map(Self)
    }
}

async fn read_optional<T: DeserializeOwned + Send + 'static>(
    head: &RequestHead,
    body: Body,
    app: &App,
) -> Result<Option<T>, Problem> {
    let bytes = read_body(head, body, app).await?;
    // A body in chunks shows only when it is read that it is empty, and then has no type.
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    web::require_json(&head.headers)?;
    web::parse_body(bytes, |bytes| parse_object(text_of(bytes)?)).await.map(Some)
}

/// The request without its body, of which no member is used. It must be a JSON object, if there is
/// one, so that a route may have members later.
pub(super) async fn without_body(
    request: Request<Body>,
    app: &App,
) -> Result<Request<Body>, Problem> {
    if request.body().is_end_stream() {
        return Ok(request);
    }
    let (head, body) = request.into_parts();
    read_optional::<serde::de::IgnoredAny>(&head, body, app).await?;
    Ok(Request::from_parts(head, Body::empty()))
}

impl<T: DeserializeOwned> FromRequestParts<App> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut RequestHead, _: &App) -> Result<Self, Problem> {
        parse_query(parts).map(Self)
    }
}

impl FromRequestParts<App> for ItemRequest {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut RequestHead, app: &App) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let id = Path::from_request_parts(parts, app).await;
        let Path(id) = id.map_err(|error| Problem::malformed(error.body_text()))?;
        Ok(Self { app: app.clone(), caller, id })
    }
}

impl<F: DeserializeOwned + Send> FromRequestParts<App> for ListRequest<F> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut RequestHead, app: &App) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let (filter, page) = (parse_query(parts)?, parse_query(parts)?);
        Ok(Self { app: app.clone(), caller, filter, page })
    }
}

fn parse_query<T: DeserializeOwned>(head: &RequestHead) -> Result<T, Problem> {
    let query = head.uri.query().unwrap_or_default();
    let pairs = serde_urlencoded::Deserializer::new(form_urlencoded::parse(query.as_bytes()));
    serde_path_to_error::deserialize(pairs)
        .map_err(|error| Problem::invalid(field_of(&error), error.inner()))
}

/// A value that must be an object in JSON: serde reads a struct from an array, too.
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }

        source.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

pub(super) fn parse_object<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, Problem> {
    if text.trim_ascii_start().starts_with('{') {
        return parse(text);
    }
    parse::<serde::de::IgnoredAny>(text)?;
    Err(Problem::invalid("", "must be a JSON object"))
}

/// Parses JSON. The error says where the text is no JSON (400) or has the wrong form (422).
pub(super) fn parse<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, Problem> {
    serde_json::from_str(text).map_err(|error| explain::<T>(text, &error))
}

fn explain<'de, T: Deserialize<'de>>(text: &'de str, error: &serde_json::Error) -> Problem {
    if serde_json::from_str::<serde::de::IgnoredAny>(text).is_err() {
        return Problem::malformed(format!("the body is not JSON: {error}"));
    }
    // A second, slower parse, only to name the field of an error.
    let mut source = serde_json::Deserializer::from_str(text);
    match serde_path_to_error::deserialize::<_, T>(&mut source) {
        Err(error) => Problem::invalid(field_of(&error), plain(error.inner())),
        Ok(_) => Problem::invalid("", plain(error)),
    }
}

fn field_of<E: fmt::Display>(error: &serde_path_to_error::Error<E>) -> String {
    let path = error.path().to_string();
    let path = if path == "." { "" } else { &path };
    // serde names the field that is missing, or is there twice, only in the text of its error. To
    // get the name from `de::Error::missing_field` would need an adapter for all methods of
    // `Deserializer`, so this parses the text; the test below fails if serde changes it.
    let text = error.inner().to_string();
    let names_field = |before: &str| matches!(before, "missing field " | "duplicate field ");
    match text.split_once('`').filter(|(before, _)| names_field(before)) {
        Some((_, rest)) => {
            let name = rest.split('`').next().unwrap_or_default();
            let dot = if path.is_empty() { "" } else { "." };
            format!("{path}{dot}{name}")
        }
        None => path.to_owned(),
    }
}

/// The message without " at line 1 column 2", which does not help the author of a program, and
/// without names of Rust.
fn plain(error: &serde_json::Error) -> String {
    let (mut text, position) =
        (error.to_string(), format!(" at line {} column {}", error.line(), error.column()));
    text.truncate(text.strip_suffix(&position).map_or(text.len(), str::len));
    in_words_of_json(text)
}

/// serde says which type of Rust it expected. Says which type of JSON that is.
fn in_words_of_json(mut text: String) -> String {
    const EXPECTED: &str = ", expected ";
    let Some(at) = text.rfind(EXPECTED).map(|at| at + EXPECTED.len()) else { return text };
    let words = match text[at..].split(' ').next().unwrap_or_default() {
        "struct" | "internally" | "adjacently" => "an object",
        "tuple" => "an array",
        "u8" => "an integer from 0 to 255",
        "u16" => "an integer from 0 to 65535",
        "u32" => "an integer from 0 to 4294967295",
        "u64" | "usize" => "an integer from 0",
        "i8" | "i16" | "i32" | "i64" | "isize" => "an integer",
        "f32" | "f64" => "a number",
        _ => return text,
    };
    text.replace_range(at.., words);
    text
}

#[cfg(test)]
mod tests {
    use svc_model::{NewTask, RegisterInput};

    use super::*;

    #[test]
    fn lines_end_with_the_token_of_their_caller() {
        let response = json_lines(Body::empty());
        assert!(response.extensions().get::<EndsWithToken>().is_some());
    }

    #[test]
    fn parse_error_names_no_type_of_rust() {
        #[derive(Debug, Default, Deserialize)]
        #[expect(dead_code, reason = "is only parsed")]
        struct Body {
            #[serde(default)]
            opts: Options,
            number: Option<f64>,
        }
        #[derive(Debug, Default, Deserialize)]
        #[expect(dead_code, reason = "is only parsed")]
        struct Options {
            count: u32,
        }
        for (body, message) in [
            (r#"{"opts":5}"#, "invalid type: integer `5`, expected an object"),
            (r#"{"opts":[]}"#, "invalid length 0, expected an object"),
            (
                r#"{"opts":{"count":-1}}"#,
                "invalid value: integer `-1`, expected an integer from 0 to 4294967295",
            ),
            (r#"{"number":true}"#, "invalid type: boolean `true`, expected a number"),
        ] {
            let rendered = format!("{:?}", parse_object::<Body>(body).unwrap_err());
            assert!(rendered.contains(message), "{body}: {rendered}");
        }
    }

    #[test]
    fn parse_error_names_the_field() {
        for (body, field) in [
            (r#"{"display_name":1,"backend":"b"}"#, Some("display_name")),
            (r#"{"display_name":"a"}"#, Some("backend")),
            (r#"{"display_name":"a","backend":"b","backend":"b"}"#, Some("backend")),
            (r#"{"display_name":"a","backend":"b","role":"king"}"#, Some("role")),
            (r#"{"display_name":"a","backend":"b","metadata":{"k":1}}"#, Some("metadata.k")),
            (r#"{"display_name":"a","backend":"b","pid":-1}"#, Some("pid")),
            ("[]", None),
            ("3", None),
        ] {
            let problem = parse_object::<RegisterInput>(body).unwrap_err();
            let rendered = format!("{problem:?}");
            assert!(rendered.contains("status: 422"), "{body}: {rendered}");
            if let Some(field) = field {
                let named = format!("field: Some({field:?})");
                assert!(rendered.contains(&named), "{body}: {rendered}");
            }
        }
        let body = r#"[{"display_name":"a","backend":"b"},{"display_name":"a"}]"#;
        let rendered = format!("{:?}", parse::<Vec<RegisterInput>>(body).unwrap_err());
        assert!(rendered.contains(r#"field: Some("[1].backend")"#), "{rendered}");
        let body = r#"{"metadata":{"a":[18446744073709551616]}}"#;
        let rendered = format!("{:?}", parse_object::<NewTask>(body).unwrap_err());
        let named =
            ["status: 422", r#"field: Some("metadata")"#, "integer 18446744073709551616 is"];
        assert!(named.iter().all(|part| rendered.contains(part)), "{rendered}");
        for body in ["", "{", "{\"display_name\":\"a\"", "nonsense", "{}{}", "\u{feff}{}"] {
            let problem = parse_object::<RegisterInput>(body).unwrap_err();
            assert!(format!("{problem:?}").contains("status: 400"), "{body}");
        }
    }
}
