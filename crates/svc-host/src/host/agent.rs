//! The state machine of an agent: its turns, its inputs, its requests, its end.
//!
//! No I/O but the spool: [`HostedAgent::take_actions`] returns the actions on the program.

use std::sync::Arc;
use std::time::{Duration, Instant};

use svc_model::agent::{
    AgentEventBody, AgentInfo, AgentInput, AgentState, HistoryEntry, HostSpec, RequestOptionKind,
    TurnOutcome,
};
use svc_model::{AgentRequestId, Clock, Ids, MessageId, Timestamp, limits};
use svc_sys::lines::Line;
use svc_wire::host_protocol::{
    AnswerAgent, NO_TURN, NOT_THE_DAEMON, SendAnswer, SendInput, SendMode,
};

use super::agent_spool::AgentSpool;
use super::backend::{
    AgentProtocol, Decision, Effect, Effects, PromptInput, TurnResult, VendorRequest, protocol_of,
};
use super::record::{
    AgentEnd, AgentRecord, PartialEntry, StateDetails, StderrTail, TurnOutputLine,
};
use super::turn::{AgentInputs, AgentRequests, QueuedInput, Turn, settled_by_policy};
use crate::runner::RunExit;

const NOT_RUNNING: &str = "agent is not running";

/// How often the end of a usage limit is looked for. The clock may be set, or the machine sleep.
const LIMIT_CHECK: Duration = Duration::from_mins(1);

/// An action of the host on the program.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Writes to the program's input once the event at offset `after` is on the disk.
    Write {
        bytes: Vec<u8>,
        after: u64,
    },
    CloseInput,
    /// Sends the signal of this number to the process group.
    Signal(i32),
    /// Sends SIGKILL to the program and all its descendants.
    Kill,
}

#[derive(Debug)]
pub(super) struct HostedAgent {
    spec: HostSpec,
    ids: Ids,
    record: AgentRecord,
    protocol: Box<dyn AgentProtocol>,
    ready: bool,
    turn: Option<Turn>,
    inputs: AgentInputs,
    requests: AgentRequests,
    /// Offset of the last input or answer. Its event must be on the disk before anything is written
    /// to the agent.
    recorded: u64,
    stderr: StderrTail,
    start_deadline: Option<Instant>,
    idle_since: Instant,
    limited_until: Option<i64>,
    limit_check: Option<Instant>,
    stop: Option<Stop>,
    /// How the program ended; `None` while it runs.
    pub(super) end: Option<AgentEnd>,
    actions: Vec<Action>,
}

#[derive(Debug)]
struct Stop {
    /// When SIGKILL is due; `None` once it was sent.
    kill_at: Option<Instant>,
    /// The reason, if the stop is due to a failure.
    failure: Option<String>,
}

impl HostedAgent {
    pub(super) fn new(
        spec: HostSpec,
        clock: Arc<dyn Clock>,
        ids: Ids,
        (spool, partial): (AgentSpool, PartialEntry),
        pid: u32,
        now: Instant,
    ) -> Self {
        let mut agent = Self {
            protocol: protocol_of(&spec),
            start_deadline: Some(now + Duration::from_millis(spec.start_timeout_ms)),
            idle_since: now,
            record: AgentRecord::new(&spec, clock, spool, partial, pid),
            ids,
            ready: false,
            turn: None,
            inputs: AgentInputs::default(),
            requests: AgentRequests::default(),
            recorded: 0,
            stderr: StderrTail::default(),
            limited_until: None,
            limit_check: None,
            stop: None,
            end: None,
            actions: Vec::new(),
            spec,
        };
        if let Some(prompt) = agent.spec.prompt.clone() {
            let AgentInput { input, message_id, from, idempotency_key } = prompt;
            let mode = SendMode::Queue;
            let send = SendInput { input, idempotency_key, mode, message_id, from };
            drop(agent.send(send, now));
        }
        agent.drive(now, |protocol, effects| protocol.start(effects));
        agent
    }

    pub(super) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    pub(super) fn info(&self) -> AgentInfo {
        self.record.info()
    }

