//! Peers, messages, tasks and tokens, with fields that only the daemon sees; machines and
//! folders.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{
    HandoverId, HandoverWay, Machine, MachineId, MachineProcess, Message, OpenCalls, Ownership,
    Peer, PeerId, PeerRole, Principal, ProcessIdentity, Reader, Task, Timestamp, TokenId,
    is_agent_key, stamp,
};

/// A peer, with fields that only the daemon sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerRow {
    pub peer: Peer,
    /// Session key of the token that registered it; `None` for the operator.
    pub owner: Option<String>,
    /// Root of the project that it works in.
    pub project: Option<String>,
    /// Start time of process `pid`, if that process ran when the pid was reported.
    pub process_started: Option<String>,
    /// The machine of process `pid`.
    pub machine_id: Option<MachineId>,
    /// Tool calls that its client has begun and not ended.
    pub open_calls: OpenCalls,
}

impl PeerRow {
    /// The process that the peer runs in, if pid and start time are known.
    pub fn process(&self) -> Option<MachineProcess> {
        let process =
            ProcessIdentity { pid: self.peer.pid?, started: self.process_started.clone()? };
        Some(MachineProcess { machine_id: self.machine_id.clone()?, process })
    }

    /// Whether the peer runs in a process that was seen on this machine.
    pub fn is_in(&self, process: &ProcessIdentity) -> bool {
        self.peer.pid == Some(process.pid)
            && self.process_started.as_deref() == Some(&process.started)
    }

    /// Key of the hosted agent that owns the peer; `None` for any other peer.
    pub fn agent_key(&self) -> Option<&str> {
        self.owner.as_deref().filter(|owner| is_agent_key(owner))
    }

    /// Key of the session that the peer stands for; `None` for a person's peer. An agent that the
    /// daemon hosts has its own key, whichever conversation it resumes.
    pub fn session_key(&self) -> Option<String> {
        if self.peer.role == PeerRole::Human {
            return None;
        }
        Some(self.agent_key().map_or_else(|| stamp::address(&self.peer).to_string(), str::to_owned))
    }

    /// Whether a session of the holder of `key` may use this peer: the holder registered the peer,
    /// or the operator did.
    pub fn is_for(&self, key: &str) -> bool {
        self.owner.as_deref().is_none_or(|owner| owner == key)
    }

    /// The peer as this reader may see it: complete if it is the reader's own or of its project,
    /// else only its presence.
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

    /// The principal that acts as the peer: the session that registered it or that it was
    /// registered for, else the operator.
    pub fn principal(&self) -> Principal {
        let session = self.owner.as_deref().or(self.peer.session_id.as_deref());
        session.map_or(Principal::Operator, |session| Principal::Session(session.into()))
    }
}

/// An inbox with waiting messages that nobody reads any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StrandedInbox {
    pub peer: PeerId,
    /// The peer was removed. If false, the peer is that of a hosted agent that has ended.
    pub is_removed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRow {
    pub id: i64,
    pub message: Message,
}

/// Terms of a delivery that only the daemon sees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeliveryTerms {
    /// For a reply to a reply: the number of the turn that it begins.
    pub turn: Option<u32>,
    /// A call waits for the message until this time; before it, nobody else gets the message.
    pub held_until: Option<Timestamp>,
    /// A call sent the message, not the end of a turn: it counts as a send.
    pub by_call: bool,
    /// It does not begin a turn of an idle session.
    pub no_wake: bool,
}

/// A text that was handed to a client's own queue or inbox and whose receipt the client has not
/// shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandoverRow {
    pub handover_id: HandoverId,
    pub peer_id: PeerId,
    pub session_id: String,
    pub via: HandoverWay,
    /// It was handed over during a turn, which continues with it.
    pub joins_turn: bool,
    /// The client keeps it for its person.
    pub is_held: bool,
    /// The file in which the client's own record of the conversation is.
    pub record: Option<String>,
    pub at: Timestamp,
}

/// A task, with fields that only the daemon sees.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRow {
    pub task: Task,
    pub owned: Ownership,
    /// The process that runs it, if the runner named it.
    pub process: Option<MachineProcess>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRow {
    pub token_id: TokenId,
    /// The subject: the session that the holder speaks for.
    pub session: String,
    /// Scopes beyond the default.
    pub scopes: Vec<String>,
    /// Root of the project whose rows the holder may read.
    pub project: Option<String>,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
    /// When it was last used, accurate to a minute.
    pub last_used_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
    /// The client process that the token was issued to; `None` if a person minted it.
    pub process: Option<ProcessIdentity>,
    /// The process's working directory, if the system reported it.
    pub cwd: Option<String>,
    /// The operator's credential with which a browser signed in; `None` for a session's token.
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginCodeRow {
    /// The operator's credential that the code was issued under.
    pub operator_credential: String,
    pub expires_at: Timestamp,
    pub used_at: Option<Timestamp>,
}

/// Why a token was revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenEnd {
    Revoked,
    Ended,
    Gone,
}

/// A client process that was issued tokens before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessSubject {
    /// Id of its first token; `None` if it has none yet.
    pub token_id: Option<TokenId>,
    pub session: String,
    /// Scopes that all its tokens have in addition to their own.
    pub scopes: Vec<String>,
    /// Root of the project that it works in.
    pub project: Option<String>,
    /// Its working directory when it was first seen.
    pub cwd: Option<String>,
    /// The operator revoked one of its tokens, so it is issued no other.
    pub is_barred: bool,
}

/// Who can still speak as a subject.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubjectHolders {
    /// Whether a token that a person minted for the subject is valid.
    pub has_minted: bool,
    /// The processes that were issued tokens of the subject.
    pub processes: Vec<MachineProcess>,
    /// The projects that its tokens name.
    pub projects: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDaemon {
    pub daemon_id: String,
    pub pid: u32,
    pub version: String,
}

/// A machine that has no daemon now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwayMachine {
    pub machine: Machine,
    /// When a daemon of it was last there, by the database's clock.
    pub since: Timestamp,
    pub lasts: Duration,
}

/// The project of a folder of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderDecision {
    pub project: String,
    /// `None` for a folder from before projects had names.
    pub decided_at: Option<Timestamp>,
    pub used_at: Timestamp,
}
