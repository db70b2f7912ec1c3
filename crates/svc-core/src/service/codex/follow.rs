//! Connections to app-servers. A connection to a process is renewed as long as the process runs a
//! session, and what the app-server reports is stored.
//!
//! [`OpenPrompts`] has the prompts of one connection, and finds out who answered each. The
//! app-server reports that a request is resolved, but not by whose answer. If this daemon had sent
//! an answer before that, the item decides whose answer counted: if the item was declined and our
//! answer was a denial, or neither, our answer counted, else the person's. A permitted item reports
//! this only at its end. So a permission counts as ours if the item is not over within
//! [`DECLINED_WITHIN`], and is corrected later if that was wrong. Without an item whose end is
//! reported, an answer that was sent before the request was resolved counts.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use futures_util::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use serde_json::Value;
use svc_model::{
    AgentRequestId, ProcessIdentity, RecordedState,
    hook::{AttendedPrompts, ClientPrompt, CodexPrompt, UsageLimit},
    limits,
};
use svc_reach::{
    codex::{self, AppServerProtocol, CodexObservation, MessagePlace},
    codex_socket::{CodexSocket, CodexSocketError},
};
use svc_sys::{backoff::Backoff, local_socket::ConnectError, telemetry};
use tokio::{
    sync::{oneshot, watch},
    task::JoinSet,
    time::{Instant, interval_at, sleep, sleep_until},
};

use super::{AppServerOrder, AppServerRegistration, AppServers};
use crate::boxed;
use crate::service::{
    Result,
    hooks::Hooks,
    prompts::{ConnectedPrompt, GivenAnswer, PromptEnd},
};

/// Pause before the next attempt to connect. A hook of Codex ends it.
const RECONNECT: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_mins(1));

impl AppServers {
    /// Follows the app-servers of all sessions while their processes run.
    #[boxed]
    pub async fn run(self, hooks: Hooks) {
        let mut hooks_changed = self.core.codex_hooks.subscribe();
        let mut followers = JoinSet::new();
        let mut followed = HashSet::new();
        loop {
            match self.processes().await {
                Ok(processes) => {
                    for process in processes {
                        if followed.insert(process.clone()) {
                            followers.spawn(self.clone().keep_following(process, hooks.clone()));
                        }
                    }
                }
                Err(error) => error.report("cannot read which processes run sessions of Codex"),
            }
            tokio::select! {
                _ = hooks_changed.changed() => {}
                Some(ended) = followers.join_next() => {
                    if let Ok(process) = ended {
                        followed.remove(&process);
                    }
                }
                () = sleep(limits::PID_CHECK) => {}
            }
        }
    }

    async fn keep_following(self, process: ProcessIdentity, hooks: Hooks) -> ProcessIdentity {
        let mut hooks_changed = self.core.codex_hooks.subscribe();
        let (mut failures, mut last) = (0, String::new());
        while self.is_needed(&process).await {
            let why = match CodexSocket::connect(&process).await {
                Ok(socket) => {
                    tracing::debug!(pid = process.pid, "connected to an app-server of Codex");
                    (failures, last) = (0, String::new());
                    let mut follower = AppServerFollower {
                        servers: &self,
                        process: &process,
                        hooks: &hooks,
                        protocol: AppServerProtocol::default(),
                        open: OpenPrompts::default(),
                        answers: FuturesUnordered::new(),
                        taken: HashMap::new(),
                        found: HashMap::new(),
                    };
                    let ended = follower.run(socket, &mut hooks_changed).await;
                    ended.err().unwrap_or(CodexSocketError::Closed)
                }
                Err(error) => error,
            };
            if let Err(error) = self.team.lose_app_server(&process).await {
                error.report("cannot note that an app-server of Codex is gone");
            }
            let told = telemetry::chain(&why);
            if told != last {
                note_failure(&process, &why, &told);
                last = told;
            }
            tokio::select! {
                _ = hooks_changed.changed() => {}
                () = sleep(RECONNECT.wait(failures)) => {}
            }
            failures = failures.saturating_add(1);
        }
        process
    }
}

/// Warns of a failure to connect, unless the process has no app-server.
fn note_failure(process: &ProcessIdentity, why: &CodexSocketError, told: &str) {
    let pid = process.pid;
    match why {
        CodexSocketError::Connect(ConnectError::Absent(_) | ConnectError::OtherProcess { .. })
        | CodexSocketError::Unknown
        | CodexSocketError::Closed => {
            tracing::debug!(pid, why = told, "no app-server of Codex is followed");
        }
        _ => tracing::warn!(pid, why = told, "the app-server of Codex is not used"),
    }
}

