//! Operations of callers on agents: read them, send to them, stop them; and the calls that wait for
//! the answer to an assignment, and the end of such a wait without the answer.

use std::{ops::ControlFlow, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;
use svc_client::hosts::HostError;
use svc_model::{
    AccessLevel, AgentFilter, AgentId, Caller, Event, FrameKind, LATEST, Reader, RunId, StreamName,
    Task, TaskId, Timestamp,
    agent::{AgentEvent, AgentEventBody, AgentState, HistoryEntry},
    backend_names,
    conversation::RunState,
    limits,
};
use svc_store::{AgentRow, AssignmentRow, PageSize, StreamView, job};
use svc_wire::host_protocol::{
    HistoryPage, HistoryQuery, SendAnswer, SendInput, SendMode, StopAgent, StopAnswer,
};
use tokio::{
    runtime::Handle,
    time::{sleep, timeout},
};

use super::{
    Agents,
    state::{AgentView, may_steer, stream_of, unknown},
};
use crate::boxed;
use crate::service::{
    Candidate, Error, Page, PageBounds, ResourceKind, Result,
    assignments::{hold_answer, is_answer_given, note_returned, tell_again},
    check,
    core::lock,
    tasks,
};

const RECORD_WITHIN: Duration = Duration::from_secs(5);

/// Input for an agent.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct SendToAgent {
    /// The text. Not blank.
    pub input: String,
    /// A repeat with the same key is not sent again.
    pub idempotency_key: Option<String>,
    /// When the agent gets it.
    #[serde(default)]
    #[schemars(with = "String", extend("enum" = ["queue", "steer"], "default" = "queue"))]
    pub mode: SendMode,
}

/// The wait before the next attempt to reach a database that is away.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// A call that waits for an answer. If all calls that wait for an answer are dropped before a
/// response with it was handed to a connection, as these were cut, a message brings the answer.
#[derive(Debug)]
pub struct AnswerWaiter {
    agents: Agents,
    caller: Caller,
    run: RunId,
    /// When the wait ends. It identifies the call: no two waits for one answer end alike.
    until: Timestamp,
    is_handed: bool,
}

impl AnswerWaiter {
    /// Notes that the call takes the answer now. Called before that is stored: the call may be cut
    /// meanwhile.
    pub fn note_answer(&self) {
        lock(&self.agents.live.waits).entry(self.run.clone()).or_default().is_taken = true;
    }

    /// Ends the wait: the response was handed to the connection.
    pub fn note_handed(mut self) {
        lock(&self.agents.live.waits).entry(self.run.clone()).or_default().is_handed = true;
        self.is_handed = true;
    }
}

impl Drop for AnswerWaiter {
    fn drop(&mut self) {
        let wait = (self.run.clone(), self.until);
        let is_lost = {
            let mut waits = lock(&self.agents.live.waits);
            let of_run = waits.entry(self.run.clone()).or_default();
            of_run.ends.retain(|end| *end != self.until);
            let is_last = of_run.ends.is_empty();
            let is_lost = is_last && of_run.is_taken && !of_run.is_handed;
            if is_last {
                waits.remove(&self.run);
            }
            is_lost
        };
        let (false, Ok(runtime)) = (self.is_handed, Handle::try_current()) else { return };
        let (agents, caller) = (self.agents.clone(), self.caller.clone());
        runtime.spawn(async move {
            while let Err(error) = agents.stop_waiting(&caller, wait.clone(), is_lost).await {
                error.report("cannot note that a call waits no more");
                let is_away =
                    matches!(error, Error::StoreUnavailable(_) | Error::OutcomeUnknown { .. });
                if !is_away {
                    return;
                }
                // The call may have been cut because the database is away.
                sleep(STORE_PAUSE).await;
            }
        });
    }
}

/// The answer to a task, as far as a call that waits for it has to know.
#[derive(Debug)]
pub struct ReturnedAnswer {
    /// The instance that answered.
    pub instance: String,
    pub backend: String,
    /// A message has brought the answer already, so that the call does not return it, too.
    pub was_sent: bool,
}

