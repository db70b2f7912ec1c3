//! The agent as its host knows it: its state, its turns, what waits for it and what it waits for.
//!
//! No input or output but the spool: what is to be done to the program is left in [`HostedAgent::take_actions`].

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use svc_model::agent::{
    AgentEventBody, AgentInfo, AgentInput, AgentRequest, AgentState, HistoryEntry, HistoryRole,
    HostSpec, PermissionMode, RequestKind, RequestOptionKind, TurnOutcome,
};
use svc_model::{AgentRequestId, Clock, Ids, MessageId, Timestamp};
use svc_sys::lines::Line;
use svc_wire::host_protocol::{
    AnswerAgent, NO_TURN, NOT_THE_DAEMON, SendAnswer, SendInput, SendMode,
};

use super::backend::{
    AgentProtocol, Decision, Effect, Effects, PromptInput, TurnResult, VendorRequest, protocol_of,
};
use super::output_line::TurnOutputLine;
use super::paths::is_inside;
use super::requests::AgentRequests;
use super::saying::Saying;
use super::stderr_tail::StderrTail;
use super::turn::{QueuedInput, Turn};
use crate::runner::{AgentSpool, RunExit};

/// Longest text of an entry, in bytes.
const MAX_ENTRY_TEXT: usize = 1024 * 1024;
/// Inputs that may wait.
const MAX_QUEUE: usize = 1000;
/// The answer to who comes too late.
const NOT_RUNNING: &str = "agent is not running";

/// What is to be done to the program.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Bytes for its input, once the event of this offset is on the disk.
    Write { bytes: Vec<u8>, after: u64 },
    /// Its input ends after what was written.
    CloseInput,
    /// A signal of this number for its process group.
    Signal(i32),
    /// SIGKILL for it and all that it has started.
    Kill,
}

/// How the program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AgentEnd {
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) state: AgentState,
    /// Whether no SIGKILL of ours was needed.
    pub(super) graceful: bool,
}

/// The agent.
#[derive(Debug)]
pub(super) struct HostedAgent {
    spec: HostSpec,
    clock: Arc<dyn Clock>,
    ids: Ids,
    spool: AgentSpool,
    saying: Saying,
    protocol: Box<dyn AgentProtocol>,
    info: AgentInfo,
    ready: bool,
    turn: Option<Turn>,
    queue: VecDeque<QueuedInput>,
    /// The hash of what was sent under each idempotency key, and its answer.
    sent: HashMap<String, ([u8; 32], SendAnswer)>,
    requests: AgentRequests,
    /// Offset of the last input: nothing is written to the agent before that is on the disk.
    recorded: u64,
    stderr: StderrTail,
    start_deadline: Option<Instant>,
    idle_since: Instant,
    limited_until: Option<i64>,
    stop: Option<Stop>,
    end: Option<AgentEnd>,
    actions: Vec<Action>,
}

#[derive(Debug)]
struct Stop {
    /// When it is killed; `None` once it was.
    kill_at: Option<Instant>,
    /// Why the agent is stopped, if that is a failure.
    failure: Option<String>,
}

fn hash_of(input: &str) -> [u8; 32] {
    Sha256::digest(input).into()
}

impl HostedAgent {
    /// An agent whose program was just started.
    pub(super) fn new(
        spec: HostSpec,
        clock: Arc<dyn Clock>,
        ids: Ids,
        (spool, saying): (AgentSpool, Saying),
        pid: u32,
        now: Instant,
    ) -> Self {
        let info = AgentInfo {
            id: spec.agent_id.clone(),
            project: spec.project.clone(),
            state: AgentState::Starting,
            pid,
            worktree: spec.cwd.display().to_string(),
            started_at: clock.now(),
            task: spec.task.clone(),
            description: spec.description.clone(),
            backend: spec.backend,
            instance: spec.instance.clone(),
            session_key: spec.session_key.clone(),
            session_id: None,
            exit_code: None,
            signal: None,
            error: None,
        };
        let mut agent = Self {
            protocol: protocol_of(&spec),
            start_deadline: Some(now + Duration::from_millis(spec.start_timeout_ms)),
            idle_since: now,
            info,
            clock,
            ids,
            spool,
            saying,
            ready: false,
            turn: None,
            queue: VecDeque::new(),
            sent: HashMap::new(),
            requests: AgentRequests::default(),
            recorded: 0,
            stderr: StderrTail::default(),
            limited_until: None,
            stop: None,
            end: None,
            actions: Vec::new(),
            spec,
        };
        agent.append(&AgentEventBody::State {
            state: AgentState::Starting,
            task: agent.spec.task.clone(),
            description: agent.spec.description.clone(),
            until: None,
            session_id: None,
            reason: None,
            turn: None,
        });
        if let Some(prompt) = agent.spec.prompt.clone() {
            let AgentInput { input, message_id, from, idempotency_key } = prompt;
            let mode = SendMode::Queue;
            let send = SendInput { input, idempotency_key, mode, message_id, from };

            drop(agent.send(send, now));
        }
        let mut effects = Effects::new();
        agent.protocol.start(&mut effects);
        agent.apply(effects, now);
        agent
    }

