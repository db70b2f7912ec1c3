//! Dispatches: chooses who gets the work, and stores its rows before anything starts.

use std::{collections::BTreeSet, time::Duration};

use svc_model::{
    AgentId, Caller, InstanceStatus, NewTask, Ownership, PeerId, PeerStatus, RunId, Task,
    Timestamp,
    agent::AgentBackend,
    backend_names,
    conversation::{SourceTool, wait_cycle},
    hook::HookClient,
    is_agent_key, limits,
};
use svc_store::{AgentRow, AssignmentRow, PeerRow, WorkMode, WorkRequirements, WriteTx, job};
use svc_sys::config::ResolvedInstance;

use super::{
    Agents,
    allowance::{StartOverrides, check_children, check_depth},
    attended::{attended_for, session_of},
    control::AnswerWaiter,
    start::{conversation_of, full},
    state::{choices, listed, may_run, may_steer, only_of_backend},
};
use crate::boxed;
use crate::service::{Error, ResourceKind, Result, check, tasks, team};

/// Work for an agent, as a caller requests it.
#[derive(Debug, Clone, Default)]
pub struct NewDispatch {
    /// An instance, a backend with one instance, or the name, key or id of a live participant.
    pub agent: Option<String>,
    /// Any callable instance with this tag; the least busy one is chosen.
    pub tag: Option<String>,
    pub prompt: String,
    pub mode: Option<WorkMode>,
    pub session: Option<String>,
    pub model: Option<String>,
    pub cwd: Option<String>,
    /// The folder of a new agent if neither `cwd` nor its instance names one.
    pub default_cwd: Option<String>,
    /// The folder of the hosted agent that makes the request. A new agent works there if nothing
    /// else names a folder.
    pub own_cwd: Option<String>,
    /// Sender of the task; only the operator may set it.
    pub from_peer_id: Option<String>,
    /// A repeat with the same key returns the task of the first request.
    pub idempotency_key: Option<String>,
    /// Title of the task, and of a new agent that is started for it.
    pub title: Option<String>,
    /// The client's own id of the session that makes the request, if it is known.
    pub asking_session: Option<String>,
    pub tool: Option<SourceTool>,
    /// Whether an agent that is started for this work is removed after its end, with its peer, its
    /// sessions and their streams.
    pub removes_peer: bool,
    /// When the task is cancelled, if it has not ended by then.
    pub deadline: Option<Timestamp>,
    /// Refuse the dispatch if an agent cannot start at once.
    pub is_at_once: bool,
    /// How long the call waits for the answer; zero if it does not wait.
    pub max_wait: Duration,
}

#[derive(Debug)]
pub struct DispatchedTask {
    pub task: Task,
    /// The instance, or the named session, that gets the task.
    pub instance: String,
    /// The backend of that instance or session.
    pub backend: String,
    /// The wait of this call for the answer, if it waits.
    pub wait: Option<AnswerWaiter>,
}

/// Whom a dispatch is for: an instance, or the live participant that the requirements name.
struct DispatchTarget {
    instance: String,
    backend: String,
    requirements: WorkRequirements,
    /// Why no agent may be started for the work, which a live one may take.
    no_start: Option<Error>,
}

impl DispatchTarget {
    fn instance(it: &ResolvedInstance) -> Self {
        let failover = it.view.failover_to.clone();
        Self {
            instance: it.view.instance.clone(),
            backend: it.view.backend.clone(),
            requirements: WorkRequirements { failover, ..WorkRequirements::default() },
            no_start: None,
        }
    }

    fn attended(named: &str, row: PeerRow) -> Self {
        let peer_id = Some(row.peer.peer_id);
        Self {
            instance: named.to_owned(),
            backend: backend_names(&row.peer.backend).1.to_owned(),
            requirements: WorkRequirements { peer_id, ..WorkRequirements::default() },
            no_start: None,
        }
    }
}