    pub(super) fn output(&mut self, line: Line<'_>, now: Instant) {
        let ends_turn = self.protocol.is_turn_end(line.bytes);
        self.record.append(&TurnOutputLine::new("output", line, ends_turn));
        self.drive(now, |protocol, effects| {
            if line.is_cut {
                let size = line.bytes.len();
                let error = format!("a line of more than {size} bytes was not read any further");
                effects.push(Effect::Error(error));
            }
            protocol.line(line.bytes, now, effects);
        });
    }

    pub(super) fn stderr(&mut self, line: Line<'_>) {
        self.record.append(&TurnOutputLine::new("stderr", line, false));
        self.stderr.push(line.bytes);
    }

    /// Takes input, for now or for after the current and queued turns.
    pub(super) fn send(&mut self, send: SendInput, now: Instant) -> Result<SendAnswer, String> {
        let SendInput { input, idempotency_key, mode, message_id, from } = send;
        let repeated = |key: &String| self.inputs.repeated(key, &input);
        if let Some(answer) = idempotency_key.as_ref().and_then(repeated) {
            return answer;
        }
        self.check_running()?;
        let fresh = || MessageId::new(&self.ids, self.record.now()).to_string();
        let message_id = message_id.unwrap_or_else(fresh);
        let queued = QueuedInput { input: input.clone(), message_id, from };
        let answer = match mode {
            SendMode::Steer if self.turn.is_none() => return Err(NO_TURN.to_owned()),
            SendMode::Steer => self.steer(queued, now),
            SendMode::Queue => {
                let waits = !self.ready || self.turn.is_some();
                let answer = SendAnswer { message_id: queued.message_id.clone(), queued: waits };
                self.inputs.push(queued)?;
                if !waits {
                    // Older input is in the queue only at a usage limit. Who sends now begins a
                    // turn with this input, and risks no other.
                    self.inputs.queue.rotate_right(1);
                }
                answer
            }
        };
        if let Some(key) = idempotency_key {
            self.inputs.remember(key, &input, &answer);
        }
        self.next_turn(now);
        Ok(answer)
    }

    fn steer(&mut self, queued: QueuedInput, now: Instant) -> SendAnswer {
        let message_id = queued.message_id.clone();
        let input = PromptInput { text: &queued.input, message_id: &message_id };
        let mut effects = Effects::new();
        if self.protocol.steer(&input, &mut effects) {
            self.recorded = queued.record(&mut self.record);
            self.apply(effects, now);
            return SendAnswer { message_id, queued: false };
        }
        self.inputs.queue.push_front(queued);
        SendAnswer { message_id, queued: true }
    }

    /// Begins the next turn if input is queued and the agent is idle.
    fn next_turn(&mut self, now: Instant) {
        if !self.ready || self.turn.is_some() || self.stop.is_some() || self.end.is_some() {
            return;
        }
        let Some(queued) = self.inputs.queue.pop_front() else { return };
        self.recorded = queued.record(&mut self.record);
        self.turn = Some(Turn::new(Some(queued.message_id.clone())));
        self.limited_until = None;
        self.record.set_state(AgentState::Running);
        let input = PromptInput { text: &queued.input, message_id: &queued.message_id };
        self.drive(now, |protocol, effects| protocol.prompt(&input, effects));
    }

    /// Answers a request. Only the daemon may, as the agent's own processes can connect to the
    /// socket too.
    pub(super) fn answer(&mut self, answer: AnswerAgent, now: Instant) -> Result<(), String> {
        if !self.spec.answer_key.is_shown_by(answer.key.as_ref()) {
            return Err(NOT_THE_DAEMON.to_owned());
        }
        let Some(decision) = self.requests.decision(&answer) else {
            return Err(if self.requests.answered.contains(&answer.request_id) {
                "already answered".to_owned()
            } else if self.end.is_some() {
                NOT_RUNNING.to_owned()
            } else {
                format!("no such request: {}", answer.request_id.as_str())
            });
        };
        let by = answer.by.unwrap_or_else(|| "daemon".to_owned());
        self.close_request(&answer.request_id, answer.option_id, Some(&decision?), &by, now);
        Ok(())
    }

