//! Presence by calls: a session whose credential is used is here, also if it sends no heartbeat.
//!
//! Calls are noted in memory. A row is written when a call finds its peer offline, and when a sweep
//! finds that a peer was silent but for its calls.

use svc_model::{Caller, Peer, PeerStatus, Principal, Timestamp};
use svc_store::{PeerRow, job};

use super::{Team, set_status};
use crate::boxed;
use crate::service::Result;

impl Team {
    /// Notes a request with a session token: the peer of an offline session is online again. The
    /// process of a client reports the presence of its sessions, and a host that of its agent.
    #[boxed]
    pub async fn note_call(&self, caller: &Caller) {
        let Some(key) = caller.session().filter(|_| caller.process().is_none()) else { return };
        let checked_for = self.core.tuning.peer_timeout / 4;
        if self.last_calls.note(key, self.core.now(), checked_for) {
            // The request does not depend on it.
            if let Err(error) = self.revive(key).await {
                error.report("cannot note that a session is back");
            }
        }
    }

    async fn revive(&self, key: &str) -> Result<()> {
        let (store, timeout) = (&self.core.store, self.core.tuning.peer_timeout);
        // A peer that has signed off may still end its connections.
        let is_away = move |peer: &Peer, now: Timestamp| {
            peer.status == PeerStatus::Offline && now.since(peer.last_seen) >= timeout
        };
        let own = store.peers().of_key(key).await?;
        let Some(row) = own.filter(|row| is_away(&row.peer, self.core.now())) else {
            return Ok(());
        };
        if store.agents().of_key(key).await?.is_some() {
            return Ok(());
        }
        let id = row.peer.peer_id;
        let job = store.write(job!(|tx| {
            let Some(mut row) = tx.peers().get(&id).await? else { return Ok(()) };
            if !is_away(&row.peer, tx.now()) {
                return Ok(());
            }
            row.peer.last_seen = tx.now();
            set_status(tx, &mut row.peer, PeerStatus::Online, "called").await
        }));
        Ok(job.await?)
    }

    /// Stores when a peer called last, if it has done so since it was last seen. Returns whether it
    /// has.
    pub(super) async fn store_last_call(&self, row: &PeerRow) -> Result<bool> {
        let Principal::Session(key) = row.principal() else { return Ok(false) };
        let store = &self.core.store;
        let last = self.last_calls.last(&key).filter(|at| *at > row.peer.last_seen);
        let Some(at) = last else { return Ok(false) };
        // A token may have registered several peers, and speaks as one of them.
        let own = store.peers().of_key(&key).await?.map(|own| own.peer.peer_id);
        if own.as_ref() != Some(&row.peer.peer_id) {
            return Ok(false);
        }
        let id = row.peer.peer_id.clone();
        let job = store.write(job!(|tx| {
            let Some(mut row) = tx.peers().get(&id).await? else { return Ok(()) };
            row.peer.last_seen = row.peer.last_seen.max(at);
            tx.peers().touch(&row.peer).await
        }));
        job.await?;
        Ok(true)
    }
}
