//! One running server: started, watched, started again when it ends.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde_json::json;
use tokio::{
    sync::{Notify, Semaphore, mpsc, oneshot, watch},
    task::JoinHandle,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    auth::SourceAuth,
    connection::{Connection, ConnectionEnd},
    containers::Containers,
    http_clients::HttpClients,
    lists::{OfferedLists, fetch, introduce},
    remote::{RemoteEndpoint, RemoteLink},
    spec::{FilledCommand, FilledEntry, SourceSpec, Variables},
    stdio::{ServerLog, read, read_log, write},
};
use crate::{
    config::{Env, sources::SourceVault},
    domain::{
        StreamName, Timestamp, new_secret,
        source::{STARTS_BEFORE_FAILED, SourceState, restart_pause},
    },
    runner::{ServerCommand, ServerProcess},
    service::{
        Services,
        sources::{SourceProcess, SourceStatus},
    },
    telemetry,
};

/// After so long a time of work the next pause is the shortest again.
const STEADY: Duration = Duration::from_mins(1);

/// What an instance needs.
#[derive(Debug, Clone)]
pub(super) struct InstanceParts {
    pub(super) services: Services,
    pub(super) spec: Arc<SourceSpec>,
    /// The project or session that it serves; empty for the one that learns the lists.
    pub(super) serves: String,
    /// The project whose folder is its own.
    pub(super) root: Option<String>,
    pub(super) env: Arc<Env>,
    /// How many may start at once.
    pub(super) starts: Arc<Semaphore>,
    /// Where lists go; `None` if another instance learns them.
    pub(super) learned: Option<mpsc::UnboundedSender<Lesson>>,
    /// Containers of servers that run in one.
    pub(super) containers: Containers,
    /// Streams of resources that have changed.
    pub(super) moved: mpsc::Sender<ResourceMove>,
    /// Lines of error output, for the server's stream.
    pub(super) said: mpsc::Sender<(Arc<SourceSpec>, String)>,
    /// Whether it has worked before, in this process or an earlier one.
    pub(super) has_worked: bool,
    /// Secrets of the server.
    pub(super) vault: SourceVault,
    /// The login to a server at a URL.
    pub(super) auth: Arc<SourceAuth>,
    pub(super) clients: HttpClients,
}

/// Lists that a server gave.
#[derive(Debug)]
pub(super) struct Lesson {
    pub(super) spec: Arc<SourceSpec>,
    pub(super) lists: OfferedLists,
    /// Hears when callers see them.
    pub(super) done: oneshot::Sender<()>,
}

/// A resource that somebody watches has changed.
#[derive(Debug)]
pub(super) struct ResourceMove {
    /// The stream that tells of it.
    pub(super) stream: StreamName,
    /// The URI, as the server says it.
    pub(super) uri: String,
}

/// A resource that somebody watches.
#[derive(Debug, Clone)]
struct WatchedResource {
    /// The stream of its changes.
    stream: StreamName,
    /// How many have subscribed to it.
    watchers: usize,
}

/// The resources that are watched, by the server's own URIs.
type WatchedStreams = Arc<Mutex<HashMap<String, WatchedResource>>>;

/// A server that is kept running.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) spec: Arc<SourceSpec>,
    status: watch::Receiver<InstanceStatus>,
    pub(super) log: Arc<ServerLog>,
    wake: Arc<Notify>,
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
    used: Mutex<Instant>,
    watched: WatchedStreams,
}

/// What an instance is doing.
#[derive(Debug, Clone)]
pub(super) struct InstanceStatus {
    pub(super) status: SourceStatus,
    pub(super) since: Timestamp,
    pub(super) pid: Option<u32>,
    pub(super) connection: Option<Arc<Connection>>,
}

/// A server that works.
struct Running {
    link: SourceLink,
    connection: Arc<Connection>,
    capabilities: serde_json::Map<String, serde_json::Value>,
    /// Changes of its lists since it was started.
    changes: watch::Receiver<u64>,
}

/// What carries a connection.
enum SourceLink {
    Process(Box<ProcessLink>),
    Remote(RemoteLink),
}

/// A process, and what reads its output.
struct ProcessLink {
    process: ServerProcess,
    reading: JoinHandle<Result<(), String>>,
}

