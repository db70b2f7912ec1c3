//! `/v1/events`: the log, as pages or as a feed without end; and a subscription as a response body.
//! While a page follows the feed, the operator is kept present.

use std::time::Duration;

use axum::{
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_core::service::{
    Error, check,
    log::{Selector, StartAfter, Subscription, SubscriptionChunk},
    team::Team,
};
use svc_model::{Caller, Event, PeerId, limits};
use svc_sys::telemetry;
use svc_wire::sse::{self, push_item};
use tokio::{task::JoinHandle, time::sleep};

use super::{
    App, Problem,
    api::{Api, Operation},
    entry::{EVENTS, wants_feed},
    request::Query,
};
use crate::web::{StreamBody, StreamSource};

/// Period of the operator's heartbeats: a peer without one for a minute is away.
const PRESENCE_INTERVAL: Duration = Duration::from_secs(10);

pub(super) fn routes(api: Api) -> Api {
    let read = Operation::new(
        "The log: a page of JSON, or with Accept: text/event-stream a feed without end",
    )
    .header("Last-Event-ID", "Of a feed: the last id received, which wins over `after`")
    .answer::<EventList>(200);
    api.list(EVENTS, read, show)
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
    events: Vec<Event>,
    count: usize,
    /// Goes into `after`. With `after=latest` it is the end of the log or stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
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
    let is_feed = wants_feed(&headers);
    // Where there is a header, the query is not read.
    let resumed = if is_feed { last_event_id(&headers, None)? } else { None };
    let after = match resumed {
        Some(cursor) => StartAfter::Cursor(cursor),
        None => after(query.after.as_deref())?,
    };
    let kind = query.kind.filter(|kind| !kind.is_empty());
    if is_feed {
        check::limit(query.limit)?;
        // The first heartbeat precedes the stream, so that the stream does not report it. Only the
        // page counts: other programs may follow events without showing them to a person.
        let is_page = headers.get("svc-page").is_some_and(|value| value == "1");
        let presence = if caller.is_operator() && is_page {
            Some(PagePresence::keep(&app).await)
        } else {
            None
        };
        let subscription = app.services.log.subscribe(&caller, &selector, after, kind).await?;
        let from = (after == StartAfter::Latest).then(|| subscription.cursor());
        return Ok(sse_response(&app, subscription, from, presence));
    }
    let log = &app.services.log;
    let (from, end) = match after {
        StartAfter::Cursor(cursor) => (i64::try_from(cursor).unwrap_or(i64::MAX), None),
        // Later events do not exist yet. A client that polls goes on from the end.
        StartAfter::Latest => {
            let end = log.subscribe(&caller, &selector, after, kind.clone()).await?.cursor();
            (i64::MAX, Some(end))
        }
    };
    let page = log.event_page(&caller, &selector, from, kind.as_deref(), query.limit).await?;
    let mut body = String::from(r#"{"events":["#);
    for (index, event) in page.events.iter().enumerate() {
        if index > 0 {
            body.push(',');
        }
        push_item(&mut body, event);
    }
    let next =
        page.next.or(end).map(|next| format!(r#","next_cursor":"{next}""#)).unwrap_or_default();
    body.extend([r#"],"count":"#, &page.events.len().to_string(), &next, "}"]);
    let json = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, json)], body).into_response())
}

fn after(text: Option<&str>) -> Result<StartAfter, Problem> {
    match text.map(str::trim) {
        None | Some("") => Ok(StartAfter::Cursor(0)),
        Some("latest") => Ok(StartAfter::Latest),
        Some(text) => parse_cursor(text)
            .map(StartAfter::Cursor)
            .ok_or_else(|| Problem::invalid("after", "must be a number from 0 up, or `latest`")),
    }
}

/// The response that follows `subscription` until it ends, the client disconnects, or the daemon
/// shuts down. `from` is the cursor at which it begins, if the client does not know it: the first
/// line sets it, so that a connection that breaks before the first event resumes there.
pub(super) fn sse_response(
    app: &App,
    subscription: Subscription,
    from: Option<i64>,
    presence: Option<PagePresence>,
) -> Response {
    let retry = limits::SSE_RETRY_MS;
    // An `id` without `data` sets the client's cursor and is no event (WHATWG HTML, 9.2.6).
    let from = from.map(|id| format!("id: {id}\n\n")).unwrap_or_default();
    let first = Some(format!("retry: {retry}\n\n{from}"));
    let feed = SseFeed { subscription, _presence: presence };
    StreamBody::new(&app.stop, app.services.tuning().sse_keep_alive, first, feed).into_events()
}

/// The client's cursor: its header, else its query; an empty one counts as absent.
pub(super) fn last_event_id(
    headers: &HeaderMap,
    query: Option<&str>,
) -> Result<Option<u64>, Problem> {
    let malformed = || {
        Problem::malformed("Last-Event-ID must be a number, as the last `id:` that was received")
    };
    let header = headers.get("last-event-id").map(HeaderValue::to_str).transpose();
    let header = header.map_err(|_| malformed())?;
    let given = |text: &&str| !text.trim().is_empty();
    let Some(text) = header.filter(given).or(query.filter(given)) else { return Ok(None) };
    parse_cursor(text).map(Some).ok_or_else(malformed)
}

/// Parses a seq or position: digits only, while a parser of numbers accepts a sign.
fn parse_cursor(text: &str) -> Option<u64> {
    let text = text.trim();
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

struct SseFeed {
    subscription: Subscription,
    /// For a page: the operator is present while it listens.
    _presence: Option<PagePresence>,
}

impl StreamSource for SseFeed {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        Ok(self.subscription.next().await?.map(|chunk| match chunk {
            SubscriptionChunk::Frames(frames) => frames,
            SubscriptionChunk::Gap(gap) => sse::notice("gap", &gap).into(),
        }))
    }
}

/// Sends heartbeats of the operator until it is dropped.
pub(super) struct PagePresence(JoinHandle<()>);

impl PagePresence {
    /// Sends a first heartbeat, and begins to repeat it.
    async fn keep(app: &App) -> Self {
        let team = app.services.team.clone();
        note(&team).await;
        Self(tokio::spawn(async move {
            loop {
                sleep(PRESENCE_INTERVAL).await;
                note(&team).await;
            }
        }))
    }
}

async fn note(team: &Team) {
    if let Err(error) = team.heartbeat(&Caller::Operator, PeerId::OPERATOR, None).await {
        tracing::debug!(error = telemetry::chain(&error), "the operator is not noted");
    }
}

impl Drop for PagePresence {
    fn drop(&mut self) {
        self.0.abort();
    }
}
