//! The queue of dispatches: first come, first served, as far as each instance's bounds let them;
//! and what a cancellation does to tasks that an agent has.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use svc_client::hosts::HostError;
use svc_model::{
    AgentId, AgentInstance, Ownership, PeerStatus, Principal, StreamVisibility, TaskId,
    agent::{AgentInput, AgentState},
    limits,
};
use svc_store::{AgentRow, AssignmentRow, AssignmentState, TaskRow, WorkMode, WriteTx};
use svc_wire::host_protocol::{SendInput, SendMode, StopAgent};
use tokio::time::{sleep, timeout};

use super::{
    Agents,
    allowance::still_permits,
    records::{note, set_reason},
    start::{AgentPlan, PlannedAgent, project_of_task},
};
use crate::service::{
    Error,
    assignments::{self, AssignmentEvent, AssignmentOutcome, TaskEnd, retry},
    tasks,
};

/// The queue is looked at this often, also if nobody says that something has changed: a rate lets
/// the next one go.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Time that a turn has to end after an interrupt, before its agent is stopped.
const INTERRUPT_WITHIN: Duration = Duration::from_secs(2);
/// Seconds that an agent has to end.
const STOP_WITHIN: i64 = 5;
/// The wait before another attempt to reach a host that does not answer.
const SEND_PAUSE: Duration = Duration::from_millis(500);

/// What is done with work whose turn it is.
enum QueueStep {
    /// Its task is over, or somebody else has taken care of it.
    Nothing,
    /// It waits; those behind it, of the same instance, do too.
    Wait,
    /// An agent's row was made for it.
    Launch(Box<PlannedAgent>),
    /// A live agent gets it.
    Send(AgentId),
}

/// Dispatches that this process is at work on, so that it begins nothing twice.
type AtWork = Arc<Mutex<HashSet<TaskId>>>;

impl Agents {
    /// Gives work to agents until it is dropped.
    pub(super) async fn run_queue(self) {
        let (sending, cancelling) = (AtWork::default(), AtWork::default());
        loop {
            if let Err(error) = self.look(&sending, &cancelling).await {
                tracing::error!(%error, "cannot give work to agents");
                sleep(LOOK_EVERY).await;
            }
            // Nothing waits most of the time; then a notice comes first.
            let _ = timeout(LOOK_EVERY, self.core.work.notified()).await;
        }
    }

    async fn look(&self, sending: &AtWork, cancelling: &AtWork) -> Result<(), Error> {
        for task in self.core.store.assignments().overdue(self.core.now()).await? {
            self.give_up(task).await?;
        }
        self.look_at_attended().await?;
        for work in self.core.store.assignments().cancelled().await? {
            let Some(id) = work.task_id.clone().filter(|_| work.message_id.is_none()) else {
                continue;
            };
            if insert(cancelling, &id) {
                let (agents, cancelling) = (self.clone(), Arc::clone(cancelling));
                tokio::spawn(async move {
                    agents.cancel(&work, &id).await;
                    remove(&cancelling, &id);
                });
            }
        }
        // Those whose prompt was on its way when a daemon ended are sent again: the host knows them
        // by their id.
        for work in self.core.store.assignments().in_state(AssignmentState::Starting).await? {
            let agent = work.target_agent.filter(|_| !work.is_spawned);
            if let (Some(agent), Some(id)) = (agent, work.task_id) {
                self.send(agent, id, sending);
            }
        }
        let mut blocked: HashSet<String> = HashSet::new();
        for work in self.core.store.assignments().in_state(AssignmentState::Queued).await? {
            let Some(task_id) = work.task_id else { continue };
            let is_blocked = blocked.contains(&work.instance);
            let (agents, id) = (self.clone(), task_id.clone());
            let step = self
                .core
                .store
                .write(move |tx| Box::pin(async move { agents.step(tx, &id, is_blocked).await }))
                .await;
            let step = match step {
                Ok(step) => step,
                // The database fails all of them alike.
                Err(
                    error @ (Error::Unavailable(_) | Error::StorageFull(_) | Error::Internal(_)),
                ) => return Err(error),
                // A full inbox, or a budget that is used up, holds up this one and no other.
                Err(error) => {
                    self.wait_because(task_id, error.to_string()).await?;
                    continue;
                }
            };
            match step {
                QueueStep::Nothing => {}
                QueueStep::Wait => {
                    blocked.insert(work.instance);
                }
                QueueStep::Launch(planned) => {
                    self.live.dispatching().insert(planned.row.info.id.clone());
                    let agents = self.clone();
                    tokio::spawn(async move {
                        if let Err(reason) = agents.launch(*planned).await {
                            tracing::warn!(reason, "an agent for a task did not start");
                        }
                        agents.core.work.notify_one();
                    });
                }
                QueueStep::Send(agent) => {
                    self.live.dispatching().insert(agent.clone());
                    self.send(agent, task_id, sending);
                }
            }
        }
        Ok(())
    }

