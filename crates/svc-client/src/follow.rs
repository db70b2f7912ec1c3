//! Operations that survive a restart of the daemon: a subscription that resumes by itself, and a
//! post that may be repeated.
//!
//! A [`Follower`] reconnects with `Last-Event-ID` when the stream breaks or the daemon restarts,
//! and never returns an id twice. Pruned events are reported as a [`FollowGap`].

use std::collections::VecDeque;
use std::time::Duration;

use http::StatusCode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use svc_model::{GapReason, new_secret};
use svc_sys::backoff::Backoff;
use svc_wire::sse::{SseEvent, SseParser};
use tokio::time::{Instant, sleep, sleep_until};

use super::connection::{Client, StreamingReply};
use super::discover::Discovery;
use super::error::ClientError;

/// First and longest delay between two attempts, before jitter.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
const MAX_REQUESTED: Duration = Duration::from_mins(1);
/// Silence after which a stream counts as broken: the daemon sends a comment every 15 s.
const SILENCE: Duration = Duration::from_secs(45);

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about the connection")]
pub struct Follower {
    discovery: Discovery,
    path: String,
    /// Whether the first connection, too, may wait for a daemon.
    patient: bool,
    /// The id after which the stream is resumed.
    cursor: Option<u64>,
    was_connected: bool,
    open: Option<(StreamingReply, SseParser)>,
    queue: VecDeque<FollowItem>,
    last_gap: Option<FollowGap>,
    /// Whether the stream broke and was not resumed yet.
    is_broken: bool,
    ended: bool,
    /// Failed attempts since the last event.
    failures: u32,
    /// The last reconnection time that the stream has sent.
    retry: Option<Duration>,
    not_before: Option<Instant>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowItem {
    /// Ids increase strictly; events without an id are passed on unchanged.
    Event {
        id: Option<u64>,
        kind: String,
        /// One JSON document.
        data: String,
    },
    /// Events that the daemon no longer has.
    Gap(FollowGap),
    /// The stream broke; it will be resumed.
    Disconnected { problem: String },
    /// The stream is connected again after [`FollowItem::Disconnected`].
    Resumed,
}

/// The daemon's report of pruned events.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FollowGap {
    pub requested: u64,
    /// The first id after `requested` that is still kept.
    pub oldest: u64,
    pub latest: u64,
    /// The word of a [`GapReason`], or one of a later daemon.
    pub reason: String,
}

impl FollowGap {
    /// Whether the log ends before `requested`, so that it is read again from its start.
    pub fn is_set_back(&self) -> bool {
        self.reason == GapReason::Ahead.as_str()
    }
}

impl Follower {
    /// `path` includes the query. Does not connect until [`next`](Self::next).
    pub fn new(discovery: Discovery, path: String) -> Self {
        Self {
            discovery,
            path,
            patient: false,
            cursor: None,
            was_connected: false,
            open: None,
            queue: VecDeque::new(),
            last_gap: None,
            is_broken: false,
            ended: false,
            failures: 0,
            retry: None,
            not_before: None,
        }
    }

    /// Starts after this id; overrides the query.
    #[must_use]
    pub fn after(self, id: u64) -> Self {
        Self { cursor: Some(id), ..self }
    }

    /// Waits for an absent daemon at the first connection, too.
    #[must_use]
    pub fn patient(self) -> Self {
        Self { patient: true, ..self }
    }

    /// The next item; `None` when the stream is over (204). Cancel-safe.
    ///
    /// Fails if a retry cannot help: the request was refused, the path is unknown, or the response
    /// is not an event stream.
    pub async fn next(&mut self) -> Result<Option<FollowItem>, ClientError> {
        loop {
            if let Some(item) = self.queue.pop_front() {
                return Ok(Some(item));
            }
            if self.ended {
                return Ok(None);
            }
            if self.open.is_some() {
                self.read().await?;
            } else {
                self.connect().await?;
            }
        }
    }

