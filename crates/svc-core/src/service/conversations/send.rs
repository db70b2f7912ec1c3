//! Sending to a session. The row of a send is stored before its answer, so that a crash in between
//! loses nothing.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{
    Caller, Delivery, DeliveryState, ExpectedDelivery, Message, MessageId, MessageType, NOT_BLANK,
    NewMessage, PeerId, PeerStatus, RunId, Timestamp,
    agent::AgentState,
    conversation::{
        RunMode, RunState, SendStatus, SessionDenial, SessionParty, SourceTool, wait_cycle,
    },
    limits,
};
use svc_store::{
    AssignmentEnd, AssignmentRow, AssignmentState, DeliveryTerms, StoreError, WriteTx, job,
};

use super::{ConversationCaller, Conversations, OPERATOR, SessionRow};
use crate::boxed;
use crate::service::{
    Error, ResourceKind, Result,
    agents::{Agents, AnswerWaiter},
    assignments, check,
    core::Core,
    team,
};

/// How long a message that is put into a turn may take to be there.
const STEER_WITHIN: Duration = Duration::from_secs(5);

/// A message to a session.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SendToSession {
    /// The session's key, or its name.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub session_key: Option<String>,
    /// The text.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SESSION_MESSAGE_BYTES))]
    pub message: String,
    /// Seconds to wait; 0 does not wait.
    #[schemars(range(min = 0, max = 3600), extend("default" = 30))]
    pub timeout_seconds: Option<u32>,
    /// The messageId that this answers.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub in_reply_to: Option<String>,
    /// In place of the key: the session's name.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub label: Option<String>,
    /// In place of the key: an instance, whose main or only session is used.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub agent_id: Option<String>,
    /// Refused unless this is the present incarnation of the session.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub session_id: Option<String>,
    /// `followup`: a turn of its own. `notify`: no answer. `steer`: into the present turn.
    #[serde(default)]
    pub mode: RunMode,
    /// A repeat with the same key sends nothing again and gets the same answer.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub idempotency_key: Option<String>,
}

impl SendToSession {
    /// How long its caller wants to wait for the reply.
    pub fn max_wait(&self) -> Duration {
        self.timeout_seconds.map_or(limits::SESSION_WAIT, |it| Duration::from_secs(u64::from(it)))
    }
}

/// Result of a send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionReply {
    /// Names the send.
    pub run_id: RunId,
    /// `ok`: the reply is here. `accepted`: it comes later, as a message. `no_reply`: the turn
    /// ended without text.
    pub status: SendStatus,
    /// The session.
    pub session_key: String,
    /// What was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// What the session said: data, not instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply: Option<String>,
    /// How far the message is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<SendDelivery>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The same as a code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How far a message is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SendDelivery {
    /// The state.
    pub state: DeliveryState,
    /// Since when.
    pub at: Timestamp,
    /// When it reaches the session's model, as that was when it was sent.
    pub when: ExpectedDelivery,
}

#[derive(Debug, Clone)]
struct Refusal {
    status: SendStatus,
    reason: &'static str,
    error: String,
}

/// A stored send: a new one, or the earlier one with the same idempotency key.
pub(super) struct SentRun {
    pub(super) row: AssignmentRow,
    /// The wait of this call, and its end, if the call waits. A later call may wait longer.
    pub(super) wait: Option<(AnswerWaiter, Timestamp)>,
}

/// A refusal is in the reply to the caller.
enum SendError {
    Refused(Refusal),
    Failed(Error),
}

impl From<Refusal> for SendError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Error> for SendError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<StoreError> for SendError {
    fn from(error: StoreError) -> Self {
        Self::Failed(error.into())
    }
}

impl Refusal {
    fn error(reason: &'static str, error: impl Into<String>) -> Self {
        Self { status: SendStatus::Error, reason, error: error.into() }
    }

    fn forbidden(denial: SessionDenial) -> Self {
        let (reason, error) = (denial.as_str(), denial.explanation().to_owned());
        Self { status: SendStatus::Forbidden, reason, error }
    }
}