    /// Says why a task waits, if it has not been said.
    async fn wait_because(&self, id: TaskId, reason: String) -> Result<(), Error> {
        self.core
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let Some(mut task) = tx.tasks().get(&id).await? else { return Ok(()) };
                    if task.task.is_over() {
                        return Ok(());
                    }
                    set_reason(tx, &mut task, Some(reason)).await
                })
            })
            .await
    }

    /// Cancels a task past its deadline.
    async fn give_up(&self, id: TaskId) -> Result<(), Error> {
        self.core
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let Some(mut task) = tx.tasks().get(&id).await? else { return Ok(()) };
                    if task.task.is_over() || task.task.cancel_requested_at.is_some() {
                        return Ok(());
                    }
                    task.task.cancel_requested_at = Some(tx.now());
                    task.task.reason = Some("its time is over".to_owned());
                    note(tx, &task).await
                })
            })
            .await
    }

    /// What becomes of the work that is next, with its rows.
    async fn step(
        &self,
        tx: &mut WriteTx,
        id: &TaskId,
        is_blocked: bool,
    ) -> Result<QueueStep, Error> {
        let known = tx.assignments().of_task(id).await?;
        let Some(mut work) = known else { return Ok(QueueStep::Nothing) };
        let Some(mut task) = tx.tasks().get(id).await? else { return Ok(QueueStep::Nothing) };
        if work.state != AssignmentState::Queued || task.task.is_over() {
            return Ok(QueueStep::Nothing);
        }
        if task.task.cancel_requested_at.is_some() {
            let end = TaskEnd::new(AssignmentOutcome::Cancelled, None);
            assignments::end(tx, &self.core, &mut work, &mut task, end).await?;
            return Ok(QueueStep::Nothing);
        }
        if task.owned.owner.is_none() {
            let why = "the owner of this task is unknown".to_owned();
            return self.fail(tx, &mut work, &mut task, why).await;
        }
        if let Some(named) = work.requirements.agent_id.clone() {
            let row = tx.agents().get(&named).await?.filter(|row| row.ended_at.is_none());
            return if let Some(row) = row {
                self.assign(tx, &mut work, &mut task, &row).await
            } else {
                let why = format!("agent {named} ended before it took the prompt");
                self.fail(tx, &mut work, &mut task, why).await
            };
        }
        if let Some(named) = work.requirements.peer_id.clone() {
            let row = tx.peers().get(&named).await?;
            return if let Some(row) = row.filter(|row| row.peer.status != PeerStatus::Offline) {
                self.ask_attended(tx, &mut work, &mut task, &row).await?;
                Ok(QueueStep::Nothing)
            } else {
                let why = "the session ended before it took the prompt".to_owned();
                self.fail(tx, &mut work, &mut task, why).await
            };
        }
        if work.requirements.mode != WorkMode::SpawnOnly {
            if let Some(row) = tx.agents().find_free(&work.instance, &task.owned).await? {
                return self.assign(tx, &mut work, &mut task, &row).await;
            }
            if let Some(row) = self.attended_for(tx, &work.backend, &task.owned).await? {
                self.ask_attended(tx, &mut work, &mut task, &row).await?;
                return Ok(QueueStep::Nothing);
            }
            if work.requirements.mode == WorkMode::PeerOnly {
                let why = format!(
                    "no live peer: no agent of instance {} runs, and no session of its kind is there",
                    work.instance
                );
                return self.fail(tx, &mut work, &mut task, why).await;
            }
        }
        let instance = match self.callable(&work.instance) {
            Ok(instance) => instance,
            Err(why) => return self.fail(tx, &mut work, &mut task, why).await,
        };
        if let Some(Principal::Session(key)) = &task.owned.owner {
            let children =
                tx.agents().count_live_children(&Principal::Session(key.clone())).await?;
            if children >= limits::SPAWN_CHILDREN {
                let reason = format!("waits until one of {children} agents of its own has ended");
                set_reason(tx, &mut task, Some(reason)).await?;
                // Others of the instance do not wait for it.
                return Ok(QueueStep::Nothing);
            }
        }
        let full = self.full(tx, &instance).await?;
        let behind = || format!("waits behind others for instance {}", instance.name);
        if let Some(reason) = full.or_else(|| is_blocked.then(behind)) {
            set_reason(tx, &mut task, Some(reason)).await?;
            return Ok(QueueStep::Wait);
        }
        self.plan_for(tx, &mut work, &mut task, instance).await
    }

    /// A live agent gets it.
    async fn assign(
        &self,
        tx: &mut WriteTx,
        work: &mut AssignmentRow,
        task: &mut TaskRow,
        row: &AgentRow,
    ) -> Result<QueueStep, Error> {
        let id = row.info.id.clone();
        take(tx, work, row, false).await?;
        give_to(tx, task, &row.info.session_key).await?;
        if row.info.state != AgentState::Idle {
            let key = &row.info.session_key;
            let mut why = format!("waits for the end of {key}'s present turn");
            if row.info.state == AgentState::RequiresAction {
                why.push_str(", which needs your answer: svc agent answer ");
                why.push_str(key);
                why.push_str(" latest OPTION");
            }
            set_reason(tx, task, Some(why)).await?;
        }
        Ok(QueueStep::Send(id))
    }

    /// A new agent gets it.
    async fn plan_for(
        &self,
        tx: &mut WriteTx,
        work: &mut AssignmentRow,
        task: &mut TaskRow,
        instance: AgentInstance,
    ) -> Result<QueueStep, Error> {
        let id = task.task.task_id.clone();
        let mut name = id.as_str().replace('_', "-").to_ascii_lowercase();
        if work.attempt > 1 {
            name = format!("{name}-{}", work.attempt);
        }
        let cwd = match (&work.requirements.cwd, &instance.cwd) {
            (_, Some(cwd)) if work.attempt > 1 => cwd.to_string_lossy().into_owned(),
            (Some(cwd), _) => cwd.clone(),
            (None, Some(cwd)) => cwd.to_string_lossy().into_owned(),
            (None, None) => "/".to_owned(),
        };
        let is_chosen =
            work.requirements.has_chosen_cwd && work.requirements.cwd.as_ref() == Some(&cwd);
        if is_chosen && let Err(why) = still_permits(&instance, &task.owned, &cwd) {
            return self.fail(tx, work, task, why).await;
        }
        let owner = task.owned.owner.clone().unwrap_or(Principal::Operator);
        let prompt = task.task.prompt.clone().unwrap_or_default();
        let plan = AgentPlan {
            project: project_of_task(&task.owned, &cwd),
            name,
            cwd,
            prompt: Some(AgentInput {
                input: prompt,
                message_id: Some(id.as_str().to_owned()),
                from: Some(owner.to_string()),
                idempotency_key: Some(id.as_str().to_owned()),
            }),
            owner,
            task: task.task.title.clone(),
            description: None,
            args: Vec::new(),
            env: std::collections::BTreeMap::new(),
            model: work.requirements.model.clone(),
            resume: work.requirements.resume.clone().filter(|_| work.attempt == 1),
            task_id: Some(id),
            instance,
        };
        let planned = self.make_row(tx, plan, None).await?;
        take(tx, work, &planned.row, true).await?;
        give_to(tx, task, &planned.row.info.session_key).await?;
        Ok(QueueStep::Launch(Box::new(planned)))
    }

    /// Nobody can take it: the next instance, or the end.
    async fn fail(
        &self,
        tx: &mut WriteTx,
        work: &mut AssignmentRow,
        task: &mut TaskRow,
        why: String,
    ) -> Result<QueueStep, Error> {
        if work.requirements.agent_id.is_none() && !work.requirements.failover.is_empty() {
            let next = work.requirements.failover.remove(0);
            retry(tx, work, task, next, &why).await?;
            self.core.work.notify_one();
            return Ok(QueueStep::Nothing);
        }
        let end = TaskEnd::new(AssignmentOutcome::Failed, Some(why));
        assignments::end(tx, &self.core, work, task, end).await?;
        Ok(QueueStep::Nothing)
    }

    /// Sends a prompt to a live agent, until its host has it or it has ended.
    fn send(&self, agent: AgentId, task: TaskId, sending: &AtWork) {
        if !insert(sending, &task) {
            return;
        }
        let (agents, sending) = (self.clone(), Arc::clone(sending));
        tokio::spawn(async move {
            if let Err(error) = agents.send_prompt(&agent, &task).await {
                tracing::error!(%task, %error, "cannot send a prompt");
            }
            remove(&sending, &task);
            agents.core.work.notify_one();
        });
    }

    async fn send_prompt(&self, agent: &AgentId, id: &TaskId) -> Result<(), Error> {
        loop {
            let Some(task) = self.core.store.tasks().get(id).await? else { return Ok(()) };
            let live = self.core.store.agents().get(agent).await?;
            if task.task.is_over() || live.is_none_or(|row| row.ended_at.is_some()) {
                return Ok(());
            }
            let input = SendInput {
                input: task.task.prompt.clone().unwrap_or_default(),
                idempotency_key: Some(id.as_str().to_owned()),
                mode: SendMode::Queue,
                message_id: Some(id.as_str().to_owned()),
                from: task.owned.owner.as_ref().map(ToString::to_string),
            };
            let sent = self.host(agent).send(&input).await;
            let refusal = match self.noting_failure(agent, sent).await {
                Ok(_) => None,
                Err(HostError::Refused(reason)) => Some(reason),
                Err(_) => {
                    sleep(SEND_PAUSE).await;
                    continue;
                }
            };
            let (agents, id) = (self.clone(), id.clone());
            return self
                .core
                .store
                .write(move |tx| Box::pin(async move { agents.note_sent(tx, &id, refusal).await }))
                .await;
        }
    }

    async fn note_sent(
        &self,
        tx: &mut WriteTx,
        id: &TaskId,
        refusal: Option<String>,
    ) -> Result<(), Error> {
        let known = tx.assignments().of_task(id).await?;
        let starting = known.filter(|it| it.state == AssignmentState::Starting);
        let Some(mut work) = starting else { return Ok(()) };
        match refusal {
            None => {
                assignments::apply(tx, &mut work, AssignmentEvent::Stored).await?;
            }
            Some(why) => {
                let Some(mut task) = tx.tasks().get(id).await? else { return Ok(()) };
                self.fail(tx, &mut work, &mut task, why).await?;
            }
        }
        Ok(())
    }

    /// Interrupts the turn of a task that is to be cancelled, then ends the agent that was started
    /// for it.
    async fn cancel(&self, work: &AssignmentRow, id: &TaskId) {
        let Some(agent) = &work.target_agent else { return };
        let host = self.host(agent);
        // This turn and no other: what waits behind another's is taken back.
        if let Err(error) = host.withdraw(id.as_str()).await {
            tracing::debug!(%agent, %error, "a turn was not interrupted");
        }
        if work.is_spawned {
            let stream = tasks::stream_of(id);
            let mut listener = self.core.store.bus().listen(&stream);
            let is_over = async || {
                let task = self.core.store.tasks().get(id).await;
                task.is_ok_and(|task| task.is_none_or(|row| row.task.is_over()))
            };
            if work.taken_at.is_some() && !is_over().await {
                let _ = timeout(INTERRUPT_WITHIN, listener.wait_closed()).await;
            }
            if !is_over().await {
                let reason = Some("its task is cancelled".to_owned());
                let stop = StopAgent { force: false, timeout: STOP_WITHIN, reason };
                if let Err(error) = host.stop(&stop).await {
                    tracing::debug!(%agent, %error, "an agent was not stopped");
                }
            }
        }
        // Not again at once, if all of that came to nothing.
        sleep(SEND_PAUSE).await;
    }
}