fn check_input(input: &NewDispatch) -> Result<()> {
    check::not_blank("prompt", &input.prompt)?;
    check::long("prompt", &input.prompt, limits::V1_BODY_BYTES)?;
    for (field, text) in [
        ("agent", &input.agent),
        ("tag", &input.tag),
        ("session", &input.session),
        ("model", &input.model),
        ("cwd", &input.cwd),
    ] {
        check::key(field, text.as_deref())?;
    }
    for (field, text) in [("session", &input.session), ("model", &input.model)] {
        // The agent's program would read a leading `-` as an option.
        if text.as_deref().is_some_and(|text| text.starts_with('-') || text.contains('\0')) {
            return Err(Error::invalid(field, "must not begin with `-`, or have a zero byte"));
        }
    }
    Ok(())
}

impl Agents {
    /// Makes a task for an agent. The task begins when the queue reaches it.
    ///
    /// # Errors
    /// [`Error::Forbidden`] without the scope for agents, whatever the route.
    #[boxed]
    pub async fn dispatch(&self, caller: &Caller, input: NewDispatch) -> Result<DispatchedTask> {
        may_run(caller)?;
        check_input(&input)?;
        // Held until the work is stored, so that the next choice by tag counts this work.
        let is_choosing = input.agent.is_none() && input.tag.is_some();
        let _choice = if is_choosing { Some(self.live.choosing.lock().await) } else { None };
        let asked = DispatchInput { agents: self, caller, input: &input };
        let mut target = asked.target().await?;
        asked.complete(&mut target).await?;
        let DispatchTarget { instance, backend, requirements, no_start } = target;
        let now = self.core.now();
        let max_wait = Some(input.max_wait).filter(|max_wait| !max_wait.is_zero());
        let asks = caller.session().unwrap_or(PeerId::OPERATOR).to_owned();
        let row = AssignmentRow {
            source_tool: input.tool,
            waits_until: max_wait.map(|max_wait| now.plus(max_wait)),
            instance: instance.clone(),
            backend,
            requirements,
            deadline: input.deadline,
            removes_peer: input.removes_peer,
            // The task's id replaces the run id once there is a task.
            ..AssignmentRow::new(RunId::default(), asks, now)
        };
        let new_task = NewTask {
            agent: Some(instance),
            prompt: Some(input.prompt),
            title: input.title,
            from: input.from_peer_id,
            idempotency_key: input.idempotency_key,
            ..NewTask::default()
        };
        let store = self.core.store.on_behalf_of(caller);
        let (agents, caller) = (self.clone(), caller.clone());
        let (session, is_at_once) = (input.asking_session, input.is_at_once);
        let write = store.write(job!(|tx| {
            let terms = InsertTerms { session: session.as_deref(), is_at_once, no_start };
            insert(tx, &agents, &caller, new_task, row, terms).await
        }));
        let dispatched = write.await?;
        self.core.work.notify_one();
        Ok(dispatched)
    }
}

struct DispatchInput<'a> {
    agents: &'a Agents,
    caller: &'a Caller,
    input: &'a NewDispatch,
}

