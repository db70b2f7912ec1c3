//! What other services ask of the connections: each connected process takes orders.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use svc_model::ProcessIdentity;
use svc_reach::codex::MessagePlace;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

/// How long an app-server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Orders that wait for one connection.
const WAITING: usize = 64;

/// What a connection is to do.
#[derive(Debug)]
pub(super) enum LineOrder {
    /// Puts a text into a thread's queue, or into its turn, and says whether the app-server has it.
    Deliver {
        thread: String,
        message: String,
        text: String,
        joins_turn: bool,
        taken: oneshot::Sender<bool>,
    },
    /// Finds what became of a text.
    Find { thread: String, message: String, found: oneshot::Sender<Option<MessagePlace>> },
}

/// The connections, by process.
#[derive(Debug, Default)]
pub(in crate::service) struct AppServerLines(Mutex<AppServerLineTable>);

type AppServerLineTable = HashMap<ProcessIdentity, AppServerLine>;

#[derive(Debug)]
struct AppServerLine {
    orders: mpsc::Sender<LineOrder>,
    /// Threads whose queues wait for their persons.
    paused: HashSet<String>,
}

/// A connection's place among them, until it is dropped.
#[derive(Debug)]
pub(super) struct LineHold {
    lines: Arc<AppServerLines>,
    process: ProcessIdentity,
    pub(super) orders: mpsc::Receiver<LineOrder>,
}

impl Drop for LineHold {
    fn drop(&mut self) {
        self.lines.lock().remove(&self.process);
    }
}

impl AppServerLines {
    fn lock(&self) -> MutexGuard<'_, AppServerLineTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hold(self: &Arc<Self>, process: &ProcessIdentity) -> LineHold {
        let (sender, orders) = mpsc::channel(WAITING);
        let line = AppServerLine { orders: sender, paused: HashSet::new() };
        self.lock().insert(process.clone(), line);
        LineHold { lines: Arc::clone(self), process: process.clone(), orders }
    }

    /// Whether a process is connected, and begins a turn of the thread with a text.
    pub(in crate::service) fn is_open(&self, process: &ProcessIdentity, thread: &str) -> bool {
        self.lock().get(process).is_some_and(|line| !line.paused.contains(thread))
    }

    /// Notes whether the queue of a thread waits for its person.
    pub(super) fn set_paused(&self, process: &ProcessIdentity, thread: &str, is_paused: bool) {
        let mut table = self.lock();
        let Some(line) = table.get_mut(process) else { return };
        if is_paused {
            line.paused.insert(thread.to_owned());
        } else {
            line.paused.remove(thread);
        }
    }

    /// Puts a text into a thread's queue, or into the turn under way if it `joins_turn` and the
    /// turn takes it. `Some(false)`: the app-server certainly has it not; `None`: that is unknown.
    pub(in crate::service) async fn deliver(
        &self,
        process: &ProcessIdentity,
        thread: &str,
        message: &str,
        (text, joins_turn): (&str, bool),
    ) -> Option<bool> {
        let (taken, answer) = oneshot::channel();
        let order = LineOrder::Deliver {
            thread: thread.to_owned(),
            message: message.to_owned(),
            text: text.to_owned(),
            joins_turn,
            taken,
        };
        if !self.order(process, order) {
            return Some(false);
        }
        timeout(PATIENCE, answer).await.ok()?.ok()
    }

    /// What became of a text; `None` if nobody can say it now.
    pub(in crate::service) async fn find(
        &self,
        process: &ProcessIdentity,
        thread: &str,
        message: &str,
    ) -> Option<MessagePlace> {
        let (found, answer) = oneshot::channel();
        let (thread, message) = (thread.to_owned(), message.to_owned());
        if !self.order(process, LineOrder::Find { thread, message, found }) {
            return None;
        }
        timeout(PATIENCE, answer).await.ok()?.ok()?
    }

    fn order(&self, process: &ProcessIdentity, order: LineOrder) -> bool {
        let orders = self.lock().get(process).map(|line| line.orders.clone());
        orders.is_some_and(|orders| orders.try_send(order).is_ok())
    }
}