impl Agents {
    /// An agent by its id, its session key, or a short form of either.
    #[boxed]
    pub async fn agent(&self, caller: &Caller, named: &str) -> Result<AgentView> {
        Ok(self.view(self.find(caller, named).await?))
    }

    /// A page of the agents that the caller may see, latest first.
    pub async fn agents(
        &self,
        caller: &Caller,
        filter: &AgentFilter,
        page: impl Into<PageBounds<'_>>,
    ) -> Result<Page<AgentView>> {
        let reader = Reader::from_caller(caller);
        let mut filter = filter.clone();
        filter.project = self.core.projects.named(filter.project.as_deref()).await?;
        filter.backend = filter.backend.map(|backend| backend_names(&backend).1.to_owned());
        let wanted = filter.state;
        if wanted == Some(AgentState::Unreachable) {
            // `Unreachable` is not in the rows: read all live agents and filter them below.
            (filter.state, filter.live) = (None, true);
        }
        let read = async |before: Option<(i64, String)>, limit| {
            let before = before.map(|(at, id)| (Timestamp::from_millis(at), id));
            self.core.store.agents().list(&reader, &filter, before.as_ref(), limit).await
        };
        let key = |row: &AgentRow| (row.info.started_at.as_millis(), row.info.id.clone());
        let page = Page::read("hosts", page.into(), read, key).await?;
        let machines = self.core.machine_names().await?;
        let mut page = page.map(|row| {
            let machine = machines.get(&row.machine_id).cloned();
            AgentView { machine, ..self.view(row) }
        });
        page.items.retain(|agent| wanted.is_none_or(|state| agent.info.state == state));
        Ok(page)
    }

    #[boxed]
    pub async fn send_to_agent(
        &self,
        caller: &Caller,
        named: &str,
        input: SendToAgent,
    ) -> Result<SendAnswer> {
        check::not_blank("input", &input.input)?;
        check::long("input", &input.input, limits::V1_BODY_BYTES)?;
        check::key("idempotency_key", input.idempotency_key.as_deref())?;
        let row = self.to_steer(caller, named).await?;
        let from = caller.principal().to_string();
        let send = SendInput {
            input: input.input,
            // Different callers may use the same key.
            idempotency_key: input.idempotency_key.map(|key| format!("{from} {key}")),
            mode: input.mode,
            message_id: None,
            from: Some(from),
        };
        let sent = self.host(&row.info.id).send(&send).await;
        self.noting_failure(&row.info.id, sent).await.map_err(of_host)
    }

    /// Ends the agent's turn, not the agent.
    #[boxed]
    pub async fn interrupt_agent(&self, caller: &Caller, named: &str) -> Result<AgentView> {
        let row = self.to_steer(caller, named).await?;
        let interrupted = self.host(&row.info.id).interrupt().await;
        self.noting_failure(&row.info.id, interrupted).await.map_err(of_host)?;
        Ok(self.view(row))
    }

    /// Stops an agent. Returns after its end is stored, or after 5 s.
    #[boxed]
    pub async fn stop_agent(
        &self,
        caller: &Caller,
        named: &str,
        stop: &StopAgent,
    ) -> Result<StopAnswer> {
        if !(0..=3600).contains(&stop.timeout) {
            return Err(Error::invalid("timeout", "must be from 0 to 3600 seconds"));
        }
        let row = self.to_steer(caller, named).await?;
        let mut listener = self.core.store.bus().listen(&stream_of(&row.info.id));
        let stopped = self.host(&row.info.id).stop(stop).await;
        let stopped = self.noting_failure(&row.info.id, stopped).await.map_err(of_host)?;
        let _ = timeout(RECORD_WITHIN, listener.wait_closed()).await;
        Ok(stopped)
    }

