//! From the spool to the daemon: in order, as often as it takes.

use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::notice::{Notify, RunNotice};
use super::spool::{Batch, Batches};
use crate::client::{Client, ClientError, Discovery, Target, backoff, encode};

/// How far the spool is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Progress {
    /// Bytes that may be read.
    pub(crate) written: u64,
    /// Whether nothing more will be written.
    pub(crate) finished: bool,
    /// Whether the user does not want to wait any longer.
    pub(crate) abandoned: bool,
}

/// How the sending ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The daemon has everything.
    Complete,
    /// The task could not be made: the command has no business running.
    NoTask(String),
    /// The daemon will never take the rest.
    Refused {
        /// Why, for people.
        problem: String,
        /// Whether the spool may still be of use.
        keep: bool,
    },
    /// The daemon was away for too long, or the user was.
    GaveUp(String),
}

/// Sends one spool.
#[derive(Debug)]
pub(crate) struct EventSender {
    pub(crate) discovery: Discovery,
    pub(crate) create: Value,
    pub(crate) batches: Batches,
    pub(crate) patience: Duration,
    /// Whether a task that someone has begun already is the one meant: so it is for a resend.
    pub(crate) may_be_active: bool,
    /// Told the task once it is made.
    pub(crate) task: watch::Sender<Option<Value>>,
    pub(crate) progress: watch::Receiver<Progress>,
    pub(crate) notify: Notify,
}

/// The connection of a sender, and how it fares.
#[derive(Debug, Default)]
struct Link {
    client: Option<Client>,
    target: Option<Target>,
    away_since: Option<Instant>,
    failures: u32,
    unauthorized: bool,
}

impl EventSender {
    /// Makes the task and sends until the spool is finished and empty.
    pub(crate) async fn run(mut self) -> Outcome {
        let mut link = Link::default();
        match self.work(&mut link).await {
            Ok(()) => Outcome::Complete,
            Err(outcome) => outcome,
        }
    }

    async fn work(&mut self, link: &mut Link) -> Result<(), Outcome> {
        let task = self.make_task(link).await?;
        let id = task.get("task_id").and_then(Value::as_str).unwrap_or_default().to_owned();
        self.task.send_replace(Some(task));
        let path = format!("/v1/tasks/{}/events", encode(&id));
        loop {
            let progress = *self.progress.borrow_and_update();
            match self.batches.next(progress.written) {
                Ok(Some(batch)) => self.send(link, &path, batch).await?,
                Ok(None) if progress.finished => return Ok(()),
                Ok(None) => {
                    if self.progress.changed().await.is_err() {
                        return Err(Outcome::GaveUp("the run ended early".to_owned()));
                    }
                }
                Err(error) => {
                    return Err(Outcome::Refused {
                        problem: format!("cannot read the spool: {error}"),
                        keep: true,
                    });
                }
            }
        }
    }

    async fn make_task(&mut self, link: &mut Link) -> Result<Value, Outcome> {
        let body =
            serde_json::to_vec(&self.create).map_err(|error| Outcome::NoTask(error.to_string()))?;
        let made = self.request(link, "/v1/tasks", body.into()).await?;
        let task: Value = made.map_err(|error| Outcome::NoTask(error.to_string()))?;
        let status = task.get("status").and_then(Value::as_str).unwrap_or_default();
        if status != "pending" && !self.may_be_active {
            let id = task.get("task_id").and_then(Value::as_str).unwrap_or("-");
            return Err(Outcome::NoTask(format!(
                "task {id} was made under this idempotency key already and is {status}"
            )));
        }
        Ok(task)
    }

    async fn send(&mut self, link: &mut Link, path: &str, batch: Batch) -> Result<(), Outcome> {
        let answer = self.request(link, path, batch.body.clone()).await?;
        let Err(error) = answer else {
            self.batches.acknowledge(&batch);
            return Ok(());
        };
        let keep = match error.status() {
            Some(StatusCode::PAYLOAD_TOO_LARGE) if batch.events > 1 && self.batches.shrink() => {
                return Ok(());
            }
            // Someone else ended the task; it takes nothing any more.
            Some(StatusCode::CONFLICT) => false,
            _ => true,
        };
        Err(Outcome::Refused { problem: error.to_string(), keep })
    }

    /// Posts until there is an answer that trying again would not change; that answer may be an error.
    async fn request(
        &mut self,
        link: &mut Link,
        path: &str,
        body: bytes::Bytes,
    ) -> Result<Result<Value, ClientError>, Outcome> {
        loop {
            let error = match link.post(&self.discovery, path, body.clone()).await {
                Ok(value) => {
                    link.recovered(self.notify);
                    return Ok(Ok(value));
                }
                Err(error) => error,
            };
            link.client = None;
            // A token that was rotated meanwhile is read anew for the next try.
            let retry_token = error.status() == Some(StatusCode::UNAUTHORIZED)
                && !std::mem::replace(&mut link.unauthorized, true);
            if retry_token {
                continue;
            }
            if !error.is_transient() {
                link.recovered(self.notify);
                return Ok(Err(error));
            }
            self.pause(link, &error).await?;
        }
    }

    /// Waits before the next try, or finds that there will be none.
    async fn pause(&mut self, link: &mut Link, error: &ClientError) -> Result<(), Outcome> {
        let since = *link.away_since.get_or_insert_with(Instant::now);
        // A restart is over before this many tries, and not worth a word.
        if link.failures == 2 {
            let problem = error.problem().map(ToString::to_string);
            (self.notify)(RunNotice::DaemonAway { problem });
        }
        let end = Instant::now() + backoff(link.failures, error.retry_after());
        link.failures = link.failures.saturating_add(1);
        loop {
            let progress = *self.progress.borrow_and_update();
            if progress.abandoned || (progress.finished && since.elapsed() >= self.patience) {
                return Err(Outcome::GaveUp(error.to_string()));
            }
            tokio::select! {
                () = sleep(end.saturating_duration_since(Instant::now())) => return Ok(()),
                changed = self.progress.changed() => if changed.is_err() {
                    return Err(Outcome::GaveUp(error.to_string()));
                },
            }
        }
    }
}

impl Link {
    async fn post(
        &mut self,
        discovery: &Discovery,
        path: &str,
        body: bytes::Bytes,
    ) -> Result<Value, ClientError> {
        let client = if let Some(client) = &self.client {
            client.clone()
        } else {
            let target = discovery.target()?;
            if !target.may_follow(self.target.as_ref()) {
                return Err(ClientError::NotRunning { url: target.url.to_string() });
            }
            self.target = Some(target.clone());
            self.client.insert(Client::new(target)).clone()
        };
        client.request(Method::POST, path, Some(body)).await?.json()
    }

    fn recovered(&mut self, notify: Notify) {
        if self.failures > 2 {
            notify(RunNotice::DaemonBack);
        }
        self.away_since = None;
        self.failures = 0;
        self.unauthorized = false;
    }
}