    /// Connects unless connected. From then on no event is missed, even with `after=latest`. Fails
    /// as [`next`](Self::next) does.
    pub async fn open(&mut self) -> Result<(), ClientError> {
        while self.open.is_none() && !self.ended {
            self.connect().await?;
        }
        Ok(())
    }

    async fn connect(&mut self) -> Result<(), ClientError> {
        if let Some(at) = self.not_before {
            sleep_until(at).await;
            self.not_before = None;
        }
        match self.try_connect().await {
            Ok(stream) if stream.status == StatusCode::NO_CONTENT => self.ended = true,
            Ok(stream) => {
                if !stream.is_event_stream() {
                    return Err(ClientError::Unexpected {
                        url: stream.url(),
                        problem: format!("{} is not an event stream", self.path),
                    });
                }
                self.open = Some((stream, SseParser::new()));
                if std::mem::take(&mut self.is_broken) {
                    self.queue.push_back(FollowItem::Resumed);
                }
            }
            Err(error) if error.is_transient() && (self.patient || self.was_connected) => {
                self.disconnect(error.to_string(), error.retry_after());
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn try_connect(&mut self) -> Result<StreamingReply, ClientError> {
        let target = self.discovery.target()?;
        let headers: Vec<_> =
            self.cursor.map(|id| ("last-event-id", id.to_string())).into_iter().collect();
        let stream = Client::new(target).stream(&self.path, &headers).await?;
        self.was_connected = true;
        Ok(stream)
    }

    async fn read(&mut self) -> Result<(), ClientError> {
        let Some((stream, parser)) = &mut self.open else { return Ok(()) };
        match stream.chunk_within(SILENCE).await {
            Ok(Some(bytes)) => {
                let mut events = Vec::new();
                let fed = parser.feed(&bytes, &mut events);
                let url = stream.url();
                self.retry = parser.retry();
                // A block that has only an id moves the cursor: that is how the daemon reports the
                // position of `latest`.
                let last_id = parser.last_event_id().parse().ok();
                for event in events {
                    self.take(event);
                }
                self.cursor = self.cursor.max(last_id);
                fed.map_err(|source| ClientError::Stream { url, source })?;
            }
            Ok(None) => self.disconnect("the daemon closed the stream".to_owned(), None),
            Err(error) => self.disconnect(error.to_string(), None),
        }
        Ok(())
    }

    fn take(&mut self, event: SseEvent) {
        self.failures = 0;
        let id: Option<u64> = event.id.as_deref().and_then(|id| id.parse().ok());
        match id {
            None if event.event == "gap" => {
                if let Ok(gap) = serde_json::from_str::<FollowGap>(&event.data) {
                    self.take_gap(gap);
                }
                return;
            }
            Some(id) if self.cursor.is_some_and(|cursor| id <= cursor) => return,
            Some(id) => self.cursor = Some(id),
            None => {}
        }
        self.queue.push_back(FollowItem::Event { id, kind: event.event, data: event.data });
    }

    /// Reports a gap once, although each reconnection before the next event repeats it.
    fn take_gap(&mut self, gap: FollowGap) {
        if gap.is_set_back() {
            self.cursor = Some(0);
        }
        if self.last_gap.as_ref() != Some(&gap) {
            self.last_gap = Some(gap.clone());
            self.queue.push_back(FollowItem::Gap(gap));
        }
    }

    fn disconnect(&mut self, problem: String, retry_after: Option<Duration>) {
        self.open = None;
        if !std::mem::replace(&mut self.is_broken, true) {
            self.queue.push_back(FollowItem::Disconnected { problem });
        }
        let wait = backoff(self.failures, self.retry.max(retry_after));
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(Instant::now() + wait);
    }
}

/// The delay doubles from 50 ms to 2 s, and is at least what the daemon requests.
pub fn backoff(failures: u32, requested: Option<Duration>) -> Duration {
    BACKOFF.wait_at_least(failures, requested.unwrap_or_default().min(MAX_REQUESTED))
}

/// How long to wait for another daemon.
const RESEND_FOR: Duration = Duration::from_secs(10);

/// Posts a body with a new `idempotency_key`. If the daemon ends before it responds, the body is
/// posted again to the next daemon with the same key. If there is none within ten seconds, the
/// error is that the response was lost.
pub async fn post_keyed<T: DeserializeOwned>(
    discovery: &Discovery,
    path: &str,
    mut body: Value,
) -> Result<T, ClientError> {
    body["idempotency_key"] = json!(new_secret());
    let lost = match Client::new(discovery.target()?).post(path, &body).await {
        Err(error @ ClientError::Connection { sent: true, .. }) => error,
        done => return done,
    };
    let (began, mut failures) = (Instant::now(), 0);
    while began.elapsed() < RESEND_FOR {
        sleep(backoff(failures, None)).await;
        failures += 1;
        // The next daemon may listen at another address.
        match Client::new(discovery.target()?).post(path, &body).await {
            Err(error) if error.is_transient() => {}
            done => return done,
        }
    }
    Err(lost)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{FakeDaemon, answer, discovery, stream};
    use super::*;

    fn event(id: u64) -> String {
        format!("id: {id}\nevent: frame\ndata: {id}\n\n")
    }

    async fn all(follower: &mut Follower) -> Vec<String> {
        let mut seen = Vec::new();
        while let Some(item) = follower.next().await.expect("goes on") {
            seen.push(match item {
                FollowItem::Event { id, data, .. } => {
                    assert_eq!(id.map(|id| id.to_string()).as_deref(), Some(data.as_str()));
                    data
                }
                FollowItem::Gap(gap) => format!("gap {} {}", gap.reason, gap.oldest),
                FollowItem::Disconnected { .. } => "lost".to_owned(),
                FollowItem::Resumed => "resumed".to_owned(),
            });
        }
        seen
    }

    fn cursors(fake: &FakeDaemon) -> Vec<Option<String>> {
        let header = |request: &String| {
            request.lines().find_map(|line| {
                line.to_ascii_lowercase().strip_prefix("last-event-id: ").map(str::to_owned)
            })
        };
        fake.requests().iter().map(header).collect()
    }

    #[tokio::test]
    async fn follower_resumes_and_yields_no_id_twice() {
        let home = tempfile::tempdir().expect("a folder");
        let half = format!("{}{}id: 3\nda", event(1), event(2));
        let fake = FakeDaemon::start(
            home.path(),
            vec![
                vec![stream(&half)],
                vec![answer("503 Service Unavailable", "", "")],
                vec![stream(&[event(2), event(3)].concat())],
                vec![answer("204 No Content", "", "")],
            ],
        );
        let mut follower = Follower::new(discovery(home.path()), "/v1/x?task_id=t".to_owned());
        assert_eq!(all(&mut follower).await, ["1", "2", "lost", "resumed", "3", "lost"]);
        let two = Some("2".to_owned());
        assert_eq!(cursors(&fake), [None, two.clone(), two, Some("3".to_owned())]);
    }

    #[tokio::test]
    async fn follower_finds_a_restarted_daemon() {
        let home = tempfile::tempdir().expect("a folder");
        FakeDaemon::start(home.path(), vec![vec![stream(&event(1))]]);
        let mut follower = Follower::new(discovery(home.path()), "/v1/x".to_owned());
        let kind = |item: Option<FollowItem>| format!("{item:?}");
        assert!(kind(follower.next().await.expect("goes on")).contains("Event"));
        assert!(kind(follower.next().await.expect("goes on")).contains("Disconnected"));
        let second = FakeDaemon::start(
            home.path(),
            vec![vec![stream(&event(2))], vec![answer("204 No Content", "", "")]],
        );
        assert_eq!(all(&mut follower).await, ["resumed", "2", "lost"]);
        assert_eq!(cursors(&second)[0].as_deref(), Some("1"));
    }

    #[tokio::test]
    async fn gap_is_reported_once_and_a_shorter_log_is_read_from_its_start() {
        let home = tempfile::tempdir().expect("a folder");
        let gap = |reason: &str| {
            format!(
                "event: gap\ndata: {{\"requested\":9,\"oldest\":5,\"latest\":6,\"reason\":\"{reason}\"}}\n\n"
            )
        };
        let fake = FakeDaemon::start(
            home.path(),
            vec![
                vec![stream(&gap("pruned"))],
                vec![stream(&[gap("pruned"), event(12)].concat())],
                vec![stream(&[gap("ahead"), event(1), event(2), gap("from the future")].concat())],
                vec![answer("204 No Content", "", "")],
            ],
        );
        let mut follower = Follower::new(discovery(home.path()), "/v1/x".to_owned()).after(9);
        let seen = all(&mut follower).await;
        let expected = [
            "gap pruned 5",
            "lost",
            "resumed",
            "12",
            "lost",
            "resumed",
            "gap ahead 5",
            "1",
            "2",
            "gap from the future 5",
            "lost",
        ];
        assert_eq!(seen, expected);
        assert_eq!(cursors(&fake).last().cloned().flatten().as_deref(), Some("2"));
    }

    #[tokio::test]
    async fn permanent_failure_is_an_error() {
        let home = tempfile::tempdir().expect("a folder");
        let start = |path: &str| Follower::new(discovery(home.path()), path.to_owned());
        start("/v1/x").next().await.expect_err("there is no daemon");
        FakeDaemon::start(
            home.path(),
            vec![
                vec![answer("404 Not Found", "", r#"{"code":"not_found","detail":"no task t"}"#)],
                vec![answer("200 OK", "content-type: application/json\r\n", "{}")],
            ],
        );
        let error = start("/v1/x").next().await.expect_err("is unknown");
        assert_eq!(error.to_string(), "no task t");
        let error = start("/v1/x").next().await.expect_err("is no stream");
        assert!(error.to_string().contains("not an event stream"), "{error}");
    }

    #[test]
    fn requested_wait_has_a_bound() {
        let requested = |seconds| backoff(0, Some(Duration::from_secs(seconds))).as_secs_f64();
        assert!((3.0..=3.75).contains(&requested(3)));
        assert!((60.0..=75.0).contains(&requested(999)));
    }

    #[tokio::test]
    async fn request_with_a_lost_response_is_repeated_with_its_key() {
        let home = tempfile::tempdir().expect("a folder");
        let done = answer("200 OK", "content-type: application/json\r\n", r#"{"id":"msg_1"}"#);
        let starting = answer("503 Service Unavailable", "", "");
        // The first connection ends without a response.
        let scripts = vec![vec![String::new()], vec![starting], vec![done]];
        let daemon = FakeDaemon::start(home.path(), scripts);
        let body = json!({ "text": "hi" });
        let sent: Value =
            post_keyed(&discovery(home.path()), "/v1/x", body).await.expect("it is answered");
        assert_eq!(sent["id"], "msg_1");
        let bodies: Vec<String> = daemon
            .requests()
            .iter()
            .map(|request| request.split_once("\r\n\r\n").expect("a body").1.to_owned())
            .collect();
        assert_eq!(bodies.len(), 3);
        assert!(bodies[0].contains("idempotency_key"), "{bodies:?}");
        assert!(bodies.iter().all(|body| *body == bodies[0]), "{bodies:?}");
    }

    #[tokio::test]
    async fn missing_daemon_fails_at_once() {
        let home = tempfile::tempdir().expect("a folder");
        // A busy machine may hold up an attempt for as long as it would be repeated.
        for _ in 0..5 {
            let began = Instant::now();
            let sent = post_keyed::<Value>(&discovery(home.path()), "/v1/x", json!({})).await;
            assert!(matches!(sent, Err(ClientError::NotRunning { .. })), "{sent:?}");
            if began.elapsed() < RESEND_FOR {
                return;
            }
        }
        panic!("it was repeated each time");
    }
}
