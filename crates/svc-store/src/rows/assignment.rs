//! Texts that were given to participants, with what became of them.

use serde::{Deserialize, Serialize};
use svc_model::{
    AgentId, Message, MessageId, PeerId, RunId, TaskId, Timestamp,
    agent::TurnEnd,
    conversation::{RunMode, RunState, SourceTool},
};

/// How far an assignment is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AssignmentState {
    /// It waits for its turn.
    #[default]
    Queued,
    /// An agent is being started for it, or the prompt is on its way: nobody knows whether it was
    /// taken.
    Starting,
    /// The host or the inbox has it.
    Sent,
    /// The model has it.
    Running,
    /// It was answered.
    Ok,
    /// The turn ended without words.
    NoReply,
    /// It met a limit of the target's.
    Timeout,
    /// It came to nothing.
    Error,
}

impl AssignmentState {
    /// Whether nothing more comes of it.
    pub const fn is_over(self) -> bool {
        self.as_run().is_over()
    }

    /// What whoever sent it is told.
    pub const fn as_run(self) -> RunState {
        match self {
            Self::Queued | Self::Starting | Self::Sent => RunState::Queued,
            Self::Running => RunState::Running,
            Self::Ok => RunState::Ok,
            Self::NoReply => RunState::NoReply,
            Self::Timeout => RunState::Timeout,
            Self::Error => RunState::Error,
        }
    }
}

/// Which agents may take a task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkMode {
    #[default]
    SpawnOnly,
    /// A live one.
    PeerOnly,
    /// A live one if there is one, else a new one.
    PeerPrefer,
}

/// What a task requires of its agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkRequirements {
    /// Which agents may take it.
    pub mode: WorkMode,
    /// The vendor's model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Where a new agent works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Whether the request chose that folder. Then it has to be one that the caller may use.
    pub has_chosen_cwd: bool,
    /// The vendor's id of a conversation to go on with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume: Option<String>,
    /// The live agent that was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// The session that was named and that a person started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_id: Option<PeerId>,
    /// Instances to try after the present one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failover: Vec<String>,
}

/// Who gives a text, or gets it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AssignmentEnd {
    /// Key of the session, or `operator`.
    pub session: String,
    pub peer: PeerId,
    /// Of a hosted session its incarnation.
    pub agent: Option<AgentId>,
}

/// A text that was given to a participant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AssignmentRow {
    pub run_id: RunId,
    /// The task that it is.
    pub task_id: Option<TaskId>,
    /// The message that it is, once it is in an inbox.
    pub message_id: Option<MessageId>,
    /// How it is to be taken.
    pub mode: RunMode,
    pub state: AssignmentState,
    /// Key of the session that gave it, or `operator`.
    pub source_session: String,
    /// Its peer; empty if it has none.
    pub source_peer: PeerId,
    /// Of a hosted session its incarnation.
    pub source_agent: Option<AgentId>,
    /// The call that gave it, if it is a task.
    pub source_tool: Option<SourceTool>,
    /// Key of the session that has it; empty while nobody has it.
    pub target_session: String,
    /// Its peer; empty if it has none.
    pub target_peer: PeerId,
    /// Of a hosted session its incarnation.
    pub target_agent: Option<AgentId>,
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
    /// Names it among those of its source.
    pub idempotency_key: Option<String>,
    /// When it was taken.
    pub created_at: Timestamp,
    /// When the target's turn began.
    pub begun_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    /// Of a task: the instance that has it now.
    pub instance: String,
    /// The kind of agent.
    pub backend: String,
    /// What it wants of its agent.
    pub requirements: WorkRequirements,
    /// Which attempt this is, from 1 on.
    pub attempt: u32,
    /// When the task is given up.
    pub deadline: Option<Timestamp>,
    /// Whether the agent was started for it.
    pub is_spawned: bool,
    /// The peer of that agent goes with its end.
    pub removes_peer: bool,
    /// Offset of its prompt in the agent's stream.
    pub taken_at: Option<i64>,
    /// Whether the agent has said anything.
    pub has_words: bool,
    /// Bytes of the entry that it is saying that are frames already.
    pub said: u32,
    /// How its turn ended, if the agent's program has yet to.
    pub turn: Option<TurnEnd>,
}

impl AssignmentRow {
    /// One that this session gave now, and that nobody has.
    pub fn new(run_id: RunId, source_session: String, created_at: Timestamp) -> Self {
        Self { run_id, source_session, created_at, attempt: 1, ..Self::default() }
    }

    /// It is this one's from now on.
    pub fn set_target(&mut self, AssignmentEnd { session, peer, agent }: AssignmentEnd) {
        (self.target_session, self.target_peer, self.target_agent) = (session, peer, agent);
    }

    /// Whether it is this task.
    pub fn is_task(&self, id: &str) -> bool {
        self.task_id.as_ref().is_some_and(|task| task.as_str() == id)
    }

    /// Whether a reply is still its reply. The message of a task that was cancelled may be answered
    /// after that.
    pub fn is_unanswered(&self) -> bool {
        self.ended_at.is_none() || self.task_id.is_some() && self.reply_id.is_none()
    }
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
