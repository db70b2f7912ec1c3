//! `/v1/events`: the log, as pages or as a feed without end.

use std::fmt::Write as _;

use axum::{
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use svc_core::service::log::{Selector, StartAfter};
use svc_model::{Caller, Timestamp, limits};
use svc_wire::sse::{MEDIA_TYPE, push_item};

use super::{
    App, Problem,
    api::Api,
    body::Query,
    openapi::Operation,
    presence::{self, PagePresence},
    sse,
};
use crate::web::Accept;

pub(super) fn routes(api: Api) -> Api {
    let read = Operation::new(
        "The log: a page of JSON, or with Accept: text/event-stream a feed without end",
    );
    let read = read
        .query::<Read>()
        .header("Last-Event-ID", "Of a feed: the last id received, which wins over `after`");
    let read = read.answer::<EventList>(200, "A page of events");
    api.list("/v1/events", read, show)
}

#[derive(Deserialize, JsonSchema)]
struct Read {
    /// One stream, read by seq.
    stream: Option<String>,
    /// All streams whose name begins so, read by position. Without either: everything.
    stream_prefix: Option<String>,
    /// Only events of this kind.
    kind: Option<String>,
    /// Begin after this seq or position, by default 0; `latest` for what comes from now on.
    after: Option<String>,
    /// 1 to 500, by default 50. Only for pages.
    #[schemars(extend("minimum" = 1, "maximum" = limits::PAGE_MAX, "default" = limits::PAGE_DEFAULT))]
    limit: Option<u32>,
    /// Of other lists. Here a page continues with `after`.
    #[schemars(skip)]
    cursor: Option<String>,
}

/// A page as it is described. It is written by hand, because the data of events is JSON already.
#[derive(Serialize, JsonSchema)]
struct EventList {
    events: Vec<ListedEvent>,
    count: usize,
    /// Goes into `after`.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// An event.
#[derive(Serialize, JsonSchema)]
struct ListedEvent {
    /// Position in the whole log.
    position: i64,
    stream: String,
    /// Position in its stream.
    seq: i64,
    kind: String,
    data: Value,
    at: Timestamp,
}

async fn show(
    app: App,
    caller: Caller,
    Query(query): Query<Read>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let selector = match (query.stream, query.stream_prefix) {
        (Some(_), Some(_)) => {
            return Err(Problem::invalid("stream_prefix", "does not go with stream"));
        }
        (Some(stream), None) => Selector::Stream(stream),
        (None, prefix) => Selector::Prefix(prefix.unwrap_or_default()),
    };
    if query.cursor.is_some() {
        return Err(Problem::invalid("cursor", "goes into `after` here"));
    }
    let after = after(query.after.as_deref())?;
    let kind = query.kind.filter(|kind| !kind.is_empty());
    if Accept::from_headers(&headers).prefers(MEDIA_TYPE, "application/json") {
        let after = match sse::last_event_id(&headers, None)? {
            Some(id) => StartAfter::Cursor(id),
            None => after,
        };
        // Before the stream begins, so that it does not report its own presence.
        let presence = if presence::is_kept_by(&caller, &headers) {
            Some(PagePresence::keep(&app).await)
        } else {
            None
        };
        let subscription = app.services.log.subscribe(&caller, &selector, after, kind).await?;
        let from = (after == StartAfter::Latest).then(|| subscription.cursor());
        return Ok(sse::response(&app, subscription, from, presence));
    }
    let after = match after {
        StartAfter::Cursor(cursor) => i64::try_from(cursor).unwrap_or(i64::MAX),
        // Later events do not exist yet.
        StartAfter::Latest => i64::MAX,
    };
    let page = app
        .services
        .log
        .event_page(&caller, &selector, after, kind.as_deref(), query.limit)
        .await?;
    let mut body = String::from(r#"{"events":["#);
    for (index, event) in page.events.iter().enumerate() {
        if index > 0 {
            body.push(',');
        }
        push_item(&mut body, event);
    }
    infallible(write!(body, r#"],"count":{}"#, page.events.len()));
    if let Some(next) = page.next {
        infallible(write!(body, r#","next_cursor":"{next}""#));
    }
    body.push('}');
    let json = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, json)], body).into_response())
}

fn infallible(written: std::fmt::Result) {
    written.expect("writing to a string does not fail");
}

fn after(text: Option<&str>) -> Result<StartAfter, Problem> {
    match text.map(str::trim) {
        None | Some("") => Ok(StartAfter::Cursor(0)),
        Some("latest") => Ok(StartAfter::Latest),
        Some(text) => match sse::parse_cursor(text) {
            Some(cursor) => Ok(StartAfter::Cursor(cursor)),
            None => Err(Problem::invalid("after", "must be a number from 0 up, or `latest`")),
        },
    }
}
