//! A subscription that resumes by itself.
//!
//! It reconnects with `Last-Event-ID` when the stream breaks or the daemon restarts (perhaps on another port), and it
//! never yields an id twice. What the daemon says was pruned is reported as a [`Gap`], never passed over in silence.

use std::collections::VecDeque;
use std::time::Duration;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until, timeout};

use super::{Client, ClientError, Discovery, Parser, SseEvent, Streaming, Target};

/// First and longest wait between two tries.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// Longest wait that a daemon may ask for.
const MAX_ASKED: Duration = Duration::from_mins(1);
/// Silence after which a stream counts as broken: the daemon comments every 15 s.
const SILENCE: Duration = Duration::from_secs(45);

/// Follows one event stream.
#[derive(Debug)]
pub struct Follower {
    discovery: Discovery,
    path: String,
    patient: bool,
    cursor: Option<u64>,
    target: Option<Target>,
    open: Option<(Streaming, Parser)>,
    queue: VecDeque<Item>,
    last_gap: Option<Gap>,
    lost: bool,
    ended: bool,
    failures: u32,
    asked: Option<Duration>,
    not_before: Option<Instant>,
}

/// What a subscription yields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// An event. Ids rise strictly; an event without an id passes as it is.
    Event {
        /// The SSE id.
        id: Option<u64>,
        /// The SSE event type.
        kind: String,
        /// One JSON document.
        data: String,
    },
    /// Events that the daemon no longer has.
    Gap(Gap),
    /// The stream broke; it will be resumed.
    Lost {
        /// Why, for people.
        problem: String,
    },
    /// The stream is back after [`Item::Lost`].
    Resumed,
}

/// The daemon's word on what a reader cannot have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The id that was resumed from.
    #[serde(default)]
    pub requested: u64,
    /// The oldest id that there is.
    #[serde(default)]
    pub oldest: u64,
    /// The newest.
    #[serde(default)]
    pub latest: u64,
    /// `pruned`, or `ahead`: the daemon's log was set back, and everything follows from the start.
    #[serde(default)]
    pub reason: String,
}

impl Follower {
    /// Follows `path` (with its query). Connects at the first [`next`](Self::next).
    pub fn new(discovery: Discovery, path: String) -> Self {
        Self {
            discovery,
            path,
            patient: false,
            cursor: None,
            target: None,
            open: None,
            queue: VecDeque::new(),
            last_gap: None,
            lost: false,
            ended: false,
            failures: 0,
            asked: None,
            not_before: None,
        }
    }

    /// Resumes after this id from the start, whatever the query says.
    #[must_use]
    pub fn after(self, id: u64) -> Self {
        Self { cursor: Some(id), ..self }
    }

    /// Also waits for a daemon that is away at the very first connection, which otherwise is an error.
    #[must_use]
    pub fn patient(self) -> Self {
        Self { patient: true, ..self }
    }

    /// The id of the last event, or where the daemon said to resume from.
    pub fn cursor(&self) -> Option<u64> {
        self.cursor
    }