    /// Conversation entries before an offset, latest first, each with its offset; and whether there
    /// are more.
    pub(in crate::service) async fn texts_before(
        &self,
        id: &AgentId,
        (before, limit, with_tools): (Option<i64>, u32, bool),
    ) -> Result<(Vec<(i64, HistoryEntry)>, bool)> {
        let limit = limit as usize;
        let (name, view) = self.log_of(id).await?;
        let mut before = before.unwrap_or(i64::MAX);
        let mut texts = Vec::new();
        loop {
            let size = PageSize::rows(limits::PAGE_MAX);
            let page =
                self.core.store.events().before(view.id, &name, before, "chat_entry", size).await?;
            for event in &page.rows {
                before = event.seq;
                let Some(entry) = entry_of(event, with_tools) else { continue };
                if texts.len() == limit {
                    return Ok((texts, true));
                }
                texts.push((event.seq, entry));
            }
            if !page.more {
                return Ok((texts, false));
            }
        }
    }

    async fn log_of(&self, id: &AgentId) -> Result<(StreamName, StreamView)> {
        let name = stream_of(id);
        let view = self.core.store.streams().view(&name).await?;
        Ok((name, view.ok_or_else(|| unknown(id.as_str()))?))
    }

    /// The conversation of an agent, in the form in which its host answers.
    #[boxed]
    pub async fn agent_history(
        &self,
        caller: &Caller,
        named: &str,
        query: &HistoryQuery,
    ) -> Result<HistoryPage> {
        let id = self.find(caller, named).await?.info.id;
        let (_, view) = self.log_of(&id).await?;
        // The agent may go on meanwhile: who follows it from `offset` gets what comes later.
        let end = view.head + 1;
        let before = query.before.map_or(end, |before| before.cast_signed().min(end));
        let with_tools = query.include_tools.unwrap_or(true);
        let limit = match query.limit {
            0 => u32::MAX,
            limit => limit.try_into().unwrap_or(u32::MAX),
        };
        let (latest, _) = self.texts_before(&id, (Some(before), limit, with_tools)).await?;
        let entries = latest
            .into_iter()
            .rev()
            .map(|(seq, entry)| HistoryEntry { offset: Some(seq.cast_unsigned()), ..entry });
        let events = self.core.store.events();
        let total = events.count_chat_entries(view.id, before, with_tools).await?;
        let offset = view.head.cast_unsigned();
        Ok(HistoryPage { agent_id: id, entries: entries.collect(), offset, total })
    }

    /// The result of a task, or what its agent has said so far; and whether that text was cut.
    #[boxed]
    pub async fn content_of(&self, task: &Task) -> Result<(String, bool)> {
        if let (Some(result), false) = (&task.result, task.result_truncated) {
            return Ok((result.clone(), false));
        }
        let name = tasks::stream_of(&task.task_id);
        let Some(view) = self.core.store.streams().view(&name).await? else {
            return Ok((String::new(), false));
        };
        // No newline is due before the first line, or in a line that the next frame continues.
        let (mut content, mut is_open, mut is_cut) = (String::new(), true, false);
        let paging = self.each_event((&name, &view), "frame", |event| {
            let said = serde_json::from_str::<FrameData>(&event.data).ok();
            let Some(said) = said.filter(|said| said.kind == FrameKind::Stdout) else {
                return ControlFlow::Continue(());
            };
            if content.len() + said.line.len() + 1 > limits::TASK_CONTENT_BYTES {
                is_cut = true;
                return ControlFlow::Break(());
            }
            if !is_open {
                content.push('\n');
            }
            content.push_str(&said.line);
            is_open = said.partial;
            is_cut |= said.truncated;
            ControlFlow::Continue(())
        });
        paging.await?;
        Ok((content, is_cut))
    }

    /// Reads the events of one kind in a stream, the oldest first, until `read` has enough.
    async fn each_event(
        &self,
        (name, view): (&StreamName, &StreamView),
        kind: &str,
        mut read: impl FnMut(&Event) -> ControlFlow<()> + Send,
    ) -> Result<()> {
        let mut after = 0;
        loop {
            let (events, size) = (self.core.store.events(), PageSize::rows(limits::PAGE_MAX));
            let page = events.of_stream(view.id, name, after, Some(kind), size).await?;
            for event in &page.rows {
                after = event.seq;
                if read(event).is_break() {
                    return Ok(());
                }
            }
            if !page.more {
                return Ok(());
            }
        }
    }

