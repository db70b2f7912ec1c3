//! `svc stdio`: MCP on standard input and output, for clients that start their servers as
//! processes.
//!
//! The path of a message: [`CallDispatcher`] → [`call`] → [`exchange`] → [`link`] → daemon, and
//! back through [`exchange`] to [`LineWriter`]. The bridge keeps the session's id, the client's
//! parameters of `initialize`, and the calls in progress; all other state is the daemon's. So a
//! restart of the daemon costs the client only a delay.
//!
//! A client may mix revisions with and without sessions; each message says which it uses.

mod bridge;
mod call;
mod exchange;
mod link;

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::Args;
use svc_model::ToolExposure;
use svc_sys::lines::LineReader;
use tokio::io::AsyncRead;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::bridge::{BLOCK, Bridge, LineWriter, MAX_LINE};
use self::call::{CallKind, ClientCall};
use self::link::DaemonLink;
use super::{Context, ExitResult};

pub(super) const EXAMPLES: &str = "\
Example:
  claude mcp add svc -- svc stdio

Starts the daemon if none runs (not with --url), and lives through its restarts: what was asked is \
asked again or resumed, and if that could do something twice, the answer says so. Standard output \
has the protocol alone, one JSON-RPC message per line. Ends with its standard input.

It speaks as the process that started it, with a token that the daemon gives that process on the \
socket in the data folder; with the token of --token-file, as `svc mcp-config` writes one; or with \
SVC_TOKEN. --url needs one of these two. A person says --operator.";

#[derive(Debug, Clone, Args)]
pub(super) struct StdioArgs {
    /// Use the operator token: for a person, not for an agent
    #[arg(long)]
    operator: bool,
    /// Use the token in this file, which nobody else may read
    #[arg(long, value_name = "FILE", conflicts_with = "operator")]
    token_file: Option<PathBuf>,
    /// Which tools the client lists: `search` (a few, the others found by `ToolSearch`) or `all`
    #[arg(long, value_name = "WHICH")]
    expose: Option<ToolExposure>,
}

/// Bridges standard input and output to the daemon until the input ends or a signal comes.
pub(super) async fn run(context: &Context, args: StdioArgs) -> ExitResult {
    let stop = CancellationToken::new();
    stop_on_signal(&stop)?;
    let (output, mut writing) = LineWriter::stdout();
    let link = DaemonLink::new(context, args.operator, args.token_file)?;
    let bridge = Arc::new(Bridge::new(link, output, args.expose));
    let mut dispatcher = CallDispatcher::new(Arc::clone(&bridge), &stop);
    let read = tokio::select! {
        read = dispatcher.read(tokio::io::stdin()) => read,
        () = stop.cancelled() => Ok(()),
        _ = &mut writing => {
            stop.cancel();
            Ok(())
        }
    };
    dispatcher.finish().await;
    timeout(LAST_WORDS, bridge.end_session()).await.ok();
    drop(bridge);
    if !writing.is_finished() {
        timeout(LAST_WORDS, writing).await.ok();
    }
    read.map(|()| ExitCode::SUCCESS)
}

fn stop_on_signal(stop: &CancellationToken) -> std::io::Result<()> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    });
    Ok(())
}

/// Deadline for calls under way after the client has closed its output.
const FINISH: Duration = Duration::from_secs(10);
/// Deadline for each step of the end: cancelled calls, the end of the session, lines that the
/// client has not read.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Capacity of the queue of notifications and responses that wait to be sent.
const ONE_WAY_QUEUE: usize = 256;

struct CallDispatcher {
    bridge: Arc<Bridge>,
    running: Arc<Mutex<HashMap<String, RunningCall>>>,
    stop: CancellationToken,
    tasks: TaskTracker,
    /// Messages without a response, sent in the order in which they came.
    one_way: mpsc::Sender<(ClientCall, oneshot::Sender<()>)>,
    listener: CancellationToken,
    calls: u64,
}

#[derive(Debug, Clone)]
struct RunningCall {
    /// Identifies the call: a client may use an id again.
    number: u64,
    kind: CallKind,
    modern: bool,
    cancel: CancellationToken,
}

impl CallDispatcher {
    fn new(bridge: Arc<Bridge>, stop: &CancellationToken) -> Self {
        let (one_way, mut notes) =
            mpsc::channel::<(ClientCall, oneshot::Sender<()>)>(ONE_WAY_QUEUE);
        let tasks = TaskTracker::new();
        let (deliverer, stopped) = (Arc::clone(&bridge), stop.clone());
        tasks.spawn(stopped.run_until_cancelled_owned(async move {
            while let Some((note, done)) = notes.recv().await {
                deliverer.exchange(note).await;
                done.send(()).ok();
            }
        }));
        let (running, listener) = (Arc::default(), stop.child_token());
        Self { bridge, running, stop: stop.clone(), tasks, one_way, listener, calls: 0 }
    }

    /// Reads lines until the input ends.
    async fn read(&mut self, input: impl AsyncRead + Unpin + Send) -> anyhow::Result<()> {
        let mut input = LineReader::new(input, BLOCK, MAX_LINE);
        while let Some(line) = input.next().await? {
            if line.is_cut {
                self.bridge.output.send(call::too_long(MAX_LINE)).await;
                continue;
            }
            if line.bytes.trim_ascii().is_empty() {
                continue;
            }
            match ClientCall::parse(line.bytes) {
                Ok(note) if note.is_settled() => self.note(note).await,
                Ok(call) => self.call(call).await,
                Err(reply) => self.bridge.output.send(reply).await,
            }
        }
        Ok(())
    }

    /// Starts a call. `initialize` is answered before the next line is read, since the next lines
    /// belong to its session.
    async fn call(&mut self, call: ClientCall) {
        let is_first = call.kind == CallKind::Initialize;
        self.calls += 1;
        let (number, cancel) = (self.calls, self.stop.child_token());
        // One request of a batch cannot be cancelled here, so the daemon gets the cancellation.
        if let Some(key) = call.only_key() {
            let (kind, modern) = (call.kind, call.is_modern());
            let entry = RunningCall { number, kind, modern, cancel: cancel.clone() };
            self.running().insert(key.to_owned(), entry);
        }
        let (bridge, running) = (Arc::clone(&self.bridge), Arc::clone(&self.running));
        let done = self.tasks.spawn(async move {
            // Dropping the exchange closes its connection.
            cancel.run_until_cancelled(bridge.exchange(call)).await;
            let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
            running.retain(|_, it| it.number != number);
        });
        if is_first {
            done.await.ok();
        }
    }

    async fn note(&mut self, note: ClientCall) {
        if let Some(key) = &note.cancels {
            let running = self.running().remove(key);
            // A call that was not sent yet is never sent.
            let alone = running.is_some_and(|running| {
                running.cancel.cancel();
                running.modern
            });
            // Without a session the end of the connection cancels the call; in a session this
            // message does.
            if alone || note.is_modern() {
                return;
            }
        }
        let begins =
            note.method.as_deref() == Some("notifications/initialized") && !note.is_modern();
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
    async fn finish(self) {
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
