//! The queue of dispatches, first in, first out within the limits of each instance; and the
//! cancellation of tasks that an agent has.

use std::{collections::HashSet, sync::Mutex, time::Duration};

use svc_client::hosts::HostError;
use svc_model::{
    AgentId, AgentInstance, PeerStatus, Principal, Task, TaskId, Timestamp,
    agent::{AgentInput, AgentState, HostSpec},
    limits,
};
use svc_store::{AgentRow, AssignmentRow, AssignmentState, TaskRow, WorkMode, WriteTx, job};
use svc_wire::host_protocol::{SendInput, SendMode, StopAgent};
use tokio::time::{sleep, timeout};

use super::{
    Agents,
    allowance::still_permits,
    attended::{ask_attended, end_unanswered},
    dispatch::{LivePeer, live_peer, no_live_peer},
    start::{AgentPlan, full, launch},
    state::{LiveAgents, give_to, note, set_reason},
};
use crate::service::{
    Error, Result,
    assignments::{self, AssignmentEvent, AssignmentOutcome, TaskEnd, end_or_retry},
    core::lock,
    projects::Projects,
    tasks,
};

/// How often the queue is checked without a notification: a start rate allows the next agent after
/// some time.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long an interrupted turn may take to end before its agent is stopped.
const INTERRUPT_WITHIN: Duration = Duration::from_secs(2);
const STOP_WITHIN: i64 = 5;
/// The wait before the next attempt to reach a host that does not answer.
const SEND_PAUSE: Duration = Duration::from_millis(500);

/// What to do with the next work in the queue.
enum QueueStep {
    /// Nothing to do now; the work behind this one goes on.
    Nothing,
    /// The work waits, and so does the work of the same instance behind it.
    Wait,
    Launch(Box<HostSpec>),
    Send(AgentId),
}

impl Agents {
    /// Gives queued work to agents, and cancels work, until the future is dropped.
    pub(super) async fn run_queue(&self) {
        loop {
            if let Err(error) = self.give_work().await {
                error.report("cannot give work to agents");
                sleep(LOOK_EVERY).await;
            }
            // Most of the time the queue is empty, and a notification ends this wait.
            let _ = timeout(LOOK_EVERY, self.core.work.notified()).await;
        }
    }

    async fn give_work(&self) -> Result<()> {
        let core = &self.core;
        for task in core.store.assignments().overdue(core.now()).await? {
            let give_up = |task: &mut Task, now| {
                if task.cancel_requested_at.is_none() {
                    task.cancel_requested_at = Some(now);
                    task.reason = Some("its time is over".to_owned());
                }
            };
            self.change_open(task, give_up).await?;
        }
        end_unanswered(core).await?;
        for work in core.store.assignments().cancelled().await? {
            let Some(id) = work.task_id.clone().filter(|_| work.message_id.is_none()) else {
                continue;
            };
            let (agents, task) = (self.clone(), id.clone());
            let cancelling = async move { agents.cancel(&work, &task).await };
            self.run_once(|live| &live.cancelling, id, cancelling);
        }
        // Prompts that were being sent when a daemon ended are sent again: the host recognises them
        // by id.
        for work in core.store.assignments().in_state(AssignmentState::Starting).await? {
            let agent = work.target_agent.filter(|_| !work.is_spawned);
            if let (Some(agent), Some(id)) = (agent, work.task_id) {
                self.send(agent, id);
            }
        }
        let mut blocked: HashSet<String> = HashSet::new();
        for work in core.store.assignments().in_state(AssignmentState::Queued).await? {
            let Some(task_id) = work.task_id else { continue };
            let is_blocked = blocked.contains(&work.instance);
            let (agents, id) = (self.clone(), task_id.clone());
            let step = core.store.write(job!(|tx| {
                match QueuedWork::read(&agents, tx, &id).await? {
                    Some(queued) => queued.step(is_blocked).await,
                    None => Ok(QueueStep::Nothing),
                }
            }));
            match step.await {
                // A failure of the database affects all tasks of the queue.
                Err(error) if error.is_of_daemon() => return Err(error),
                // A full inbox or a used-up budget holds up only this task.
                Err(error) => {
                    let wait = move |task: &mut Task, _| task.reason = Some(error.to_string());
                    self.change_open(task_id, wait).await?;
                }
                Ok(QueueStep::Nothing) => {}
                Ok(QueueStep::Wait) => {
                    blocked.insert(work.instance);
                }
                Ok(QueueStep::Launch(spec)) => {
                    lock(&self.live.dispatching).insert(spec.agent_id.clone());
                    let agents = self.clone();
                    tokio::spawn(async move {
                        if let Err(reason) = launch(&agents, &spec).await {
                            tracing::warn!(reason, "an agent for a task did not start");
                        }
                        agents.core.work.notify_one();
                    });
                }
                Ok(QueueStep::Send(agent)) => {
                    lock(&self.live.dispatching).insert(agent.clone());
                    self.send(agent, task_id);
                }
            }
        }
        Ok(())
    }

