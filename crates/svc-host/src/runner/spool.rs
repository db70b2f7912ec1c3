//! The file between the program and the daemon, and its sender, which sends the events in order and
//! repeats them until they are acknowledged.
//!
//! The file has a header line, then one event per line. A run appends to it, the sender reads it
//! from the front, and it is removed when the daemon has acknowledged everything. The run holds a
//! lock on it, so that no other process sends it meanwhile.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use http::{Method, StatusCode};
use rustix::fs::{OFlags, fcntl_setfl};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use svc_client::{Client, ClientError, Discovery, backoff, encode};
use svc_sys::lines::json_line;
use svc_sys::{private_file, spool};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::program::{RunExit, RunNotice, RunObserver, TaskDocument};

const MAX_EVENTS: usize = 1000;
/// Most bytes in one request, well below the daemon's limit of 1 MiB.
const MAX_BYTES: usize = 512 * 1024;

/// The first line of a spool file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SpoolHeader {
    pub version: u32,
    /// Unique; a prefix of every event's id.
    pub run: String,
    /// The body of the request that creates the task, with an idempotency key.
    pub create: Value,
}

#[derive(Debug)]
pub(crate) struct Spool {
    file: File,
    pub(super) path: PathBuf,
    /// Number of bytes that are completely written.
    pub(super) written: u64,
}

#[derive(Debug)]
pub struct SpoolReader {
    file: File,
    /// Number of bytes that the daemon has acknowledged, including the header.
    offset: u64,
    /// Most bytes in one request; halved when the daemon says that a request is too large.
    limit: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct EventBatch {
    /// A JSON array of events.
    pub(super) body: Bytes,
    pub(super) events: usize,
    /// The offset after the last event.
    end: u64,
}

#[derive(Debug)]
pub struct LeftoverSpool {
    pub header: SpoolHeader,
    pub reader: SpoolReader,
    /// Number of bytes up to the end of the last whole line. A crash or a power cut may leave a
    /// partial line after it.
    pub written: u64,
    /// Keeps other processes from sending the spool meanwhile.
    pub lock: File,
}

impl SpoolHeader {
    pub const VERSION: u32 = 1;
}

impl Spool {
    /// Creates the file of a run with mode 0600, and its folder.
    pub(crate) fn create(folder: &Path, header: &SpoolHeader) -> Result<Self> {
        let path = folder.join(format!("{}.ndjson", header.run));
        let create = || {
            private_file::prepare_home(folder)?;
            let line = json_line(header)?;
            let file = private_file::create_new_held(&path, &line)?;
            fcntl_setfl(&file, OFlags::APPEND)?;
            Ok::<_, io::Error>((file, line.len() as u64))
        };
        let created = create().with_context(|| format!("cannot create {}", path.display()));
        let (file, written) = created?;
        Ok(Self { file, path, written })
    }

    /// Appends whole lines. After a failure the file is truncated to its old length; if that fails
    /// too, it ends with a partial line, which readers skip.
    pub(super) fn append(&mut self, lines: &[u8]) -> Result<()> {
        if let Err(error) = self.file.write_all(lines) {
            self.file.set_len(self.written).ok();
            bail!("cannot write {}: {error}", self.path.display());
        }
        self.written += lines.len() as u64;
        Ok(())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    pub(crate) fn discard(self) {
        std::fs::remove_file(&self.path).ok();
    }

    pub(super) fn reader(&self) -> Result<SpoolReader> {
        let open = || {
            let mut line = Vec::new();
            BufReader::new(private_file::open(&self.path)?).read_until(b'\n', &mut line)?;
            Ok::<_, io::Error>(SpoolReader::new(private_file::open(&self.path)?, line.len() as u64))
        };
        open().with_context(|| cannot_read(&self.path))
    }
}

impl LeftoverSpool {
    /// Opens the file unless a run still writes it.
    pub fn open(path: &Path) -> Result<Self> {
        let shown = path.display();
        let file = spool::take_over(path, true).with_context(|| cannot_read(path))?;
        let Some(file) = file else {
            bail!(
                "{shown} belongs to a `svc task run` that is still at it; it sends the rest itself"
            );
        };
        let mut line = Vec::new();
        // A header is at most as large as the body of a request.
        let read = BufReader::new(&file).take(1024 * 1024).read_until(b'\n', &mut line);
        read.with_context(|| cannot_read(path))?;
        let header: SpoolHeader = serde_json::from_slice(&line)
            .with_context(|| format!("{shown} is not a spool file"))?;
        let known = SpoolHeader::VERSION;
        if header.version != known {
            bail!("{shown} is of format {}, this program knows {known}", header.version);
        }
        let offset = line.len() as u64;
        let own = private_file::open(path).with_context(|| cannot_read(path))?;
        let written = spool::last_line_end(&own, offset).with_context(|| cannot_read(path))?;
        Ok(Self { header, reader: SpoolReader::new(own, offset), written, lock: file })
    }
}

fn cannot_read(path: &Path) -> String {
    format!("cannot read {}", path.display())
}

impl SpoolReader {
    fn new(file: File, offset: u64) -> Self {
        Self { file, offset, limit: MAX_BYTES }
    }

