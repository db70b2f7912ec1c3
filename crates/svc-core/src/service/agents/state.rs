//! The state of the service and who may use it, the status of agents' peers, and functions on an
//! agent's rows that the files of this service share.

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use svc_client::hosts::{HostClient, HostError, socket_path};
use svc_model::{
    AGENTS_SCOPE, AccessLevel, AgentId, AgentInstance, Caller, DeliveryState, InstanceView,
    NewEvent, Ownership, PeerState, PeerStatus, Principal, RunId, StatusEvidence, StreamName,
    StreamVisibility, Task, TaskId, Timestamp, WaitingFor, WaitingKind,
    agent::{AgentBackend, AgentInfo, AgentState, RequestKind},
    backend_names,
    conversation::SourceTool,
    limits,
};
use svc_store::{AgentRow, DeliveryTerms, RequestRow, StoreError, TaskRow, WriteTx, job};
use svc_sys::{
    config::{AgentsConfig, Env, ResolvedInstance},
    telemetry::chain,
};
use tokio::{sync::mpsc, time::sleep};

use crate::boxed;
use crate::service::{
    Error, Listed, ResourceKind, Result,
    access::Access,
    assignments::{AgentSender, sender_of, tell},
    core::{Core, lock},
    prompts::Prompts,
    tasks, team,
};

#[derive(Debug, Clone)]
pub struct Agents {
    pub(super) core: Core,
    pub(super) access: Access,
    pub(super) prompts: Prompts,
    pub(super) settings: Arc<AgentSettings>,
    pub(super) live: Arc<LiveAgents>,
}

#[derive(Debug, Clone, Default)]
pub struct AgentSettings {
    pub config: AgentsConfig,
    pub env: Env,
    /// Folder of the hosts' sockets and spools.
    pub folder: PathBuf,
    /// The program whose `agent host` command is a host. If empty, no agent can be started.
    pub program: PathBuf,
    /// The data folder, through which the agents' processes find the daemon.
    pub home: PathBuf,
}

/// What this process knows of agents beyond their rows.
#[derive(Debug)]
pub(super) struct LiveAgents {
    /// Sends agents to `run`, to be followed.
    pub(super) follow: mpsc::UnboundedSender<AgentId>,
    /// The receiver, until `run` takes it.
    pub(super) to_follow: Mutex<Option<mpsc::UnboundedReceiver<AgentId>>>,
    pub(super) dispatching: Mutex<HashSet<AgentId>>,
    /// The calls that wait for the answers to assignments.
    pub(super) waits: Mutex<HashMap<RunId, RunWaits>>,
    /// Held from the choice of the least busy instance until its work is stored.
    pub(super) choosing: tokio::sync::Mutex<()>,
    /// Tasks whose prompts this process sends, and tasks that it cancels.
    pub(super) sending: Mutex<HashSet<TaskId>>,
    pub(super) cancelling: Mutex<HashSet<TaskId>>,
    /// The calls that start an agent and answer from its rows, which are kept meanwhile.
    pub(super) start_calls: Mutex<Vec<Arc<StartCall>>>,
    /// Notified when an agent may be due to be removed.
    pub(super) removals: tokio::sync::Notify,
    /// Agents whose hosts do not answer.
    unreachable: Mutex<HashSet<AgentId>>,
}

/// A call that starts an agent for a task.
#[derive(Debug)]
pub(super) struct StartCall {
    began_at: Timestamp,
    /// Known as soon as the task is stored.
    task: OnceLock<TaskId>,
}

impl StartCall {
    /// Whether the call may yet read the rows of this agent.
    pub(super) fn may_read(&self, row: &AgentRow) -> bool {
        match self.task.get() {
            Some(task) => row.task_id.as_ref() == Some(task),
            None => row.info.started_at >= self.began_at,
        }
    }
}

/// Keeps the agent of a [`StartCall`] until it is dropped. Then it notifies the removal of agents.
pub(in crate::service) struct StartCallGuard<'a> {
    live: &'a LiveAgents,
    call: Arc<StartCall>,
}

impl StartCallGuard<'_> {
    pub(in crate::service) fn note_task(&self, task: &TaskId) {
        self.call.task.get_or_init(|| task.clone());
    }
}

impl Drop for StartCallGuard<'_> {
    fn drop(&mut self) {
        lock(&self.live.start_calls).retain(|call| !Arc::ptr_eq(call, &self.call));
        self.live.removals.notify_one();
    }
}