impl DispatchInput<'_> {
    /// Decides the mode, and what a new agent is started with.
    async fn complete(&self, target: &mut DispatchTarget) -> Result<()> {
        let Self { agents, caller, input } = self;
        let requirements = &mut target.requirements;
        let is_live = requirements.names_participant();
        requirements.mode = match input.mode {
            Some(WorkMode::AutoTmux) => {
                let why = "auto-tmux is not offered: agents run in hosts that outlive the daemon, and not in terminals; \
                           use spawn-only, peer-only or peer-prefer";
                return Err(Error::invalid("mode", why));
            }
            Some(WorkMode::SpawnOnly) if is_live => {
                let why = "spawn-only starts a new agent, and `agent` names a live one";
                return Err(Error::invalid("mode", why));
            }
            Some(mode) => mode,
            None if is_live && input.is_at_once => {
                return Err(Error::invalid("agentId", "names a live agent: send to its session"));
            }
            None if is_live => WorkMode::PeerOnly,
            None => WorkMode::SpawnOnly,
        };
        requirements.model.clone_from(&input.model);
        if is_live || requirements.mode == WorkMode::PeerOnly {
            return match input.session {
                Some(_) => {
                    Err(Error::invalid("session", "is for a new agent: use mode spawn-only"))
                }
                None => Ok(()),
            };
        }
        // An instance whose program is missing is accepted if another can take over. The queue
        // records that failover.
        let callable = |name: &String| agents.settings.callable(name);
        let instance = callable(&target.instance)
            .or_else(|why| requirements.failover.iter().find_map(|it| callable(it).ok()).ok_or(why))
            .map_err(|why| Error::invalid("agent", why))?;
        match check_depth(&agents.core, caller).await {
            // The depth of an agent never changes, so this work never starts one.
            Err(error @ Error::LimitReached(_)) if requirements.mode == WorkMode::PeerPrefer => {
                requirements.mode = WorkMode::PeerOnly;
                target.no_start = Some(error);
                return Ok(());
            }
            checked => checked?,
        }
        let request = StartOverrides {
            cwd: input.cwd.as_deref(),
            default_cwd: input.default_cwd.as_deref(),
            own_cwd: input.own_cwd.as_deref(),
            ..StartOverrides::default()
        };
        let (folder, is_chosen) = request.permitted_folder(&agents.settings, caller, &instance)?;
        // Decided here: the write job that starts the agent would read the disk for it.
        agents.core.projects.to_start(caller, Some(&folder)).await?;
        (requirements.cwd, requirements.has_chosen_cwd) = (Some(folder), is_chosen);
        requirements.resume = self.resumed(instance.backend).await?;
        Ok(())
    }

    async fn target(&self) -> Result<DispatchTarget> {
        let Self { agents, input, .. } = self;
        let all = agents.settings.resolved();
        let chosen = match (input.agent.as_deref(), input.tag.as_deref()) {
            (Some(named), _) => {
                let backend = backend_names(named).1;
                if let Some(it) = all.iter().find(|it| it.view.instance == named) {
                    Ok(it)
                } else if all.iter().any(|it| it.view.backend == backend) {
                    only_of_backend(&all, backend)
                } else {
                    return self.live_target(named).await;
                }
            }
            (None, Some(tag)) => return self.least_busy(&all, tag).await,
            (None, None) => agents.settings.default_of(&all),
        };
        let it = chosen.map_err(|why| choices("agent", &why, &all))?;
        if !it.view.callable && !fails_over(it, &all) {
            let reason = it.view.reason.clone().unwrap_or_default();
            let why = format!("instance {}: {reason}", it.view.instance);
            return Err(choices("agent", &why, &all));
        }
        Ok(DispatchTarget::instance(it))
    }

    /// The callable instance with this tag that is least busy.
    async fn least_busy(&self, all: &[ResolvedInstance], tag: &str) -> Result<DispatchTarget> {
        let counts = self.agents.core.store.agents().busy_counts().await?;
        let busy = |it: &ResolvedInstance| {
            counts.iter().find(|(name, _)| *name == it.view.instance).map_or(0, |it| it.1)
        };
        let callable = || all.iter().filter(|it| it.view.callable);
        let has_tag =
            |it: &&ResolvedInstance| it.view.tags.iter().any(|own| own.eq_ignore_ascii_case(tag));
        let chosen = callable().filter(has_tag).min_by_key(|it| (busy(it), &it.view.instance));
        chosen.map(DispatchTarget::instance).ok_or_else(|| {
            let tags: BTreeSet<&str> =
                callable().flat_map(|it| it.view.tags.iter().map(String::as_str)).collect();
            let there_are = listed(tags.into_iter());
            let why = format!("no callable instance has tag {tag:?}; tags: {there_are}");
            Error::invalid("tag", why)
        })
    }

    /// The live participant that a text names: a hosted agent or an attended session.
    async fn live_target(&self, named: &str) -> Result<DispatchTarget> {
        let Self { agents, caller, .. } = self;
        let core = &agents.core;
        let nobody = |why: String| choices("agent", &why, &agents.settings.resolved());
        let row = match team::find_peer(core, caller, named, ResourceKind::Peer).await {
            // An agent's id names that agent, whichever agent has its session key now.
            _ if named.starts_with(AgentId::PREFIX) => None,
            Err(Error::NotFound { .. }) => None,
            found => core.store.peers().get(&found?).await?,
        };
        let is_here = |row: &&PeerRow| row.peer.status != PeerStatus::Offline;
        let agent = match row.as_ref().filter(is_here) {
            Some(row) => match row.owner.as_deref().filter(|key| is_agent_key(key)) {
                Some(key) => core.store.agents().of_key(key).await?,
                None => None,
            },
            None => match agents.find(caller, named).await {
                Err(Error::NotFound { .. }) => None,
                found => Some(found?),
            },
        };
        if let Some(agent) = agent {
            return self.hosted_target(named, agent);
        }
        let Some(row) = row else {
            return Err(nobody(format!("there is no agent {named:?}")));
        };
        // An attended session gets the prompt in its inbox, and its hooks report the result. So
        // only a session with hooks takes work.
        let is_near = caller.is_operator()
            || row.project.is_some() && row.project.as_deref() == caller.project();
        let session = match row.peer.session_id.as_deref().filter(|_| is_near) {
            Some(id) => core.store.sessions().get(id).await?,
            None => None,
        };
        let is_open = session.is_some_and(|session| session.ended_at.is_none());
        if !is_open || HookClient::parse(&row.peer.backend).is_none() {
            return Err(nobody(format!(
                "{named:?} takes no work: `svc tell` and `svc ask` reach it"
            )));
        }
        if row.peer.status == PeerStatus::Offline {
            return Err(nobody(format!("{named:?} is not here")));
        }
        Ok(DispatchTarget::attended(named, row))
    }

    fn hosted_target(&self, named: &str, row: AgentRow) -> Result<DispatchTarget> {
        may_steer(self.caller, &row)?;
        if row.ended_at.is_some() {
            let why = format!("agent {named} has ended: `session` continues its conversation");
            return Err(choices("agent", &why, &self.agents.settings.resolved()));
        }
        let agent_id = Some(row.info.id);
        Ok(DispatchTarget {
            instance: row.info.instance,
            backend: row.info.backend.to_string(),
            requirements: WorkRequirements { agent_id, ..WorkRequirements::default() },
            no_start: None,
        })
    }

    /// The vendor's id of the conversation that the dispatch continues.
    async fn resumed(&self, backend: AgentBackend) -> Result<Option<String>> {
        let Self { agents, caller, input } = self;
        let Some(session) = input.session.as_deref() else { return Ok(None) };
        if backend == AgentBackend::Exec {
            return Err(Error::invalid("session", "backend exec cannot continue a conversation"));
        }
        if !session.starts_with(AgentId::PREFIX) && !session.starts_with("agent:") {
            if caller.is_operator() {
                return Ok(Some(session.to_owned()));
            }
            // A vendor's id does not tell whose conversation it is.
            let why = "session: name an agent's id or its session key; the vendor's own id is for the operator";
            return Err(Error::Forbidden(why.to_owned()));
        }
        let ended = agents.ended_agent(caller, "session", session).await?;
        conversation_of(&ended, "session", backend).map(Some)
    }
}

