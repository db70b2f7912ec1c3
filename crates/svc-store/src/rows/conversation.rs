//! Sends of one session to another, with what became of them.

use svc_model::{
    AgentId, Message, MessageId, PeerId, RunId, Timestamp,
    conversation::{RunMode, RunState, SourceTool},
};

/// A send, its turn and its reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRow {
    pub run_id: RunId,
    /// What was sent.
    pub message_id: MessageId,
    /// How it is to be taken.
    pub mode: RunMode,
    /// Who sent it.
    pub source: RunEnd,
    /// Who gets it.
    pub target: RunEnd,
    pub state: RunState,
    /// Why it came to nothing, as a code.
    pub reason: Option<String>,
    /// The same in words.
    pub error: Option<String>,
    /// The message that holds the reply, or says that there is none.
    pub reply_id: Option<MessageId>,
    /// A call waits for the reply until then.
    pub waits_until: Option<Timestamp>,
    /// What the call was answered; `None` while nobody was.
    pub answered: Option<RunState>,
    /// Names the send among those of its source.
    pub idempotency_key: Option<String>,
    /// When it was taken.
    pub created_at: Timestamp,
    /// When the target's turn began.
    pub begun_at: Option<Timestamp>,
    /// When the send ended.
    pub ended_at: Option<Timestamp>,
}

/// One end of a send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunEnd {
    /// Key of the session, or `operator`.
    pub session: String,
    pub peer: PeerId,
    /// Of a hosted session its incarnation.
    pub agent: Option<AgentId>,
}

/// A message that waits to become a turn of a hosted agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentMail {
    pub message: Message,
    /// How it is to be taken, if it is a send.
    pub mode: Option<RunMode>,
    /// Of a reply that answers a reply: the number of the turn that it begins.
    pub turn: Option<u32>,
}

/// Who asked for a task that was dispatched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskAsker {
    /// The incarnation of a hosted agent.
    pub agent: Option<AgentId>,
    /// The call.
    pub tool: Option<SourceTool>,
    /// The peer of the agent that was started for it goes with its end.
    pub removes_peer: bool,
    /// When the task is given up.
    pub deadline: Option<Timestamp>,
}