    /// Changes a task that has not ended, other than its state.
    async fn change_open(
        &self,
        id: TaskId,
        change: impl FnOnce(&mut Task, Timestamp) + Send + 'static,
    ) -> Result<()> {
        let write = self.core.store.write(job!(|tx| {
            let open = tx.tasks().get(&id).await?.filter(|row| !row.task.is_over());
            let Some(mut row) = open else { return Ok(()) };
            let before = row.task.clone();
            change(&mut row.task, tx.now());
            if row.task == before { Ok(()) } else { note(tx, &row).await }
        }));
        write.await
    }

    /// Works on a task, unless this process does so already. Then the queue looks again.
    fn run_once(
        &self,
        at_work: fn(&LiveAgents) -> &Mutex<HashSet<TaskId>>,
        id: TaskId,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        if !lock(at_work(&self.live)).insert(id.clone()) {
            return;
        }
        let agents = self.clone();
        tokio::spawn(async move {
            work.await;
            lock(at_work(&agents.live)).remove(&id);
            agents.core.work.notify_one();
        });
    }

    /// Sends a prompt to a live agent, with retries, until the host has it or the agent or the task
    /// has ended.
    fn send(&self, agent: AgentId, task: TaskId) {
        let (agents, id) = (self.clone(), task.clone());
        let sending = async move {
            if let Err(error) = agents.send_prompt(&agent, &id).await {
                tracing::error!(task = %id, %error, "cannot send a prompt");
            }
        };
        self.run_once(|live| &live.sending, task, sending);
    }

    async fn send_prompt(&self, agent: &AgentId, id: &TaskId) -> Result<()> {
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
            let (writer, id) = (self.clone(), id.clone());
            let noted = self.core.store.write(job!(|tx| {
                match QueuedWork::read(&writer, tx, &id).await? {
                    Some(queued) => queued.note_sent(refusal).await,
                    None => Ok(()),
                }
            }));
            return noted.await;
        }
    }

    /// Interrupts the turn of a cancelled task, then stops the agent if it was started for that
    /// task.
    async fn cancel(&self, work: &AssignmentRow, id: &TaskId) {
        let Some(agent) = &work.target_agent else { return };
        let host = self.host(agent);
        // Interrupts this task's turn only. A prompt that waits behind another turn is withdrawn.
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
        // If none of that worked, the next attempt must not follow at once.
        sleep(SEND_PAUSE).await;
    }
}

struct QueuedWork<'a> {
    agents: &'a Agents,
    tx: &'a mut WriteTx,
    work: AssignmentRow,
    task: TaskRow,
}

impl<'a> QueuedWork<'a> {
    async fn read(agents: &'a Agents, tx: &'a mut WriteTx, id: &TaskId) -> Result<Option<Self>> {
        let Some(work) = tx.assignments().of_task(id).await? else { return Ok(None) };
        let Some(task) = tx.tasks().get(id).await? else { return Ok(None) };
        Ok(Some(Self { agents, tx, work, task }))
    }