/// An agent is to have it.
async fn take(
    tx: &mut WriteTx,
    work: &mut AssignmentRow,
    row: &AgentRow,
    is_spawned: bool,
) -> Result<(), Error> {
    work.target_session.clone_from(&row.info.session_key);
    work.target_agent = Some(row.info.id.clone());
    work.is_spawned = is_spawned;
    work.backend = row.info.backend.to_string();
    assignments::apply(tx, work, AssignmentEvent::Taken).await?;
    Ok(())
}

/// Who runs a task now is its runner: the agent may say something in its stream.
pub(super) async fn give_to(
    tx: &mut WriteTx,
    task: &mut TaskRow,
    session: &str,
) -> Result<(), Error> {
    task.owned =
        Ownership { runner: Some(Principal::Session(session.into())), ..task.owned.clone() };
    let stream = tasks::stream_of(&task.task.task_id);
    tx.streams().set_visibility(&stream, &StreamVisibility::shared(&task.owned)).await?;
    let waited = task.task.reason.take().is_some();
    if waited {
        note(tx, task).await
    } else {
        tx.tasks().update(task).await?;
        Ok(())
    }
}

fn insert(at_work: &AtWork, id: &TaskId) -> bool {
    at_work.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone())
}

fn remove(at_work: &AtWork, id: &TaskId) {
    at_work.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
}