    fn check_running(&self) -> Result<(), String> {
        let runs = self.end.is_none() && self.stop.is_none();
        if runs { Ok(()) } else { Err(NOT_RUNNING.to_owned()) }
    }

    /// Ends the turn, but not the agent. With a message: only that message's turn, or its queued
    /// input.
    pub(super) fn interrupt(&mut self, message: Option<&str>, now: Instant) -> Result<(), String> {
        self.check_running()?;
        if let Some(id) = message
            && self.inputs.remove(id)
        {
            let turn = Some(Turn::new(Some(id.to_owned())).finish(TurnResult::interrupted()));
            let details = StateDetails { turn, until: self.limited_until, reason: None };
            self.record.set_state_with(self.record.info.state, details);
            return Ok(());
        }
        let is_meant =
            |turn: &&mut Turn| message.is_none_or(|id| turn.message_id.as_deref() == Some(id));
        let turn = self.turn.as_mut().filter(is_meant).ok_or(NO_TURN)?;
        turn.interrupted = true;
        self.cancel_requests("interrupt", now);
        self.drive(now, |protocol, effects| protocol.interrupt(effects));
        Ok(())
    }

    /// Ends the program: SIGTERM, then SIGKILL after `max_wait`. Without `max_wait`: SIGKILL at
    /// once.
    pub(super) fn stop(&mut self, max_wait: Option<Duration>, reason: Option<&str>, now: Instant) {
        if self.end.is_some() {
            return;
        }
        let kill_at = max_wait.map(|max_wait| now + max_wait);
        match (&mut self.stop, kill_at) {
            (Some(stop), None) => {
                self.actions.extend(stop.kill_at.take().map(|_| Action::Kill));
            }
            (Some(stop), Some(kill_at)) => {
                stop.kill_at = stop.kill_at.map(|earlier| earlier.min(kill_at));
            }
            (None, _) => {
                if let Some(turn) = &mut self.turn {
                    turn.interrupted = true;
                }
                self.begin_stop(kill_at, None);
                let reason = reason.map(str::to_owned);
                let details = StateDetails { reason, ..StateDetails::default() };
                self.record.set_state_with(AgentState::Stopping, details);
            }
        }
    }

    fn begin_stop(&mut self, kill_at: Option<Instant>, failure: Option<String>) {
        self.stop = Some(Stop { kill_at, failure });
        self.start_deadline = None;
        let terminate = Action::Signal(rustix::process::Signal::TERM.as_raw());
        let end = if kill_at.is_some() { terminate } else { Action::Kill };
        self.actions.extend([Action::CloseInput, end]);
    }

    /// Handles the end of the program and all its descendants, after their output was read to its
    /// end.
    pub(super) fn exited(&mut self, exit: RunExit, now: Instant) {
        let (exit_code, signal) = exit.code_and_signal();
        self.drive(now, |protocol, effects| protocol.end(exit_code, effects));
        self.cancel_requests("exit", now);
        self.record.partial.finish();
        let stop = self.stop.take();
        let graceful = stop.as_ref().is_none_or(|stop| stop.kill_at.is_some());
        let failure = stop.as_ref().and_then(|stop| stop.failure.clone());
        let was_starting = self.record.info.state == AgentState::Starting;
        let is_done = failure.is_none() && (stop.is_some() || exit_code == Some(0));
        let state = if is_done { AgentState::Done } else { AgentState::Error };
        if !is_done {
            let when = if was_starting { " before it was ready" } else { "" };
            let error = failure.unwrap_or_else(|| format!("the program {exit}{when}"));
            let error = self.stderr.explain(error);
            self.record.append(&AgentEventBody::Error { error: error.clone() });
            self.record.entry(HistoryEntry::error(error.clone()));
            self.record.info.error = Some(error);
        }
        let error = self.record.info.error.clone();
        // `finish` turns the outcome of an interrupted turn into `Interrupted`.
        let ended = TurnResult { outcome: TurnOutcome::Ended, result: None, error };
        let turn = self.turn.take().map(|turn| turn.finish(ended));
        self.inputs.queue.clear();
        let end = AgentEnd { exit_code, signal, state, graceful };
        self.end = Some(end);
        self.record.end(end, turn);
    }