impl Conversations {
    /// Sends a message to a session, and waits for what it answers as long as the caller wants to.
    /// The waiter comes with an answer: it must know when that was handed over.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the message is none, [`Error::Conflict`] if its key stands for
    /// another. Every other refusal is in the reply.
    #[boxed]
    pub async fn send(
        &self,
        caller: &Caller,
        session: Option<&str>,
        input: SendToSession,
        max_wait: Duration,
    ) -> Result<(SessionReply, Option<AnswerWaiter>)> {
        check::not_blank("message", &input.message)?;
        check::long("message", &input.message, limits::SESSION_MESSAGE_BYTES)?;
        let requester = self.requester(caller, session).await?;
        let shown = input.session_key.as_ref().or(input.label.as_ref()).or(input.agent_id.as_ref());
        let shown = shown.cloned().unwrap_or_default();
        let sent = match input.in_reply_to.clone() {
            Some(named) => self.answer(caller, &requester, input, &named).await,
            None => self.ask(caller, &requester, (input, max_wait)).await,
        };
        let refusal = match sent {
            Ok(sent) => return Ok(sent),
            Err(SendError::Failed(error)) => return Err(error),
            Err(SendError::Refused(refusal)) => refusal,
        };
        let reply = SessionReply {
            run_id: RunId::new(&self.core.ids, self.core.now()),
            status: refusal.status,
            session_key: shown,
            message_id: None,
            reply: None,
            delivery: None,
            error: Some(refusal.error),
            reason: Some(refusal.reason.to_owned()),
        };
        Ok((reply, None))
    }

    async fn target(
        &self,
        requester: &ConversationCaller,
        input: &SendToSession,
    ) -> Result<SessionRow, SendError> {
        let (name, instance) =
            (input.session_key.as_ref().or(input.label.as_ref()), &input.agent_id);
        let target = match (name, instance) {
            (Some(name), _) => self.find(requester, name).await,
            (None, Some(instance)) => self.of_instance(requester, instance).await,
            (None, None) => {
                let why = "name the session: sessionKey, label or agentId";
                return Err(Error::invalid("sessionKey", why).into());
            }
        };
        let is_self = match &target {
            Ok(target) => requester.sight(target).is_self,
            // A session knows its own key before its first send, when it has no peer.
            Err(_) => name.is_some_and(|name| {
                name == super::CURRENT || name.eq_ignore_ascii_case(&requester.key)
            }),
        };
        if is_self {
            let error = "this is your own session: send to another session";
            return Err(Refusal::error("self_send", error).into());
        }
        target.map_err(|error| match error {
            Error::Unseen(denial) => Refusal::forbidden(denial).into(),
            Error::Invalid { why, .. } => Refusal::error("ambiguous", why).into(),
            Error::NotFound { .. } => {
                let error = "there is no such session: see sessions_list";
                Refusal::error("unknown_session", error).into()
            }
            error => error.into(),
        })
    }

    /// Whether the settings let the caller send to a session.
    fn may_send(&self, requester: &ConversationCaller, target: &SessionRow) -> Result<(), Refusal> {
        if requester.sees_all {
            return Ok(());
        }
        let (key, agent_id) = (target.key(), target.agent_id());
        let to = SessionParty { key: &key, agent_id: &agent_id };
        let from = SessionParty { key: &requester.key, agent_id: &requester.agent_id };
        self.policy().may_send(from, to).map_err(Refusal::forbidden)
    }

    /// Like [`Self::may_send`], for the session of a peer. The person's peer has none.
    async fn denied_to(
        &self,
        requester: &ConversationCaller,
        to: &PeerId,
    ) -> Result<Option<Refusal>> {
        let peer = self.core.store.peers().get(to).await?;
        let sessions = self.sessions_of(peer.into_iter().collect()).await?;
        Ok(sessions.iter().find_map(|session| self.may_send(requester, session).err()))
    }

    /// Whether a message may go to a session as it is now.
    fn admission(
        &self,
        requester: &ConversationCaller,
        target: &SessionRow,
        input: &SendToSession,
    ) -> Result<(), Refusal> {
        let key = target.key();
        self.may_send(requester, target)?;
        if let Some(named) = &input.session_id
            && !target.is_incarnation(named)
        {
            let now = target.incarnation();
            let error = format!("{key} is no longer {named}: its present sessionId is {now}");
            return Err(Refusal::error("stale_incarnation", error));
        }
        if !target.is_there() {
            return Err(Refusal::error("not_running", format!("{key} has ended")));
        }
        let is_busy = if let Some(agent) = &target.agent {
            // In other states the host knows whether a turn is under way. At a usage limit the host
            // gets no messages.
            !matches!(agent.info.state, AgentState::Idle | AgentState::Limited)
        } else {
            // A session that waits for the end of a usage limit is in no turn.
            let peer = &target.peer.peer;
            matches!(peer.status, PeerStatus::Busy | PeerStatus::Waiting) && !peer.is_limited()
        };
        if input.mode == RunMode::Steer && !is_busy {
            let error = format!("{key} is in no turn that could be steered: use mode followup");
            return Err(Refusal::error("not_running", error));
        }
        Ok(())
    }

