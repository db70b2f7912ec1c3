//! Who is asking. Made from the credential alone, and handed to every service call.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::TokenId;

/// The identity of a caller. It comes from the token and never from a body or a header that the caller chooses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Holder of the operator token, or anybody on loopback under `--no-auth`.
    Operator,
    /// Holder of a session token.
    Session {
        /// The subject: the session that the token was made for.
        key: Arc<str>,
        /// The token's row.
        token: TokenId,
        /// What it may do beyond the ordinary.
        scopes: Arc<[Scope]>,
    },
}

impl Caller {
    /// The session that the caller speaks for; `None` for the operator.
    pub fn session(&self) -> Option<&str> {
        match self {
            Self::Operator => None,
            Self::Session { key, .. } => Some(key),
        }
    }

    /// The caller in one word, for rows that say who made them.
    pub fn subject(&self) -> String {
        match self {
            Self::Operator => "operator".to_owned(),
            Self::Session { key, .. } => format!("session:{key}"),
        }
    }

    /// Whether this is the operator.
    pub const fn is_operator(&self) -> bool {
        matches!(self, Self::Operator)
    }
}

/// A permission that a session token may carry, as free text (`exec`, …): the tools that ask for one name it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct Scope(pub String);