impl SourceLink {
    fn pid(&self) -> Option<u32> {
        match self {
            Self::Process(link) => Some(link.process.pid()),
            Self::Remote(_) => None,
        }
    }

    /// Waits until a process has ended. A server at a URL ends with its connection.
    async fn ended(&mut self) {
        match self {
            Self::Process(link) => drop(link.process.wait().await),
            Self::Remote(_) => std::future::pending().await,
        }
    }
}

/// Why there is no working server.
enum StartFailure {
    /// Its entry has to be changed.
    Misconfigured(String),
    /// The next try may do better.
    Failed(String),
    /// Somebody has to log in.
    NeedsAuth(String),
    /// Trying again would not help.
    Refused(String),
}

impl StartFailure {
    /// What the transport says, else another reason.
    fn of(connection: &Connection, other: impl FnOnce() -> String) -> Self {
        match connection.end() {
            None => Self::Failed(other()),
            Some(ConnectionEnd::Fault(reason)) => {
                Self::Failed(connection.hide(reason).into_owned())
            }
            Some(ConnectionEnd::NeedsAuth(reason)) => {
                Self::NeedsAuth(connection.hide(reason).into_owned())
            }
            Some(ConnectionEnd::Refused(reason)) => {
                Self::Refused(connection.hide(reason).into_owned())
            }
        }
    }
}

impl Instance {
    /// Starts to keep a server running.
    pub(super) fn keep(parts: InstanceParts) -> Arc<Self> {
        let since = parts.services.now();
        let status = SourceStatus::of(SourceState::Pending);
        let (sender, status) =
            watch::channel(InstanceStatus { status, since, pid: None, connection: None });
        let (wake, stop, log) =
            (Arc::new(Notify::new()), CancellationToken::new(), Arc::new(ServerLog::default()));
        let spec = Arc::clone(&parts.spec);
        let watched = WatchedStreams::default();
        let keeper = Keeper {
            watched: Arc::clone(&watched),
            parts,
            status: sender,
            log: Arc::clone(&log),
            wake: Arc::clone(&wake),
            stop: stop.clone(),
        };
        let task = tokio::spawn(keeper.run());
        Arc::new(Self {
            spec,
            status,
            log,
            wake,
            stop,
            task: Mutex::new(Some(task)),
            used: Mutex::new(Instant::now()),
            watched,
        })
    }

    /// What it is doing.
    pub(super) fn status(&self) -> InstanceStatus {
        self.status.borrow().clone()
    }

    /// Its connection, if it works. One that is starting is waited for.
    pub(super) async fn connection(
        &self,
        patience: Duration,
    ) -> Result<Arc<Connection>, SourceStatus> {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let mut status = self.status.clone();
        let settled = status.wait_for(|status| !status.status.state.is_starting());
        let settled = tokio::time::timeout(patience, settled).await;
        drop(settled);
        let now = self.status();
        match now.connection {
            Some(connection) if !connection.closed.is_cancelled() => Ok(connection),
            _ => Err(now.status),
        }
    }

    /// Remembers that somebody watches a resource; `true` if nobody did before. `again` says that it may be one who did.
    pub(super) fn watch_resource(&self, uri: &str, stream: StreamName, again: bool) -> bool {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = watched.get_mut(uri) {
            known.watchers += usize::from(!again);
            return false;
        }
        watched.insert(uri.to_owned(), WatchedResource { stream, watchers: 1 });
        true
    }

    /// One watches it no more; `true` if nobody does.
    pub(super) fn forget_resource(&self, uri: &str) -> bool {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = watched.get_mut(uri) else { return false };
        known.watchers = known.watchers.saturating_sub(1);
        known.watchers == 0 && watched.remove(uri).is_some()
    }

    /// How long nobody has called it.
    pub(super) fn silent_for(&self) -> Duration {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Starts it anew, at once.
    pub(super) fn reconnect(&self) {
        self.wake.notify_one();
    }

    /// Ends it, and waits until nothing of it is left.
    pub(super) async fn end(&self) {
        self.stop.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            task.await.ok();
        }
    }
}

/// The task that keeps one server running.
struct Keeper {
    parts: InstanceParts,
    watched: WatchedStreams,
    status: watch::Sender<InstanceStatus>,
    log: Arc<ServerLog>,
    wake: Arc<Notify>,
    stop: CancellationToken,
}