    /// Takes a task's answer for the call that waits for it: no message brings the answer again.
    #[boxed]
    pub async fn return_answer(
        &self,
        caller: &Caller,
        task: &TaskId,
    ) -> Result<Option<ReturnedAnswer>> {
        let task = task.clone();
        // What the operator asks for another peer is told to that peer.
        let is_told = !caller.is_operator();
        let write = self.core.store.on_behalf_of(caller).write(job!(|tx| {
            let work = tx.assignments().of_task(&task).await?;
            let Some(mut work) = work else { return Ok(None) };
            let was_sent = match work.answered {
                _ if !is_told => false,
                None => is_answer_given(tx, &work).await?,
                Some(answered) => answered == RunState::Queued,
            };
            if !was_sent {
                note_returned(tx, &mut work).await?;
            }
            let AssignmentRow { instance, backend, .. } = work;
            Ok(Some(ReturnedAnswer { instance, backend, was_sent }))
        }));
        write.await
    }

    /// The agent that `named` names, if the caller may see it.
    pub(super) async fn find(&self, caller: &Caller, named: &str) -> Result<AgentRow> {
        if named == LATEST {
            let (reader, filter) = (Reader::from_caller(caller), AgentFilter::default());
            let page =
                self.core.store.agents().list(&reader, &filter, None, PageSize::rows(1)).await?;
            return page.rows.into_iter().next().ok_or_else(|| unknown(named));
        }
        let row = match AgentId::parse(named).filter(|id| id.as_str().starts_with(AgentId::PREFIX))
        {
            Some(id) => self.core.store.agents().get(&id).await?,
            None => self.core.store.agents().of_key(&named.to_ascii_lowercase()).await?,
        };
        let is_seen = |row: &AgentRow| caller.access_to(&row.owned) != AccessLevel::Hidden;
        match row.filter(is_seen) {
            Some(row) => Ok(row),
            None => self.find_named(named, is_seen).await,
        }
    }

    /// The agent whose id begins with `named`, or whose session key is `agent:<named>` or
    /// `agent:<named>:main`, else that was started with this name. Only one live agent may match;
    /// if none lives, only one agent.
    async fn find_named(
        &self,
        named: &str,
        is_seen: impl Fn(&AgentRow) -> bool,
    ) -> Result<AgentRow> {
        let mut rows = self.core.store.agents().named(&named.to_ascii_lowercase()).await?;
        rows.retain(is_seen);
        if rows.iter().any(|row| row.ended_at.is_none()) {
            rows.retain(|row| row.ended_at.is_none());
        }
        // Several agents of one session key count as one: the latest.
        rows.dedup_by(|later, first| later.info.session_key == first.info.session_key);
        let candidate = |row: &AgentRow| Candidate {
            id: row.info.id.as_str().to_owned(),
            about: row.info.session_key.clone(),
        };
        Error::only_one(ResourceKind::Agent, named, rows, candidate)
    }

    async fn to_steer(&self, caller: &Caller, named: &str) -> Result<AgentRow> {
        let row = self.find(caller, named).await?;
        may_steer(caller, &row)?;
        check_live(&row)?;
        Ok(row)
    }

    /// The ended agent whose conversation a caller wants to continue.
    pub(super) async fn ended_agent(
        &self,
        caller: &Caller,
        field: &'static str,
        named: &str,
    ) -> Result<AgentRow> {
        let row = self.find(caller, named).await?;
        may_steer(caller, &row)?;
        if row.ended_at.is_none() {
            return Err(Error::invalid(field, "lives: send to it"));
        }
        Ok(row)
    }