    async fn step(mut self, is_blocked: bool) -> Result<QueueStep> {
        let Self { agents, tx, work, task } = &mut self;
        if work.state != AssignmentState::Queued || task.task.is_over() {
            return Ok(QueueStep::Nothing);
        }
        if task.task.cancel_requested_at.is_some() {
            let end = TaskEnd::new(AssignmentOutcome::Cancelled, None);
            assignments::end(tx, &agents.core, work, task, end).await?;
            return Ok(QueueStep::Nothing);
        }
        if task.owned.owner.is_none() {
            let why = "the owner of this task is unknown".to_owned();
            return self.fail(why).await;
        }
        if let Some(named) = work.requirements.agent_id.clone() {
            let row = tx.agents().get(&named).await?.filter(|row| row.ended_at.is_none());
            return match row {
                Some(row) => self.assign(&row).await,
                None => self.fail(format!("agent {named} ended before it took the prompt")).await,
            };
        }
        if let Some(named) = work.requirements.peer_id.clone() {
            let row = tx.peers().get(&named).await?;
            return if let Some(row) = row.filter(|row| row.peer.status != PeerStatus::Offline) {
                ask_attended(tx, &agents.core, work, task, &row).await?;
                Ok(QueueStep::Nothing)
            } else {
                let why = "the session ended before it took the prompt".to_owned();
                self.fail(why).await
            };
        }
        if work.requirements.mode != WorkMode::SpawnOnly {
            match live_peer(tx, work, &task.owned).await {
                Ok(Some(LivePeer::Agent(row))) => return self.assign(&row).await,
                Ok(Some(LivePeer::Session(row))) => {
                    ask_attended(tx, &agents.core, work, task, &row).await?;
                    return Ok(QueueStep::Nothing);
                }
                Ok(None) if work.requirements.mode == WorkMode::PeerOnly => {
                    let why = no_live_peer(&work.instance);
                    return self.fail(why).await;
                }
                Err(cycle @ Error::WaitCycle(_))
                    if work.requirements.mode == WorkMode::PeerOnly =>
                {
                    return self.fail(cycle.to_string()).await;
                }
                Ok(None) | Err(Error::WaitCycle(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let instance = match agents.settings.callable(&work.instance) {
            Ok(instance) => instance,
            Err(why) => return self.fail(why).await,
        };
        if let Some(owner @ Principal::Session(_)) = &task.owned.owner {
            let children = tx.agents().count_live_children(owner).await?;
            if children >= limits::SPAWN_CHILDREN {
                let reason = format!("waits until one of {children} agents of its own has ended");
                set_reason(tx, task, Some(reason)).await?;
                // Work of other owners for this instance does not wait for it.
                return Ok(QueueStep::Nothing);
            }
        }
        let full = full(tx, &instance).await?;
        let behind = || format!("waits behind others for instance {}", instance.name);
        if let Some(reason) = full.or_else(|| is_blocked.then(behind)) {
            set_reason(tx, task, Some(reason)).await?;
            return Ok(QueueStep::Wait);
        }
        self.plan_for(instance).await
    }

    async fn assign(mut self, row: &AgentRow) -> Result<QueueStep> {
        let id = row.info.id.clone();
        self.take(row, false).await?;
        let Self { tx, task, .. } = &mut self;
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

    async fn plan_for(mut self, instance: AgentInstance) -> Result<QueueStep> {
        let Self { agents, tx, work, task } = &mut self;
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
        let roots = match &task.owned.project {
            Some(project) if is_chosen => Projects::roots_in(tx, project).await?,
            _ => Vec::new(),
        };
        if is_chosen && let Err(why) = still_permits(&instance, &task.owned, &roots, &cwd) {
            return self.fail(why).await;
        }
        let project = match (&task.owned.project, &task.owned.owner) {
            (Some(project), _) => project.clone(),
            (None, Some(Principal::Operator)) => Projects::of_folder_in(tx, &cwd).await?,
            (None, _) => String::new(),
        };
        let owner = task.owned.owner.clone().unwrap_or(Principal::Operator);
        let prompt = AgentInput {
            input: task.task.prompt.clone().unwrap_or_default(),
            message_id: Some(id.as_str().to_owned()),
            from: Some(owner.to_string()),
            idempotency_key: Some(id.as_str().to_owned()),
        };
        let plan = AgentPlan::new(agents, instance, (&name, cwd, project), owner);
        let spec = HostSpec {
            task: task.task.title.clone(),
            prompt: Some(prompt),
            one_shot: true,
            model: work.requirements.model.clone(),
            resume: work.requirements.resume.clone().filter(|_| work.attempt == 1),
            ..plan.spec
        };
        let plan = AgentPlan { task_id: Some(id), spec, ..plan };
        let (row, spec) = plan.make_row(tx, &agents.core, None).await?;
        self.take(&row, true).await?;
        give_to(self.tx, &mut self.task, &row.info.session_key).await?;
        Ok(QueueStep::Launch(Box::new(spec)))
    }

    /// No agent can take the work: tries the next failover instance, or fails the task.
    async fn fail(mut self, why: String) -> Result<QueueStep> {
        let end = TaskEnd::not_begun(why);
        end_or_retry(self.tx, &self.agents.core, &mut self.work, &mut self.task, end).await?;
        Ok(QueueStep::Nothing)
    }

    async fn take(&mut self, row: &AgentRow, is_spawned: bool) -> Result<()> {
        let Self { tx, work, .. } = self;
        work.target_session.clone_from(&row.info.session_key);
        work.target_agent = Some(row.info.id.clone());
        work.is_spawned = is_spawned;
        work.backend = row.info.backend.to_string();
        assignments::apply(tx, work, AssignmentEvent::Taken).await?;
        Ok(())
    }

    /// Stores that the agent's host has the prompt, or fails work that the host refused.
    async fn note_sent(mut self, refusal: Option<String>) -> Result<()> {
        if self.work.state != AssignmentState::Starting {
            return Ok(());
        }
        match refusal {
            None => {
                assignments::apply(self.tx, &mut self.work, AssignmentEvent::Stored).await?;
            }
            Some(why) => {
                self.fail(why).await?;
            }
        }
        Ok(())
    }
}