    /// Sends a message to a session, and waits for what it answers.
    async fn ask(
        &self,
        caller: &Caller,
        requester: &ConversationCaller,
        (input, max_wait): (SendToSession, Duration),
    ) -> Result<(SessionReply, Option<AnswerWaiter>), SendError> {
        let target = self.target(requester, &input).await?;
        let denied = self.admission(requester, &target, &input).err();
        // A repeat gets the first answer, even if its target has ended since.
        if let (Some(denied), None) = (&denied, &input.idempotency_key) {
            return Err(denied.clone().into());
        }
        // Read before the send: afterwards the session may already be in the turn that the message
        // begins.
        let joins_turn = input.mode == RunMode::Steer
            && target.agent.as_ref().is_some_and(|agent| agent.info.backend.takes_steers());
        let when = match self.when(caller, &target.peer.peer.peer_id).await? {
            ExpectedDelivery::NextTurn if joins_turn => ExpectedDelivery::Now,
            when => when,
        };
        let job = SendJob {
            core: self.core.clone(),
            agents: self.agents.clone(),
            caller: caller.clone(),
            requester: requester.clone(),
            target: target.end(),
            input,
            max_wait,
            denied,
        };
        let store = self.core.store.on_behalf_of(caller);
        let sent = store.write(move |tx| Box::pin(job.run(tx))).await?;
        Ok(self.outcome(caller, sent, when).await?)
    }

    /// When a message that is sent now reaches the model of the inbox's peer.
    async fn when(&self, caller: &Caller, peer: &PeerId) -> Result<ExpectedDelivery> {
        Ok(self.hooks.expected_delivery(caller, peer).await?.unwrap_or(ExpectedDelivery::NextTurn))
    }

    /// Answers a message that the caller was sent.
    async fn answer(
        &self,
        caller: &Caller,
        requester: &ConversationCaller,
        input: SendToSession,
        named: &str,
    ) -> Result<(SessionReply, Option<AnswerWaiter>), SendError> {
        let unknown = || Error::not_found(ResourceKind::MessageToPeer, named);
        let id = MessageId::parse(named).ok_or_else(unknown)?;
        let is_own = |message: &Message| Some(&message.to_peer) == requester.peer.as_ref();
        let question = self.core.store.messages().get(&id).await?;
        let question = question.filter(is_own).ok_or_else(unknown)?;
        let to = PeerId::parse(&question.from_peer).ok_or_else(unknown)?;
        if let Some(key) = &input.session_key {
            let sender = self.core.store.peers().get(&to).await?;
            let sender = sender.and_then(|row| row.session_key());
            if sender.is_none_or(|sender| !sender.eq_ignore_ascii_case(key)) {
                let why = "names a message of another session; leave sessionKey out";
                return Err(Error::invalid("inReplyTo", why).into());
            }
        }
        let denied = match question.kind {
            // Who asks wants the answer.
            MessageType::Query => None,
            _ => self.denied_to(requester, &to).await?,
        };
        let when = self.when(caller, &to).await?;
        let (core, caller, requester) = (self.core.clone(), caller.clone(), requester.clone());
        let job = self.core.store.on_behalf_of(&caller).write(job!(|tx| {
            let is_known = match input.idempotency_key.as_deref() {
                Some(key) => {
                    if let Some(sent) = tx.assignments().by_key(&requester.key, key).await? {
                        return Err(other_message(key, sent.message_id.as_ref()).into());
                    }
                    let known = answer_of_key(tx, question.to_peer.as_str(), key).await?;
                    if let Some(other) = known.as_ref().filter(|known| known.to_peer != to) {
                        return Err(other_message(key, Some(&other.id)).into());
                    }
                    known.is_some()
                }
                None => false,
            };
            if !is_known {
                if let Some(denied) = denied {
                    return Err(denied.into());
                }
                rate(tx, &core, &requester, &to).await?;
            }
            let receiver = match tx.peers().get(&to).await? {
                Some(row) => row,
                None if to.is_operator() => team::operator_peer(tx).await?,
                None => {
                    let gone = "the session that asked is gone";
                    return Err(Refusal::error("gone", gone).into());
                }
            };
            let kind = MessageType::Response;
            let new = NewMessage {
                correlation_id: Some(question.id.as_str().to_owned()),
                idempotency_key: input.idempotency_key,
                ..team::plain_message(input.message, kind)
            };
            let (from, tool) = (question.to_peer.as_str().to_owned(), SourceTool::SessionsSend);
            let outgoing = team::OutgoingMessage {
                run_id: question.provenance.map(|it| it.run_id),
                ..team::OutgoingMessage::new(core, caller, from, new, tool)
            };
            Ok::<_, SendError>(team::send_answer(tx, outgoing, &receiver.peer, kind).await?)
        }));
        let message = job.await?;
        let store = &self.core.store;
        let run = message.provenance.as_ref().map(|it| it.run_id.clone());
        let receiver = store.peers().get(&message.to_peer).await?;
        let key = receiver.and_then(|row| row.session_key());
        let reply = SessionReply {
            run_id: run.unwrap_or_else(|| RunId::of_message(&message.id)),
            status: SendStatus::Accepted,
            session_key: key.unwrap_or_else(|| OPERATOR.to_owned()),
            delivery: last_delivery(store.messages().deliveries(&message.id).await?, when),
            message_id: Some(message.id),
            reply: None,
            error: None,
            reason: None,
        };
        Ok((reply, None))
    }
}

