//! Agents, their requests, and texts that were given to participants.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use svc_model::{
    AgentId, AgentRequestId, MachineId, MachineProcess, Message, MessageId, Ownership, PeerId,
    Principal, ProcessIdentity, RunId, TaskId, Timestamp, TokenId,
    agent::{AgentInfo, RequestKind, RequestOption, TurnEnd},
    conversation::{RunMode, RunState, SourceTool},
    is_agent_key, stamp,
};

/// An agent, with fields that only the daemon sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRow {
    pub info: AgentInfo,
    /// Owner: the principal that started the agent. Runner: the agent itself.
    pub owned: Ownership,
    pub machine_id: MachineId,
    /// The process of its host, on that machine; `None` until it is known.
    pub host: Option<ProcessIdentity>,
    /// Pid of the last process of the agent's program, even if it has ended; 0 until it is known.
    pub last_pid: u32,
    pub token_id: Option<TokenId>,
    /// The dispatched task that the agent was started for.
    pub task_id: Option<TaskId>,
    /// A request that nobody answers within this time is denied.
    pub request_timeout: Duration,
    pub ended_at: Option<Timestamp>,
}

impl AgentRow {
    /// The process of its host, with its machine.
    pub fn host_process(&self) -> Option<MachineProcess> {
        let machine_id = self.machine_id.clone();
        self.host.clone().map(|process| MachineProcess { machine_id, process })
    }
}

/// What a hosted agent, or the client of an attended session, asks of a person.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[schemars(rename = "RequestView")]
pub struct RequestRow {
    /// Its id.
    pub request_id: AgentRequestId,
    /// The hosted agent that asks; absent if the client of an attended session does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// The session that asks.
    pub session_key: String,
    /// That session as the database names it: the key of a hosted agent, or the id of a session.
    #[serde(skip)]
    pub session: String,
    /// The peer of that session, while the request is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_id: Option<PeerId>,
    /// Whose the agent or the session is.
    #[serde(skip)]
    pub owned: Ownership,
    /// What kind of answer it waits for.
    pub kind: RequestKind,
    /// In one line.
    pub title: String,
    /// The folder in which it would be done, of an attended session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The call that it is about: `{name, input, tool_use_id?}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<Value>,
    /// What a client asks in its own form, from which its answer is made.
    #[serde(skip)]
    pub prompt: Option<Value>,
    /// What may be answered; empty if nobody can answer it here.
    pub options: Vec<RequestOption>,
    /// When it was asked.
    pub opened_at: Timestamp,
    /// When it is denied, if it is.
    #[serde(skip)]
    pub deadline: Option<Timestamp>,
    /// An answer that the client was given and has not shown to have taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answering: Option<RequestAnswerRow>,
    /// When it was answered, or denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<Timestamp>,
    /// The answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<RequestAnswerRow>,
}

impl RequestRow {
    /// An open request without options of `agent`, or of an attended session.
    pub fn new(
        request_id: AgentRequestId,
        agent_id: Option<AgentId>,
        (session, owned): (String, Ownership),
        (kind, title): (RequestKind, String),
        prompt: Option<Value>,
        opened_at: Timestamp,
    ) -> Self {
        let session_key = match agent_id {
            Some(_) => session.clone(),
            None => Self::key_of_attended(&owned, &session, prompt.as_ref()),
        };
        Self {
            request_id,
            agent_id,
            session_key,
            session,
            peer_id: None,
            owned,
            kind,
            title,
            cwd: None,
            tool: None,
            prompt,
            options: Vec::new(),
            opened_at,
            deadline: None,
            answering: None,
            closed_at: None,
            answer: None,
        }
    }

    /// The key of an attended session: that of its owner's token if it has the form of an agent's
    /// key, else by the form in which its prompt is kept.
    fn key_of_attended(owned: &Ownership, session: &str, prompt: Option<&Value>) -> String {
        if let Some(Principal::Session(key)) = &owned.owner
            && is_agent_key(key)
        {
            return key.to_string();
        }
        // A dialog that no hook has reported yet is known by Claude Code's record.
        let client = prompt.and_then(|prompt| prompt["client"].as_str()).unwrap_or("claude");
        stamp::address_in(client, session).to_string()
    }
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RequestAnswerRow {
    /// The option that was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub option_id: Option<String>,
    /// What was answered in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Who answered: the key of a session, a principal, or `terminal`, `timeout`, `policy`,
    /// `interrupt`, `exit`, `lost`, `gone`.
    pub by: String,
}

impl RequestAnswerRow {
    /// The end of a request of which no answer is known.
    pub fn by(by: &str) -> Self {
        Self { option_id: None, text: None, by: by.to_owned() }
    }
}

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
    /// It failed; `reason` has the code and `error` the text.
    Error,
}