    /// What is to be done, in order.
    pub(super) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// The agent as it is told of.
    pub(super) fn info(&self) -> AgentInfo {
        let mut info = self.info.clone();
        if info.error.is_none() {
            info.error = self.spool.error().map(|error| {
                format!("its events cannot be written: {error}; it waits until they can")
            });
        }
        info
    }

    /// How the program ended; `None` while it runs.
    pub(super) fn end(&self) -> Option<AgentEnd> {
        self.end
    }

    /// A line of standard output.
    pub(super) fn output(&mut self, line: Line<'_>, now: Instant) {
        self.append(&TurnOutputLine::of("output", line));
        let mut effects = Effects::new();
        if line.is_cut {
            let size = line.bytes.len();
            effects.push(Effect::Error(format!(
                "a line of more than {size} bytes was not read any further"
            )));
        }
        self.protocol.line(line.bytes, now, &mut effects);
        self.apply(effects, now);
    }

    /// A line of standard error.
    pub(super) fn stderr(&mut self, line: Line<'_>) {
        self.append(&TurnOutputLine::of("stderr", line));
        self.stderr.push(line.bytes);
    }

    /// Takes input, now or after the turns before it.
    pub(super) fn send(&mut self, send: SendInput, now: Instant) -> Result<SendAnswer, String> {
        let SendInput { input, idempotency_key, mode, message_id, from } = send;
        if let Some((known, answer)) = idempotency_key.as_ref().and_then(|key| self.sent.get(key)) {
            let is_repeat = *known == hash_of(&input);
            let conflict = "conflict: this idempotency key was used for another input";
            return if is_repeat { Ok(answer.clone()) } else { Err(conflict.to_owned()) };
        }
        if self.end.is_some() || self.stop.is_some() {
            return Err(NOT_RUNNING.to_owned());
        }
        let fresh = || MessageId::new(&self.ids, self.clock.now()).to_string();
        let message_id = message_id.unwrap_or_else(fresh);
        let queued = QueuedInput { input: input.clone(), message_id, from };
        let answer = match mode {
            SendMode::Steer if self.turn.is_none() => {
                return Err(NO_TURN.to_owned());
            }
            SendMode::Steer => self.steer(queued, now),
            SendMode::Queue => self.enqueue(queued)?,
        };
        if let Some(key) = idempotency_key {
            self.sent.insert(key, (hash_of(&input), answer.clone()));
        }
        self.next_turn(now);
        Ok(answer)
    }

    fn enqueue(&mut self, queued: QueuedInput) -> Result<SendAnswer, String> {
        if self.queue.len() == MAX_QUEUE {
            return Err(format!("{MAX_QUEUE} inputs wait already"));
        }
        let waits = !self.ready || self.turn.is_some() || !self.queue.is_empty();
        let answer = SendAnswer { message_id: queued.message_id.clone(), queued: waits };
        self.queue.push_back(queued);
        Ok(answer)
    }

    fn steer(&mut self, queued: QueuedInput, now: Instant) -> SendAnswer {
        let message_id = queued.message_id.clone();
        let input = PromptInput { text: &queued.input, message_id: &message_id };
        let mut effects = Effects::new();
        if self.protocol.steer(&input, &mut effects) {
            self.record_input(&queued);
            self.apply(effects, now);
            return SendAnswer { message_id, queued: false };
        }
        self.queue.push_front(queued);
        SendAnswer { message_id, queued: true }
    }