/// How often the threads are listed, to find sessions that nothing has reported.
const LIST: Duration = Duration::from_secs(30);
/// The same interval while a thread cannot be followed yet.
const LIST_SOON: Duration = Duration::from_millis(250);

struct AppServerFollower<'a> {
    servers: &'a AppServers,
    process: &'a ProcessIdentity,
    hooks: &'a Hooks,
    protocol: AppServerProtocol,
    open: OpenPrompts,
    /// Pending answers to prompts, each with the id of its request.
    answers: FuturesUnordered<BoxFuture<'static, (Value, Option<GivenAnswer>)>>,
    /// By the id of a text: callers that wait to hear whether the app-server took it, and callers
    /// that wait to hear where it is.
    taken: HashMap<String, oneshot::Sender<bool>>,
    found: HashMap<String, Vec<oneshot::Sender<Option<MessagePlace>>>>,
}

impl AppServerFollower<'_> {
    /// Follows until the connection fails or no session needs it any more. Prompts that are open
    /// then cannot be answered here until the next connection.
    async fn run(
        &mut self,
        mut socket: CodexSocket,
        hooks_changed: &mut watch::Receiver<()>,
    ) -> Result<(), CodexSocketError> {
        socket.send(&self.protocol.begin(env!("CARGO_PKG_VERSION"))).await?;
        let mut check = interval_at(Instant::now() + limits::PID_CHECK, limits::PID_CHECK);
        let mut connection = None;
        let mut listed = Instant::now();
        loop {
            let pause = if self.protocol.has_missing() { LIST_SOON } else { LIST };
            let due = self.open.next_due();
            if connection.is_none() && self.protocol.is_ready() {
                connection = Some(self.servers.connections.hold(self.process));
            }
            tokio::select! {
                frame = socket.next() => {
                    let (told, frames) = self.protocol.read(&frame?);
                    for frame in &frames {
                        socket.send(frame).await?;
                    }
                    for told in told {
                        if let Err(error) = self.store(told).await {
                            error.report("cannot store an event of an app-server of Codex");
                        }
                    }
                }
                Some((request, given)) = self.answers.next(), if !self.answers.is_empty() => {
                    if let Some(given) = given {
                        self.give(&mut socket, &request, given).await?;
                    }
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    let taken = self.open.taken(Instant::now());
                    self.close(taken).await;
                }
                Some(order) = next_order(connection.as_mut()) => self.execute(&mut socket, order).await?,
                _ = hooks_changed.changed() => {
                    socket.send(&self.protocol.list_threads()).await?;
                    listed = Instant::now();
                }
                () = sleep_until(listed + pause) => {
                    socket.send(&self.protocol.list_threads()).await?;
                    listed = Instant::now();
                }
                _ = check.tick() => {
                    if !self.servers.is_needed(self.process).await {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Sends the answer that was given here, unless the person answered first.
    async fn give(
        &mut self,
        socket: &mut CodexSocket,
        request: &Value,
        given: GivenAnswer,
    ) -> Result<(), CodexSocketError> {
        let Some(open) = self.open.by_request(request) else { return Ok(()) };
        socket.send(&codex::answer(request, &given.output)).await?;
        open.sent = Some(given.is_denial);
        self.servers.prompts.sent(&open.row);
        Ok(())
    }

    async fn execute(
        &mut self,
        socket: &mut CodexSocket,
        order: AppServerOrder,
    ) -> Result<(), CodexSocketError> {
        match order {
            AppServerOrder::Deliver { thread, message, text, joins_turn, taken } => {
                let frame = if joins_turn {
                    self.protocol.deliver(&thread, &message, &text)
                } else {
                    self.protocol.deliver_at_end(&thread, &message, &text)
                };
                self.taken.insert(message, taken);
                socket.send(&frame).await
            }
            AppServerOrder::Find { thread, message, found } => {
                let frame = self.protocol.find(&thread, &message);
                self.found.entry(message).or_default().push(found);
                socket.send(&frame).await
            }
        }
    }

    async fn store(&mut self, told: CodexObservation) -> Result<()> {
        let team = &self.servers.team;
        let ended = match told {
            CodexObservation::Opened { thread, folder } => {
                return self.hooks.thread_opened(self.process, thread, folder).await;
            }
            CodexObservation::State { thread, state } => {
                let ended = match state {
                    RecordedState::Idle => self.open.turn_over(&thread),
                    RecordedState::Busy | RecordedState::Waiting(_) => {
                        self.servers.connections.set_paused(self.process, &thread, false);
                        Vec::new()
                    }
                };
                team.note_app_server(&thread, self.process, state).await?;
                self.try_note_asked(&thread).await;
                ended
            }
            CodexObservation::Asked { thread, request, prompt, item } => {
                return self.asked(thread, request, *prompt, item).await;
            }
            CodexObservation::Resolved { request } => {
                let thread = self.open.thread_of(&request);
                let ended = self.open.resolved(&request, Instant::now());
                if let Some(thread) = thread {
                    self.try_note_asked(&thread).await;
                }
                ended
            }
            CodexObservation::ItemOver { thread, item, is_declined } => {
                self.open.item_over(&thread, &item, is_declined)
            }
            CodexObservation::Settled { thread } => {
                let connected = self.open.rows_of(&thread);
                let session = team.session_in_process(self.process, &thread).await?;
                let left = self.servers.prompts.left_of(&session, self.process, &connected).await?;
                left.into_iter().map(|id| (id, PromptEnd::Answered, None)).collect()
            }
            CodexObservation::Interrupted { thread } => {
                self.servers.connections.set_paused(self.process, &thread, true);
                return Ok(());
            }
            CodexObservation::Failed { thread, why } => {
                return team.turn_failed(&thread, self.process, (why, None)).await;
            }
            CodexObservation::Limit { thread, until } => {
                let said = "the vendor refuses it for usage".to_owned();
                let limit = UsageLimit { said: said.clone(), until };
                return team.turn_failed(&thread, self.process, (said, Some(limit))).await;
            }
            CodexObservation::Taken { message } => {
                self.tell_taken(&message, true);
                return Ok(());
            }
            CodexObservation::Refused { message, why } => {
                tracing::warn!(why, "an app-server of Codex did not take a text");
                self.tell_taken(&message, false);
                return Ok(());
            }
            CodexObservation::Found { message, place } => {
                for waiting in self.found.remove(&message).unwrap_or_default() {
                    // The caller may have stopped waiting.
                    waiting.send(place).ok();
                }
                return Ok(());
            }
            // The hook of the prompt reports the same, with the stamps of the messages.
            CodexObservation::Read { .. } => return Ok(()),
        };
        self.close(ended).await;
        Ok(())
    }

    /// Stores how prompts ended. `&mut self` as in [`Self::note_asked`].
    async fn close(&mut self, ended: Ended) {
        for (id, end, _prompt) in ended {
            if let Err(error) = self.servers.prompts.end(&id, end).await {
                let error = telemetry::chain(&error);
                tracing::error!(error, request = id.as_str(), "cannot close a prompt");
            }
        }
    }

    fn tell_taken(&mut self, message: &str, is_taken: bool) {
        if let Some(waiting) = self.taken.remove(message) {
            // The caller may have stopped waiting.
            waiting.send(is_taken).ok();
        }
    }

    /// Opens a prompt for a request of a thread. It is open until the app-server reports that the
    /// request is resolved.
    async fn asked(
        &mut self,
        thread: String,
        request: Value,
        prompt: CodexPrompt,
        item: Option<String>,
    ) -> Result<()> {
        let takes_answers = match self.servers.core.attended {
            AttendedPrompts::Off => return Ok(()),
            AttendedPrompts::Watch => false,
            AttendedPrompts::Answer => true,
        };
        if self.open.has(&request) {
            return Ok(());
        }
        let cwd = prompt.cwd().map(str::to_owned);
        let asked = ClientPrompt::Codex(prompt);
        let prompts = &self.servers.prompts;
        let session = self.servers.team.session_in_process(self.process, &thread).await?;
        let row = prompts.connect(&session, self.process, asked, cwd, takes_answers).await?;
        let Some(row) = row else { return Ok(()) };
        let answer = row.answer();
        let id = request.clone();
        if takes_answers {
            self.answers.push(Box::pin(async move { (id, answer.await) }));
        }
        self.open.add(thread.clone(), request, item, row);
        self.note_asked(&thread).await
    }

    /// Like [`Self::note_asked`], beside prompts that must end in any case.
    async fn try_note_asked(&mut self, thread: &str) {
        if let Err(error) = self.note_asked(thread).await {
            error.report("cannot store what a session of Codex asks");
        }
    }

    /// Stores what a thread asks beside its state. The app-server reports the two one after the
    /// other. The pending answers are not `Sync`, hence `&mut self`.
    async fn note_asked(&mut self, thread: &str) -> Result<()> {
        let Some(prompt) = self.open.first_of(thread) else { return Ok(()) };
        self.servers.team.note_asked(thread, self.process, &prompt.asked).await
    }
}

async fn next_order(connection: Option<&mut AppServerRegistration>) -> Option<AppServerOrder> {
    match connection {
        Some(connection) => connection.orders.recv().await,
        None => std::future::pending().await,
    }
}

/// Bound on the time until the app-server reports a declined item.
const DECLINED_WITHIN: Duration = Duration::from_millis(300);

/// A prompt that the app-server reported on this connection.
#[derive(Debug)]
struct OpenPrompt {
    /// The id of the request on this connection.
    request: Value,
    thread: String,
    /// The item that the request asks about, if the item began on this connection: only then will
    /// its end be reported.
    item: Option<String>,
    row: ConnectedPrompt,
    /// Whether the answer that this daemon sent is a denial; `None` before an answer is sent.
    sent: Option<bool>,
    resolved: Option<Instant>,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct OpenPrompts(Vec<OpenPrompt>);

/// Prompts that ended, and how. A prompt is let go after its end is stored.
type Ended = Vec<(AgentRequestId, PromptEnd<'static>, Option<ConnectedPrompt>)>;

impl OpenPrompts {
    fn has(&self, request: &Value) -> bool {
        self.0.iter().any(|open| open.request == *request)
    }

    fn add(&mut self, thread: String, request: Value, item: Option<String>, row: ConnectedPrompt) {
        let open =
            OpenPrompt { request, thread, item, row, sent: None, resolved: None, is_closed: false };
        self.0.push(open);
    }

    fn by_request(&mut self, request: &Value) -> Option<&mut OpenPrompt> {
        self.0.iter_mut().find(|open| open.request == *request && open.resolved.is_none())
    }

    fn rows_of(&self, thread: &str) -> Vec<AgentRequestId> {
        let own = self.0.iter().filter(|open| open.thread == thread);
        own.map(|open| open.row.id.clone()).collect()
    }

    fn thread_of(&self, request: &Value) -> Option<String> {
        self.0.iter().find(|open| open.request == *request).map(|open| open.thread.clone())
    }

    /// The prompt of a thread that has waited longest.
    fn first_of(&self, thread: &str) -> Option<&ConnectedPrompt> {
        let is_first = |open: &&OpenPrompt| open.thread == thread && open.resolved.is_none();
        self.0.iter().find(is_first).map(|open| &open.row)
    }

    fn resolved(&mut self, request: &Value, now: Instant) -> Ended {
        let Some(at) = self.0.iter().position(|open| open.request == *request) else {
            return Vec::new();
        };
        let open = &mut self.0[at];
        match (open.sent, &open.item) {
            (Some(_), Some(_)) => {
                open.resolved = Some(now);
                Vec::new()
            }
            (sent, _) => {
                let end = if sent.is_some() { PromptEnd::Answered } else { PromptEnd::Person };
                let row = self.0.remove(at).row;
                vec![(row.id.clone(), end, Some(row))]
            }
        }
    }

    fn item_over(&mut self, thread: &str, item: &str, is_declined: bool) -> Ended {
        self.remove(
            |open| open.thread == thread && open.item.as_deref() == Some(item),
            |open| match open.sent {
                Some(is_denial) if is_denial == is_declined => PromptEnd::Answered,
                _ => PromptEnd::Person,
            },
        )
    }

    fn turn_over(&mut self, thread: &str) -> Ended {
        self.remove(
            |open| open.thread == thread,
            |open| match open.sent {
                Some(_) => PromptEnd::Answered,
                None => PromptEnd::Gone,
            },
        )
    }

    /// Closes the prompts that were permitted here and whose items have not been declined in time.
    fn taken(&mut self, now: Instant) -> Ended {
        let due = self.0.iter_mut().filter(|open| is_due(open, now));
        let ended = due.map(|open| {
            open.is_closed = true;
            (open.row.id.clone(), PromptEnd::Answered, None)
        });
        ended.collect()
    }

    /// When [`Self::taken`] closes the next prompt.
    fn next_due(&self) -> Option<Instant> {
        let waiting = self.0.iter().filter(|open| open.sent == Some(false) && !open.is_closed);
        waiting.filter_map(|open| Some(open.resolved? + DECLINED_WITHIN)).min()
    }

    fn remove(
        &mut self,
        is_over: impl Fn(&OpenPrompt) -> bool,
        end: impl Fn(&OpenPrompt) -> PromptEnd<'static>,
    ) -> Ended {
        let ended = self.0.extract_if(.., |open| is_over(open));
        ended.map(|open| (open.row.id.clone(), end(&open), Some(open.row))).collect()
    }
}

fn is_due(open: &OpenPrompt, now: Instant) -> bool {
    let is_over = open.resolved.is_some_and(|at| at + DECLINED_WITHIN <= now);
    is_over && open.sent == Some(false) && !open.is_closed
}