impl AssignmentState {
    pub const fn is_over(self) -> bool {
        self.as_run().is_over()
    }

    /// The state that its sender sees.
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

/// Which agents may take a dispatch.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum WorkMode {
    /// A new agent for this task, ended after it.
    #[default]
    SpawnOnly,
    /// A live agent.
    PeerOnly,
    /// A live agent if there is one, else a new one.
    PeerPrefer,
    /// Refused: agents run in hosts, and not in terminals.
    AutoTmux,
}

/// What a task requires of its agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkRequirements {
    pub mode: WorkMode,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
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

impl WorkRequirements {
    /// Whether a live participant was named.
    pub const fn names_participant(&self) -> bool {
        self.agent_id.is_some() || self.peer_id.is_some()
    }
}

/// Sender or receiver of a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AssignmentEnd {
    /// Key of the session, or `operator`.
    pub session: String,
    pub peer: PeerId,
    /// The incarnation of a hosted session.
    pub agent: Option<AgentId>,
}

/// A text that was given to a participant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AssignmentRow {
    pub run_id: RunId,
    /// Its task, if it is a task.
    pub task_id: Option<TaskId>,
    /// Its message, once it is in an inbox.
    pub message_id: Option<MessageId>,
    pub mode: RunMode,
    pub state: AssignmentState,
    /// Key of the session that gave it, or `operator`.
    pub source_session: String,
    /// Its peer; empty if it has none.
    pub source_peer: PeerId,
    /// The incarnation of a hosted session.
    pub source_agent: Option<AgentId>,
    /// The call that gave it, if it is a task.
    pub source_tool: Option<SourceTool>,
    /// Key of the session that has it; empty while nobody has it.
    pub target_session: String,
    /// Its peer; empty if it has none.
    pub target_peer: PeerId,
    /// The incarnation of a hosted session.
    pub target_agent: Option<AgentId>,
    /// Code of the failure.
    pub reason: Option<String>,
    /// The failure in words.
    pub error: Option<String>,
    /// The message that holds the reply, or says that there is none.
    pub reply_id: Option<MessageId>,
    /// A call waits for the reply until then.
    pub waits_until: Option<Timestamp>,
    /// What the call was answered; `None` while nobody was.
    pub answered: Option<RunState>,
    /// Unique among the assignments of its source.
    pub idempotency_key: Option<String>,
    /// When it was taken.
    pub created_at: Timestamp,
    /// When the target's turn began.
    pub begun_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    /// Of a task: the instance that has it now.
    pub instance: String,
    pub backend: String,
    /// What it requires of its agent.
    pub requirements: WorkRequirements,
    /// Which attempt this is, from 1 on.
    pub attempt: u32,
    /// When the task is given up.
    pub deadline: Option<Timestamp>,
    /// Whether the agent was started for it.
    pub is_spawned: bool,
    /// Its end removes that agent with its peer, its sessions and their streams.
    pub removes_peer: bool,
    /// Offset of its prompt in the agent's stream.
    pub taken_at: Option<i64>,
    /// Whether the agent has said anything.
    pub has_words: bool,
    /// Bytes of the entry that it is saying that are frames already.
    pub said: u32,
    /// How its turn ended, while the agent's program still runs.
    pub turn: Option<TurnEnd>,
}

impl AssignmentRow {
    /// An assignment of this session that has no receiver yet.
    pub fn new(run_id: RunId, source_session: String, created_at: Timestamp) -> Self {
        Self { run_id, source_session, created_at, attempt: 1, ..Self::default() }
    }

    /// Assigns it to this session.
    pub fn set_target(&mut self, AssignmentEnd { session, peer, agent }: AssignmentEnd) {
        (self.target_session, self.target_peer, self.target_agent) = (session, peer, agent);
    }

    /// Begins another call's wait for the reply until `until`, or until a moment after the end of
    /// an earlier call's wait if that is later: each wait has an end of its own. Returns that end.
    pub fn wait_again(&mut self, until: Timestamp) -> Timestamp {
        let after = self.waits_until.map(|earlier| earlier.plus(Duration::from_millis(1)));
        *self.waits_until.insert(after.map_or(until, |after| after.max(until)))
    }

    /// Whether it is the task with this id.
    pub fn is_task(&self, id: &str) -> bool {
        self.task_id.as_ref().is_some_and(|task| task.as_str() == id)
    }

    /// Whether a reply still counts. The message of a cancelled task may be answered later.
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