struct InsertTerms<'a> {
    /// The client's own id of the session that asks.
    session: Option<&'a str>,
    is_at_once: bool,
    no_start: Option<Error>,
}

/// Stores all rows of a dispatch, unless its task is known.
async fn insert(
    tx: &mut WriteTx,
    agents: &Agents,
    caller: &Caller,
    new_task: NewTask,
    mut row: AssignmentRow,
    terms: InsertTerms<'_>,
) -> Result<DispatchedTask> {
    let InsertTerms { session, is_at_once, no_start } = terms;
    let core = &agents.core;
    let prompt = new_task.prompt.clone();
    // The end of the work is sent to the caller's peer. An agent's peer is made when the agent
    // starts, and an ended agent gets no messages.
    if let Some(session) = caller.session()
        && !tx.agents().was_run(session).await?
    {
        team::peer_of_speaker(tx, core, caller, session).await?;
    }
    let created = tasks::make(tx, core, caller, new_task).await?;
    let task = created.task;
    if !created.is_new {
        let known = tx.assignments().of_task(&task.task_id).await?;
        let Some(mut known) = known.filter(|_| task.prompt == prompt) else {
            return Err(Error::Conflict(format!(
                "idempotency_key stands for another task, {}",
                task.task_id
            )));
        };
        let waits_until = wait_again(tx, &mut known, row.waits_until).await?;
        let wait = waits_until.map(|until| agents.wait_for_answer(caller, &known.run_id, until));
        let AssignmentRow { instance, backend, .. } = known;
        return Ok(DispatchedTask { task, instance, backend, wait });
    }
    if row.requirements.mode == WorkMode::SpawnOnly {
        check_children(tx, caller).await?;
    }
    if is_at_once && let Ok(instance) = agents.settings.callable(&row.instance) {
        if let Some(why) = full(tx, &instance).await? {
            return Err(Error::LimitReached(why));
        }
        if let Some(key) = tx.agents().limited_in(&instance.name).await? {
            return Err(Error::NotNow(format!(
                "instance {}: the vendor refuses {key} for usage, so it would refuse another",
                instance.name
            )));
        }
    }
    if let Some(key) = caller.session() {
        row.source_agent = tx.agents().live(key).await?.map(|live| live.info.id);
        // A session that a person started has another key than its credential. The rows of
        // `sessions_send` have the session's, and a circle of waits may have rows of both.
        let own = tx.peers().of_session(session.unwrap_or(key)).await?;
        let own = own.filter(|own| own.is_for(key)).and_then(|own| own.session_key());
        row.source_session = own.unwrap_or(row.source_session);
    }
    if row.requirements.mode == WorkMode::PeerOnly && !row.requirements.names_participant() {
        let owned = Ownership {
            owner: Some(caller.principal()),
            runner: None,
            project: caller.project().map(str::to_owned),
        };
        if live_peer(tx, &row, &owned).await?.is_none() {
            let nobody = || Error::NotNow(no_live_peer(&row.instance));
            return Err(no_start.unwrap_or_else(nobody));
        }
    }
    if row.waits_until.is_some() {
        check_wait(tx, &row).await?;
    }
    row.run_id = RunId::from_task(&task.task_id);
    row.task_id = Some(task.task_id.clone());
    tx.assignments().insert(&row).await?;
    // Made before the commit: no other call ends while the row has a wait that nobody knows.
    let wait = row.waits_until.map(|until| agents.wait_for_answer(caller, &row.run_id, until));
    let AssignmentRow { instance, backend, .. } = row;
    Ok(DispatchedTask { task, instance, backend, wait })
}

