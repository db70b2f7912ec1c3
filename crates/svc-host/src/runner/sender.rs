//! Sends a spool to the daemon: in order, and again until it is acknowledged.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::Value;
use svc_client::{Client, ClientError, Discovery, backoff, encode};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::event::TaskDocument;
use super::event::{RunNotice, RunObserver};
use super::spool::{EventBatch, SpoolReader};

/// Failed tries that the observer does not hear of: a restart of the daemon takes no more.
const QUIET_FAILURES: u32 = 2;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SpoolProgress {
    /// Bytes that a reader may read.
    pub(super) written: u64,
    pub(super) finished: bool,
    /// The person does not want to wait any longer.
    pub(super) abandoned: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendOutcome {
    Complete,
    /// The task could not be made, so the program has nothing to run for.
    NoTask(String),
    /// Someone else has ended the task: it takes no more events, and the spool is useless.
    TaskClosed(String),
    /// The daemon will never take the rest, which the spool still has.
    Refused(String),
    /// The daemon was away for too long, or the person did not want to wait.
    GaveUp(String),
}

#[derive(Debug)]
pub struct EventSender<O> {
    pub discovery: Discovery,
    /// The body of the request that makes the task.
    pub create: Value,
    pub reader: SpoolReader,
    /// How long the daemon may be away once nothing more is written.
    pub patience: Duration,
    /// Whether the task may have begun already: a spool is sent again.
    pub accept_begun: bool,
    pub observer: Arc<O>,
}

impl<O: RunObserver> EventSender<O> {
    /// Makes the task, gives it to `task`, and sends until the spool is finished and empty.
    pub(super) async fn run(
        self,
        task: watch::Sender<Option<TaskDocument>>,
        progress: watch::Receiver<SpoolProgress>,
    ) -> SendOutcome {
        let link = SenderLink::new(self.discovery);
        let (create, accept_begun) = (self.create, self.accept_begun);
        let patience = self.patience;
        let mut sending =
            Sending { link, reader: self.reader, patience, progress, observer: self.observer };
        match sending.work(&create, accept_begun, &task).await {
            Ok(()) => SendOutcome::Complete,
            Err(outcome) => outcome,
        }
    }

    /// Sends a spool that is complete, and returns its task if it was made.
    pub async fn run_to_end(self, written: u64) -> (SendOutcome, Option<TaskDocument>) {
        let (task, made) = watch::channel(None);
        // Kept to the end: the sender takes its drop for a crash of the run.
        let (_progress, progress) =
            watch::channel(SpoolProgress { written, finished: true, abandoned: false });
        let outcome = self.run(task, progress).await;
        let made = made.borrow().clone();
        (outcome, made)
    }
}

#[derive(Debug)]
struct Sending<O> {
    link: SenderLink,
    reader: SpoolReader,
    patience: Duration,
    progress: watch::Receiver<SpoolProgress>,
    observer: Arc<O>,
}

impl<O: RunObserver> Sending<O> {
    async fn work(
        &mut self,
        create: &Value,
        accept_begun: bool,
        made: &watch::Sender<Option<TaskDocument>>,
    ) -> Result<(), SendOutcome> {
        let task = self.make_task(create, accept_begun).await?;
        let path = format!("/v1/tasks/{}/events", encode(task.id()));
        made.send_replace(Some(task));
        loop {
            let progress = *self.progress.borrow_and_update();
            match self.reader.next(progress.written) {
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

    async fn make_task(
        &mut self,
        create: &Value,
        accept_begun: bool,
    ) -> Result<TaskDocument, SendOutcome> {
        let no_task = |error: &dyn std::error::Error| SendOutcome::NoTask(error.to_string());
        let body = serde_json::to_vec(create).map_err(|error| no_task(&error))?;
        let reply = self.post("/v1/tasks", body.into()).await?;
        let task = TaskDocument(reply.map_err(|error| no_task(&error))?);
        if task.status() != "pending" && !accept_begun {
            return Err(SendOutcome::NoTask(format!(
                "task {} was made under this idempotency key already and is {}",
                task.id(),
                task.status()
            )));
        }
        Ok(task)
    }

    async fn send(&mut self, path: &str, batch: &EventBatch) -> Result<(), SendOutcome> {
        let Err(error) = self.post(path, batch.body.clone()).await? else {
            self.reader.acknowledge(batch);
            return Ok(());
        };
        match error.status() {
            Some(StatusCode::PAYLOAD_TOO_LARGE) if batch.events > 1 && self.reader.shrink() => {
                Ok(())
            }
            Some(StatusCode::CONFLICT) => Err(SendOutcome::TaskClosed(error.to_string())),
            _ => Err(SendOutcome::Refused(error.to_string())),
        }
    }

    /// Posts until there is a response that a retry would not change; it may be an error.
    async fn post(
        &mut self,
        path: &str,
        body: Bytes,
    ) -> Result<Result<Value, ClientError>, SendOutcome> {
        loop {
            let result = self.link.post(path, body.clone()).await;
            match result {
                Err(error) if self.link.retry_with_new_token(&error) => {}
                Err(error) if error.is_transient() => self.pause(&error).await?,
                result => {
                    if self.link.recovered() {
                        self.observer.notice(RunNotice::DaemonBack);
                    }
                    return Ok(result);
                }
            }
        }
    }

    /// Waits for the backoff, or fails because there will be no further try.
    async fn pause(&mut self, error: &ClientError) -> Result<(), SendOutcome> {
        let (since, failures) = self.link.failed();
        if failures == QUIET_FAILURES {
            let problem = error.problem().map(ToString::to_string);
            self.observer.notice(RunNotice::DaemonAway { problem });
        }
        let end = Instant::now() + backoff(failures, error.retry_after());
        loop {
            let progress = *self.progress.borrow_and_update();
            if progress.abandoned || (progress.finished && since.elapsed() >= self.patience) {
                return Err(SendOutcome::GaveUp(error.to_string()));
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

/// The connection to the daemon, and its failures since the last response.
#[derive(Debug)]
struct SenderLink {
    discovery: Discovery,
    client: Option<Client>,
    away_since: Option<Instant>,
    failures: u32,
    /// A refused token has been read anew once.
    unauthorized: bool,
}

impl SenderLink {
    fn new(discovery: Discovery) -> Self {
        Self { discovery, client: None, away_since: None, failures: 0, unauthorized: false }
    }

    /// One try. After a failure the next one discovers the daemon and the token anew.
    async fn post(&mut self, path: &str, body: Bytes) -> Result<Value, ClientError> {
        let client = self.client()?;
        let reply = client.request(Method::POST, path, Some(body)).await;
        let reply = reply.and_then(|reply| reply.json());
        if reply.is_err() {
            self.client = None;
        }
        reply
    }

    fn client(&mut self) -> Result<Client, ClientError> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let target = self.discovery.target()?;
        Ok(self.client.insert(Client::new(target)).clone())
    }

    /// Whether to retry at once: the token may have been rotated.
    fn retry_with_new_token(&mut self, error: &ClientError) -> bool {
        error.is_refused_token() && !std::mem::replace(&mut self.unauthorized, true)
    }

    /// Counts a failure. Returns when the failures began, and their number before this one.
    fn failed(&mut self) -> (Instant, u32) {
        let since = *self.away_since.get_or_insert_with(Instant::now);
        let failures = self.failures;
        self.failures = self.failures.saturating_add(1);
        (since, failures)
    }

    /// The daemon has responded. Returns whether the observer had heard that it was away.
    fn recovered(&mut self) -> bool {
        let was_told = self.failures > QUIET_FAILURES;
        self.away_since = None;
        self.failures = 0;
        self.unauthorized = false;
        was_told
    }
}
