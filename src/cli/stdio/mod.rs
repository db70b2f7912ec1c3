//! `svc stdio`: MCP on standard input and output, for clients that start their servers as processes.
//!
//! The way of a message: [`lines`] → [`call`] → [`exchange`] → [`link`] → daemon, and back through [`exchange`] to
//! [`lines`]. Nothing is kept here that the daemon has: the bridge knows the session's id, how the client introduced
//! itself, and what is under way. So a daemon may go and come as it likes, and the client notices at most a delay.
//!
//! Older revisions and the one without sessions may be mixed; each message says by itself which it is.

mod call;
mod exchange;
mod lines;
mod link;
mod session;
mod tools;

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::AsyncRead;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::call::{Call, Incoming, Kind, Note};
use self::exchange::Bridge;
use self::lines::{Input, Line, Output};
use self::link::Link;
use super::Context;

pub(super) const EXAMPLES: &str = "\
Example:
  claude mcp add svc -- svc stdio

Starts the daemon if none runs (not with --url), and lives through its restarts: what was asked is
asked again or resumed, and if that could do something twice, the answer says so. Standard output
has the protocol alone, one JSON-RPC message per line. Ends with its standard input. The token is
the operator's, or the one in SVC_TOKEN.";

/// How long requests may take to finish when the client has closed our input.
const FINISH: Duration = Duration::from_secs(10);
/// How long the last words may take, to the daemon and to the client each.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Notifications and responses that wait for their turn.
const LANE: usize = 256;

/// Bridges standard input and output to the daemon until the input ends or a signal comes.
pub(super) async fn run(context: &Context) -> anyhow::Result<ExitCode> {
    let stop = CancellationToken::new();
    stop_on_signal(&stop)?;
    let (output, mut writing) = Output::stdout();
    let bridge = Arc::new(Bridge::new(Link::new(context)?, output));
    let mut front = Front::new(Arc::clone(&bridge), &stop);
    let read = tokio::select! {
        read = front.read(tokio::io::stdin()) => read,
        () = stop.cancelled() => Ok(()),
        // Nobody reads what we say.
        _ = &mut writing => {
            stop.cancel();
            Ok(())
        }
    };
    front.finish().await;
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

/// Takes lines and puts them to work.
struct Front {
    bridge: Arc<Bridge>,
    running: Arc<Mutex<HashMap<String, Running>>>,
    stop: CancellationToken,
    tasks: TaskTracker,
    /// What wants no answer is sent in the order in which it came.
    lane: mpsc::Sender<(Note, oneshot::Sender<()>)>,
    listener: CancellationToken,
    calls: u64,
}

/// A call under way.
#[derive(Debug, Clone)]
struct Running {
    /// Which call: a client may use an id again.
    number: u64,
    kind: Kind,
    modern: bool,
    cancel: CancellationToken,
}

impl Front {
    fn new(bridge: Arc<Bridge>, stop: &CancellationToken) -> Self {
        let (lane, mut notes) = mpsc::channel::<(Note, oneshot::Sender<()>)>(LANE);
        let tasks = TaskTracker::new();
        let (deliverer, stopped) = (Arc::clone(&bridge), stop.clone());
        tasks.spawn(stopped.run_until_cancelled_owned(async move {
            while let Some((note, done)) = notes.recv().await {
                deliverer.deliver(&note).await;
                done.send(()).ok();
            }
        }));
        let (running, listener) = (Arc::default(), stop.child_token());
        Self { bridge, running, stop: stop.clone(), tasks, lane, listener, calls: 0 }
    }

    async fn read(&mut self, input: impl AsyncRead + Unpin + Send) -> anyhow::Result<()> {
        let mut input = Input::new(input);
        while let Some(line) = input.next().await? {
            match line {
                Line::TooLong => self.bridge.output.send(call::too_long(lines::MAX_LINE)).await,
                Line::Whole(line) => match Incoming::parse(line) {
                    Ok(Incoming::Call(call)) => self.call(call).await,
                    Ok(Incoming::Note(note)) => self.note(note).await,
                    Err(reply) => self.bridge.output.send(reply).await,
                },
            }
        }
        Ok(())
    }

    /// Lets calls run side by side, except that `initialize` is answered before anything else is looked at: what follows
    /// belongs to its session.
    async fn call(&mut self, call: Call) {
        let first = call.kind == Kind::Initialize;
        let done = self.spawn(call);
        if first {
            done.await.ok();
        }
    }

    fn spawn(&mut self, call: Call) -> JoinHandle<()> {
        self.calls += 1;
        let (number, cancel) = (self.calls, self.stop.child_token());
        // What is part of a batch cannot be taken back alone; the daemon is told, which may know how.
        if let Some(key) = call.only_key() {
            let (kind, modern) = (call.kind, call.is_modern());
            let entry = Running { number, kind, modern, cancel: cancel.clone() };
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

    async fn note(&mut self, note: Note) {
        if let Some(key) = &note.cancels {
            let running = self.running().remove(key);
            // Nobody waits for the answer any more. What is not sent yet will not be.
            let alone = running.is_some_and(|running| {
                running.cancel.cancel();
                running.modern
            });
            // There the end of the connection is the cancellation; in a session it is this message.
            if alone || note.modern {
                return;
            }
        }
        let begins = note.method.as_deref() == Some("notifications/initialized") && !note.modern;
        let (done, is_done) = oneshot::channel();
        self.lane.send((note, done)).await.ok();
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

    /// Lets what is under way finish, and ends what would never.
    async fn finish(self) {
        self.listener.cancel();
        for running in self.running().values().filter(|it| it.kind == Kind::Listen) {
            running.cancel.cancel();
        }
        drop(self.lane);
        self.tasks.close();
        tokio::select! {
            () = self.tasks.wait() => {}
            () = self.stop.cancelled() => {}
            () = tokio::time::sleep(FINISH) => {}
        }
        self.stop.cancel();
        timeout(LAST_WORDS, self.tasks.wait()).await.ok();
    }

    fn running(&self) -> MutexGuard<'_, HashMap<String, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