/// Lets a repeat of a call wait for open work, also when an earlier call is cut.
async fn wait_again(
    tx: &mut WriteTx,
    known: &mut AssignmentRow,
    until: Option<Timestamp>,
) -> Result<Option<Timestamp>> {
    let Some(until) = until.filter(|_| known.ended_at.is_none()) else { return Ok(None) };
    check_wait(tx, known).await?;
    let last = known.wait_again(until);
    tx.assignments().update(known).await?;
    Ok(Some(last))
}

/// Refuses a wait of a session for itself, or for a session that waits for that session.
async fn check_wait(tx: &mut WriteTx, row: &AssignmentRow) -> Result<()> {
    let WorkRequirements { agent_id, peer_id, .. } = &row.requirements;
    let awaited = match (agent_id, peer_id) {
        (Some(agent), _) => tx.agents().get(agent).await?.map(|row| row.info.session_key),
        (None, Some(peer)) => tx.peers().get(peer).await?.and_then(|row| row.session_key()),
        (None, None) => Some(row.target_session.clone()).filter(|session| !session.is_empty()),
    };
    match awaited {
        Some(awaited) => check_wait_for(tx, row, &awaited).await,
        None => Ok(()),
    }
}

async fn check_wait_for(tx: &mut WriteTx, row: &AssignmentRow, awaited: &str) -> Result<()> {
    let waits = tx.assignments().waits_from(awaited).await?;
    wait_cycle(&waits, &row.source_session, awaited)
        .map_or(Ok(()), |path| Err(Error::WaitCycle(path)))
}

