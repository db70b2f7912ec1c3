//! Errors of services. What the caller can do about a failure decides the variant.

use std::fmt;

use svc_model::{
    AgentId, GhapId, ID_PREFIX_CHARS, IdReference, MessageId, PeerId, TaskId, TokenId,
    conversation::SessionDenial,
};
use svc_store::StoreError;

/// What a method of a service returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no {kind} {id:?}{}", .kind.too_short(.id))]
    NotFound {
        /// Each adapter chooses its hint by this kind.
        kind: ResourceKind,
        /// The id of the request, cut to `SHOWN_ID_CHARS`.
        id: String,
    },
    #[error("{name:?} names {} {kind}s: {}; name one by its id", .candidates.len(), Candidate::list(.candidates))]
    Ambiguous {
        kind: ResourceKind,
        name: String,
        /// Live candidates first.
        candidates: Vec<Candidate>,
    },
    #[error("{field}: {why}")]
    Invalid { field: String, why: String },
    /// The request does not fit the present state.
    #[error("{0}")]
    Conflict(String),
    /// An option that stays in force needs a confirmation.
    #[error("{rule:?} holds from now on: it takes `confirm` (`--confirm` on the command line)")]
    Unconfirmed { rule: String },
    /// The caller would wait for a session that waits for the caller, directly or through others.
    #[error(
        "it would never end: {}; end your turn with what you have, or do not wait for the answer",
        .0.join(" -> ")
    )]
    WaitCycle(Vec<String>),
    #[error("this session has no peer yet")]
    SessionWithoutPeer,
    #[error("this session has an active record, {id}")]
    ActiveGhap { id: GhapId },
    #[error(
        "there are {have} records that are over, and what they have in common shows from {need} on"
    )]
    InsufficientData { have: u64, need: u64 },
    #[error("{0}")]
    Forbidden(String),
    /// A session that does not exist, or that the settings hide from the caller. Both cases give
    /// the same error.
    #[error("{}: {}", .0.as_str(), .0.explanation())]
    Unseen(SessionDenial),
    /// A name or an id that the caller may not use.
    #[error("{field}: {why}")]
    NotYours { field: String, why: String },
    /// The caller's credential ended during the request.
    #[error("the token of this request is no longer good")]
    Unauthorized,
    /// A bound is reached. Nothing was evicted for the request.
    #[error("{0}")]
    LimitReached(String),
    /// A precondition is missing at present: an agent's program, its host, a live peer.
    #[error("{0}")]
    NotNow(String),
    /// The daemon is starting or stopping, or waits for the database.
    #[error("the daemon cannot serve this now")]
    Unavailable(#[source] StoreError),
    /// The database server is unreachable or read-only, or another daemon has the database. Nothing
    /// was written.
    #[error("{}: nothing was changed, try again", of_server(.0))]
    StoreUnavailable(#[source] StoreError),
    /// The database server became unreachable before it answered.
    #[error("the database did not answer whether the change took place: {}", advice(*may_repeat))]
    OutcomeUnknown {
        #[source]
        cause: StoreError,
        /// Whether repeating the request has no further effect.
        may_repeat: bool,
    },
    /// The disk is full, or the configured bound is reached.
    #[error(
        "the database has no room left: free disk space, raise store.max_bytes or set a retention"
    )]
    StorageFull(#[source] StoreError),
    /// A fault of the daemon. The caller sees only this text; the log has the chain.
    #[error("internal error")]
    Internal(#[source] StoreError),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub id: String,
    /// What distinguishes this candidate from the others.
    pub about: String,
}

impl Candidate {
    const LISTED: usize = 8;

    fn list(candidates: &[Self]) -> String {
        let listed: Vec<String> = candidates
            .iter()
            .take(Self::LISTED)
            .map(|candidate| format!("{} ({})", candidate.id, candidate.about))
            .collect();
        let more = candidates.len().saturating_sub(Self::LISTED);
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{rest}", listed.join(", "))
    }
}

/// Number of characters of an unknown id that an error shows.
pub(super) const SHOWN_ID_CHARS: usize = 64;

/// Kinds of things with an id. Their names appear in the errors of every adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceKind {
    Peer,
    /// The peer that sends a heartbeat.
    ReportingPeer,
    /// The peer of the session with this id.
    PeerOfSession,
    Task,
    Message,
    /// A message in the inbox of the acting peer.
    MessageToPeer,
    Session,
    GhapRecord,
    /// The active GHAP record of the session with this id.
    ActiveRecord,
    /// A GHAP record that a session left open.
    OrphanedRecord,
    /// An orphaned record in the project of the acting session.
    OrphanOfProject,
    Outcome,
    Cluster,
    Memory,
    Stream,
    Token,
    Agent,
    AgentRequest,
    /// A text that was handed to a client.
    Handover,
}