    /// Begins the wait of a call until `until`, which is also in the assignment's row.
    pub(in crate::service) fn wait_for_answer(
        &self,
        caller: &Caller,
        run: &RunId,
        until: Timestamp,
    ) -> AnswerWaiter {
        lock(&self.live.waits).entry(run.clone()).or_default().ends.push(until);
        AnswerWaiter {
            agents: self.clone(),
            caller: caller.clone(),
            run: run.clone(),
            until,
            is_handed: false,
        }
    }

    fn last_wait(&self, run: &RunId) -> Option<Timestamp> {
        lock(&self.live.waits).get(run).and_then(|waits| waits.ends.iter().max().copied())
    }

    /// Ends the wait of the call that waited until `until`. If a later call waits, the assignment's
    /// row has the end of that later wait and stays unchanged. An earlier call may still wait.
    /// Every call of this process that waits is known before its row is committed. With `is_lost`,
    /// a call may have taken the answer by an earlier job of the same queue, and no call has it.
    pub(super) async fn stop_waiting(
        &self,
        caller: &Caller,
        (run, until): (RunId, Timestamp),
        is_lost: bool,
    ) -> Result<()> {
        let agents = self.clone();
        let store = self.core.store.on_behalf_of(caller);
        let write = store.write(job!(|tx| {
            let Some(mut work) = tx.assignments().get(&run).await? else { return Ok(()) };
            if is_lost && work.answered.is_some_and(RunState::is_over) {
                return Ok(tell_again(tx, &agents.core, &mut work).await?);
            }
            if work.waits_until != Some(until) {
                return Ok(());
            }
            work.waits_until = agents.last_wait(&run);
            tx.assignments().update(&work).await?;
            if work.ended_at.is_some() {
                // The answer came after the call was cut, and is held for the call.
                hold_answer(tx, &work).await?;
            }
            Ok(())
        }));
        write.await
    }

    /// Calls that waited for the answer to a task ended with the process that had them. Where
    /// several machines share the database, nobody knows whose call a wait is, and it lasts until
    /// its end.
    pub(super) async fn end_former_waits(&self) -> Result<()> {
        if !self.core.machine_names().await?.is_empty() {
            return Ok(());
        }
        for (run, until) in self.core.store.assignments().awaited(self.core.now()).await? {
            self.stop_waiting(&Caller::Operator, (run, until), false).await?;
        }
        Ok(())
    }
}

/// The conversation entry of an event; `None` also for one of a tool, unless `with_tools`.
fn entry_of(event: &Event, with_tools: bool) -> Option<HistoryEntry> {
    let AgentEvent { body, .. } = serde_json::from_str(&event.data).ok()?;
    let AgentEventBody::ChatEntry { chat_entry } = body else { return None };
    (with_tools || !chat_entry.is_of_tool()).then_some(chat_entry)
}

/// A frame, as the log has it.
#[derive(Deserialize)]
struct FrameData {
    line: String,
    kind: FrameKind,
    /// The next frame continues this line.
    #[serde(default)]
    partial: bool,
    #[serde(default)]
    truncated: bool,
}

pub(super) fn check_live(row: &AgentRow) -> Result<()> {
    if row.ended_at.is_none() {
        return Ok(());
    }
    let info = &row.info;
    Err(Error::Conflict(format!("agent {} has ended: {}", info.id, info.state.as_str())))
}

