//! Presence by calls: a session whose token is used is online, also if it sends no heartbeat.
//!
//! The time of each call is kept in memory. A call writes the peer's row if the peer is offline, or
//! was last seen half a timeout ago: other daemons know only the row. A sweep writes the row of a
//! peer whose last sign is a call.

use std::time::Duration;

use svc_model::{Caller, Peer, PeerStatus, Principal, Timestamp};
use svc_store::{PeerRow, job};

use super::{Team, set_status};
use crate::boxed;
use crate::service::Result;

/// Most time that a request waits for the write of its peer's row. The write goes on after that.
const WRITE_WAIT: Duration = Duration::from_millis(250);

impl Team {
    /// Notes a request with a session token: the peer of an offline session is online again. The
    /// process of a client reports the presence of its sessions, and a host that of its agent.
    #[boxed]
    pub async fn note_call(&self, caller: &Caller) {
        let Some(key) = caller.session().filter(|_| caller.process().is_none()) else { return };
        let checked_for = self.core.tuning.peer_timeout / 4;
        if self.last_calls.note(key, self.core.now(), checked_for) {
            // The request does not need the write.
            if let Ok(Err(error)) = tokio::time::timeout(WRITE_WAIT, self.renew(key)).await {
                error.report("cannot note that a session is back");
            }
        }
    }

    async fn renew(&self, key: &str) -> Result<()> {
        let (store, timeout) = (&self.core.store, self.core.tuning.peer_timeout);
        let is_due = move |peer: &Peer, now: Timestamp| {
            let is_offline = peer.status == PeerStatus::Offline;
            // A peer that has signed off may still end its connections.
            now.since(peer.last_seen) >= if is_offline { timeout } else { timeout / 2 }
        };
        let own = store.peers().of_key(key).await?;
        let Some(row) = own.filter(|row| is_due(&row.peer, self.core.now())) else {
            return Ok(());
        };
        if store.agents().of_key(key).await?.is_some() {
            return Ok(());
        }
        let id = row.peer.peer_id;
        let job = store.write(job!(|tx| {
            let Some(mut row) = tx.peers().get(&id).await? else { return Ok(()) };
            if !is_due(&row.peer, tx.now()) {
                return Ok(());
            }
            row.peer.last_seen = tx.now();
            if row.peer.status != PeerStatus::Offline {
                return tx.peers().touch(&row.peer).await;
            }
            set_status(tx, &mut row.peer, PeerStatus::Online, "called").await
        }));
        Ok(job.await?)
    }

    /// Stores the time of a peer's last call, and returns true, if the call is later than the
    /// `last_seen` of the row.
    pub(super) async fn store_last_call(&self, row: &PeerRow) -> Result<bool> {
        let Principal::Session(key) = row.principal() else { return Ok(false) };
        let store = &self.core.store;
        let last = self.last_calls.last(&key).filter(|at| *at > row.peer.last_seen);
        let Some(at) = last else { return Ok(false) };
        // A token may have registered several peers; its calls count for the one that it speaks as.
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