/// An agent, as the daemon shows it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct AgentView {
    /// The agent.
    #[serde(flatten)]
    pub info: AgentInfo,
    /// Process id of its host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_pid: Option<u32>,
    /// Name of its machine, in lists, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Where its host listens.
    pub socket_path: String,
}

impl Listed for AgentView {
    const NAME: &'static str = "hosts";
}

/// The calls that wait for the answer to one assignment, until the last of them is over.
#[derive(Debug, Default)]
pub(super) struct RunWaits {
    /// The end of each call's wait.
    pub(super) ends: Vec<Timestamp>,
    /// A call has taken the answer, or takes it now.
    pub(super) is_taken: bool,
    /// The response with the answer was handed to the connection of a call.
    pub(super) is_handed: bool,
}

impl Agents {
    pub(in crate::service) fn new(
        core: Core,
        access: Access,
        prompts: Prompts,
        settings: AgentSettings,
    ) -> Self {
        let (follow, to_follow) = mpsc::unbounded_channel();
        let live = LiveAgents {
            follow,
            to_follow: Mutex::new(Some(to_follow)),
            dispatching: Mutex::default(),
            waits: Mutex::default(),
            choosing: tokio::sync::Mutex::default(),
            sending: Mutex::default(),
            cancelling: Mutex::default(),
            start_calls: Mutex::default(),
            removals: tokio::sync::Notify::new(),
            unreachable: Mutex::default(),
        };
        Self { core, access, prompts, settings: Arc::new(settings), live: Arc::new(live) }
    }

    /// Begins a call that starts an agent and answers from the agent's rows, however soon the agent
    /// ends.
    pub(in crate::service) fn begin_start_call(&self) -> StartCallGuard<'_> {
        let call = StartCall { began_at: self.core.now(), task: OnceLock::new() };
        let call = Arc::new(call);
        lock(&self.live.start_calls).push(Arc::clone(&call));
        StartCallGuard { live: &self.live, call }
    }

    #[boxed]
    pub async fn instances(&self, callable_only: bool) -> Result<Vec<InstanceView>> {
        let counts = self.core.store.agents().live_counts().await?;
        let views = self.settings.resolved().into_iter().map(|resolved| {
            let mut view = resolved.view;
            let live = counts.iter().find(|(name, _)| *name == view.instance);
            view.live = live.map_or(0, |(_, count)| *count);
            view
        });
        Ok(views.filter(|view| view.callable || !callable_only).collect())
    }

    pub(super) fn view(&self, mut row: AgentRow) -> AgentView {
        let socket = socket_path(&self.settings.folder, &row.info.id);
        let is_here = row.machine_id == self.core.store.machine().machine_id;
        if row.ended_at.is_none()
            && (!is_here || lock(&self.live.unreachable).contains(&row.info.id))
        {
            row.info.state = AgentState::Unreachable;
        }
        AgentView {
            host_pid: row.host.map(|host| host.pid),
            machine: None,
            ended_at: row.ended_at,
            socket_path: socket.to_string_lossy().into_owned(),
            info: row.info,
        }
    }

    pub(super) fn host(&self, id: &AgentId) -> HostClient {
        HostClient::new(id.clone(), socket_path(&self.settings.folder, id))
    }

    /// Passes on the result of a request to a host. A failure shows in the agent's status at once.
    pub(super) async fn noting_failure<T>(
        &self,
        id: &AgentId,
        answer: Result<T, HostError>,
    ) -> Result<T, HostError> {
        if let Err(HostError::Wedged | HostError::Absent | HostError::Broken(_)) = &answer {
            self.note_unreached(id).await;
        }
        answer
    }
}

impl AgentSettings {
    pub(super) fn resolved(&self) -> Vec<ResolvedInstance> {
        self.config.instances(&self.env)
    }

    /// The instance of this name, or why it cannot be started.
    pub(super) fn callable(&self, name: &str) -> Result<AgentInstance, String> {
        let resolved = self.resolved().into_iter().find(|it| it.view.instance == name);
        match resolved {
            Some(ResolvedInstance { instance: Some(instance), .. }) => Ok(instance),
            Some(ResolvedInstance { view, .. }) => {
                let reason = view.reason.unwrap_or_default();
                Err(format!("instance {name} cannot be started: {reason}"))
            }
            None => Err(format!("there is no instance {name}")),
        }
    }