/// The answer that a peer gave with this key by a call of `sessions_send`.
async fn answer_of_key(tx: &mut WriteTx, from: &str, key: &str) -> Result<Option<Message>> {
    let stored = tx.messages().all_by_key(from, key).await?;
    Ok(stored.into_iter().find(|message| {
        let provenance = message.provenance.as_ref();
        message.kind == MessageType::Response
            && provenance.is_some_and(|it| it.source_tool == SourceTool::SessionsSend)
    }))
}

/// The error for a key that stands for another message.
fn other_message(key: &str, other: Option<&MessageId>) -> Error {
    let other = other.map_or("", MessageId::as_str);
    Error::Conflict(format!("idempotencyKey {key:?} stands for another message, {other}"))
}

pub(super) fn last_delivery(states: Vec<Delivery>, when: ExpectedDelivery) -> Option<SendDelivery> {
    let last = states.into_iter().max_by_key(|delivery| delivery.state);
    last.map(|last| SendDelivery { state: last.state, at: last.at, when })
}

/// Refuses a send if the session has sent to the peer too often. An answer by a call is a send.
async fn rate(
    tx: &mut WriteTx,
    core: &Core,
    requester: &ConversationCaller,
    target: &PeerId,
) -> Result<(), SendError> {
    let since = tx.now().minus(limits::SESSION_SENDS_WINDOW);
    let most = core.tuning.session_sends;
    let source = (requester.key.as_str(), requester.peer.as_ref());
    // `u32::MAX` means no bound, so nothing is counted.
    if most == u32::MAX
        || tx.assignments().count_since(source, target, since).await? < u64::from(most)
    {
        return Ok(());
    }
    let error = format!("you have sent it {most} messages within a minute: wait a while");
    Err(Refusal::error("rate_limited", error).into())
}

struct SendJob {
    core: Core,
    agents: Agents,
    caller: Caller,
    requester: ConversationCaller,
    target: AssignmentEnd,
    input: SendToSession,
    max_wait: Duration,
    /// Why a send that is no repeat is refused.
    denied: Option<Refusal>,
}