impl Keeper {
    async fn run(self) {
        let (mut failures, mut has_worked) = (0_u32, self.parts.has_worked);
        while !self.stop.is_cancelled() {
            let attempt = (failures > 0).then_some(failures);
            self.show(SourceStatus { attempt, ..SourceStatus::of(SourceState::Connecting) }, None)
                .await;
            let began = Instant::now();
            let failure = match self.start().await {
                Ok(running) => {
                    has_worked = true;
                    let failure = self.watch(running).await;
                    if began.elapsed() >= STEADY {
                        failures = 0;
                    }
                    failure
                }
                Err(failure) => Some(failure),
            };
            // Somebody wants it anew.
            let Some(failure) = failure else {
                failures = 0;
                continue;
            };
            if self.stop.is_cancelled() {
                return;
            }
            failures += 1;
            match failure {
                StartFailure::Misconfigured(reason) => {
                    let next = "correct the entry, or set the variable where the daemon is started";
                    self.rest(SourceState::Misconfigured, reason, next).await;
                    failures = 0;
                }
                StartFailure::NeedsAuth(reason) => {
                    let next = format!("svc mcp login {}", self.parts.spec.key.name);
                    self.rest(SourceState::NeedsAuth, reason, &next).await;
                    failures = 0;
                }
                StartFailure::Refused(reason) => {
                    let next = "correct its entry, and reconnect it";
                    self.rest(SourceState::Failed, reason, next).await;
                    failures = 0;
                }
                StartFailure::Failed(reason) if !has_worked && failures >= STARTS_BEFORE_FAILED => {
                    let next = "see what it says, correct its entry, and reconnect it";
                    self.rest(SourceState::Failed, reason, next).await;
                    failures = 0;
                }
                StartFailure::Failed(reason) => {
                    if self.pause(reason, failures).await {
                        failures = 0;
                    }
                }
            }
        }
    }

