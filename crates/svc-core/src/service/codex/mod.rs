//! The app-servers of Codex, each of which runs the sessions of all terminals of a user. They
//! report the states and prompts of sessions, and take answers to prompts. This file has the
//! service, and what other services ask of its connections; `follow` connects.
//!
//! The hooks of a session run in the app-server's process. The daemon connects to that process, and
//! believes it about sessions whose hooks came from it and about other threads that persons open
//! there; hooks report a thread only with its first prompt. A Codex without an app-server has no
//! socket, so its hooks are the only evidence.

mod follow;
mod open_prompts;

use std::{
    collections::{HashMap, HashSet},
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::BoxFuture;
use svc_model::{ProcessIdentity, ProcessState, hook::AttendedPrompts};
use svc_reach::codex::MessagePlace;
use svc_sys::client_records;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::{Result, core::Core, prompts::Prompts, team::Team};

#[derive(Debug, Clone)]
pub struct AppServers {
    core: Core,
    team: Team,
    prompts: Prompts,
    attended: AttendedPrompts,
    connections: Arc<AppServerConnections>,
}

impl AppServers {
    pub(super) fn new(core: Core, team: Team, prompts: Prompts, attended: AttendedPrompts) -> Self {
        Self { core, team, prompts, attended, connections: Arc::default() }
    }

    pub(super) fn connections(&self) -> Arc<AppServerConnections> {
        Arc::clone(&self.connections)
    }

    /// The processes from which hooks of attended sessions came.
    async fn processes(&self) -> Result<HashSet<ProcessIdentity>> {
        let rows = self.core.store.peers().in_processes(client_records::CODEX).await?;
        let attended = rows.iter().filter(|row| row.agent_key().is_none());
        Ok(attended.filter_map(|row| Some(row.process()?.process)).collect())
    }

    async fn is_needed(&self, process: &ProcessIdentity) -> bool {
        let here = self.core.here(process);
        let is_running = self.core.state_of(&here) == ProcessState::Running;
        is_running && self.processes().await.is_ok_and(|processes| processes.contains(process))
    }
}

/// A thread that its app-server has loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenedThread {
    pub(super) id: String,
    pub(super) folder: String,
}

/// Makes sessions of threads that no hook has reported: Codex calls no hook before the first
/// prompt.
pub trait ThreadRegistry: Debug + Send + Sync {
    /// A person has opened a thread in a process from which hooks of another session came.
    fn opened<'a>(
        &'a self,
        process: &'a ProcessIdentity,
        thread: OpenedThread,
    ) -> BoxFuture<'a, Result<()>>;
}

/// How long an app-server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Most orders that wait for one connection.
const WAITING: usize = 64;

#[derive(Debug)]
enum AppServerOrder {
    Deliver {
        thread: String,
        message: String,
        text: String,
        joins_turn: bool,
        taken: oneshot::Sender<bool>,
    },
    Find {
        thread: String,
        message: String,
        found: oneshot::Sender<Option<MessagePlace>>,
    },
}

/// The connections by process, to which other services send orders.
#[derive(Debug, Default)]
pub(super) struct AppServerConnections(Mutex<AppServerConnectionTable>);

type AppServerConnectionTable = HashMap<ProcessIdentity, AppServerConnection>;

#[derive(Debug)]
struct AppServerConnection {
    orders: mpsc::Sender<AppServerOrder>,
    /// Threads whose queues wait for the person's next prompt.
    paused: HashSet<String>,
}

/// A connection's entry in [`AppServerConnections`], until it is dropped.
#[derive(Debug)]
struct AppServerRegistration {
    connections: Arc<AppServerConnections>,
    process: ProcessIdentity,
    orders: mpsc::Receiver<AppServerOrder>,
}

impl Drop for AppServerRegistration {
    fn drop(&mut self) {
        self.connections.lock().remove(&self.process);
    }
}

impl AppServerConnections {
    fn lock(&self) -> MutexGuard<'_, AppServerConnectionTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(self: &Arc<Self>, process: &ProcessIdentity) -> AppServerRegistration {
        let (sender, orders) = mpsc::channel(WAITING);
        let connection = AppServerConnection { orders: sender, paused: HashSet::new() };
        self.lock().insert(process.clone(), connection);
        AppServerRegistration { connections: Arc::clone(self), process: process.clone(), orders }
    }

    /// Whether a process is connected and would begin a turn of the thread if it got a text.
    pub(super) fn is_open(&self, process: &ProcessIdentity, thread: &str) -> bool {
        self.lock().get(process).is_some_and(|connection| !connection.paused.contains(thread))
    }

    fn set_paused(&self, process: &ProcessIdentity, thread: &str, is_paused: bool) {
        let mut table = self.lock();
        let Some(connection) = table.get_mut(process) else { return };
        if is_paused {
            connection.paused.insert(thread.to_owned());
        } else {
            connection.paused.remove(thread);
        }
    }

    /// Puts a text into a thread's queue; or into the turn under way, if `joins_turn` and the turn
    /// takes it. Returns false if the app-server certainly does not have the text.
    pub(super) async fn deliver(
        &self,
        process: &ProcessIdentity,
        thread: &str,
        message: &str,
        (text, joins_turn): (&str, bool),
    ) -> bool {
        let (taken, answer) = oneshot::channel();
        let order = AppServerOrder::Deliver {
            thread: thread.to_owned(),
            message: message.to_owned(),
            text: text.to_owned(),
            joins_turn,
            taken,
        };
        self.order(process, order) && !matches!(timeout(TIMEOUT, answer).await, Ok(Ok(false)))
    }

    /// Where a text is now; `None` if the app-server cannot be asked.
    pub(super) async fn find(
        &self,
        process: &ProcessIdentity,
        thread: &str,
        message: &str,
    ) -> Option<MessagePlace> {
        let (found, answer) = oneshot::channel();
        let (thread, message) = (thread.to_owned(), message.to_owned());
        if !self.order(process, AppServerOrder::Find { thread, message, found }) {
            return None;
        }
        timeout(TIMEOUT, answer).await.ok()?.ok()?
    }

    fn order(&self, process: &ProcessIdentity, order: AppServerOrder) -> bool {
        let orders = self.lock().get(process).map(|connection| connection.orders.clone());
        orders.is_some_and(|orders| orders.try_send(order).is_ok())
    }
}
