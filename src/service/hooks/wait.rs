//! Waiting for mail on behalf of a session that is idle: the one thing that a hook cannot do in its moment.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{Hooks, mail};
use crate::{
    domain::{Caller, Peer, StreamName},
    service::{Error, ResourceKind},
};

/// What came of waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Awaited {
    /// Messages, as text for the session's model. They are `offered` from now on.
    Message(String),
    /// Nothing yet: ask again.
    Nothing,
    /// Somebody else waits for this session by now.
    Retired,
    /// The session is over.
    Over,
}

/// Who waits for which session. The latest does; ids are ordered by when the waiter began.
#[derive(Debug, Default)]
pub struct Waiters(Mutex<HashMap<String, watch::Sender<String>>>);

/// More sessions than this nobody waits for at a time; those who wait say so again with their next question.
const MOST: usize = 10_000;

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a session's place; `None` if a later waiter has it.
    fn enter(&self, session: &str, waiter: &str) -> Option<watch::Receiver<String>> {
        let mut waiters = self.lock();
        if waiters.len() >= MOST {
            waiters.retain(|_, latest| latest.receiver_count() > 0);
        }
        let latest = waiters.entry(session.to_owned()).or_default();
        if latest.borrow().as_str() > waiter {
            return None;
        }
        latest.send_if_modified(|latest| {
            let is_new = latest != waiter;
            waiter.clone_into(latest);
            is_new
        });
        Some(latest.subscribe())
    }
}

impl Hooks {
    /// Waits until there is a message for a session's peer, for at most `bound`. Nobody saw the answers to the questions
    /// `lost`, which were asked before under these names.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the session has no peer.
    pub async fn await_mail(
        &self,
        caller: &Caller,
        session_id: &str,
        (waiter, lost): (&str, Vec<String>),
        bound: Duration,
    ) -> Result<Awaited, Error> {
        let place = self.team.acting_session(caller, None, Some(session_id), None).await?;
        let session_id = place.session_id;
        super::check_lost(&lost)?;
        if !lost.is_empty() {
            self.take_back(session_id.clone(), lost).await?;
        }
        let Some(mut latest) = self.waiters.enter(&session_id, waiter) else {
            return Ok(Awaited::Retired);
        };
        let end = Instant::now() + bound;
        let unknown = || Error::not_found(ResourceKind::PeerOfSession, &session_id);
        let peer = self.core.store.peer_of_session(&session_id).await?.ok_or_else(unknown)?.peer;
        let stream = StreamName::of("peer", &peer.peer_id);
        // Listen first and look after, or what comes in between is waited for in vain.
        let mut listener = self.core.store.bus().listen(&stream);
        loop {
            let view = self.core.store.view(&stream).await?;
            let head =
                view.ok_or_else(|| Error::not_found(ResourceKind::Stream, stream.as_str()))?.head;
            let session = self.core.store.session(&session_id).await?;
            if session.is_some_and(|session| session.ended_at.is_some()) {
                return Ok(Awaited::Over);
            }
            if let Some(text) = self.mail_for(&peer, waiter).await? {
                return Ok(Awaited::Message(text));
            }
            // Nothing but this is cut short: what is given must be answered.
            tokio::select! {
                () = listener.wait(head) => {}
                _ = latest.changed() => return Ok(Awaited::Retired),
                () = sleep_until(end) => return Ok(Awaited::Nothing),
            }
        }
    }

    async fn mail_for(&self, peer: &Peer, waiter: &str) -> Result<Option<String>, Error> {
        if !self.core.store.has_mail(&peer.peer_id).await? {
            return Ok(None);
        }
        let (peer, waiter, lease) = (peer.clone(), waiter.to_owned(), self.core.tuning.lease);
        let offer = self.core.store.write(move |tx| {
            Box::pin(async move {
                if tx.is_lost(&waiter).await? {
                    return Ok(None);
                }
                tx.remember_hook(&waiter).await?;
                mail::offer(tx, &peer, (&waiter, false), lease).await
            })
        });
        offer.await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_waiter_has_the_place() {
        let waiters = Waiters::default();
        let mut first = waiters.enter("s", "1").unwrap();
        assert!(!first.has_changed().unwrap());
        assert!(waiters.enter("s", "1").is_some(), "asks again");
        assert!(!first.has_changed().unwrap());
        let other = waiters.enter("t", "0").unwrap();
        let _second = waiters.enter("s", "2").unwrap();
        assert!(first.has_changed().unwrap() && !other.has_changed().unwrap());
        first.mark_unchanged();
        assert!(waiters.enter("s", "1").is_none());
    }
}