    /// The next item, or `None` when the daemon says that the stream is over (204). May be dropped at any await.
    ///
    /// Fails when trying again cannot help: refused, unknown, or not an event stream.
    pub async fn next(&mut self) -> Result<Option<Item>, ClientError> {
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
                self.open = Some((stream, Parser::new()));
                if std::mem::take(&mut self.lost) {
                    self.queue.push_back(Item::Resumed);
                }
            }
            Err(error) if error.is_transient() && (self.patient || self.target.is_some()) => {
                self.lose(error.to_string(), error.retry_after());
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn try_connect(&mut self) -> Result<Streaming, ClientError> {
        let target = self.discovery.target()?;
        if !target.may_follow(self.target.as_ref()) {
            return Err(ClientError::NotRunning { url: target.url.to_string() });
        }
        let headers: Vec<_> =
            self.cursor.map(|id| ("last-event-id", id.to_string())).into_iter().collect();
        let stream = Client::new(target.clone()).stream(&self.path, &headers).await?;
        self.target = Some(target);
        Ok(stream)
    }

    async fn read(&mut self) -> Result<(), ClientError> {
        let Some((stream, parser)) = &mut self.open else {
            return Ok(());
        };
        let chunk = match timeout(SILENCE, stream.chunk()).await {
            Ok(chunk) => chunk,
            Err(_) => Err(ClientError::Timeout { url: stream.url(), seconds: SILENCE.as_secs() }),
        };
        match chunk {
            Ok(Some(bytes)) => {
                let mut events = Vec::new();
                let fed = parser.feed(&bytes, &mut events);
                let url = stream.url();
                self.asked = parser.retry();
                // A block with an id and no data moves the cursor: so a daemon can say where `latest` is.
                let said = parser.last_event_id().parse().ok();
                for event in events {
                    self.take(event);
                }
                self.cursor = self.cursor.max(said);
                fed.map_err(|source| ClientError::Stream { url, source })?;
            }
            Ok(None) => self.lose("the daemon closed the stream".to_owned(), None),
            Err(error) => self.lose(error.to_string(), None),
        }
        Ok(())
    }

    fn take(&mut self, event: SseEvent) {
        self.failures = 0;
        let id: Option<u64> = event.id.as_deref().and_then(|id| id.parse().ok());
        match id {
            None if event.event == "gap" => {
                if let Ok(gap) = serde_json::from_str::<Gap>(&event.data) {
                    self.take_gap(gap);
                }
                return;
            }
            Some(id) if self.cursor.is_some_and(|cursor| id <= cursor) => return,
            Some(id) => self.cursor = Some(id),
            None => {}
        }
        self.queue.push_back(Item::Event { id, kind: event.event, data: event.data });
    }

    /// Reports a gap once, although every reconnection before the next event meets it again.
    fn take_gap(&mut self, gap: Gap) {
        if gap.reason == "ahead" {
            self.cursor = Some(0);
        }
        if self.last_gap.as_ref() != Some(&gap) {
            self.last_gap = Some(gap.clone());
            self.queue.push_back(Item::Gap(gap));
        }
    }

    fn lose(&mut self, problem: String, retry_after: Option<Duration>) {
        self.open = None;
        if !std::mem::replace(&mut self.lost, true) {
            self.queue.push_back(Item::Lost { problem });
        }
        let wait = wait(self.failures, self.asked.max(retry_after));
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(Instant::now() + wait);
    }
}

/// Doubles from 50 ms to 2 s, never sooner than asked, plus up to a quarter so that a thousand readers of a daemon
/// that restarts do not come back in one instant.
pub(crate) fn wait(failures: u32, asked: Option<Duration>) -> Duration {
    let backoff = BACKOFF.0.saturating_mul(1 << failures.min(10)).min(BACKOFF.1);
    let base = backoff.max(asked.unwrap_or_default().min(MAX_ASKED));
    // Without randomness there is merely no jitter.
    let jitter = getrandom::u32().unwrap_or(0);
    base + base.mul_f64(f64::from(jitter) / f64::from(u32::MAX) / 4.0)
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Fake, answer, discovery, stream};
    use super::*;

    fn event(id: u64) -> String {
        format!("id: {id}\nevent: frame\ndata: {id}\n\n")
    }

    async fn all(follower: &mut Follower) -> Vec<String> {
        let mut seen = Vec::new();
        while let Some(item) = follower.next().await.expect("goes on") {
            seen.push(match item {
                Item::Event { id, data, .. } => {
                    assert_eq!(id.map(|id| id.to_string()).as_deref(), Some(data.as_str()));
                    data
                }
                Item::Gap(gap) => format!("gap {} {}", gap.reason, gap.oldest),
                Item::Lost { .. } => "lost".to_owned(),
                Item::Resumed => "resumed".to_owned(),
            });
        }
        seen
    }

    fn cursors(fake: &Fake) -> Vec<Option<String>> {
        let header = |request: &String| {
            request.lines().find_map(|line| {
                line.to_ascii_lowercase().strip_prefix("last-event-id: ").map(str::to_owned)
            })
        };
        fake.requests().iter().map(header).collect()
    }

