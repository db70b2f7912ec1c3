//! Operations of callers on agents that live: read them, send to them, stop them.

use std::{collections::VecDeque, ops::ControlFlow, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;
use svc_client::hosts::HostError;
use svc_model::{
    AccessLevel, AgentFilter, AgentId, Caller, Event, FrameKind, LATEST, Reader, StreamName, Task,
    TaskId, Timestamp,
    agent::{AgentEvent, AgentEventBody, AgentState, HistoryEntry},
    backend_names,
    conversation::RunState,
    limits,
};
use svc_store::{AgentRow, AssignmentRow, PageSize, StreamView, job};
use svc_wire::host_protocol::{
    HistoryPage, HistoryQuery, SendAnswer, SendInput, SendMode, StopAgent, StopAnswer,
};
use tokio::time::timeout;

use super::{
    Agents,
    state::{AgentView, may_steer, stream_of, unknown},
};
use crate::boxed;
use crate::service::{
    Error, Page, PageBounds, Result,
    assignments::{is_answer_given, note_returned},
    check, tasks,
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
            for event in &page.events {
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
        let (name, view) = self.log_of(&id).await?;
        let before = query.before.map_or(i64::MAX, u64::cast_signed);
        let with_tools = query.include_tools.unwrap_or(true);
        let most = match query.limit {
            0 => usize::MAX,
            limit => limit.try_into().unwrap_or(usize::MAX),
        };
        let (mut entries, mut total) = (VecDeque::new(), 0_u64);
        let paging = self.each_event((&name, &view), "chat_entry", |event| {
            if event.seq >= before {
                return ControlFlow::Break(());
            }
            if let Some(mut entry) = entry_of(event, with_tools) {
                total += 1;
                entry.offset = Some(event.seq.cast_unsigned());
                entries.push_back(entry);
                if entries.len() > most {
                    entries.pop_front();
                }
            }
            ControlFlow::Continue(())
        });
        paging.await?;
        let offset = view.head.cast_unsigned();
        Ok(HistoryPage { agent_id: id, entries: entries.into(), offset, total })
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
            for event in &page.events {
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
        match rows.len() {
            0 => Err(unknown(named)),
            1 => Ok(rows.remove(0)),
            _ => {
                let keys: Vec<String> = rows
                    .iter()
                    .map(|row| format!("{} ({})", row.info.session_key, row.info.id))
                    .collect();
                Err(Error::Conflict(format!("{named:?} may be any of: {}", keys.join(", "))))
            }
        }
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
