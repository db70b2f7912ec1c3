//! Peers, messages, tasks and tokens, with what only the daemon knows of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{
    Message, OpenCalls, Ownership, Peer, PeerId, PeerRole, Principal, ProcessIdentity, Reader,
    Task, Timestamp, TokenId, is_agent_key, stamp,
};

/// A peer with what only the daemon knows of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerRow {
    /// What every caller sees.
    pub peer: Peer,
    /// Session key of the token that registered it; `None` for the operator.
    pub owner: Option<String>,
    /// Root of the project that it works in.
    pub project: Option<String>,
    /// When the process of its `pid` started, if that ran when it was named.
    pub process_started: Option<String>,
    /// The tools that its client has begun to call.
    pub open_calls: OpenCalls,
}

impl PeerRow {
    /// The process that it is known to run in.
    pub fn process(&self) -> Option<ProcessIdentity> {
        Some(ProcessIdentity { pid: self.peer.pid?, started: self.process_started.clone()? })
    }

    /// The key of the session that it stands for; `None` of the person's own. An agent that the
    /// daemon runs has its own key, whichever conversation it leads.
    pub fn session_key(&self) -> Option<String> {
        if self.peer.role == PeerRole::Human {
            return None;
        }
        let own = self.owner.as_deref().filter(|owner| is_agent_key(owner));
        Some(own.map_or_else(|| stamp::address(&self.peer).to_string(), str::to_owned))
    }

    /// Whether the holder of this key may be meant where a session of its own names this peer: it
    /// is its own, or the operator registered it for that session.
    pub fn is_for(&self, key: &str) -> bool {
        self.owner.as_deref().is_none_or(|owner| owner == key)
    }

    /// The peer as far as this reader may see it: whole if it is its own or of its project, else
    /// its presence.
    pub fn shown_to(self, reader: &Reader) -> Peer {
        let is_own = |key: &str| {
            self.owner.as_deref() == Some(key)
                || self.owner.is_none() && self.peer.session_id.as_deref() == Some(key)
        };
        let is_of_project = self.project.is_some() && self.project.as_deref() == reader.project();
        match reader.key() {
            Some(key) if !is_own(key) && !is_of_project => self.peer.presence(),
            _ => self.peer,
        }
    }

    /// Who acts as it: the session that registered it, or that it was registered for, or the
    /// operator.
    pub fn principal(&self) -> Principal {
        let session = self.owner.as_deref().or(self.peer.session_id.as_deref());
        session.map_or(Principal::Operator, |session| Principal::Session(session.into()))
    }
}

/// An inbox with waiting messages that nobody reads any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StrandedInbox {
    pub peer: PeerId,
    /// The peer was removed. Otherwise it is that of a hosted agent that has ended.
    pub is_removed: bool,
}

/// A message with its rank in the order of arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRow {
    /// Rank in the order of arrival.
    pub id: i64,
    /// What every caller sees.
    pub message: Message,
}

/// What only the daemon knows of a message that is stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MessageTerms {
    /// Of a reply that answers a reply: the number of the turn that it begins.
    pub turn: Option<u32>,
    /// A call waits for it until then, and nobody else is given it before.
    pub held_until: Option<Timestamp>,
    /// A call answers with it, and no turn's end: it counts as a send.
    pub by_call: bool,
}

/// A task with what only the daemon knows of it.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRow {
    /// What every caller sees.
    pub task: Task,
    pub owned: Ownership,
    /// The process that runs it, on this machine.
    pub runner_pid: Option<u32>,
    /// When that process started, as the system tells it: another process may get its number later.
    pub runner_started: Option<String>,
}

/// A session token's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRow {
    /// Its id.
    pub token_id: TokenId,
    /// The subject: the session that its holder speaks for.
    pub session: String,
    /// What it may do beyond the ordinary.
    pub scopes: Vec<String>,
    /// Root of the project whose things it reads.
    pub project: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it expires.
    pub expires_at: Timestamp,
    /// When it was last used, give or take a minute.
    pub last_used_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// The client's process that it was given to; `None` if a person minted it.
    pub process: Option<ProcessIdentity>,
    /// The folder that this process worked in, if the system told it.
    pub cwd: Option<String>,
    /// The operator's credential under which a browser was signed in; `None` for a token of a
    /// session.
    pub operator_credential: Option<String>,
}

/// A message in a list: with the beginning of its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ListedMessage {
    /// Rank in the order of arrival.
    #[serde(skip)]
    pub id: i64,
    /// The message. Its text ends after 4,000 characters.
    #[serde(flatten)]
    pub message: Message,
    /// Length of the whole text, in bytes.
    pub bytes: i64,
    /// Name of the sender, if it is a peer still.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_name: Option<String>,
    /// Name of the receiver, if it is a peer still.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_name: Option<String>,
    /// Whether it is a question that waits for its answer.
    pub open: bool,
    /// Whether the receiver has answered it: with its id as `correlation_id`, or with the one that
    /// it has.
    pub answered: bool,
}

/// What a code signs in with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginCodeRow {
    /// The operator's credential that it was made under.
    pub operator_credential: String,
    /// Until when it may be used.
    pub expires_at: Timestamp,
    pub used_at: Option<Timestamp>,
}

/// Why a token was taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenEnd {
    /// The operator wanted it so.
    Revoked,
    /// Its session ended.
    Ended,
    /// Its process is gone.
    Gone,
}

/// What is known of a client's process that was given tokens before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessSubject {
    /// The row of its first token; `None` if it has none yet.
    pub token_id: Option<TokenId>,
    /// The subject of all its tokens.
    pub session: String,
    /// What its tokens may do beside what each may.
    pub scopes: Vec<String>,
    /// Root of the project that it works in.
    pub project: Option<String>,
    /// The folder that it was first seen in.
    pub cwd: Option<String>,
    /// The operator took a token of it back: it gets no other.
    pub is_barred: bool,
}

/// Who can still speak as a subject.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubjectHolders {
    /// Whether a token that a person minted for it is good.
    pub has_minted: bool,
    /// The processes that were given tokens of it.
    pub processes: Vec<ProcessIdentity>,
    /// The projects that its tokens name.
    pub projects: Vec<String>,
}