impl SendJob {
    async fn run(self, tx: &mut WriteTx) -> Result<SentRun, SendError> {
        let now = tx.now();
        let waits_until = match self.input.mode {
            RunMode::Notify => None,
            _ if self.max_wait.is_zero() => None,
            RunMode::Steer => Some(now.plus(STEER_WITHIN.min(self.max_wait))),
            RunMode::Followup => Some(now.plus(self.max_wait)),
        };
        if let Some(known) = self.known(tx, waits_until).await? {
            return Ok(known);
        }
        if let Some(denied) = self.denied {
            return Err(denied.into());
        }
        self.check(tx, waits_until.is_some()).await?;
        let own = self.own_peer(tx).await?;
        let kind = match self.input.mode {
            RunMode::Followup => MessageType::Query,
            RunMode::Notify | RunMode::Steer => MessageType::Notification,
        };
        let new = team::plain_message(self.input.message, kind);
        let run_id = RunId::new(&self.core.ids, now);
        let (from, tool) = (own.as_str().to_owned(), SourceTool::SessionsSend);
        let outgoing = team::OutgoingMessage {
            run_id: Some(run_id.clone()),
            ..team::OutgoingMessage::new(self.core, self.caller.clone(), from, new, tool)
        };
        let to = self.target.peer.clone();
        let message = team::deliver(tx, &outgoing, to, kind, DeliveryTerms::default()).await?;
        let mut row = AssignmentRow {
            message_id: Some(message.id),
            source_peer: own,
            source_agent: self.requester.agent,
            mode: self.input.mode,
            state: AssignmentState::Sent,
            waits_until,
            // A call that does not wait returns `Queued`, however soon the turn ends.
            answered: waits_until.is_none().then_some(RunState::Queued),
            idempotency_key: self.input.idempotency_key,
            ..AssignmentRow::new(run_id, self.requester.key, now)
        };
        row.set_target(self.target);
        assignments::open(tx, &row).await?;
        // Made before the commit: no other call ends while the row has a wait that nobody knows.
        let wait = waits_until
            .map(|until| (self.agents.wait_for_answer(&self.caller, &row.run_id, until), until));
        Ok(SentRun { row, wait })
    }

    /// The send of the same key. A caller that was cut off waits again.
    async fn known(
        &self,
        tx: &mut WriteTx,
        waits_until: Option<Timestamp>,
    ) -> Result<Option<SentRun>, SendError> {
        let Some(key) = self.input.idempotency_key.as_deref() else { return Ok(None) };
        let Some(mut known) = tx.assignments().by_key(&self.requester.key, key).await? else {
            return match self.answered_with(tx, key).await? {
                Some(answer) => Err(other_message(key, Some(&answer)).into()),
                None => Ok(None),
            };
        };
        let message = match &known.message_id {
            Some(id) => tx.messages().get(id).await?,
            None => None,
        };
        let is_same = message.is_some_and(|message| message.text == self.input.message)
            && known.target_session == self.target.session
            && known.mode == self.input.mode;
        if !is_same {
            return Err(other_message(key, known.message_id.as_ref()).into());
        }
        let mut wait = None;
        if let Some(until) = waits_until
            && known.answered.is_none()
            && !known.state.is_over()
        {
            // The target may wait for this session since an earlier call was cut.
            self.check_circle(tx).await?;
            let last = known.wait_again(until);
            tx.assignments().update(&known).await?;
            let waiter = self.agents.wait_for_answer(&self.caller, &known.run_id, last);
            wait = Some((waiter, until));
        }
        Ok(Some(SentRun { row: known, wait }))
    }

    async fn answered_with(&self, tx: &mut WriteTx, key: &str) -> Result<Option<MessageId>> {
        let Some(own) = &self.requester.peer else { return Ok(None) };
        Ok(answer_of_key(tx, own.as_str(), key).await?.map(|message| message.id))
    }

    async fn check(&self, tx: &mut WriteTx, waits: bool) -> Result<(), SendError> {
        let target = &self.target.session;
        if let Some(agent) = &self.target.agent {
            let live = tx.agents().live(target).await?;
            if live.is_none_or(|live| live.info.id != *agent) {
                return Err(Refusal::error("not_running", format!("{target} has ended")).into());
            }
        }
        if waits {
            self.check_circle(tx).await?;
        }
        rate(tx, &self.core, &self.requester, &self.target.peer).await
    }

    /// Refuses a wait for a session that waits for the sender. A steer waits for no reply.
    async fn check_circle(&self, tx: &mut WriteTx) -> Result<(), SendError> {
        if self.input.mode == RunMode::Steer {
            return Ok(());
        }
        let (source, target) = (&self.requester.key, &self.target.session);
        let waits = tx.assignments().waits_from(target).await?;
        let Some(path) = wait_cycle(&waits, source, target) else { return Ok(()) };
        let path = path.join(" -> ");
        let error = format!(
            "it would never end: {path}; end your turn with what you have, or send with timeoutSeconds 0"
        );
        Err(Refusal::error("wait_cycle", error).into())
    }