    /// The named instance, the only one of a backend, or the default.
    pub(super) fn choose(
        &self,
        instance: Option<&str>,
        backend: Option<&str>,
    ) -> Result<AgentInstance> {
        let all = self.resolved();
        let field = if instance.is_none() && backend.is_some() { "backend" } else { "instance" };
        let backend = backend.map(|backend| backend_names(backend).1);
        let chosen = match (instance, backend) {
            (Some(name), _) => all
                .iter()
                .find(|it| it.view.instance == name)
                .ok_or_else(|| format!("there is no instance {name:?}")),
            (None, Some(backend)) => only_of_backend(&all, backend),
            (None, None) => self.default_of(&all),
        };
        let name = &chosen.map_err(|why| choices(field, &why, &all))?.view.instance;
        let chosen = self.callable(name).map_err(|why| Error::invalid(field, why))?;
        match backend {
            Some(backend) if backend != chosen.backend.as_str() => {
                let why = format!("instance {name} has backend {}", chosen.backend);
                Err(Error::invalid(field, why))
            }
            _ => Ok(chosen),
        }
    }

    /// The configured default, else the only callable instance.
    pub(super) fn default_of<'a>(
        &self,
        all: &'a [ResolvedInstance],
    ) -> Result<&'a ResolvedInstance, String> {
        if let Some(name) = &self.config.default_agent {
            let named = all.iter().find(|it| it.view.instance == *name);
            return named.ok_or_else(|| format!("there is no instance {name}: see default_agent"));
        }
        let callable: Vec<_> = all.iter().filter(|it| it.view.callable).collect();
        match callable[..] {
            [one] => Ok(one),
            _ => Err("it is not clear who is meant".to_owned()),
        }
    }
}

pub(super) fn only_of_backend<'a>(
    all: &'a [ResolvedInstance],
    backend: &str,
) -> Result<&'a ResolvedInstance, String> {
    if AgentBackend::parse(backend).is_none() {
        return Err(format!("{backend:?} is not claude, codex, gemini, opencode, acp or exec"));
    }
    let of_backend: Vec<_> = all.iter().filter(|it| it.view.backend == backend).collect();
    match of_backend[..] {
        [one] => Ok(one),
        [] => Err(format!("no instance has backend {backend}")),
        _ => Err(format!("several instances have backend {backend}: name one")),
    }
}

/// The error for a name that gives no instance. Lists the callable instances.
pub(super) fn choices(field: &'static str, why: &str, all: &[ResolvedInstance]) -> Error {
    let names = all.iter().filter(|it| it.view.callable).map(|it| it.view.instance.as_str());
    Error::invalid(field, format!("{why}; callable instances: {}", listed(names)))
}

pub(super) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Starting, steering and stopping agents need the scope [`AGENTS_SCOPE`].
pub(super) fn may_run(caller: &Caller) -> Result<()> {
    has_scope(caller, AGENTS_SCOPE)
}

/// Sending to, interrupting and stopping an agent need that scope and the agent's project. Read
/// access to another project's agent is not enough.
pub(super) fn may_steer(caller: &Caller, row: &AgentRow) -> Result<()> {
    may_run(caller)?;
    if caller.is_of_project(&row.owned) || caller.access_to(&row.owned) == AccessLevel::Write {
        return Ok(());
    }
    Err(Error::Forbidden(format!("agent {} is of another project", row.info.id)))
}

pub(super) fn has_scope(caller: &Caller, scope: &str) -> Result<()> {
    if caller.has_scope(scope) {
        return Ok(());
    }
    Err(Error::Forbidden(format!("this needs the scope `{scope}`: {}", caller.scope_advice(scope))))
}

/// How often a host is probed. With the time that an answer may take, this is less than 10 s.
const HOST_CHECK: Duration = Duration::from_secs(4);

const fn status_of(state: AgentState) -> PeerStatus {
    match state {
        AgentState::Starting | AgentState::Running | AgentState::Stopping => PeerStatus::Busy,
        AgentState::RequiresAction | AgentState::Limited => PeerStatus::Waiting,
        AgentState::Idle => PeerStatus::Idle,
        AgentState::Unreachable => PeerStatus::Unreachable,
        AgentState::Done | AgentState::Error | AgentState::Lost => PeerStatus::Offline,
    }
}