pub(super) fn of_host(error: HostError) -> Error {
    match error {
        HostError::Refused(reason) => Error::Conflict(reason),
        other => Error::NotNow(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use svc_model::{NewTask, PeerId};
    use svc_store::testing::TestStore;

    use super::*;
    use crate::service::{
        Services,
        assignments::{self, AssignmentOutcome, TaskEnd},
        team,
        testing::{opened, session},
    };

    /// Work of the session `s-1`, with its peer, its task, and a wait until each of `untils`.
    async fn work(
        test: &TestStore,
        agents: &Agents,
        untils: &[Timestamp],
    ) -> Result<(PeerId, TaskId, Vec<AnswerWaiter>)> {
        let (agents, untils) = (agents.clone(), untils.to_vec());
        let made = test.store.write(job!(|tx| {
            let (core, caller) = (&agents.core, session("s-1", &[]));
            let peer = team::peer_of_speaker(tx, core, &caller, "s-1").await?.peer_id;
            let new = NewTask { prompt: Some("go".to_owned()), ..NewTask::default() };
            let task = tasks::make(tx, core, &caller, new).await?.task.task_id;
            let row = AssignmentRow {
                task_id: Some(task.clone()),
                waits_until: untils.last().copied(),
                instance: "slow".to_owned(),
                ..AssignmentRow::new(RunId::from_task(&task), "s-1".to_owned(), tx.now())
            };
            tx.assignments().insert(&row).await?;
            let wait = |until| agents.wait_for_answer(&caller, &row.run_id, until);
            let waits = untils.into_iter().map(wait);
            Ok((peer, task, waits.collect()))
        }));
        made.await
    }

    async fn end(test: &TestStore, agents: &Agents, task: &TaskId) -> Result<()> {
        let (agents, task) = (agents.clone(), task.clone());
        let end = test.store.write(job!(|tx| {
            let work = tx.assignments().of_task(&task).await?;
            let (Some(mut work), Some(mut task)) = (work, tx.tasks().get(&task).await?) else {
                panic!("no work");
            };
            let end = TaskEnd::new(AssignmentOutcome::Failed, Some("no answer".to_owned()));
            assignments::end(tx, &agents.core, &mut work, &mut task, end).await
        }));
        end.await
    }

    /// The number of messages that the session takes from its inbox.
    async fn taken(services: &Services, peer: &PeerId) -> Result<usize> {
        let (caller, page) = (session("s-1", &[]), PageBounds::new(None, None));
        Ok(services.team.take_messages(&caller, peer.as_str(), page).await?.items.len())
    }

    /// The work ends after the calls were cut, and before that is noted.
    #[tokio::test]
    async fn an_answer_that_is_held_for_cut_calls_comes_with_the_last_cut() {
        let (test, services) = opened().await;
        let first = services.now().plus(Duration::from_hours(1));
        let second = first.plus(Duration::from_millis(1));
        let (peer, task, waits) = work(&test, &services.agents, &[first, second]).await.unwrap();
        end(&test, &services.agents, &task).await.unwrap();
        let mut events = test.store.bus().listen(&StreamName::new("peer", &peer));
        for (wait, messages) in waits.into_iter().rev().zip([0, 1]) {
            let head = events.last();
            drop(wait);
            timeout(Duration::from_mins(1), events.wait(head)).await.unwrap();
            assert_eq!(taken(&services, &peer).await.unwrap(), messages);
        }
    }

    #[tokio::test]
    async fn answer_that_a_message_has_brought_is_not_returned_by_a_repeated_call() {
        let (test, services) = opened().await;
        let caller = session("s-1", &[]);
        for is_taken in [true, false] {
            let (peer, task, _) = work(&test, &services.agents, &[]).await.unwrap();
            end(&test, &services.agents, &task).await.unwrap();
            if is_taken {
                assert_eq!(taken(&services, &peer).await.unwrap(), 1);
            }
            for _ in 0..2 {
                let answer = services.agents.return_answer(&caller, &task).await.unwrap();
                assert_eq!(answer.unwrap().was_sent, is_taken);
            }
            assert_eq!(taken(&services, &peer).await.unwrap(), 0);
        }
    }

    /// Both calls have taken the answer, and one or both are cut.
    #[tokio::test]
    async fn answer_that_one_of_two_calls_handed_over_comes_as_no_message() {
        let (test, services) = opened().await;
        let caller = session("s-1", &[]);
        let first = services.now().plus(Duration::from_hours(1));
        let second = first.plus(Duration::from_millis(1));
        for handed in [Some(0), Some(1), None] {
            let (peer, task, waits) =
                work(&test, &services.agents, &[first, second]).await.unwrap();
            end(&test, &services.agents, &task).await.unwrap();
            for wait in &waits {
                wait.note_answer();
                let answer = services.agents.return_answer(&caller, &task).await.unwrap();
                assert!(!answer.unwrap().was_sent);
            }
            let mut events = test.store.bus().listen(&StreamName::new("peer", &peer));
            let head = events.last();
            for (index, wait) in waits.into_iter().enumerate() {
                if handed == Some(index) {
                    wait.note_handed();
                }
            }
            if handed.is_none() {
                timeout(Duration::from_mins(1), events.wait(head)).await.unwrap();
            }
            let expected = usize::from(handed.is_none());
            assert_eq!(taken(&services, &peer).await.unwrap(), expected, "{handed:?}");
        }
    }

    /// The call has taken the answer, and is cut before its response is handed over.
    #[tokio::test]
    async fn answer_that_was_not_handed_over_comes_as_a_message() {
        let (test, services) = opened().await;
        let caller = session("s-1", &[]);
        let until = services.now().plus(Duration::from_hours(1));
        for is_handed in [false, true] {
            let (peer, task, waits) = work(&test, &services.agents, &[until]).await.unwrap();
            end(&test, &services.agents, &task).await.unwrap();
            let answer = async || {
                let answer = services.agents.return_answer(&caller, &task).await.unwrap();
                answer.unwrap().was_sent
            };
            for wait in waits {
                wait.note_answer();
                assert!(!answer().await);
                let mut events = test.store.bus().listen(&StreamName::new("peer", &peer));
                let head = events.last();
                if is_handed {
                    wait.note_handed();
                } else {
                    drop(wait);
                    timeout(Duration::from_mins(1), events.wait(head)).await.unwrap();
                }
            }
            assert_eq!(taken(&services, &peer).await.unwrap(), usize::from(!is_handed));
            assert_eq!(answer().await, !is_handed, "it comes once");
        }
    }

    #[tokio::test]
    async fn a_history_reads_as_many_entries_as_it_returns() {
        let (test, services) = opened().await;
        test.execute(
            r"
            insert into stream (name, created_at, visibility) values ('agent/ag_1', 1, 'team');
            insert into agent (agent_id, stream_id, instance, backend, session_key, project, cwd, created_by, state, pid,
                request_timeout, started_at, machine_id)
            select 'ag_1', id, 'pair', 'claude', 'agent:pair:main', '/p', '/c', 'operator', 'idle', 1, 1, 1, 'mach_test'
            from stream where name = 'agent/ag_1';
            with recursive many (n) as (select 1 union all select n + 1 from many where n < 900)
            insert into event (stream_id, seq, kind, data, at)
            select id, n, 'chat_entry', json_object('type', 'chat_entry', 'agent_id', 'ag_1', 'timestamp', '1970-01-01T00:00:01Z',
                'chat_entry', json_object('role', iif(n % 2 = 0, 'tool', 'assistant'), 'content', 'said ' || n,
                    'timestamp', '1970-01-01T00:00:01Z')), 1
            from many, stream where name = 'agent/ag_1';",
        )
        .await;
        let history = async |query: HistoryQuery| {
            let page = services.agents.agent_history(&Caller::Operator, "ag_1", &query).await?;
            let offsets: Vec<u64> = page.entries.iter().filter_map(|entry| entry.offset).collect();
            Ok::<_, Error>((offsets, page.offset, page.total))
        };
        let last = HistoryQuery { limit: 2, ..HistoryQuery::default() };
        let said = HistoryQuery { include_tools: Some(false), before: Some(801), ..last };
        assert_eq!(history(last).await.unwrap(), (vec![899, 900], 900, 900));
        assert_eq!(history(said).await.unwrap(), (vec![797, 799], 900, 400));
        let all = HistoryQuery::default();
        assert_eq!(history(all).await.unwrap().0, (1..=900).collect::<Vec<_>>());
        test.execute("update event set data = cast(x'ff' as text) where seq < 300").await;
        assert!(history(all).await.is_err());
        assert_eq!(history(last).await.unwrap(), (vec![899, 900], 900, 900));
    }
}
