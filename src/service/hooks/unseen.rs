//! Replies that nobody saw: what they gave to a session is taken back, and given again.
//!
//! Each call of a hook has an id, and what its reply gives is marked with that. A hook that did not print its reply notes
//! the id in a file, and the session's next hook, or the daemon, reads that.

use super::room::Hooks;
use crate::{
    domain::limits,
    service::{Error, check, team::note_unseen},
    store::{StoreError, WriteTx},
};

impl Hooks {
    /// Takes back what the replies to these events gave to a session.
    pub async fn take_back(&self, session: String, events: Vec<String>) -> Result<(), Error> {
        self.core
            .store
            .write(move |tx| Box::pin(async move { Ok(take_back(tx, &session, &events).await?) }))
            .await
    }
}

/// Checks the ids of events whose replies nobody saw.
pub(super) fn check_lost(ids: &[String]) -> Result<(), Error> {
    if ids.len() > limits::HOOKS_LOST {
        return Err(Error::invalid("lost", format!("at most {} ids", limits::HOOKS_LOST)));
    }
    ids.iter().try_for_each(|id| check::short("lost", Some(id)))
}

/// Takes back what the replies to these events gave to a session: messages, context, reminders, open records.
pub(super) async fn take_back(
    tx: &mut WriteTx,
    session_id: &str,
    events: &[String],
) -> Result<(), StoreError> {
    if events.is_empty() {
        return Ok(());
    }
    // The event itself may still be on its way.
    tx.remember_lost(events).await?;
    tx.take_back_seen(session_id, events).await?;
    tx.take_back_orphan_offers(session_id, events).await?;
    tx.take_back_reminders(session_id, events).await?;
    let Some(row) = tx.peer_of_session(session_id).await? else { return Ok(()) };
    let unseen = tx.take_back_messages(&row.peer.peer_id, events).await?;
    note_unseen(tx, &row.peer.peer_id, &unseen).await
}