    /// When [`Self::tick`] is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.end.is_some() {
            return None;
        }
        let idle = self.idle_deadline();
        let limited = self.limited_until.and(self.limit_check);
        let stop = self.stop.as_ref().and_then(|stop| stop.kill_at);
        let requests = self.requests.first_deadline();
        [self.start_deadline, self.protocol.deadline(), stop, idle, limited, requests]
            .into_iter()
            .flatten()
            .min()
    }

    fn idle_deadline(&self) -> Option<Instant> {
        let idles = self.spec.one_shot && self.spec.idle_timeout_ms > 0 && self.stop.is_none();
        (idles && self.record.info.state == AgentState::Idle)
            .then(|| self.idle_since + Duration::from_millis(self.spec.idle_timeout_ms))
    }

    pub(super) fn tick(&mut self, now: Instant) {
        let is_due = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        if is_due(self.protocol.deadline()) {
            self.drive(now, |protocol, effects| protocol.tick(effects));
        }
        if is_due(self.start_deadline) {
            let seconds = Duration::from_millis(self.spec.start_timeout_ms).as_secs_f64();
            self.fail(format!("it did not answer the handshake in {seconds} s (`start_timeout`)"));
        }
        if let Some(stop) = self.stop.as_mut().filter(|stop| is_due(stop.kill_at)) {
            stop.kill_at = None;
            self.actions.push(Action::Kill);
        }
        for id in self.requests.overdue(now) {
            self.deny(&id, "timeout", "nobody answered in time", now);
        }
        if is_due(self.idle_deadline()) {
            self.stop(Some(Duration::from_secs(10)), Some("idle_timeout"), now);
        }
        if is_due(self.limited_until.and(self.limit_check)) {
            self.check_limit(now);
        }
    }

    /// Ends a usage limit that has been over for [`limits::AFTER_LIMIT`], and begins the turn that
    /// waited for that.
    fn check_limit(&mut self, now: Instant) {
        let Some(until) = self.limited_until else { return };
        let end = Timestamp::from_millis(until).plus(limits::AFTER_LIMIT);
        let left = end.since(self.record.now());
        if !left.is_zero() || self.turn.is_some() {
            let pause = if left.is_zero() { LIMIT_CHECK } else { left.min(LIMIT_CHECK) };
            self.limit_check = Some(now + pause);
            return;
        }
        self.limited_until = None;
        if self.record.info.state == AgentState::Limited {
            self.idle_since = now;
            self.record.set_state(AgentState::Idle);
            self.next_turn(now);
        }
    }

    /// Kills a program that cannot be used; the agent ends in state `error`.
    fn fail(&mut self, failure: String) {
        if self.stop.is_none() && self.end.is_none() {
            self.begin_stop(None, Some(failure));
        }
    }

    /// Calls the protocol and applies the effects.
    fn drive(&mut self, now: Instant, call: impl FnOnce(&mut dyn AgentProtocol, &mut Effects)) {
        let mut effects = Effects::new();
        call(&mut *self.protocol, &mut effects);
        self.apply(effects, now);
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
                Effect::Session(id) if self.record.info.session_id.as_ref() == Some(&id) => {}
                Effect::Session(id) => {
                    self.record.info.session_id = Some(id);
                    self.record.set_state(self.record.info.state);
                }
                Effect::Delta(words) => self.record.add_partial(&words),
                Effect::Entry(entry) => {
                    let text = self.record.entry(entry);
                    if let Some(turn) = &mut self.turn {
                        turn.last_text = text.or(turn.last_text.take());
                    }
                }
                Effect::Usage(usage) => {
                    self.record.append(&AgentEventBody::Usage(usage));
                }
                Effect::Error(error) => {
                    if let Some(turn) = &mut self.turn {
                        turn.last_error = Some(error.clone());
                    }
                    self.record.append(&AgentEventBody::Error { error });
                }
                Effect::Request(request) => self.ask(request, now),
                Effect::RequestGone(key) => {
                    if let Some(id) = self.requests.with_key(&key) {
                        self.close_request(&id, None, None, "agent", now);
                    }
                }
                Effect::Fatal(failure) => self.fail(failure),
            }
        }
    }

    fn become_ready(&mut self, now: Instant) {
        if std::mem::replace(&mut self.ready, true) {
            return;
        }
        self.start_deadline = None;
        if self.inputs.queue.is_empty() && self.record.info.state == AgentState::Starting {
            self.idle_since = now;
            self.record.set_state(AgentState::Idle);
        }
        self.next_turn(now);
    }

    fn work(&mut self) {
        self.turn.get_or_insert_with(|| Turn::new(None));
        self.limited_until = None;
        let state = self.record.info.state;
        if matches!(state, AgentState::Starting | AgentState::Idle | AgentState::Limited) {
            self.record.set_state(AgentState::Running);
        }
    }

    fn limit(&mut self, until: Option<i64>, now: Instant) {
        self.limited_until = until;
        self.idle_since = now;
        if self.record.info.state != AgentState::Stopping {
            let details = StateDetails { until, ..StateDetails::default() };
            self.record.set_state_with(AgentState::Limited, details);
        }
        self.check_limit(now);
    }

    fn end_turn(&mut self, result: TurnResult, now: Instant) {
        self.cancel_requests("turn_end", now);
        self.record.partial.finish();
        let Some(turn) = self.turn.take() else { return };
        // A turn that ends otherwise shows no limit, unless the vendor has named the limit's end.
        let is_limited = result.outcome == TurnOutcome::Refused || self.limited_until.is_some();
        let turn = Some(turn.finish(result));
        self.idle_since = now;
        let state = match self.record.info.state {
            AgentState::Stopping => AgentState::Stopping,
            AgentState::Limited if is_limited => AgentState::Limited,
            _ => AgentState::Idle,
        };
        let until = self.limited_until;
        self.record.set_state_with(state, StateDetails { until, turn, reason: None });
        if state == AgentState::Limited {
            // The next turn would be refused, too, and its input would be lost. It waits for the
            // end of the limit, or until somebody sends again.
            self.check_limit(now);
        } else {
            self.next_turn(now);
        }
    }

    fn ask(&mut self, request: VendorRequest, now: Instant) {
        self.work();
        let id = AgentRequestId::new(&self.ids, self.record.now());
        let deadline = now + Duration::from_millis(self.spec.request_timeout_ms);
        let settled = settled_by_policy(&self.spec, &request);
        self.requests.open(&self.record, id.clone(), request, deadline);
        let allow = || self.requests.option(&id, RequestOptionKind::AllowOnce);
        if settled == Some(false) {
            self.deny(&id, "policy", "the agent's settings deny all requests", now);
        } else if let Some(option_id) = settled.and_then(|_| allow()) {
            let decision = Decision::Option { option_id: option_id.clone(), text: None };
            self.close_request(&id, Some(option_id), Some(&decision), "policy", now);
        } else {
            self.record.set_state(AgentState::RequiresAction);
        }
    }

    fn deny(&mut self, id: &AgentRequestId, by: &str, reason: &str, now: Instant) {
        let option = self.requests.option(id, RequestOptionKind::Deny);
        self.close_request(id, option, Some(&Decision::Denied(reason.to_owned())), by, now);
    }

    fn cancel_requests(&mut self, by: &str, now: Instant) {
        let open: Vec<_> = self.requests.open.keys().cloned().collect();
        for id in open {
            self.close_request(&id, None, Some(&Decision::Cancelled), by, now);
        }
    }

    /// Records the answer to an open request. If there is a decision and the agent still runs,
    /// passes it to the agent.
    fn close_request(
        &mut self,
        id: &AgentRequestId,
        option_id: Option<String>,
        decision: Option<&Decision>,
        by: &str,
        now: Instant,
    ) {
        let closed = self.requests.close(&self.record, id, option_id, by);
        let Some((key, offset)) = closed else { return };
        if self.requests.open.is_empty() && self.record.info.state == AgentState::RequiresAction {
            self.record.set_state(AgentState::Running);
        }
        if let Some(decision) = decision {
            self.recorded = offset;
            if self.end.is_none() {
                self.drive(now, |protocol, effects| protocol.answer(&key, decision, effects));
            }
        }
    }
}
