//! What clients have on record of their own sessions. A record is better evidence than hooks, which
//! do not tell of everything.

use svc_model::{
    ClientRecord, DeliveryState, OpenCalls, Peer, PeerId, PeerStatus, RecordWord, StatusEvidence,
    is_agent_key, limits,
};
use svc_store::{PeerRow, StoreError, WriteTx};
use svc_sys::client_records;

use super::{
    Team,
    delivery::advance,
    peers::{lose_evidence, set_state},
};
use crate::service::{Error, assignments, core::Core};

impl Team {
    /// Fails the questions of turns whose end no hook has reported within
    /// [`limits::TURN_TEXT_GRACE`].
    pub async fn end_silent_turns(&self) -> Result<(), Error> {
        let before = self.core.now().minus(limits::TURN_TEXT_GRACE);
        for peer in self.core.store.messages().peers_of_silent_turns(before).await? {
            let core = self.core.clone();
            let job = self.core.store.write(move |tx| {
                Box::pin(
                    async move { assignments::silent_turn_ended(tx, &core, &peer, before).await },
                )
            });
            job.await?;
        }
        Ok(())
    }

    /// Reads what clients have on record of their sessions, and corrects what is known of them.
    pub async fn read_client_records(&self) -> Result<(), Error> {
        let claude = self.core.store.peers().in_processes(client_records::CLAUDE).await?;
        self.correct(claude).await?;
        for backend in [client_records::CODEX, client_records::GEMINI] {
            let mut rows = self.core.store.peers().in_processes(backend).await?;
            // Its record tells only that a turn is over.
            rows.retain(|row| matches!(row.peer.status, PeerStatus::Busy | PeerStatus::Waiting));
            self.correct(rows).await?;
        }
        Ok(())
    }

    async fn correct(&self, rows: Vec<PeerRow>) -> Result<(), Error> {
        for row in rows {
            let is_hosted = row.owner.as_deref().is_some_and(is_agent_key);
            let (Some(process), Some(session)) = (row.process(), row.peer.session_id.clone())
            else {
                continue;
            };
            if is_hosted {
                // Its host tells of its turns.
                continue;
            }
            let backend = row.peer.backend.clone();
            let read = move || client_records::read(&backend, &process, &session);
            let Ok(record) = tokio::task::spawn_blocking(read).await else { continue };
            let now = self.core.now();
            let is_silent = now.since(row.peer.last_seen) >= limits::PEER_TIMEOUT;
            match record.map(|record| (record.word_on(&row.peer, now), record)) {
                Some((RecordWord::Nothing, record)) if is_silent && record.is_in_turn() => {
                    self.apply_record(row.peer.peer_id, record).await?;
                }
                Some((RecordWord::Nothing, _)) => {}
                Some((RecordWord::Corrects(_) | RecordWord::Confirms(_), record)) => {
                    self.apply_record(row.peer.peer_id, record).await?;
                }
                Some((RecordWord::Lags, _)) | None => self.lose_registry(row.peer).await?,
            }
        }
        Ok(())
    }

    /// Notes that a session's status rests on hooks alone: there is no record that counts.
    async fn lose_registry(&self, peer: Peer) -> Result<(), Error> {
        if peer.evidence != StatusEvidence::Registry {
            return Ok(());
        }
        let id = peer.peer_id;
        let job = self.core.store.write(move |tx| {
            Box::pin(async move {
                let Some(mut row) = tx.peers().get(&id).await? else { return Ok(()) };
                lose_evidence(tx, &mut row.peer, StatusEvidence::Registry, "no record").await
            })
        });
        let done: Result<(), StoreError> = job.await;
        Ok(done?)
    }

    async fn apply_record(&self, id: PeerId, record: ClientRecord) -> Result<(), Error> {
        let core = self.core.clone();
        let job = self
            .core
            .store
            .write(move |tx| Box::pin(async move { apply(tx, &core, &id, record).await }));
        job.await
    }
}

async fn apply(
    tx: &mut WriteTx,
    core: &Core,
    id: &PeerId,
    record: ClientRecord,
) -> Result<(), Error> {
    let Some(mut row) = tx.peers().get(id).await? else { return Ok(()) };
    let now = tx.now();
    let corrected = match record.word_on(&row.peer, now) {
        RecordWord::Corrects(state) => Some(state),
        RecordWord::Confirms(state) => {
            set_state(tx, &mut row.peer, state, "registry").await?;
            None
        }
        RecordWord::Nothing | RecordWord::Lags => None,
    };
    if record.is_in_turn() {
        row.peer.last_seen = row.peer.last_seen.max(now);
    } else if !row.open_calls.is_empty() {
        tx.peers().set_open_calls(id, &OpenCalls::default()).await?;
    }
    let Some(state) = corrected else { return Ok(tx.peers().touch(&row.peer).await?) };
    if state.status == PeerStatus::Idle {
        // The hook of a turn's end made the session busy with what it gave. That turn is over now,
        // and its client calls no hook if a person ended it.
        let mut given = tx.inboxes().given_at(id, row.peer.since).await?;
        advance(tx, id, &mut given, DeliveryState::Injected, None).await?;
    }
    set_state(tx, &mut row.peer, state, "registry").await?;
    let Some(why) = record.failure else { return Ok(()) };
    // The turn that failed went on with all that hooks had given before.
    let mut given = tx.inboxes().given(id, record.at).await?;
    advance(tx, id, &mut given, DeliveryState::Injected, None).await?;
    assignments::turn_failed(tx, core, id, Some(&why)).await
}