    /// Begins the next turn, if there is one and the agent is free.
    fn next_turn(&mut self, now: Instant) {
        if !self.ready || self.turn.is_some() || self.stop.is_some() || self.end.is_some() {
            return;
        }
        let Some(queued) = self.queue.pop_front() else { return };
        self.record_input(&queued);
        self.turn = Some(Turn::of(Some(queued.message_id.clone())));
        self.limited_until = None;
        // However long the agent is silent.
        self.set_state(AgentState::Running);
        let mut effects = Effects::new();
        let input = PromptInput { text: &queued.input, message_id: &queued.message_id };
        self.protocol.prompt(&input, &mut effects);
        self.apply(effects, now);
    }

    fn record_input(&mut self, queued: &QueuedInput) {
        self.recorded = self.append(&AgentEventBody::Input {
            data: queued.input.clone(),
            from: queued.from.clone(),
            message_id: queued.message_id.clone(),
        });
        self.entry(HistoryEntry::text(HistoryRole::User, queued.input.clone()));
    }

    /// Answers what the agent asked. The daemon alone does: the agent's own processes reach the socket, too.
    pub(super) fn answer(&mut self, answer: AnswerAgent, now: Instant) -> Result<(), String> {
        if !self.spec.answer_key.is_shown_by(answer.key.as_ref()) {
            return Err(NOT_THE_DAEMON.to_owned());
        }
        let Some(decision) = self.requests.decision(&answer) else {
            return Err(if self.requests.is_answered(&answer.request_id) {
                "already answered".to_owned()
            } else if self.end.is_some() {
                NOT_RUNNING.to_owned()
            } else {
                format!("no such request: {}", answer.request_id.as_str())
            });
        };
        let decision = decision?;
        let by = answer.by.unwrap_or_else(|| "daemon".to_owned());
        self.decide(&answer.request_id, answer.option_id, &decision, &by, now);
        Ok(())
    }

    /// Ends the turn, not the agent. Of one input its turn, or takes it back if it waits.
    pub(super) fn interrupt(
        &mut self,
        message_id: Option<&str>,
        now: Instant,
    ) -> Result<(), String> {
        if self.end.is_some() || self.stop.is_some() {
            return Err(NOT_RUNNING.to_owned());
        }
        if let Some(id) = message_id
            && let Some(rank) = self.queue.iter().position(|queued| queued.message_id == id)
        {
            self.queue.remove(rank);
            let taken_back = Turn::of(Some(id.to_owned())).finish(TurnResult::interrupted());
            self.set_state_with(self.info.state, |event| {
                if let AgentEventBody::State { turn, .. } = event {
                    *turn = Some(taken_back);
                }
            });
            return Ok(());
        }
        let is_meant =
            |turn: &&mut Turn| message_id.is_none_or(|id| turn.message_id.as_deref() == Some(id));
        let Some(turn) = self.turn.as_mut().filter(is_meant) else {
            return Err(NO_TURN.to_owned());
        };
        turn.interrupted = true;
        self.cancel_requests("interrupt", now);
        let mut effects = Effects::new();
        self.protocol.interrupt(&mut effects);
        self.apply(effects, now);
        Ok(())
    }

    /// Ends the program: politely, and after `patience` by force; at once by force if there is none.
    pub(super) fn stop(&mut self, patience: Option<Duration>, reason: Option<&str>, now: Instant) {
        if self.end.is_some() {
            return;
        }
        let kill_at = patience.map(|patience| now + patience);
        match (&mut self.stop, kill_at) {
            (Some(stop), None) => {
                if stop.kill_at.take().is_some() {
                    self.actions.push(Action::Kill);
                }
            }
            (Some(stop), Some(kill_at)) => {
                stop.kill_at = stop.kill_at.map(|earlier| earlier.min(kill_at));
            }
            (None, _) => {
                if let Some(turn) = &mut self.turn {
                    turn.interrupted = true;
                }
                self.begin_stop(kill_at, None);
                self.set_state_with(AgentState::Stopping, |event| {
                    if let AgentEventBody::State { reason: told, .. } = event {
                        *told = reason.map(str::to_owned);
                    }
                });
            }
        }
    }