    /// Waits until somebody wants it anew.
    async fn rest(&self, state: SourceState, reason: String, next_action: &str) {
        let next_action = Some(next_action.to_owned());
        let status = SourceStatus { reason: Some(reason), next_action, ..SourceStatus::of(state) };
        self.show(status, None).await;
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = self.wake.notified() => {}
        }
    }

    /// Waits until it is time for the next start; `true` if somebody wants it earlier.
    async fn pause(&self, reason: String, failures: u32) -> bool {
        let pause = restart_pause(failures);
        let next_at = self.parts.services.now().plus(pause);
        let status = SourceStatus {
            reason: Some(reason),
            next_action: Some("it is started again by itself".to_owned()),
            attempt: Some(failures),
            next_at: Some(next_at),
            ..SourceStatus::of(SourceState::BackingOff)
        };
        self.show(status, None).await;
        tokio::select! {
            () = self.stop.cancelled() => false,
            () = self.wake.notified() => true,
            () = tokio::time::sleep(pause) => false,
        }
    }

    async fn show(&self, status: SourceStatus, running: Option<&Running>) {
        let since = self.parts.services.now();
        let connection = running.map(|running| Arc::clone(&running.connection));
        let pid = running.and_then(|running| running.link.pid());
        self.status.send_replace(InstanceStatus { status: status.clone(), since, pid, connection });
        if self.parts.learned.is_some() {
            let key = self.parts.spec.key.clone();
            if let Err(error) = self.parts.services.sources.keep_status(key, status).await {
                tracing::warn!(
                    error = telemetry::chain(&error),
                    "a server's state is not on record"
                );
            }
        }
    }

    async fn start(&self) -> Result<Running, StartFailure> {
        let permit = tokio::select! {
            () = self.stop.cancelled() => return Err(StartFailure::Failed("it is to end".to_owned())),
            permit = self.parts.starts.acquire() => permit,
        };
        let started = self.start_with_permit().await;
        drop(permit);
        started
    }

    async fn start_with_permit(&self) -> Result<Running, StartFailure> {
        let parts = &self.parts;
        let (secrets, unread) = match parts.vault.secrets(&parts.spec.key.name) {
            Ok(secrets) => (secrets, None),
            // Most servers have none.
            Err(error) => (std::collections::BTreeMap::new(), Some(error.to_string())),
        };
        let variables = Variables { secrets: &secrets, env: &parts.env };
        let filled = parts.spec.fill(&variables, parts.root.as_deref());
        let filled =
            filled.map_err(|problem| StartFailure::Misconfigured(unread.unwrap_or(problem)));
        let (link, connection) = match filled? {
            FilledEntry::Command(filled) => {
                let (link, connection) = self.start_process(filled).await?;
                (SourceLink::Process(Box::new(link)), connection)
            }
            FilledEntry::Remote(filled) => {
                let (connection, messages) = Connection::new(filled.redactor, parts.root.clone());
                let endpoint = RemoteEndpoint {
                    connection: Arc::clone(&connection),
                    clients: parts.clients.clone(),
                    url: filled.url,
                    fixed: filled.headers,
                    helper: filled.helper,
                    printed: std::sync::RwLock::default(),
                    auth: Arc::clone(&parts.auth),
                };
                let link = RemoteLink::start(filled.kind, endpoint, messages).await;
                (SourceLink::Remote(link), connection)
            }
        };
        let changes = connection.list_changes.subscribe();
        let capabilities = serde_json::Map::new();
        let mut running = Running { link, connection, capabilities, changes };
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
                Err(StartFailure::of(&connection, || {
                    end.map_or(problem.clone(), |end| format!("{problem}: {end}"))
                }))
            }
        }
    }

    async fn start_process(
        &self,
        filled: FilledCommand,
    ) -> Result<(ProcessLink, Arc<Connection>), StartFailure> {
        let parts = &self.parts;
        let redactor = filled.redactor.clone();
        let hidden = |text: String| StartFailure::Failed(redactor.hide(&text).into_owned());
        let mark = new_secret().split_at(32).0.to_owned();
        let args = parts
            .containers
            .prepare(&filled.program, filled.args, &filled.env, &mark)
            .map_err(|error| StartFailure::Failed(format!("its container: {error}")))?;
        let command = ServerCommand {
            program: filled.program,
            args,
            env: filled.env,
            cwd: filled.cwd,
            mark: mark.clone(),
        };
        let (process, pipes) = match ServerProcess::start(command).await {
            Ok(started) => started,
            Err(problem) => {
                parts.containers.end(&mark).await;
                return Err(hidden(problem));
            }
        };
        let row = SourceProcess {
            mark: process.mark().to_owned(),
            pid: process.pid(),
            started: process.started().to_owned(),
        };
        let noted =
            parts.services.sources.note_process(parts.spec.key.clone(), parts.serves.clone(), row);
        if let Err(error) = noted.await {
            drop(pipes);
            process.end().await;
            parts.containers.end(&mark).await;
            return Err(StartFailure::Failed(format!(
                "its process cannot be put on record: {error}"
            )));
        }
        let (connection, messages) = Connection::new(filled.redactor, parts.root.clone());
        tokio::spawn(tell_moves(
            Arc::clone(&connection),
            Arc::clone(&self.watched),
            parts.moved.clone(),
        ));
        tokio::spawn(write(Arc::clone(&connection), messages, pipes.stdin));
        let reader = read(Arc::clone(&connection), pipes.stdout);
        let closing = Arc::clone(&connection);
        let reading = tokio::spawn(async move {
            let end = reader.await;
            closing.close();
            end
        });
        let (lines, said) = mpsc::channel(256);
        tokio::spawn(read_log(Arc::clone(&connection), pipes.stderr, Arc::clone(&self.log), lines));
        tokio::spawn(pass_on(said, parts.said.clone(), Arc::clone(&parts.spec)));
        Ok((ProcessLink { process, reading }, connection))
    }

    /// Introduces this client, and fetches the lists if nobody else does.
    async fn learn(&self, running: &mut Running) -> Result<(), String> {
        running.capabilities = match &running.link {
            SourceLink::Process(_) => introduce(&running.connection).await?,
            SourceLink::Remote(link) => link.introduce().await?,
        };
        self.watch_again(&running.connection).await?;
        if self.parts.learned.is_some() {
            let lists = fetch(&running.connection, &running.capabilities).await?;
            self.teach(lists).await;
        }
        Ok(())
    }

    /// A new process knows of no subscription, and what is watched may have changed meanwhile.
    async fn watch_again(&self, connection: &Arc<Connection>) -> Result<(), String> {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (uri, WatchedResource { stream, .. }) in watched {
            let params = json!({ "uri": uri });
            let reply = connection.request("resources/subscribe", &params).await;
            reply.map_err(|_| "it ended in resources/subscribe".to_owned())?.ok();
            self.parts.moved.send(ResourceMove { stream, uri }).await.ok();
        }
        Ok(())
    }

    /// Who hears that the server works finds its tools.
    async fn teach(&self, lists: OfferedLists) {
        if let Some(learned) = &self.parts.learned {
            let (done, is_done) = oneshot::channel();
            let spec = Arc::clone(&self.parts.spec);
            if learned.send(Lesson { spec, lists, done }).is_ok() {
                is_done.await.ok();
            }
        }
    }

    /// Watches a server that works until it ends, and says why it did; `None` if somebody wants it anew.
    async fn watch(&self, mut running: Running) -> Option<StartFailure> {
        // Who hears that it works may change its lists at once.
        let mut changes = running.changes.clone();
        self.show(SourceStatus::of(SourceState::Connected), Some(&running)).await;
        let is_wanted_anew = loop {
            tokio::select! {
                () = self.stop.cancelled() => break false,
                () = self.wake.notified() => break true,
                () = running.connection.closed.cancelled() => break false,
                () = running.link.ended() => break false,
                changed = changes.changed(), if self.parts.learned.is_some() => {
                    if changed.is_ok() {
                        // The old lists stay if this fails.
                        let bound = self.parts.spec.entry.startup_timeout;
                        let fetched = fetch(&running.connection, &running.capabilities);
                        if let Ok(Ok(lists)) = tokio::time::timeout(bound, fetched).await {
                            self.teach(lists).await;
                        }
                    }
                }
            }
        };
        // Calls learn of it before the process is gone.
        running.connection.close();
        let connecting = SourceStatus::of(SourceState::Connecting);
        if is_wanted_anew {
            self.show(connecting, None).await;
        }
        let connection = Arc::clone(&running.connection);
        let end = self.end(running, false).await;
        (!is_wanted_anew)
            .then(|| StartFailure::of(&connection, || end.unwrap_or_else(|| "it ended".to_owned())))
    }

    /// Ends a server with all that it has started, and says how it ended. Its last words are told of one that nobody has
    /// called yet: what it writes later may be about somebody's call.
    async fn end(&self, running: Running, with_words: bool) -> Option<String> {
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
        // One that has ended by itself is asked how; one that runs is not waited for.
        let exit = tokio::time::timeout(Duration::from_millis(50), process.wait()).await.ok();
        process.end().await;
        self.parts.containers.end(&mark).await;
        let read = tokio::time::timeout(Duration::from_millis(50), &mut reading).await;
        reading.abort();
        if let Err(error) = self.parts.services.sources.forget_process(mark).await {
            tracing::warn!(error = telemetry::chain(&error), "a server's process stays on record");
        }
        if let Ok(Ok(Err(fault))) = read {
            return Some(fault);
        }
        let exit = exit?;
        let last = self.log.last_line().filter(|_| with_words);
        Some(match last {
            Some(line) => format!("it ended ({exit}): {line}"),
            None => format!("it ended ({exit})"),
        })
    }
}

async fn pass_on(
    mut lines: mpsc::Receiver<String>,
    said: mpsc::Sender<(Arc<SourceSpec>, String)>,
    spec: Arc<SourceSpec>,
) {
    while let Some(line) = lines.recv().await {
        said.try_send((Arc::clone(&spec), line)).ok();
    }
}

/// Passes on which of the watched resources have changed.
async fn tell_moves(
    connection: Arc<Connection>,
    watched: WatchedStreams,
    moved: mpsc::Sender<ResourceMove>,
) {
    let mut updates = connection.resource_updates.subscribe();
    loop {
        for uri in connection.take_updates() {
            let stream = {
                let watched = watched.lock().unwrap_or_else(PoisonError::into_inner);
                watched.get(&uri).map(|known| known.stream.clone())
            };
            if let Some(stream) = stream {
                moved.send(ResourceMove { stream, uri }).await.ok();
            }
        }
        tokio::select! {
            () = connection.closed.cancelled() => return,
            // The connection is held, so its end does not come.
            changed = updates.changed() => if changed.is_err() { return },
        }
    }
}

/// The event of a line of error output.
pub(super) fn stderr_event(line: &str) -> serde_json::Value {
    json!({ "data": line })
}