/// Shows an agent's state in its peer. `until` is the end of a usage limit in unix milliseconds, if
/// the vendor names it.
pub(super) async fn show_state(
    tx: &mut WriteTx,
    row: &AgentRow,
    state: AgentState,
    until: Option<i64>,
) -> Result<(), StoreError> {
    let waiting_for = match state {
        AgentState::RequiresAction => {
            let asked = tx.requests().open_of_agent(&row.info.id).await?.into_iter().next();
            asked.map(|asked| WaitingFor {
                kind: match asked.kind {
                    RequestKind::Permission => WaitingKind::Permission,
                    RequestKind::Question => WaitingKind::Question,
                },
                since: asked.opened_at,
                title: Some(asked.title),
                tool: asked.tool.as_ref().and_then(|tool| tool["name"].as_str().map(str::to_owned)),
                until: None,
            })
        }
        AgentState::Limited => Some(WaitingFor {
            kind: WaitingKind::Limit,
            since: tx.now(),
            title: None,
            tool: None,
            until: until.map(Timestamp::from_millis),
        }),
        _ => None,
    };
    set_peer_state(tx, &row.info.session_key, status_of(state), waiting_for, "host").await
}

/// Stores the status of the agent's peer. Hooks, heartbeats and silence do not change it: its
/// evidence is the host.
pub(super) async fn set_peer_state(
    tx: &mut WriteTx,
    key: &str,
    status: PeerStatus,
    waiting_for: Option<WaitingFor>,
    why: &'static str,
) -> Result<(), StoreError> {
    let own = tx.peers().of_key(key).await?;
    let Some(mut own) = own.filter(|own| own.owner.as_deref() == Some(key)) else { return Ok(()) };
    let at = tx.now();
    own.peer.last_seen = at;
    let state = PeerState { status, waiting_for, at, evidence: StatusEvidence::Host };
    team::set_hosted_state(tx, &mut own.peer, state, why).await
}

impl Agents {
    /// Probes an agent's host again and again until the future is dropped.
    pub(super) async fn watch_host(&self, id: &AgentId) {
        let host = self.host(id);
        let mut is_first = true;
        loop {
            sleep(HOST_CHECK).await;
            let is_reached = host.ping().await.is_ok();
            let mut noted = self.note_reached(id, is_reached, is_first).await;
            if noted.is_ok() && !is_reached {
                noted = self.deny_overdue(id).await;
            }
            if let Err(error) = noted {
                let error = chain(&error);
                tracing::error!(agent = %id, error, "cannot note whether a host answers");
                continue;
            }
            is_first = false;
        }
    }

    /// Notes that a request to a host failed.
    pub(super) async fn note_unreached(&self, id: &AgentId) {
        if let Err(error) = self.note_reached(id, false, false).await {
            let error = chain(&error);
            tracing::error!(agent = %id, error, "cannot note that a host does not answer");
        }
    }

    pub(super) fn forget_reach(&self, id: &AgentId) {
        lock(&self.live.unreachable).remove(id);
    }

    /// Stores whether a host answers, if that has changed. With `in_any_case` also without a
    /// change, as the rows may be from an earlier daemon.
    async fn note_reached(&self, id: &AgentId, is_reached: bool, in_any_case: bool) -> Result<()> {
        if !is_reached {
            // A host that is about to start does not answer yet.
            let row = self.core.store.agents().get(id).await?;
            if row.is_none_or(|row| row.host.is_none() || row.ended_at.is_some()) {
                return Ok(());
            }
        }
        let is_news = {
            let mut unreachable = lock(&self.live.unreachable);
            if is_reached { unreachable.remove(id) } else { unreachable.insert(id.clone()) }
        };
        if !is_news && !in_any_case {
            return Ok(());
        }
        let id = id.clone();
        let write = self.core.change(job!(|tx| {
            let found = tx.agents().get(&id).await?.filter(|row| row.ended_at.is_none());
            let Some(row) = found else { return Ok(()) };
            let state = if is_reached { row.info.state } else { AgentState::Unreachable };
            show_state(tx, &row, state, None).await
        }));
        write.await
    }
}

/// The stream of an agent. Its seqs equal the offsets of the host.
pub(super) fn stream_of(id: &AgentId) -> StreamName {
    StreamName::new("agent", id)
}