    /// The next request: whole lines before `written`. `None` if all of them were acknowledged.
    pub(super) fn next(&self, written: u64) -> io::Result<Option<EventBatch>> {
        let block = spool::whole_lines(&self.file, self.offset, written, self.limit)?;
        // If a block exceeds the limit, its first line alone exceeds it.
        let most = if block.len() > self.limit { 1 } else { MAX_EVENTS };
        let ends: Vec<usize> = memchr::memchr_iter(b'\n', &block).take(most).collect();
        Ok(ends.last().map(|last| self.batch(&block[..=*last], ends.len())))
    }

    pub(super) fn acknowledge(&mut self, batch: &EventBatch) {
        self.offset = batch.end;
    }

    /// Makes requests smaller from now on; `false` if they cannot be smaller.
    pub(super) fn shrink(&mut self) -> bool {
        self.limit /= 2;
        self.limit > 0
    }

    fn batch(&self, lines: &[u8], events: usize) -> EventBatch {
        let mut body = Vec::with_capacity(lines.len() + 2);
        body.push(b'[');
        // JSON text contains no raw line feed, so each line feed ends an event.
        body.extend(
            lines[..lines.len() - 1].iter().map(|byte| if *byte == b'\n' { b',' } else { *byte }),
        );
        body.push(b']');
        EventBatch { body: body.into(), events, end: self.offset + lines.len() as u64 }
    }
}

/// Failed attempts before the observer is told: a restart of the daemon causes no more than these.
const QUIET_FAILURES: u32 = 2;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SpoolProgress {
    /// Number of bytes that are completely written.
    pub(super) written: u64,
    pub(super) finished: bool,
    /// How the program of a run ended; set when the spool is finished.
    pub(super) exit: Option<RunExit>,
    /// The person does not want to wait for the daemon any longer.
    pub(super) abandoned: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendOutcome {
    Complete,
    /// The task could not be created, so the program need not run.
    NoTask(String),
    /// Somebody else has ended the task: it takes no more events, and the spool is useless.
    TaskClosed(String),
    /// The daemon will never take the rest, which stays in the spool.
    Refused(String),
    /// The daemon was away for too long, or the person did not want to wait.
    GaveUp(String),
}

#[derive(Debug)]
pub struct EventSender<O> {
    pub discovery: Discovery,
    /// The body of the request that creates the task.
    pub create: Value,
    pub reader: SpoolReader,
    /// How long the daemon may be away, counted from the last event at the earliest.
    pub max_wait: Duration,
    /// Whether the task may have begun already, as when a spool is sent again.
    pub accept_begun: bool,
    pub observer: Arc<O>,
}

impl<O: RunObserver> EventSender<O> {
    /// Creates the task, publishes it to `task`, and sends until the spool is finished and all is
    /// acknowledged.
    pub(super) async fn run(
        self,
        task: watch::Sender<Option<TaskDocument>>,
        progress: watch::Receiver<SpoolProgress>,
    ) -> SendOutcome {
        let mut sending = Sending {
            sender: self,
            progress,
            client: None,
            away_since: None,
            finished_at: None,
            told_of_wait: false,
            failures: 0,
            unauthorized: false,
        };
        match sending.work(&task).await {
            Ok(()) => SendOutcome::Complete,
            Err(outcome) => outcome,
        }
    }

    /// Sends a complete spool. Also returns the task if it was created.
    pub async fn run_to_end(self, written: u64) -> (SendOutcome, Option<TaskDocument>) {
        let (task, made) = watch::channel(None);
        // Kept until the end, as the sender takes its drop for a crash of the run.
        let (_progress, progress) =
            watch::channel(SpoolProgress { written, finished: true, ..SpoolProgress::default() });
        let outcome = self.run(task, progress).await;
        let made = made.borrow().clone();
        (outcome, made)
    }
}

/// A running sender: its connection to the daemon, and the failures since the last response.
#[derive(Debug)]
struct Sending<O> {
    sender: EventSender<O>,
    progress: watch::Receiver<SpoolProgress>,
    client: Option<Client>,
    away_since: Option<Instant>,
    /// When a failure first found the spool finished.
    finished_at: Option<Instant>,
    told_of_wait: bool,
    failures: u32,
    /// A token was refused and has been read again once.
    unauthorized: bool,
}

impl<O: RunObserver> Sending<O> {
    async fn work(
        &mut self,
        made: &watch::Sender<Option<TaskDocument>>,
    ) -> Result<(), SendOutcome> {
        let task = self.make_task().await?;
        let path = format!("/v1/tasks/{}/events", encode(task.id()));
        made.send_replace(Some(task));
        loop {
            let progress = *self.progress.borrow_and_update();
            match self.sender.reader.next(progress.written) {
                Ok(Some(batch)) => self.send(&path, &batch).await?,
                Ok(None) if progress.finished => return Ok(()),
                Ok(None) => {
                    if self.progress.changed().await.is_err() {
                        return Err(SendOutcome::GaveUp("the run ended early".to_owned()));
                    }
                }
                Err(error) => {
                    return Err(SendOutcome::Refused(format!("cannot read the spool: {error}")));
                }
            }
        }
    }

    async fn make_task(&mut self) -> Result<TaskDocument, SendOutcome> {
        let no_task = |error: &dyn std::error::Error| SendOutcome::NoTask(error.to_string());
        let body = serde_json::to_vec(&self.sender.create).map_err(|error| no_task(&error))?;
        let reply = self.post("/v1/tasks", body.into()).await?;
        let task = TaskDocument(reply.map_err(|error| no_task(&error))?);
        if task.status() != "pending" && !self.sender.accept_begun {
            return Err(SendOutcome::NoTask(format!(
                "task {} was made under this idempotency key already and is {}",
                task.id(),
                task.status()
            )));
        }
        Ok(task)
    }

    async fn send(&mut self, path: &str, batch: &EventBatch) -> Result<(), SendOutcome> {
        let reply = self.post(path, batch.body.clone()).await?;
        let reader = &mut self.sender.reader;
        let Err(error) = reply else {
            reader.acknowledge(batch);
            return Ok(());
        };
        match error.status() {
            Some(StatusCode::PAYLOAD_TOO_LARGE) if batch.events > 1 && reader.shrink() => Ok(()),
            Some(StatusCode::CONFLICT) => Err(SendOutcome::TaskClosed(error.to_string())),
            _ => Err(SendOutcome::Refused(error.to_string())),
        }
    }

    /// Repeats a request until there is a response that a retry would not change; it may be an
    /// error.
    async fn post(
        &mut self,
        path: &str,
        body: Bytes,
    ) -> Result<Result<Value, ClientError>, SendOutcome> {
        loop {
            match self.try_post(path, body.clone()).await {
                // Retry at once: the token may have been rotated.
                Err(error)
                    if error.is_refused_token()
                        && !std::mem::replace(&mut self.unauthorized, true) => {}
                Err(error) if error.is_transient() => self.pause(&error).await?,
                result => {
                    if self.failures > QUIET_FAILURES {
                        self.sender.observer.notice(RunNotice::DaemonBack);
                    }
                    (self.away_since, self.failures, self.unauthorized) = (None, 0, false);
                    return Ok(result);
                }
            }
        }
    }

    /// After a failure, the next attempt finds the daemon and the token anew.
    async fn try_post(&mut self, path: &str, body: Bytes) -> Result<Value, ClientError> {
        let client = match self.client.take() {
            Some(client) => client,
            None => Client::new(self.sender.discovery.target()?),
        };
        let reply = client.request(Method::POST, path, Some(body)).await?.json()?;
        self.client = Some(client);
        Ok(reply)
    }

    /// Waits for the backoff; fails if there will be no further attempt.
    async fn pause(&mut self, error: &ClientError) -> Result<(), SendOutcome> {
        let since = *self.away_since.get_or_insert_with(Instant::now);
        if self.failures == QUIET_FAILURES {
            let problem = error.problem().map(ToString::to_string);
            self.sender.observer.notice(RunNotice::DaemonAway { problem });
        }
        let end = Instant::now() + backoff(self.failures, error.retry_after());
        self.failures = self.failures.saturating_add(1);
        loop {
            let progress = *self.progress.borrow_and_update();
            if progress.finished {
                self.finished_at.get_or_insert_with(Instant::now);
            }
            let max_wait = self.sender.max_wait;
            // What the daemon was away for before the end does not shorten the wait at the end.
            let is_late = self.finished_at.is_some_and(|at| at.max(since).elapsed() >= max_wait);
            if progress.abandoned || is_late {
                return Err(SendOutcome::GaveUp(error.to_string()));
            }
            if let Some(exit) = progress.exit
                && self.failures > QUIET_FAILURES
                && !std::mem::replace(&mut self.told_of_wait, true)
            {
                self.sender.observer.notice(RunNotice::WaitsAtEnd { exit, max_wait });
            }
            tokio::select! {
                () = sleep(end.saturating_duration_since(Instant::now())) => return Ok(()),
                changed = self.progress.changed() => if changed.is_err() {
                    return Err(SendOutcome::GaveUp(error.to_string()));
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use std::fs::OpenOptions;

    fn create() -> (tempfile::TempDir, Spool) {
        let (run, create) = ("run_x".to_owned(), json!({ "idempotency_key": "run_x" }));
        let folder = tempfile::tempdir().expect("a folder");
        let spool = Spool::create(folder.path(), &SpoolHeader { version: 1, run, create });
        (folder, spool.expect("creates"))
    }

    fn drain(reader: &mut SpoolReader, written: u64) -> Vec<Vec<Value>> {
        let mut all = Vec::new();
        while let Some(batch) = reader.next(written).expect("reads") {
            let events: Vec<Value> = serde_json::from_slice(&batch.body).expect("is JSON");
            assert_eq!(events.len(), batch.events);
            assert!(batch.body.len() <= reader.limit + 2 || batch.events == 1);
            reader.acknowledge(&batch);
            all.push(events);
        }
        all
    }

    proptest! {
        // A file of past failures would be written to the root of the repository.
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn every_event_is_sent_once_in_order_within_the_limits(
            sizes in prop::collection::vec(0_usize..200, 0..80),
            limit in 20_usize..600,
        ) {
            let (_folder, mut spool) = create();
            let mut reader = spool.reader().expect("opens");
            reader.limit = limit;
            for (number, size) in sizes.iter().enumerate() {
                let line = format!("{}\n", json!([number, "x".repeat(*size)]));
                spool.append(line.as_bytes()).expect("writes");
            }
            let got: Vec<u64> = drain(&mut reader, spool.written)
                .concat()
                .iter()
                .map(|event| event[0].as_u64().expect("a number"))
                .collect();
            prop_assert_eq!(got, (0..sizes.len() as u64).collect::<Vec<_>>());
        }
    }

    #[test]
    fn batch_has_at_most_1000_events_and_repeats_until_acknowledged() {
        let (_folder, mut spool) = create();
        let mut reader = spool.reader().expect("opens");
        assert_eq!(reader.next(spool.written).expect("reads"), None);
        spool.append("1\n".repeat(2500).as_bytes()).expect("writes");
        let first = reader.next(spool.written).expect("reads");
        assert_eq!(reader.next(spool.written).expect("reads"), first);
        let sizes: Vec<usize> = drain(&mut reader, spool.written).iter().map(Vec::len).collect();
        assert_eq!(sizes, [1000, 1000, 500]);
    }

    #[test]
    fn leftover_spool_opens_up_to_its_last_whole_line() {
        let (_folder, mut spool) = create();
        spool.append(b"1\n2\n").expect("writes");
        let path = spool.path.clone();
        let held = LeftoverSpool::open(&path).expect_err("is locked");
        assert!(held.to_string().contains("still at it"), "{held}");
        drop(spool);
        let mut file = OpenOptions::new().append(true).open(&path).expect("opens");
        file.write_all(b"3 cut o").expect("writes");
        let mut leftover = LeftoverSpool::open(&path).expect("opens");
        assert_eq!(leftover.header.run, "run_x");
        let events = drain(&mut leftover.reader, leftover.written).concat();
        assert_eq!(events, [json!(1), json!(2)]);
        std::fs::write(&path, "{}\n").expect("writes");
        drop(leftover);
        let other = LeftoverSpool::open(&path).expect_err("is no spool file");
        assert!(other.to_string().contains("is not a spool file"), "{other}");
    }
}
