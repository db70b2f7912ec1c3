//! Replies to hooks that were not seen: what they gave to a session is taken back and given again.
//!
//! Each call of a hook has an id, and everything that its reply gives is stored with that id. A
//! hook that could not print its reply notes the id in a file, which the session's next hook or the
//! daemon reads.

use svc_model::{Caller, limits};
use svc_store::WriteTx;

use super::state::Hooks;
use crate::service::{Error, budget::Budget, check, team::note_unseen};

impl Hooks {
    /// Takes back what the replies to these events gave to a session.
    pub async fn take_back(
        &self,
        caller: &Caller,
        session: String,
        events: Vec<String>,
    ) -> Result<(), Error> {
        let (caller, budget) = (caller.clone(), self.core.budget.clone());
        self.core
            .store
            .on_behalf_of(&caller)
            .write(move |tx| {
                Box::pin(async move { take_back(tx, (&caller, &budget), &session, &events).await })
            })
            .await
    }
}

/// Checks the ids of events whose replies were not seen.
pub(super) fn check_lost(ids: &[String]) -> Result<(), Error> {
    if ids.len() > limits::HOOKS_LOST {
        return Err(Error::invalid("lost", format!("at most {} ids", limits::HOOKS_LOST)));
    }
    ids.iter().try_for_each(|id| check::short("lost", Some(id)))
}

/// Takes back what the replies to these events gave to a session: messages, context, reminders, and
/// offers of open records.
///
/// # Errors
/// [`Error::LimitReached`] if the caller has reported as many ids as it may.
pub(super) async fn take_back(
    tx: &mut WriteTx,
    (caller, budget): (&Caller, &Budget),
    session_id: &str,
    events: &[String],
) -> Result<(), Error> {
    if events.is_empty() {
        return Ok(());
    }
    // An event may arrive after its id was reported as lost, so the ids are stored.
    let count = u64::try_from(events.len()).unwrap_or(u64::MAX);
    budget.check_rows(tx, caller, count).await?;
    tx.hooks().remember_lost(events, &caller.principal()).await?;
    tx.seen().take_back(session_id, events).await?;
    tx.seen().take_back_orphan_offers(session_id, events).await?;
    tx.hooks().take_back_reminders(session_id, events).await?;
    let Some(row) = tx.peers().of_session(session_id).await? else { return Ok(()) };
    let unseen = tx.inboxes().take_back(&row.peer.peer_id, events).await?;
    // No turn began with these messages, so the end of a turn does not answer the questions among
    // them.
    let ids: Vec<_> = unseen.iter().map(|message| message.id.clone()).collect();
    tx.messages().note_turn(&ids, false).await?;
    Ok(note_unseen(tx, &row.peer.peer_id, &unseen).await?)
}