impl ResourceKind {
    /// The hint for a prefix of an id that is too short; empty for any other text.
    fn too_short(self, text: &str) -> String {
        let prefix = match self {
            Self::Peer => PeerId::PREFIX,
            Self::Task => TaskId::PREFIX,
            Self::Message => MessageId::PREFIX,
            Self::GhapRecord => GhapId::PREFIX,
            Self::Token => TokenId::PREFIX,
            Self::Agent => AgentId::PREFIX,
            _ => return String::new(),
        };
        if !IdReference::is_too_short(text, prefix) {
            return String::new();
        }
        format!(
            "; the beginning of an id has at least {ID_PREFIX_CHARS} characters behind {prefix:?}"
        )
    }
}

impl fmt::Display for ResourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Peer | Self::ReportingPeer => "peer",
            Self::PeerOfSession => "peer of session",
            Self::Task => "task",
            Self::Message => "message",
            Self::MessageToPeer => "message for this peer",
            Self::Session => "session",
            Self::GhapRecord => "ghap record",
            Self::ActiveRecord => "active ghap record of session",
            Self::OrphanedRecord => "orphaned record",
            Self::OrphanOfProject => "orphaned record of this project",
            Self::Outcome => "outcome",
            Self::Cluster => "cluster",
            Self::Memory => "memory",
            Self::Stream => "stream",
            Self::Token => "token",
            Self::Agent => "agent",
            Self::AgentRequest => "request",
            Self::Handover => "hand-over",
        })
    }
}

impl Error {
    pub fn not_found(kind: ResourceKind, id: &str) -> Self {
        Self::NotFound { kind, id: id.chars().take(SHOWN_ID_CHARS).collect() }
    }

    pub fn invalid(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), why: why.into() }
    }

    pub fn not_yours(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self::NotYours { field: field.into(), why: why.into() }
    }

    pub(super) fn only_one<T>(
        kind: ResourceKind,
        name: &str,
        mut things: Vec<T>,
        candidate: impl Fn(&T) -> Candidate,
    ) -> Result<T, Self> {
        match things.len() {
            0 => Err(Self::not_found(kind, name)),
            1 => Ok(things.swap_remove(0)),
            _ => Err(Self::Ambiguous {
                kind,
                name: name.to_owned(),
                candidates: things.iter().map(candidate).collect(),
            }),
        }
    }
}

impl Error {
    /// Notes on an unknown outcome whether the request may be repeated: it has an idempotency key,
    /// or doing it twice has the same effect as once.
    pub(super) fn of_repeatable(self, is_repeatable: bool) -> Self {
        match self {
            Self::OutcomeUnknown { cause, .. } => {
                Self::OutcomeUnknown { cause, may_repeat: is_repeatable }
            }
            other => other,
        }
    }

    /// Logs that periodic work failed. An unreachable database server is only debug output here, as
    /// the store logs it once.
    pub fn report(&self, what: &'static str) {
        let error = svc_sys::telemetry::chain(self);
        if matches!(self, Self::StoreUnavailable(_) | Self::OutcomeUnknown { .. }) {
            tracing::debug!(error, "{what}");
        } else {
            tracing::error!(error, "{what}");
        }
    }

    /// The code of [`Self::StoreUnavailable`] with this cause.
    pub const fn code_of_server(cause: &StoreError) -> &'static str {
        match cause {
            StoreError::Fenced(_) => "fenced",
            _ => "store_unavailable",
        }
    }

    /// Whether the database or the daemon is at fault, so that other work fails, too.
    pub(super) fn is_of_daemon(&self) -> bool {
        matches!(
            self,
            Self::Unavailable(_)
                | Self::StoreUnavailable(_)
                | Self::OutcomeUnknown { .. }
                | Self::StorageFull(_)
                | Self::Internal(_)
        )
    }
}

/// The state of the database's server, for people.
fn of_server(error: &StoreError) -> String {
    match error {
        StoreError::Fenced(_) | StoreError::ServerReadOnly(_) => error.to_string(),
        _ => "the database does not answer".to_owned(),
    }
}

const fn advice(may_repeat: bool) -> &'static str {
    if may_repeat { "repeat the request" } else { "look before you repeat the request" }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Full(_) => Self::StorageFull(error),
            StoreError::Unavailable(_) | StoreError::Fenced(_) | StoreError::ServerReadOnly(_) => {
                Self::StoreUnavailable(error)
            }
            StoreError::OutcomeUnknown(_) => {
                Self::OutcomeUnknown { cause: error, may_repeat: false }
            }
            StoreError::Busy(_) | StoreError::Stopped | StoreError::ReadOnly(_) => {
                Self::Unavailable(error)
            }
            _ => Self::Internal(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_a_short_id_prefix_says_so() {
        for (kind, text) in [
            (ResourceKind::Peer, "peer_01m"),
            (ResourceKind::Task, "task_01"),
            (ResourceKind::Message, "msg_01"),
            (ResourceKind::Agent, "ag_01"),
            (ResourceKind::Token, "tok_01m"),
        ] {
            let error = Error::not_found(kind, text).to_string();
            assert!(error.contains("at least 4 characters"), "{error}");
        }
        let whole = Error::not_found(ResourceKind::Peer, "peer_01kbpx6v5z7t2a4b6c8d9e0f1g");
        assert!(!whole.to_string().contains("at least"), "{whole}");
    }
}