    fn begin_stop(&mut self, kill_at: Option<Instant>, failure: Option<String>) {
        self.stop = Some(Stop { kill_at, failure });
        self.start_deadline = None;
        self.actions.push(Action::CloseInput);
        self.actions.push(match kill_at {
            Some(_) => Action::Signal(rustix::process::Signal::TERM.as_raw()),
            None => Action::Kill,
        });
    }

    /// The program has ended, and all that it had started; its outputs are read to their ends.
    pub(super) fn exited(&mut self, exit: RunExit, now: Instant) {
        let (exit_code, signal) = match exit {
            RunExit::Code(code) => (Some(code), None),
            RunExit::Signal(signal) => (None, Some(signal)),
        };
        let mut effects = Effects::new();
        self.protocol.end(exit_code, &mut effects);
        self.apply(effects, now);
        self.cancel_requests("exit", now);
        self.saying.finish();
        let stop = self.stop.take();
        let graceful = stop.as_ref().is_none_or(|stop| stop.kill_at.is_some());
        let failure = stop.as_ref().and_then(|stop| stop.failure.clone());
        let was_starting = self.info.state == AgentState::Starting;
        let is_done = failure.is_none() && (stop.is_some() || exit_code == Some(0));
        let state = if is_done { AgentState::Done } else { AgentState::Error };
        if !is_done {
            let how = match exit {
                RunExit::Code(code) => format!("the program ended with exit code {code}"),
                RunExit::Signal(signal) => format!("the program was ended by signal {signal}"),
            };
            let when = if was_starting { " before it was ready" } else { "" };
            let error = failure.unwrap_or_else(|| format!("{how}{when}"));
            let error = self.stderr.explain(error);
            self.append(&AgentEventBody::Error { error: error.clone() });
            self.entry(HistoryEntry::error(error.clone()));
            self.info.error = Some(error);
        }
        self.info.pid = 0;
        self.info.exit_code = exit_code;
        self.info.signal = signal;
        self.start_deadline = None;
        self.limited_until = None;
        self.queue.clear();
        let turn = self.turn.take().map(|turn| {
            let outcome =
                if turn.interrupted { TurnOutcome::Interrupted } else { TurnOutcome::Ended };
            turn.finish(TurnResult { outcome, result: None, error: self.info.error.clone() })
        });
        self.end = Some(AgentEnd { exit_code, signal, state, graceful });
        self.set_state_with(state, |event| {
            if let AgentEventBody::State { turn: ended, .. } = event {
                *ended = turn;
            }
        });
        self.append(&AgentEventBody::Exit { exit_code, signal, final_state: state });
    }

