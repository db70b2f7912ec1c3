//! What can go wrong with a request, by outcome: what the caller can do about it decides the variant.

use crate::{domain::GhapId, store::StoreError};

/// Failure of a service call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing has that id.
    #[error("there is no {what} {id:?}{hint}")]
    NotFound {
        /// Kind of thing.
        what: &'static str,
        /// What was asked for, cut to a readable length.
        id: String,
        /// What to do instead, beginning with a separator; may be empty.
        hint: &'static str,
    },
    /// A value that the rules do not allow.
    #[error("{field}: {why}")]
    Invalid {
        /// The field.
        field: String,
        /// The rule.
        why: String,
    },
    /// The request does not fit the present state.
    #[error("{0}")]
    Conflict(String),
    /// The session has an active record already.
    #[error(
        "this session has an active record, {id}: resolve it with resolve_ghap, or change it with update_ghap"
    )]
    ActiveGhap {
        /// The record.
        id: GhapId,
    },
    /// There is too little to say anything about it.
    #[error(
        "there are {have} records that are over, and what they have in common shows from {need} on"
    )]
    InsufficientData {
        /// How much there is.
        have: u64,
        /// How much it takes.
        need: u64,
    },
    /// Not for this caller.
    #[error("{0}")]
    Forbidden(String),
    /// A bound is reached. Nothing was dropped to make room.
    #[error("{0}")]
    LimitReached(String),
    /// The daemon starts, stops, or waits for the database.
    #[error("the daemon cannot serve this now")]
    Unavailable(#[source] StoreError),
    /// No room on the disk, or below the configured bound.
    #[error(
        "the database has no room left: free disk space, raise store.max_bytes or set a retention"
    )]
    StorageFull(#[source] StoreError),
    /// A fault of ours. The caller sees no more than that; the log has the chain.
    #[error("internal error")]
    Internal(#[source] StoreError),
}

impl Error {
    /// There is no such thing.
    pub fn not_found(what: &'static str, id: &str) -> Self {
        Self::NotFound { what, id: id.chars().take(64).collect(), hint: "" }
    }

    /// The value of `field` breaks a rule.
    pub fn invalid(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), why: why.into() }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Full(_) => Self::StorageFull(error),
            StoreError::Busy(_) | StoreError::Stopped | StoreError::ReadOnly(_) => {
                Self::Unavailable(error)
            }
            _ => Self::Internal(error),
        }
    }
}
