//! Reads the client's lines: calls run concurrently, notifications go out in order.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::AsyncRead;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::bridge::Bridge;
use super::call::{self, CallKind, ClientCall, ClientLine, OneWayMessage};
use super::lines;

/// Deadline for calls under way after the client has closed its output.
const FINISH: Duration = Duration::from_secs(10);
/// Deadline for each step of the end: cancelled calls, the end of the session, lines that the
/// client has not read.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(1);
/// Capacity of the queue of notifications and responses that wait to be sent.
const ONE_WAY_QUEUE: usize = 256;

/// Reads lines and dispatches them.
pub(super) struct CallDispatcher {
    bridge: Arc<Bridge>,
    running: Arc<Mutex<HashMap<String, RunningCall>>>,
    stop: CancellationToken,
    tasks: TaskTracker,
    /// Messages without a response, sent in the order in which they came.
    one_way: mpsc::Sender<(OneWayMessage, oneshot::Sender<()>)>,
    listener: CancellationToken,
    calls: u64,
}

/// A call under way.
#[derive(Debug, Clone)]
struct RunningCall {
    /// Identifies the call: a client may use an id again.
    number: u64,
    kind: CallKind,
    modern: bool,
    cancel: CancellationToken,
}

impl CallDispatcher {
    pub(super) fn new(bridge: Arc<Bridge>, stop: &CancellationToken) -> Self {
        let (one_way, mut notes) =
            mpsc::channel::<(OneWayMessage, oneshot::Sender<()>)>(ONE_WAY_QUEUE);
        let tasks = TaskTracker::new();
        let (deliverer, stopped) = (Arc::clone(&bridge), stop.clone());
        tasks.spawn(stopped.run_until_cancelled_owned(async move {
            while let Some((note, done)) = notes.recv().await {
                deliverer.deliver(&note).await;
                done.send(()).ok();
            }
        }));
        let (running, listener) = (Arc::default(), stop.child_token());
        Self { bridge, running, stop: stop.clone(), tasks, one_way, listener, calls: 0 }
    }

    /// Reads lines until the input ends.
    pub(super) async fn read(
        &mut self,
        input: impl AsyncRead + Unpin + Send,
    ) -> anyhow::Result<()> {
        let mut input = lines::of_client(input);
        while let Some(line) = input.next().await? {
            if line.is_cut {
                self.bridge.output.send(call::too_long(lines::MAX_LINE)).await;
                continue;
            }
            if line.bytes.trim_ascii().is_empty() {
                continue;
            }
            match ClientLine::parse(line.bytes) {
                Ok(ClientLine::Call(call)) => self.call(call).await,
                Ok(ClientLine::Note(note)) => self.note(note).await,
                Err(reply) => self.bridge.output.send(reply).await,
            }
        }
        Ok(())
    }

    /// Starts a call. `initialize` is answered before the next line is read, since the next lines
    /// belong to its session.
    async fn call(&mut self, call: ClientCall) {
        let first = call.kind == CallKind::Initialize;
        let done = self.spawn(call);
        if first {
            done.await.ok();
        }
    }

    fn spawn(&mut self, call: ClientCall) -> JoinHandle<()> {
        self.calls += 1;
        let (number, cancel) = (self.calls, self.stop.child_token());
        // The bridge cannot cancel one request of a batch; the daemon gets the cancellation.
        if let Some(key) = call.only_key() {
            let (kind, modern) = (call.kind, call.is_modern());
            let entry = RunningCall { number, kind, modern, cancel: cancel.clone() };
            self.running().insert(key.to_owned(), entry);
        }
        let (bridge, running) = (Arc::clone(&self.bridge), Arc::clone(&self.running));
        self.tasks.spawn(async move {
            // Dropping the exchange closes its connection.
            cancel.run_until_cancelled(bridge.exchange(call)).await;
            let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
            running.retain(|_, it| it.number != number);
        })
    }

    async fn note(&mut self, note: OneWayMessage) {
        if let Some(key) = &note.cancels {
            let running = self.running().remove(key);
            // The client does not wait any more; a call that was not sent yet is not sent.
            let alone = running.is_some_and(|running| {
                running.cancel.cancel();
                running.modern
            });
            // Without a session the end of the connection cancels the call; in a session this
            // message does.
            if alone || note.modern {
                return;
            }
        }
        let begins = note.method.as_deref() == Some("notifications/initialized") && !note.modern;
        let (done, is_done) = oneshot::channel();
        self.one_way.send((note, done)).await.ok();
        if begins {
            is_done.await.ok();
            self.listen();
        }
    }

    fn listen(&mut self) {
        self.listener.cancel();
        self.listener = self.stop.child_token();
        let (bridge, ended) = (Arc::clone(&self.bridge), self.listener.clone());
        self.tasks.spawn(async move { ended.run_until_cancelled(bridge.listen()).await });
    }

    /// Waits for calls under way, and cancels subscriptions, which would not end.
    pub(super) async fn finish(self) {
        self.listener.cancel();
        for running in self.running().values().filter(|it| it.kind == CallKind::Listen) {
            running.cancel.cancel();
        }
        drop(self.one_way);
        self.tasks.close();
        tokio::select! {
            () = self.tasks.wait() => {}
            () = self.stop.cancelled() => {}
            () = tokio::time::sleep(FINISH) => {}
        }
        self.stop.cancel();
        timeout(LAST_WORDS, self.tasks.wait()).await.ok();
    }

    fn running(&self) -> MutexGuard<'_, HashMap<String, RunningCall>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