    /// The sender's peer. A session gets one with its first send.
    async fn own_peer(&self, tx: &mut WriteTx) -> Result<PeerId> {
        match (&self.requester.peer, &self.requester.session) {
            (Some(own), _) if own.is_operator() => Ok(team::operator_peer(tx).await?.peer.peer_id),
            (Some(own), _) => Ok(own.clone()),
            (None, session) => {
                let session = session.as_deref().unwrap_or_default();
                let own = team::peer_of_speaker(tx, &self.core, &self.caller, session).await?;
                Ok(own.peer_id)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use svc_model::AgentId;
    use svc_store::testing::TestStore;

    use super::*;
    use crate::service::{
        Services,
        testing::{insert_agent, opened},
    };

    const AGENT: &str = "agent:pair:one";

    /// The running agent `ag_1`, with its peer.
    async fn with_agent() -> (TestStore, Services) {
        let (test, services) = opened().await;
        insert_agent(&test).await;
        let core = services.conversations.core.clone();
        let peer = test.store.write(job!(|tx| {
            let row = tx.agents().get(&AgentId::from("ag_1".to_owned())).await?;
            team::hosted_peer(tx, &core, &row.expect("it is stored"), None).await?;
            Ok::<_, Error>(())
        }));
        peer.await.unwrap();
        (test, services)
    }

    async fn send(services: &Services, mode: &str, max_wait: Duration) -> SessionReply {
        let input = json!({ "sessionKey": AGENT, "message": "x", "mode": mode });
        let input = serde_json::from_value(input).unwrap();
        let sent = services.conversations.send(&Caller::Operator, None, input, max_wait).await;
        sent.unwrap().0
    }

    #[tokio::test]
    async fn steer_is_no_wait_for_a_reply() {
        let (test, services) = with_agent().await;
        test.execute(
            "insert into assignment (run_id, mode, state, source_session, target_session, waits_until, created_at)
            values ('run_1', 'steer', 'sent', 'agent:pair:one', 'operator', 9000000000000, 1);",
        )
        .await;
        let asked = send(&services, "followup", Duration::from_millis(1)).await;
        assert_eq!(asked.status, SendStatus::Accepted, "nobody waits for it: {asked:?}");
        test.execute("update assignment set mode = 'followup' where run_id = 'run_1'").await;
        let asked = send(&services, "followup", Duration::from_millis(1)).await;
        assert_eq!(asked.reason.as_deref(), Some("wait_cycle"), "{asked:?}");
        for max_wait in [Duration::ZERO, Duration::from_millis(1)] {
            let steered = send(&services, "steer", max_wait).await;
            assert_eq!(steered.status, SendStatus::Accepted, "{steered:?}");
            let run = test.store.assignments().get(&steered.run_id).await.unwrap().unwrap();
            assert_eq!((run.waits_until, run.answered), (None, Some(RunState::Queued)));
        }
    }

    #[tokio::test]
    async fn steer_says_now_if_the_turn_takes_it() {
        let (test, services) = with_agent().await;
        for (change, when) in [
            ("update agent set backend = 'claude'", ExpectedDelivery::Now),
            ("update agent set backend = 'codex'", ExpectedDelivery::Now),
            ("update agent set backend = 'exec'", ExpectedDelivery::Now),
            ("update agent set backend = 'acp'", ExpectedDelivery::NextTurn),
            ("update agent set backend = 'gemini'", ExpectedDelivery::NextTurn),
            ("update agent set backend = 'opencode'", ExpectedDelivery::NextTurn),
        ] {
            test.execute(change).await;
            let steered = send(&services, "steer", Duration::ZERO).await;
            assert_eq!(steered.status, SendStatus::Accepted, "{steered:?}");
            assert_eq!(steered.delivery.unwrap().when, when, "{change}");
        }
        test.execute("update agent set state = 'limited'").await;
        let refused = send(&services, "steer", Duration::ZERO).await;
        assert_eq!(refused.reason.as_deref(), Some("not_running"), "{refused:?}");
    }
}