    /// When [`Self::tick`] has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.end.is_some() {
            return None;
        }
        let idle = self.idle_deadline();
        let limited = self.limited_until.map(|until| self.instant_of(until));
        let stop = self.stop.as_ref().and_then(|stop| stop.kill_at);
        let requests = self.requests.first_deadline();
        [self.start_deadline, self.protocol.deadline(), stop, idle, limited, requests]
            .into_iter()
            .flatten()
            .min()
    }

    fn idle_deadline(&self) -> Option<Instant> {
        let idles = self.spec.one_shot && self.spec.idle_timeout_ms > 0 && self.stop.is_none();
        (idles && self.info.state == AgentState::Idle)
            .then(|| self.idle_since + Duration::from_millis(self.spec.idle_timeout_ms))
    }

    fn instant_of(&self, until: i64) -> Instant {
        self.idle_since + Timestamp::from_millis(until).since(self.clock.now())
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, now: Instant) {
        let is_due = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        if is_due(self.protocol.deadline()) {
            let mut effects = Effects::new();
            self.protocol.tick(&mut effects);
            self.apply(effects, now);
        }
        if is_due(self.start_deadline) {
            let seconds = Duration::from_millis(self.spec.start_timeout_ms).as_secs_f64();
            self.fail(format!("it did not answer the handshake in {seconds} s (`start_timeout`)"));
        }
        if is_due(self.stop.as_ref().and_then(|stop| stop.kill_at)) {
            if let Some(stop) = &mut self.stop {
                stop.kill_at = None;
            }
            self.actions.push(Action::Kill);
        }
        for id in self.requests.overdue(now) {
            self.deny(&id, "timeout", "nobody answered in time", now);
        }
        if is_due(self.idle_deadline()) {
            self.stop(Some(Duration::from_secs(10)), Some("idle_timeout"), now);
        }
        if self.limited_until.is_some_and(|until| until <= self.clock.now().as_millis()) {
            self.limited_until = None;
            if self.info.state == AgentState::Limited && self.turn.is_none() {
                self.set_state(AgentState::Idle);
            }
        }
    }

    /// Ends a program that cannot be used; the agent's state will be `error`.
    fn fail(&mut self, failure: String) {
        if self.stop.is_none() && self.end.is_none() {
            self.begin_stop(None, Some(failure));
        }
    }

    fn apply(&mut self, effects: Effects, now: Instant) {
        for effect in effects {
            match effect {
                Effect::Write(bytes) => {
                    self.actions.push(Action::Write { bytes, after: self.recorded });
                }
                Effect::CloseInput => self.actions.push(Action::CloseInput),
                Effect::Signal(number) => self.actions.push(Action::Signal(number)),
                Effect::Ready => self.become_ready(now),
                Effect::Working => self.work(),
                Effect::TurnEnd(result) => self.end_turn(result, now),
                Effect::Limited { until } => self.limit(until, now),
                Effect::Session(id) => {
                    if self.info.session_id.as_ref() != Some(&id) {
                        self.info.session_id = Some(id);
                        self.set_state(self.info.state);
                    }
                }
                Effect::Words(words) => self.saying.add(&words, || self.spool.appended()),
                Effect::Entry(entry) => self.entry(entry),
                Effect::Usage(usage) => {
                    self.append(&AgentEventBody::Usage(usage));
                }
                Effect::Error(error) => {
                    if let Some(turn) = &mut self.turn {
                        turn.last_error = Some(error.clone());
                    }
                    self.append(&AgentEventBody::Error { error });
                }
                Effect::Request(request) => self.ask(request, now),
                Effect::RequestGone(key) => {
                    if let Some(id) = self.requests.of_key(&key) {
                        self.close_request(&id, None, "agent");
                    }
                }
                Effect::Fatal(failure) => self.fail(failure),
            }
        }
    }

    fn become_ready(&mut self, now: Instant) {
        if self.ready {
            return;
        }
        self.ready = true;
        self.start_deadline = None;
        if self.queue.is_empty() && self.info.state == AgentState::Starting {
            self.idle_since = now;
            self.set_state(AgentState::Idle);
        }
        self.next_turn(now);
    }

    fn work(&mut self) {
        self.turn.get_or_insert_with(|| Turn::of(None));
        self.limited_until = None;
        if matches!(self.info.state, AgentState::Starting | AgentState::Idle | AgentState::Limited)
        {
            self.set_state(AgentState::Running);
        }
    }

    fn limit(&mut self, until: Option<i64>, now: Instant) {
        self.limited_until = until;
        self.idle_since = now;
        if self.info.state != AgentState::Stopping {
            self.set_state_with(AgentState::Limited, |event| {
                if let AgentEventBody::State { until: shown, .. } = event {
                    *shown = until;
                }
            });
        }
    }

    fn end_turn(&mut self, result: TurnResult, now: Instant) {
        self.cancel_requests("turn_end", now);
        self.saying.finish();
        let Some(turn) = self.turn.take() else { return };
        let end = turn.finish(result);
        self.idle_since = now;
        let state = match self.info.state {
            state @ (AgentState::Stopping | AgentState::Limited) => state,
            _ => AgentState::Idle,
        };
        let until = self.limited_until;
        self.set_state_with(state, |event| {
            if let AgentEventBody::State { turn, until: shown, .. } = event {
                *turn = Some(end);
                *shown = until;
            }
        });
        self.next_turn(now);
    }

    fn ask(&mut self, request: VendorRequest, now: Instant) {
        self.work();
        let id = AgentRequestId::new(&self.ids, self.clock.now());
        self.append(&AgentEventBody::Request(AgentRequest {
            request_id: id.clone(),
            kind: request.kind,
            title: request.title.clone(),
            options: request.options.clone(),
            tool: request.tool.clone(),
        }));
        let deadline = now + Duration::from_millis(self.spec.request_timeout_ms);
        let is_edit_inside = request.edits.as_ref().is_some_and(|files| {
            !files.is_empty() && files.iter().all(|file| is_inside(&self.spec.cwd, file))
        });
        let is_permission = request.kind == RequestKind::Permission;
        self.requests.open(id.clone(), request, deadline);
        match self.spec.permission {
            PermissionMode::Deny if is_permission => {
                self.deny(&id, "policy", "the agent's settings deny all requests", now);
            }
            PermissionMode::AcceptEdits if is_permission && is_edit_inside => {
                self.choose(&id, RequestOptionKind::AllowOnce, now);
            }
            PermissionMode::Bypass if is_permission => {
                self.choose(&id, RequestOptionKind::AllowOnce, now);
            }
            _ => self.set_state(AgentState::RequiresAction),
        }
    }

    fn choose(&mut self, id: &AgentRequestId, kind: RequestOptionKind, now: Instant) {
        if let Some(option_id) = self.requests.option(id, kind) {
            let decision = Decision::Option { option_id: option_id.clone(), text: None };
            self.decide(id, Some(option_id), &decision, "policy", now);
        } else {
            self.set_state(AgentState::RequiresAction);
        }
    }

    fn deny(&mut self, id: &AgentRequestId, by: &str, reason: &str, now: Instant) {
        let option = self.requests.option(id, RequestOptionKind::RejectOnce);
        self.decide(id, option, &Decision::Denied(reason.to_owned()), by, now);
    }

    fn cancel_requests(&mut self, by: &str, now: Instant) {
        for id in self.requests.ids() {
            self.decide(&id, None, &Decision::Cancelled, by, now);
        }
    }

    fn decide(
        &mut self,
        id: &AgentRequestId,
        option_id: Option<String>,
        decision: &Decision,
        by: &str,
        now: Instant,
    ) {
        let Some((key, offset)) = self.close_request(id, option_id, by) else { return };
        self.recorded = offset;
        if self.end.is_none() {
            let mut effects = Effects::new();
            self.protocol.answer(&key, decision, &mut effects);
            self.apply(effects, now);
        }
    }

    /// The vendor's key of the request, and the offset of its answer; `None` if it is not open.
    fn close_request(
        &mut self,
        id: &AgentRequestId,
        option_id: Option<String>,
        by: &str,
    ) -> Option<(String, u64)> {
        let key = self.requests.close(id)?;
        let request_id = id.clone();
        let offset =
            self.append(&AgentEventBody::Answer { request_id, option_id, by: by.to_owned() });
        if self.requests.is_empty() && self.info.state == AgentState::RequiresAction {
            self.set_state(AgentState::Running);
        }
        Some((key, offset))
    }

    fn set_state(&mut self, state: AgentState) {
        self.set_state_with(state, |_| {});
    }

    fn set_state_with(&mut self, state: AgentState, complete: impl FnOnce(&mut AgentEventBody)) {
        self.info.state = state;
        let mut event = AgentEventBody::state(state);
        if let AgentEventBody::State { session_id, .. } = &mut event {
            session_id.clone_from(&self.info.session_id);
        }
        complete(&mut event);
        self.append(&event);
    }

    fn entry(&mut self, mut entry: HistoryEntry) {
        entry.timestamp = self.clock.now();
        for text in [&mut entry.content, &mut entry.tool_result].into_iter().flatten() {
            entry.truncated |= shorten(text, MAX_ENTRY_TEXT);
        }
        if entry.role == HistoryRole::Assistant && entry.content.is_some() {
            self.saying.finish();
            if let Some(turn) = &mut self.turn {
                turn.last_text.clone_from(&entry.content);
            }
        }
        let (now, is_of_tool) = (entry.timestamp, entry.is_of_tool());
        let event = AgentEventBody::ChatEntry { chat_entry: entry };
        self.spool.append_entry(&event, now, is_of_tool);
    }

    fn append(&self, event: &impl Serialize) -> u64 {
        self.spool.append(event, self.clock.now())
    }
}

/// Whether something was cut off.
fn shorten(text: &mut String, most: usize) -> bool {
    if text.len() <= most {
        return false;
    }
    let dropped = text.len() - most;
    text.truncate(text.floor_char_boundary(most));
    write!(text, "\n[{dropped} bytes more are in the stream]")
        .expect("writing to a string does not fail");
    true
}