/// Maximum number of free agents that a search reads. The search passes over agents that wait for
/// the source of the work.
const FREE_AGENTS: u32 = 500;

/// Who takes work that names nobody.
pub(super) enum LivePeer {
    Agent(Box<AgentRow>),
    Session(Box<PeerRow>),
}

/// A live agent of the instance of this work, else an attended session of its backend. While the
/// source of the work waits for the answer, a participant that waits for the source does not take
/// the work: neither wait would end.
///
/// # Errors
/// [`Error::WaitCycle`] if every participant that could take the work waits for its source.
pub(super) async fn live_peer(
    tx: &mut WriteTx,
    work: &AssignmentRow,
    owned: &Ownership,
) -> Result<Option<LivePeer>> {
    let is_awaited = work.waits_until.is_some_and(|until| until > tx.now());
    // Without a wait the first one takes the work.
    let most = if is_awaited { FREE_AGENTS } else { 1 };
    let agents = tx.agents().free(&work.instance, owned, most).await?;
    let sessions = if is_awaited || agents.is_empty() {
        attended_for(tx, &work.backend, owned).await?
    } else {
        Vec::new()
    };
    let agents = agents
        .into_iter()
        .map(|row| (row.info.session_key.clone(), LivePeer::Agent(Box::new(row))));
    let sessions =
        sessions.into_iter().map(|row| (session_of(&row).0, LivePeer::Session(Box::new(row))));
    let mut refusal = Ok(None);
    for (key, peer) in agents.chain(sessions) {
        if !is_awaited {
            return Ok(Some(peer));
        }
        match check_wait_for(tx, work, &key).await {
            Ok(()) => return Ok(Some(peer)),
            Err(cycle @ Error::WaitCycle(_)) => refusal = Err(cycle),
            Err(error) => return Err(error),
        }
    }
    refusal
}

pub(super) fn no_live_peer(instance: &str) -> String {
    format!(
        "no live peer: no agent of instance {instance} takes work, and no session of its kind is there"
    )
}

/// Whether the program of an instance is missing and one of its failover instances is callable.
fn fails_over(it: &ResolvedInstance, all: &[ResolvedInstance]) -> bool {
    let is_callable =
        |name: &String| all.iter().any(|other| other.view.instance == *name && other.view.callable);
    it.view.status == InstanceStatus::BinaryMissing && it.view.failover_to.iter().any(is_callable)
}

#[cfg(test)]
mod tests {
    use svc_model::AGENTS_SCOPE;
    use svc_store::testing::TestStore;

    use super::*;
    use crate::service::testing::{opened, session};

    /// Whom the operator's work for the instance `pair` goes to: a session key.
    async fn chosen(test: &TestStore, waits_until: Option<Timestamp>) -> Result<Option<String>> {
        let choosing = test.store.write(job!(|tx| {
            let work = AssignmentRow {
                waits_until,
                instance: "pair".to_owned(),
                backend: "claude".to_owned(),
                ..AssignmentRow::new(RunId::default(), "agent:pair:asker".to_owned(), tx.now())
            };
            let owned = Ownership::from_row("operator", String::new());
            Ok::<_, Error>(live_peer(tx, &work, &owned).await?.map(|peer| match peer {
                LivePeer::Agent(row) => row.info.session_key,
                LivePeer::Session(row) => session_of(&row).0,
            }))
        }));
        choosing.await
    }