    #[tokio::test]
    async fn resumes_where_it_was_and_yields_no_id_twice() {
        let home = tempfile::tempdir().expect("a folder");
        let half = format!("{}{}id: 3\nda", event(1), event(2));
        let fake = Fake::start(vec![
            vec![stream(&half)],
            vec![answer("503 Service Unavailable", "", "")],
            vec![stream(&[event(2), event(3)].concat())],
            vec![answer("204 No Content", "", "")],
        ])
        .await;
        fake.write_daemon_json(home.path());
        let mut follower = Follower::new(discovery(home.path()), "/v1/x?task_id=t".to_owned());
        assert_eq!(all(&mut follower).await, ["1", "2", "lost", "resumed", "3", "lost"]);
        let two = Some("2".to_owned());
        assert_eq!(cursors(&fake), [None, two.clone(), two, Some("3".to_owned())]);
    }

    #[tokio::test]
    async fn finds_a_daemon_that_comes_back_on_another_port() {
        let home = tempfile::tempdir().expect("a folder");
        let first = Fake::start(vec![vec![stream(&event(1))]]).await;
        first.write_daemon_json(home.path());
        let mut follower = Follower::new(discovery(home.path()), "/v1/x".to_owned());
        let kind = |item: Option<Item>| format!("{item:?}");
        assert!(kind(follower.next().await.expect("goes on")).contains("Event"));
        assert!(kind(follower.next().await.expect("goes on")).contains("Lost"));
        std::fs::remove_file(home.path().join("daemon.json")).expect("was there");
        let second =
            Fake::start(vec![vec![stream(&event(2))], vec![answer("204 No Content", "", "")]])
                .await;
        second.write_daemon_json(home.path());
        assert_eq!(all(&mut follower).await, ["resumed", "2", "lost"]);
        assert_eq!(cursors(&second)[0].as_deref(), Some("1"));
    }

    #[tokio::test]
    async fn gaps_are_told_once_and_a_log_set_back_is_read_from_its_start() {
        let home = tempfile::tempdir().expect("a folder");
        let gap = |reason: &str| {
            format!(
                "event: gap\ndata: {{\"requested\":9,\"oldest\":5,\"latest\":6,\"reason\":\"{reason}\"}}\n\n"
            )
        };
        let fake = Fake::start(vec![
            vec![stream(&gap("pruned"))],
            vec![stream(&[gap("pruned"), event(12)].concat())],
            vec![stream(&[gap("ahead"), event(1), event(2)].concat())],
            vec![answer("204 No Content", "", "")],
        ])
        .await;
        fake.write_daemon_json(home.path());
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
            "lost",
        ];
        assert_eq!(seen, expected);
        assert_eq!(cursors(&fake).last().cloned().flatten().as_deref(), Some("2"));
    }

    #[tokio::test]
    async fn what_cannot_get_better_is_an_error() {
        let home = tempfile::tempdir().expect("a folder");
        let start = |path: &str| Follower::new(discovery(home.path()), path.to_owned());
        start("/v1/x").next().await.expect_err("there is no daemon");
        let fake = Fake::start(vec![
            vec![answer("404 Not Found", "", r#"{"code":"not_found","detail":"no task t"}"#)],
            vec![answer("200 OK", "content-type: application/json\r\n", "{}")],
        ])
        .await;
        fake.write_daemon_json(home.path());
        let error = start("/v1/x").next().await.expect_err("is unknown");
        assert_eq!(error.to_string(), "no task t");
        let error = start("/v1/x").next().await.expect_err("is no stream");
        assert!(error.to_string().contains("not an event stream"), "{error}");
    }

    #[test]
    fn waits_grow_and_are_never_shorter_than_asked() {
        let cases = [
            (0, None, 50),
            (1, None, 100),
            (5, None, 1600),
            (6, None, 2000),
            (99, None, 2000),
            (0, Some(3000), 3000),
            (0, Some(999_000), 60_000),
        ];
        for (failures, asked, expected) in cases {
            let least = Duration::from_millis(expected);
            let waited = wait(failures, asked.map(Duration::from_millis));
            assert!(
                least <= waited && waited <= least.mul_f64(1.25),
                "{failures} {asked:?} {waited:?}"
            );
        }
    }
}
