//! Failures of PostgreSQL, by outcome.

use sqlx::{error::DatabaseError, postgres::PgDatabaseError};

use crate::{EngineError, StoreError};

/// A failure that PostgreSQL itself reported (postgresql.org/docs/current/errcodes-appendix.html).
/// `None` if it is of another engine.
pub(crate) fn reported(reason: &dyn DatabaseError, error: &EngineError) -> Option<StoreError> {
    let code = reason.try_downcast_ref::<PgDatabaseError>()?.code();
    let error = EngineError::clone(error);
    Some(match code {
        // No space, or none below a quota.
        "53100" => StoreError::Full(error),
        "25006" | "42501" => StoreError::ReadOnly(error),
        "XX001" | "XX002" => StoreError::Corrupt(error),
        _ if is_passing(code) => StoreError::Unavailable(error),
        _ => StoreError::Database(error),
    })
}

/// Whether a failure is over when the server is back, or free. Nothing was written.
fn is_passing(code: &str) -> bool {
    // Connections (08), resources (53), the operator's intervention (57), a conflict that a later
    // attempt does not have (40), no lock in time, an idle transaction ended, and our own: a group
    // of jobs that came late, or after another daemon's, or of a daemon whose place another took.
    code.starts_with("08")
        || code.starts_with("53")
        || code.starts_with("57P")
        || code.starts_with("40")
        || matches!(code, "55P03" | "25P03" | "57014" | "SV001" | "SV002" | "SV003")
}

/// Whether the connection is gone, so that nobody knows what the server did.
pub(super) fn is_lost(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(reason) => {
            reason.try_downcast_ref::<PgDatabaseError>().is_some_and(|reason| {
                let code = reason.code();
                code.starts_with("08") || code.starts_with("57P") || code == "25P03"
            })
        }
        _ => true,
    }
}
