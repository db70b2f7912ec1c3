//! Starts and ends one server; the parts and the status of an instance.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::FutureExt as _;
use serde_json::json;
use svc_core::service::{
    Services,
    sources::{SourceKey, SourceStatus},
};
use svc_model::{StreamName, Timestamp, new_secret};
use svc_sys::{
    config::{
        Env,
        sources::{KeptSecrets, SourceVault},
    },
    server_process::{ServerCommand, ServerProcess},
};
use tokio::{
    sync::{Semaphore, mpsc, oneshot, watch},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::{
    auth::SourceAuth,
    connection::SourceConnection,
    http_clients::HttpClients,
    lists::{FetchedLists, fetch, introduce},
    lock, log_unstored,
    message::ConnectionEnd,
    remote::{RemoteEndpoint, RemoteLink},
    spec::{FilledCommand, FilledEntry, SourceSpec, Variables},
    stdio::{Containers, ServerLog, StderrLines, read, read_log, write},
};

#[derive(Debug, Clone)]
pub(crate) struct InstanceParts {
    pub(crate) services: Services,
    pub(crate) spec: Arc<SourceSpec>,
    /// The project or session that it serves; empty for the learner, which fetches the lists.
    pub(crate) serves: String,
    /// The project whose folder is its only root.
    pub(crate) root: Option<String>,
    /// The project that it works in.
    pub(crate) project: Option<String>,
    pub(crate) env: Arc<Env>,
    pub(crate) starts: Arc<Semaphore>,
    /// Receives the lists.
    pub(crate) learned: mpsc::UnboundedSender<StartLists>,
    /// Receives the states of the learner.
    pub(crate) states: mpsc::UnboundedSender<StateChange>,
    pub(crate) containers: Containers,
    pub(crate) moved: mpsc::Sender<ResourceChange>,
    pub(crate) said: StderrLines,
    /// Whether the server has worked before, in this process or an earlier one.
    pub(crate) has_worked: bool,
    pub(crate) vault: SourceVault,
    pub(crate) auth: Arc<SourceAuth>,
    pub(crate) clients: HttpClients,
}

impl InstanceParts {
    /// Whether it fetches the lists at its start, and has the state of the server's row.
    pub(super) fn is_learner(&self) -> bool {
        self.serves.is_empty()
    }
}

#[derive(Debug)]
pub(crate) struct StartLists {
    pub(crate) spec: Arc<SourceSpec>,
    /// Whether the learner gave them, and not an instance of a project or session.
    pub(crate) is_of_learner: bool,
    pub(crate) lists: FetchedLists,
    /// Fires when callers see the lists.
    pub(crate) done: oneshot::Sender<()>,
}

/// A new state of a server. `of_instance` is the entry of the instance that has it; without one it
/// is the state of an entry that does not run.
#[derive(Debug)]
pub(crate) struct StateChange {
    pub(crate) key: SourceKey,
    pub(crate) status: SourceStatus,
    pub(crate) of_instance: Option<Arc<SourceSpec>>,
}

#[derive(Debug)]
pub(crate) struct ResourceChange {
    /// The stream that gets the event.
    pub(crate) stream: StreamName,
    /// The server's own URI.
    pub(crate) uri: String,
}

#[derive(Debug, Clone)]
pub(super) struct WatchedResource {
    pub(super) stream: StreamName,
    pub(super) watchers: usize,
}

/// The watched resources, by the server's own URIs.
pub(super) type WatchedStreams = Arc<Mutex<HashMap<String, WatchedResource>>>;

#[derive(Debug, Clone)]
pub(crate) struct SourceInstanceStatus {
    pub(crate) status: SourceStatus,
    pub(crate) since: Timestamp,
    pub(crate) pid: Option<u32>,
    pub(crate) connection: Option<Arc<SourceConnection>>,
}

pub(super) struct Running {
    pub(super) link: SourceLink,
    pub(super) connection: Arc<SourceConnection>,
    pub(super) capabilities: serde_json::Map<String, serde_json::Value>,
    /// Counts changes of its lists since it was started.
    pub(super) changes: watch::Receiver<u64>,
    /// Why lists were missing at its start.
    pub(super) list_problem: Option<String>,
}

pub(super) enum SourceLink {
    Process(Box<ProcessLink>),
    Remote(RemoteLink),
}

/// A process, and the tasks that read its output.
pub(super) struct ProcessLink {
    process: ServerProcess,
    reading: JoinHandle<Result<(), String>>,
}

impl SourceLink {
    pub(super) fn pid(&self) -> Option<u32> {
        match self {
            Self::Process(link) => Some(link.process.identity().pid),
            Self::Remote(_) => None,
        }
    }

    /// Waits until the process has ended. A server at a URL ends with its connection.
    pub(super) async fn ended(&mut self) {
        match self {
            Self::Process(link) => drop(link.process.wait().await),
            Self::Remote(_) => std::future::pending().await,
        }
    }
}

/// Why a server ended: the transport's reason, else `other`.
pub(super) fn end_of(
    connection: &SourceConnection,
    other: impl FnOnce() -> String,
) -> ConnectionEnd {
    let hide = |reason: &str| connection.hide(reason).into_owned();
    match connection.end() {
        None => ConnectionEnd::Fault(other()),
        Some(end) => end.with_reason(hide(end.reason())),
    }
}

pub(super) struct ServerStarter {
    pub(super) parts: InstanceParts,
    pub(super) watched: WatchedStreams,
    pub(super) log: Arc<ServerLog>,
    /// Ends the instance for good.
    pub(super) stop: CancellationToken,
}

impl ServerStarter {
    pub(super) async fn start(&self) -> Result<Running, ConnectionEnd> {
        let parts = &self.parts;
        let _permit = tokio::select! {
            () = self.stop.cancelled() => return Err(ConnectionEnd::Fault("it is to end".to_owned())),
            permit = parts.starts.acquire() => permit,
        };
        let (kept, unread) = match parts.vault.kept() {
            Ok(kept) => (kept, None),
            // Most servers have no secrets and start all the same. For others this error explains
            // the missing variable.
            Err(error) => (KeptSecrets::default(), Some(error.to_string())),
        };
        let bearer = &parts.spec.bearer;
        let (secrets, withheld) = (kept.given_to(bearer), kept.withheld_from(bearer));
        let variables = Variables { secrets: &secrets, withheld: &withheld, env: &parts.env };
        let filled = parts.spec.fill(&variables, parts.project.as_deref());
        let filled =
            filled.map_err(|problem| ConnectionEnd::Misconfigured(unread.unwrap_or(problem)))?;
        let (link, connection) = match filled {
            FilledEntry::Command(filled) => {
                let (link, connection) = self.start_process(filled).await?;
                (SourceLink::Process(Box::new(link)), connection)
            }
            FilledEntry::Remote(filled) => {
                let (connection, messages) =
                    SourceConnection::new(filled.redactor, parts.root.clone());
                let endpoint = RemoteEndpoint {
                    connection: Arc::clone(&connection),
                    clients: parts.clients.clone(),
                    url: filled.url,
                    fixed: filled.headers,
                    helper: filled.helper,
                    printed: std::sync::RwLock::default(),
                    auth: Arc::clone(&parts.auth),
                };
                // Its helper may take long.
                let link = tokio::select! {
                    () = self.stop.cancelled() => {
                        return Err(ConnectionEnd::Fault("it is to end".to_owned()));
                    }
                    link = RemoteLink::start(filled.kind, endpoint, messages) => link,
                };
                (SourceLink::Remote(link), connection)
            }
        };
        let watched = Arc::clone(&self.watched);
        let moves = report_moves(Arc::clone(&connection), watched, parts.moved.clone());
        tokio::spawn(moves.boxed());
        let (changes, capabilities) = (connection.list_changes.subscribe(), serde_json::Map::new());
        let mut running = Running { link, connection, capabilities, changes, list_problem: None };
        let bound = parts.spec.entry.startup_timeout;
        let learned = tokio::select! {
            () = self.stop.cancelled() => Err("it is to end".to_owned()),
            learned = tokio::time::timeout(bound, self.learn(&mut running)) => learned.unwrap_or_else(|_| {
                Err(format!("it gave no lists within {} ms", bound.as_millis()))
            }),
        };
        match learned {
            Ok(()) => Ok(running),
            Err(problem) => {
                let connection = Arc::clone(&running.connection);
                let end = self.end(running, true).await;
                Err(end_of(&connection, || {
                    end.map_or(problem.clone(), |end| with_end(&problem, &end))
                }))
            }
        }
    }

    async fn start_process(
        &self,
        filled: FilledCommand,
    ) -> Result<(ProcessLink, Arc<SourceConnection>), ConnectionEnd> {
        let parts = &self.parts;
        let mark = new_secret().split_at(32).0.to_owned();
        let FilledCommand { program, args, env, cwd, redactor } = filled;
        let args = parts.containers.prepare(&program, args, &env, &mark);
        let args = args.map_err(|error| ConnectionEnd::Fault(format!("its container: {error}")))?;
        let command = ServerCommand { program, args, env, cwd, mark: mark.clone() };
        let (process, pipes) = match ServerProcess::start(command).await {
            Ok(started) => started,
            Err(problem) => {
                parts.containers.end(&mark).await;
                return Err(ConnectionEnd::Fault(redactor.hide(&problem).into_owned()));
            }
        };
        let noted = parts.services.sources.note_process(
            parts.spec.key.clone(),
            parts.serves.clone(),
            process.mark().to_owned(),
            process.identity().clone(),
        );
        if let Err(error) = noted.await {
            drop(pipes);
            process.end().await;
            parts.containers.end(&mark).await;
            let text = format!("its process cannot be put on record: {error}");
            return Err(ConnectionEnd::Fault(text));
        }
        let (connection, messages) = SourceConnection::new(redactor, parts.root.clone());
        tokio::spawn(write(Arc::clone(&connection), messages, pipes.stdin).boxed());
        let reader = read(Arc::clone(&connection), pipes.stdout);
        let closing = Arc::clone(&connection);
        let reading = tokio::spawn(async move {
            let end = reader.await;
            closing.close();
            end
        });
        let (log, lines) = (Arc::clone(&self.log), parts.said.clone());
        tokio::spawn(read_log(Arc::clone(&connection), pipes.stderr, log, lines).boxed());
        Ok((ProcessLink { process, reading }, connection))
    }

    /// Introduces this client, and fetches the lists unless another instance does.
    async fn learn(&self, running: &mut Running) -> Result<(), String> {
        running.capabilities = match &running.link {
            SourceLink::Process(_) => introduce(&running.connection).await?,
            SourceLink::Remote(link) => link.introduce().await?,
        };
        self.watch_again(&running.connection).await?;
        if self.parts.is_learner() {
            // Half of the deadline is for the introduction.
            let bound = self.parts.spec.entry.startup_timeout / 2;
            let lists = fetch(&running.connection, &running.capabilities, bound).await?;
            running.list_problem.clone_from(&lists.problem);
            self.teach(lists).await;
        }
        Ok(())
    }

    /// Renews subscriptions, since a new process has none. Each watched resource is reported as
    /// changed, since it may have changed meanwhile.
    async fn watch_again(&self, connection: &Arc<SourceConnection>) -> Result<(), String> {
        let watched = lock(&self.watched).clone();
        for (uri, WatchedResource { stream, .. }) in watched {
            let params = json!({ "uri": uri });
            let reply = connection.request("resources/subscribe", &params).await;
            reply.map_err(|_| "it ended in resources/subscribe".to_owned())?.ok();
            self.parts.moved.send(ResourceChange { stream, uri }).await.ok();
        }
        Ok(())
    }

    /// Publishes the lists before the server counts as working, so that callers find its tools.
    pub(super) async fn teach(&self, lists: FetchedLists) {
        let (done, is_done) = oneshot::channel();
        let (spec, is_of_learner) = (Arc::clone(&self.parts.spec), self.parts.is_learner());
        if self.parts.learned.send(StartLists { spec, is_of_learner, lists, done }).is_ok() {
            is_done.await.ok();
        }
    }

    /// Ends a server with all its processes, and returns how it ended. `with_words` adds the last
    /// line of its error output; it is set only if the server had no calls, since later output may
    /// be about somebody's call.
    pub(super) async fn end(&self, running: Running, with_words: bool) -> Option<String> {
        let Running { link, connection, .. } = running;
        connection.close();
        let ProcessLink { mut process, mut reading } = match link {
            SourceLink::Process(link) => *link,
            SourceLink::Remote(link) => {
                link.end().await;
                return None;
            }
        };
        let mark = process.mark().to_owned();
        // A process that has ended has an exit status by now; a running one is not waited for.
        let exit =
            tokio::time::timeout(Duration::from_millis(50), process.wait()).await.ok().flatten();
        process.end().await;
        self.parts.containers.end(&mark).await;
        let read = tokio::time::timeout(Duration::from_millis(50), &mut reading).await;
        reading.abort();
        let forgotten = self.parts.services.sources.forget_process(mark).await;
        log_unstored(forgotten, "cannot remove the record of a server's process");
        if let Ok(Ok(Err(fault))) = read {
            return Some(fault);
        }
        let exit = exit?;
        Some(match self.log.last_line().filter(|_| with_words) {
            Some(line) => format!("it ended ({exit}): {line}"),
            None => format!("it ended ({exit})"),
        })
    }
}

/// A problem at the start, and how the server ended. That it ended is said once.
fn with_end(problem: &str, end: &str) -> String {
    let how = end.strip_prefix("it ended ").filter(|_| problem.starts_with("it ended "));
    how.map_or_else(|| format!("{problem}: {end}"), |how| format!("{problem} {how}"))
}

/// The interval at which changed resources are reported. Changes of one resource within it are one
/// event.
const MOVES_PAUSE: Duration = Duration::from_millis(200);

async fn report_moves(
    connection: Arc<SourceConnection>,
    watched: WatchedStreams,
    moved: mpsc::Sender<ResourceChange>,
) {
    let mut updates = connection.resource_updates.subscribe();
    loop {
        let mut changed = BTreeSet::new();
        connection.resource_updates.send_if_modified(|updated| {
            changed = std::mem::take(updated);
            false
        });
        let had_some = !changed.is_empty();
        for uri in changed {
            let stream = lock(&watched).get(&uri).map(|known| known.stream.clone());
            if let Some(stream) = stream {
                moved.send(ResourceChange { stream, uri }).await.ok();
            }
        }
        if had_some {
            tokio::time::sleep(MOVES_PAUSE).await;
        }
        tokio::select! {
            () = connection.closed.cancelled() => return,
            // The connection is held, so its channel does not close.
            changed = updates.changed() => if changed.is_err() { return },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_of_a_failed_start_says_once_that_it_ended() {
        for (problem, end, reason) in [
            ("it ended in initialize", "it ended (1): no", "it ended in initialize (1): no"),
            ("tools/list: no (-1)", "it ended (1)", "tools/list: no (-1): it ended (1)"),
            (
                "it ended in initialize",
                "a line is too long",
                "it ended in initialize: a line is too long",
            ),
        ] {
            assert_eq!(with_end(problem, end), reason);
        }
    }
}
