//! Peers, messages, tasks and tokens, with what only the daemon knows of them.

use serde::Serialize;

use crate::domain::{Message, Peer, PeerStatus, Task, TaskStatus, Timestamp, TokenId};

/// A peer with what only the daemon knows of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerRow {
    /// What every caller sees.
    pub peer: Peer,
    /// Session key of the token that registered it; `None` for the operator.
    pub owner: Option<String>,
}

/// Which peers to list. All that is given has to match exactly.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PeerFilter {
    /// Present state.
    pub status: Option<PeerStatus>,
    /// Kind of client.
    pub backend: Option<String>,
    /// Group.
    pub circle: Option<String>,
    /// Working folder.
    pub path: Option<String>,
}

/// A message with its rank in the order of arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRow {
    /// Rank in the order of arrival.
    pub id: i64,
    /// What every caller sees.
    pub message: Message,
}

/// A task with what only the daemon knows of it.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRow {
    /// What every caller sees.
    pub task: Task,
    /// The process that runs it, on this machine.
    pub runner_pid: Option<u32>,
    /// When that process started, as the system tells it: another process may get its number later.
    pub runner_started: Option<String>,
}

/// Which tasks to list. All that is given has to match.
#[derive(Debug, Clone, Default)]
pub struct TaskFilter {
    /// Present state.
    pub status: Option<TaskStatus>,
    /// The agent that it is for.
    pub agent: Option<String>,
    /// The peer that asked for it.
    pub from: Option<String>,
    /// Made at this time or later.
    pub since: Option<Timestamp>,
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
}