/// The error for an agent that does not exist or that the caller may not see.
pub(super) fn unknown(id: &str) -> Error {
    Error::not_found(ResourceKind::Agent, id)
}

/// Appends an event about an agent to the team stream. Everybody reads that stream, so the event
/// holds presence and no more.
pub(super) async fn append_team_event(
    tx: &mut WriteTx,
    kind: &'static str,
    row: &AgentRow,
    about: Value,
) -> Result<(), StoreError> {
    let info = &row.info;
    let mut data = json!({
        "agent_id": info.id, "instance": info.instance, "backend": info.backend,
        "session_key": info.session_key, "state": info.state,
    });
    if let (Some(data), Value::Object(about)) = (data.as_object_mut(), about) {
        data.extend(about.into_iter().filter(|(_, value)| !value.is_null()));
    }
    team::append_to_team(tx, NewEvent::new(kind, &data)).await
}

/// Stores what a task waits for; `None` if it no longer waits.
pub(super) async fn set_reason(
    tx: &mut WriteTx,
    task: &mut TaskRow,
    reason: Option<String>,
) -> Result<()> {
    if task.task.reason == reason {
        return Ok(());
    }
    task.task.reason = reason;
    note(tx, task).await
}

/// Stores a change of a task other than of its state, and appends it to the task's stream.
pub(super) async fn note(tx: &mut WriteTx, task: &TaskRow) -> Result<()> {
    let stream = tasks::stream_of(&task.task.task_id);
    let head = tx.streams().state(&stream).await?.map_or(0, |state| state.head);
    let shown = Task { last_id: head + 1, updated_at: tx.now(), ..task.task.clone() };
    tx.append(&stream, vec![NewEvent::new("task", &shown)]).await?;
    tx.tasks().update(task).await?;
    Ok(())
}

/// Makes a session the runner of a task, so that the agent may write to the task's stream.
pub(super) async fn give_to(tx: &mut WriteTx, task: &mut TaskRow, session: &str) -> Result<()> {
    task.owned =
        Ownership { runner: Some(Principal::Session(session.into())), ..task.owned.clone() };
    let stream = tasks::stream_of(&task.task.task_id);
    tx.streams().set_visibility(&stream, &StreamVisibility::shared(&task.owned)).await?;
    if task.task.reason.take().is_some() {
        return note(tx, task).await;
    }
    tx.tasks().update(task).await?;
    Ok(())
}

pub(super) async fn notify_operator(
    tx: &mut WriteTx,
    core: &Core,
    row: &AgentRow,
    request: &RequestRow,
) -> Result<()> {
    let info = &row.info;
    let options: Vec<&str> =
        request.options.iter().map(|option| option.option_id.as_str()).collect();
    // The question comes first, as lists show only the beginning.
    let text = format!(
        "May I? {}\n{} ({}) waits for your answer: svc agent answer {} {} OPTION ({})",
        request.title,
        info.session_key,
        info.id,
        info.id,
        request.request_id,
        options.join(", ")
    );
    let own = sender_of(tx, &info.session_key).await?;
    let key = format!("request-{}", request.request_id);
    for peer in tx.peers().of_operator(limits::NOTIFIED_PEERS).await? {
        let terms = (Some(key.clone()), DeliveryTerms::default());
        let from = AgentSender {
            session: &info.session_key,
            peer: own.clone(),
            project: row.owned.project.as_deref(),
            run: None,
        };
        let asks = (SourceTool::AgentRequest, text.clone());
        tell(tx, core, from, peer, asks, terms).await?;
    }
    Ok(())
}

/// Appends that a request was closed, and acknowledges the messages about it, as nobody has to
/// answer it any more.
pub(super) async fn tell_closed(
    tx: &mut WriteTx,
    row: &AgentRow,
    request: &RequestRow,
    by: &str,
) -> Result<(), StoreError> {
    let key = format!("request-{}", request.request_id);
    // The sender that `tell` used.
    let own = sender_of(tx, &row.info.session_key).await?;
    for message in tx.messages().all_by_key(&own, &key).await? {
        let to = message.to_peer.clone();
        team::advance(tx, &to, &mut [message], DeliveryState::Acked, None).await?;
    }
    let about = json!({ "request_id": request.request_id, "kind": request.kind, "by": by });
    append_team_event(tx, "request.closed", row, about).await
}