    #[tokio::test]
    async fn work_is_given_only_with_the_scope_for_agents() {
        let (_test, services) = opened().await;
        let go = || NewDispatch { prompt: "go".to_owned(), ..NewDispatch::default() };
        let without = services.agents.dispatch(&session("s-1", &[]), go()).await;
        assert!(matches!(without, Err(Error::Forbidden(_))), "{without:?}");
        // No instance is configured, and that is what the next answer is about.
        let with = services.agents.dispatch(&session("s-1", &[AGENTS_SCOPE]), go()).await;
        assert!(matches!(with, Err(Error::Invalid { .. })), "{with:?}");
    }

    #[tokio::test]
    async fn work_goes_to_nobody_who_waits_for_its_source() {
        let (test, services) = opened().await;
        test.execute(
            "
            insert into stream (name, created_at, visibility) values ('agent/ag_1', 1, 'team'), ('agent/ag_2', 1, 'team');
            insert into agent (agent_id, stream_id, instance, backend, session_key, project, cwd, created_by, state, pid,
                request_timeout, started_at, machine_id)
            select substr(name, 7), id, 'pair', 'claude', 'agent:pair:' || substr(name, 10), '/p', '/c', 'operator', 'idle',
                1, 1, substr(name, 10), 'mach_test' from stream where name like 'agent/%';
            insert into assignment (run_id, mode, state, source_session, target_session, waits_until, created_at)
            values ('run_1', 'followup', 'running', 'agent:pair:1', 'agent:pair:asker', 9000000000000, 1);",
        )
        .await;
        let until = Some(services.now().plus(Duration::from_hours(1)));
        let one = Some("agent:pair:1".to_owned());
        test.execute("update agent set backend = 'unreadable' where agent_id = 'ag_2'").await;
        assert_eq!(chosen(&test, None).await.unwrap(), one, "no other row is read");
        test.execute("update agent set backend = 'claude' where agent_id = 'ag_2'").await;
        assert_eq!(chosen(&test, until).await.unwrap().as_deref(), Some("agent:pair:2"));
        // The free one is the last of many that wait.
        test.execute(
            "
            with recursive many (n) as (select 3 union all select n + 1 from many where n < 99)
            insert into stream (name, created_at, visibility) select 'agent/ag_' || n, 1, 'team' from many;
            insert into agent (agent_id, stream_id, instance, backend, session_key, project, cwd, created_by, state, pid,
                request_timeout, started_at, machine_id)
            select substr(name, 7), id, 'pair', 'claude', 'agent:pair:' || substr(name, 10), '/p', '/c', 'operator', 'idle',
                1, 1, 1, 'mach_test' from stream
            where name like 'agent/%' and substr(name, 7) not in (select agent_id from agent);
            insert into assignment (run_id, mode, state, source_session, target_session, waits_until, created_at)
            select 'run_' || agent_id, 'followup', 'running', session_key, 'agent:pair:asker', 9000000000000, 1
            from agent where agent_id not in ('ag_1', 'ag_2');
            update agent set started_at = 2 where agent_id = 'ag_2';",
        )
        .await;
        assert_eq!(chosen(&test, until).await.unwrap().as_deref(), Some("agent:pair:2"));
        test.execute("update agent set state = 'done', ended_at = 1 where agent_id = 'ag_2'").await;
        let refused = chosen(&test, until).await.unwrap_err();
        assert!(matches!(refused, Error::WaitCycle(_)), "{refused}");
        test.execute("update assignment set ended_at = 1").await;
        assert_eq!(chosen(&test, until).await.unwrap(), one);
        test.execute("update agent set ended_at = 1").await;
        assert_eq!(chosen(&test, until).await.unwrap(), None);
    }
}
