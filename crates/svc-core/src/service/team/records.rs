//! What clients have on record of their own sessions. A record is better evidence than hooks, which
//! do not tell of everything.

use svc_model::{
    ClientRecord, DeliveryState, OpenCalls, Peer, PeerId, PeerState, PeerStatus, ProcessIdentity,
    RecordWord, RecordedState, StatusEvidence, Timestamp,
    hook::{HookClient, UsageLimit},
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
            let read = move || client_records::read(&backend, &process.process, &session);
            let Ok(record) = tokio::task::spawn_blocking(read).await else { continue };
            let now = self.core.now();
            let is_silent = now.since(row.peer.last_seen) >= limits::PEER_TIMEOUT;
            let registry = StatusEvidence::Registry;
            match record.map(|record| (record.word_on(&row.peer, now), record)) {
                Some((RecordWord::Nothing, record)) if is_silent && record.is_in_turn() => {
                    self.apply_record(row.peer.peer_id, record, registry).await?;
                }
                Some((RecordWord::Nothing, _)) => {}
                Some((RecordWord::Corrects(_) | RecordWord::Confirms(_), record)) => {
                    self.apply_record(row.peer.peer_id, record, registry).await?;
                }
                Some((RecordWord::Lags, _)) | None => {
                    self.lose(row.peer, registry, "no record").await?;
                }
            }
        }
        Ok(())
    }

    /// Notes that a session's status rests on hooks alone, if it rested on what is gone now.
    async fn lose(
        &self,
        peer: Peer,
        gone: StatusEvidence,
        reason: &'static str,
    ) -> Result<(), Error> {
        if peer.evidence != gone {
            return Ok(());
        }
        let id = peer.peer_id;
        let job = self.core.store.write(move |tx| {
            Box::pin(async move {
                let Some(mut row) = tx.peers().get(&id).await? else { return Ok(()) };
                lose_evidence(tx, &mut row.peer, gone, reason).await
            })
        });
        let done: Result<(), StoreError> = job.await;
        Ok(done?)
    }

    async fn apply_record(
        &self,
        id: PeerId,
        record: ClientRecord,
        evidence: StatusEvidence,
    ) -> Result<(), Error> {
        let core = self.core.clone();
        let job = self.core.store.write(move |tx| {
            Box::pin(async move { apply(tx, &core, &id, record, evidence).await })
        });
        job.await
    }

    /// Stores how a session stands by the word of its app-server.
    pub(in crate::service) async fn hear_app_server(
        &self,
        session: &str,
        process: &ProcessIdentity,
        state: RecordedState,
    ) -> Result<(), Error> {
        let Some(peer) = self.peer_in(session, process).await? else { return Ok(()) };
        let record = ClientRecord { state, at: self.core.now(), asks: None, failure: None };
        self.apply_record(peer, record, StatusEvidence::AppServer).await
    }

    /// Notes that an app-server tells nothing of its sessions any more.
    pub(in crate::service) async fn lose_app_server(
        &self,
        process: &ProcessIdentity,
    ) -> Result<(), Error> {
        for row in self.core.store.peers().in_processes(HookClient::Codex.as_str()).await? {
            if row.is_in(process) {
                self.lose(row.peer, StatusEvidence::AppServer, "no app-server").await?;
            }
        }
        Ok(())
    }

    /// Fails what a session was asked in a turn that its vendor refused for usage, and lets it wait
    /// for the end of the limit.
    pub(in crate::service) async fn limited_by_app_server(
        &self,
        session: &str,
        process: &ProcessIdentity,
        limit: UsageLimit,
    ) -> Result<(), Error> {
        let Some(peer) = self.peer_in(session, process).await? else { return Ok(()) };
        let core = self.core.clone();
        let job = self.core.store.write(move |tx| {
            Box::pin(async move {
                let at = tx.now();
                fail_turn(tx, &core, &peer, at, &limit.said).await?;
                let Some(mut row) = tx.peers().get(&peer).await? else { return Ok(()) };
                let state = PeerState {
                    status: PeerStatus::Waiting,
                    waiting_for: Some(limit.waiting_for(at)),
                    at,
                    evidence: StatusEvidence::AppServer,
                };
                Ok(set_state(tx, &mut row.peer, state, "limit").await?)
            })
        });
        job.await
    }

    /// Fails what a session was asked in a turn that failed by the word of its app-server.
    pub(in crate::service) async fn turn_failed(
        &self,
        session: &str,
        process: &ProcessIdentity,
        why: String,
    ) -> Result<(), Error> {
        let Some(peer) = self.peer_in(session, process).await? else { return Ok(()) };
        let core = self.core.clone();
        let job = self.core.store.write(move |tx| {
            Box::pin(async move {
                let at = tx.now();
                fail_turn(tx, &core, &peer, at, &why).await
            })
        });
        job.await
    }

    /// The peer of an attended session, if its hooks came from this process.
    async fn peer_in(
        &self,
        session: &str,
        process: &ProcessIdentity,
    ) -> Result<Option<PeerId>, Error> {
        let session = self.session_in_process(process, session).await?;
        let row = self.core.store.peers().of_session(&session).await?;
        let own = row.filter(|row| {
            let is_hosted = row.owner.as_deref().is_some_and(is_agent_key);
            !is_hosted && row.is_in(process)
        });
        Ok(own.map(|row| row.peer.peer_id))
    }
}

async fn apply(
    tx: &mut WriteTx,
    core: &Core,
    id: &PeerId,
    record: ClientRecord,
    evidence: StatusEvidence,
) -> Result<(), Error> {
    let Some(mut row) = tx.peers().get(id).await? else { return Ok(()) };
    let now = tx.now();
    let corrected = match record.word_on(&row.peer, now) {
        RecordWord::Corrects(state) => Some(state),
        RecordWord::Confirms(state) => {
            let state = PeerState { evidence, ..state };
            set_state(tx, &mut row.peer, state, evidence.as_str()).await?;
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
    let state = PeerState { evidence, ..state };
    set_state(tx, &mut row.peer, state, evidence.as_str()).await?;
    match record.failure {
        Some(why) => fail_turn(tx, core, id, record.at, &why).await,
        None => Ok(()),
    }
}

/// The turn that failed went on with all that hooks had given before.
async fn fail_turn(
    tx: &mut WriteTx,
    core: &Core,
    id: &PeerId,
    at: Timestamp,
    why: &str,
) -> Result<(), Error> {
    let mut given = tx.inboxes().given(id, at).await?;
    advance(tx, id, &mut given, DeliveryState::Injected, None).await?;
    assignments::turn_failed(tx, core, id, Some(why)).await
}
