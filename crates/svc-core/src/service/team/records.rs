//! What clients have on record about their own sessions: the state of a session, and the end of its
//! usage limit. A record is better evidence than hooks, which do not report everything. When a
//! limit ends, the daemon does not continue the session; a message that waits for the session wakes
//! it.

use svc_model::{
    ClientRecord, DeliveryState, OpenCalls, Peer, PeerId, PeerState, PeerStatus, ProcessIdentity,
    RecordRelation, RecordedState, StatusEvidence, Timestamp, WaitingFor,
    hook::{ClientPrompt, HookClient, UsageLimit},
    limits,
};
use svc_store::{PeerRow, WriteTx, job};
use svc_sys::client_records;

use super::{Team, delivery::advance, lose_evidence, set_state};
use crate::boxed;
use crate::service::{Result, assignments, core::Core};

impl Team {
    /// Fails the questions of turns whose end no hook has reported within
    /// [`limits::TURN_TEXT_GRACE`].
    #[boxed]
    pub async fn end_silent_turns(&self) -> Result<()> {
        let before = self.core.now().minus(limits::TURN_TEXT_GRACE);
        for peer in self.core.store.messages().peers_of_silent_turns(before).await? {
            let core = self.core.clone();
            let job = self
                .core
                .store
                .write(job!(|tx| assignments::silent_turn_ended(tx, &core, &peer, before).await));
            job.await?;
        }
        Ok(())
    }

    /// Reads clients' records of their sessions, and corrects the status of peers by them.
    #[boxed]
    pub async fn read_client_records(&self) -> Result<()> {
        let claude = self.core.store.peers().in_processes(client_records::CLAUDE).await?;
        self.correct(claude).await?;
        for backend in [client_records::CODEX, client_records::GEMINI] {
            let mut rows = self.core.store.peers().in_processes(backend).await?;
            // These records show only that a turn is over.
            rows.retain(|row| matches!(row.peer.status, PeerStatus::Busy | PeerStatus::Waiting));
            self.correct(rows).await?;
        }
        Ok(())
    }

    async fn correct(&self, rows: Vec<PeerRow>) -> Result<()> {
        for row in rows {
            // The host of a hosted agent reports the agent's turns.
            let (Some(process), Some(session), None) =
                (row.process(), row.peer.session_id.clone(), row.agent_key())
            else {
                continue;
            };
            let backend = row.peer.backend.clone();
            let read = move || client_records::read(&backend, &process.process, &session);
            let Ok(record) = tokio::task::spawn_blocking(read).await else { continue };
            let now = self.core.now();
            let is_silent = now.since(row.peer.last_seen) >= limits::PEER_TIMEOUT;
            let registry = StatusEvidence::Registry;
            match record.map(|record| (record.word_on(&row.peer, now), record)) {
                Some((RecordRelation::Nothing, record)) if !(is_silent && record.is_in_turn()) => {}
                Some((RecordRelation::Lags, _)) | None => {
                    self.lose(row.peer, registry, "no record").await?;
                }
                Some((_, record)) => {
                    self.apply_record(row.peer.peer_id, record, registry).await?;
                }
            }
        }
        Ok(())
    }

    /// If a session's evidence was `gone`, notes that its status rests on hooks alone.
    async fn lose(&self, peer: Peer, gone: StatusEvidence, reason: &'static str) -> Result<()> {
        if peer.evidence != gone {
            return Ok(());
        }
        let id = peer.peer_id;
        let job = self.core.store.write(job!(|tx| {
            let Some(mut row) = tx.peers().get(&id).await? else { return Ok(()) };
            lose_evidence(tx, &mut row.peer, gone, reason).await
        }));
        Ok(job.await?)
    }

    async fn apply_record(
        &self,
        id: PeerId,
        record: ClientRecord,
        evidence: StatusEvidence,
    ) -> Result<()> {
        let core = self.core.clone();
        let job = self.core.store.write(job!(|tx| apply(tx, &core, &id, record, evidence).await));
        job.await
    }

    /// Stores the state that an app-server reports of a session.
    pub(in crate::service) async fn note_app_server(
        &self,
        session: &str,
        process: &ProcessIdentity,
        state: RecordedState,
    ) -> Result<()> {
        let Some(peer) = self.peer_in(session, process).await? else { return Ok(()) };
        let record = ClientRecord { state, at: self.core.now(), asks: None, failure: None };
        self.apply_record(peer, record, StatusEvidence::AppServer).await
    }

    /// Stores what a session asks that waits according to an app-server, whose states do not say
    /// it.
    pub(in crate::service) async fn note_asked(
        &self,
        session: &str,
        process: &ProcessIdentity,
        asked: &ClientPrompt,
    ) -> Result<()> {
        let Some(peer) = self.peer_in(session, process).await? else { return Ok(()) };
        let title = Some(asked.title());
        let tool = asked.tool()["name"].as_str().map(str::to_owned);
        let job = self.core.store.write(job!(|tx| {
            let Some(mut row) = tx.peers().get(&peer).await? else { return Ok(()) };
            let known = &row.peer;
            let is_told = known.evidence == StatusEvidence::AppServer && !known.is_limited();
            let Some(waits) = known.waiting_for.clone().filter(|_| is_told) else { return Ok(()) };
            let state = PeerState {
                status: known.status,
                waiting_for: Some(WaitingFor { title, tool, ..waits }),
                at: known.since,
                evidence: known.evidence,
            };
            set_state(tx, &mut row.peer, state, "app-server").await
        }));
        Ok(job.await?)
    }

    /// Notes that an app-server no longer reports on its sessions.
    pub(in crate::service) async fn lose_app_server(
        &self,
        process: &ProcessIdentity,
    ) -> Result<()> {
        for row in self.core.store.peers().in_processes(HookClient::Codex.as_str()).await? {
            if row.is_in(process) {
                self.lose(row.peer, StatusEvidence::AppServer, "no app-server").await?;
            }
        }
        Ok(())
    }

    /// Fails the questions of a turn that the app-server reports as failed. If the vendor refused
    /// the turn for usage, the session waits for the end of that limit.
    pub(in crate::service) async fn turn_failed(
        &self,
        session: &str,
        process: &ProcessIdentity,
        (why, limit): (String, Option<UsageLimit>),
    ) -> Result<()> {
        let Some(peer) = self.peer_in(session, process).await? else { return Ok(()) };
        let core = self.core.clone();
        let job = self.core.store.write(job!(|tx| {
            let at = tx.now();
            fail_turn(tx, &core, &peer, at, &why).await?;
            let (Some(limit), Some(mut row)) = (limit, tx.peers().get(&peer).await?) else {
                return Ok(());
            };
            let state = PeerState {
                status: PeerStatus::Waiting,
                waiting_for: Some(limit.waiting_for(at)),
                at,
                evidence: StatusEvidence::AppServer,
            };
            Ok(set_state(tx, &mut row.peer, state, "limit").await?)
        }));
        job.await
    }

    /// The peer of an attended session, if its hooks came from this process.
    async fn peer_in(&self, session: &str, process: &ProcessIdentity) -> Result<Option<PeerId>> {
        let session = self.session_in_process(process, session).await?;
        let row = self.core.store.peers().of_session(&session).await?;
        let own = row.filter(|row| row.agent_key().is_none() && row.is_in(process));
        Ok(own.map(|row| row.peer.peer_id))
    }
}

async fn apply(
    tx: &mut WriteTx,
    core: &Core,
    id: &PeerId,
    record: ClientRecord,
    evidence: StatusEvidence,
) -> Result<()> {
    let Some(mut row) = tx.peers().get(id).await? else { return Ok(()) };
    let now = tx.now();
    let corrected = match record.word_on(&row.peer, now) {
        RecordRelation::Corrects(state) => Some(state),
        RecordRelation::Confirms(state) => {
            let state = PeerState { evidence, ..state };
            set_state(tx, &mut row.peer, state, evidence.as_str()).await?;
            None
        }
        RecordRelation::Nothing | RecordRelation::Lags => None,
    };
    if record.is_in_turn() {
        row.peer.last_seen = row.peer.last_seen.max(now);
    } else if !row.open_calls.is_empty() {
        tx.peers().set_open_calls(id, &OpenCalls::default()).await?;
    }
    let Some(state) = corrected else { return Ok(tx.peers().touch(&row.peer).await?) };
    if state.status == PeerStatus::Idle {
        // The hook at a turn's end handed messages over, so the session stayed busy with another
        // turn. That turn is over now. If a person ended it, the client calls no hook.
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

/// Fails the questions of a turn. Everything that hooks gave before the turn's end counts as read.
async fn fail_turn(
    tx: &mut WriteTx,
    core: &Core,
    id: &PeerId,
    at: Timestamp,
    why: &str,
) -> Result<()> {
    let mut given = tx.inboxes().given(id, at).await?;
    advance(tx, id, &mut given, DeliveryState::Injected, None).await?;
    assignments::turn_failed(tx, core, id, Some(why)).await
}

impl Team {
    /// Checks the usage limits: adds ends that clients have recorded meanwhile, and clears limits
    /// that have been over for [`limits::AFTER_LIMIT`].
    #[boxed]
    pub async fn sweep_limits(&self) -> Result<()> {
        let now = self.core.now();
        for row in self.core.store.peers().limited().await? {
            // The host of a hosted agent reports the agent's limit.
            if row.agent_key().is_some() {
                continue;
            }
            if row.peer.is_past_limit(now) {
                self.change_limit(row.peer, None).await?;
                continue;
            }
            let may_be_recorded = |limit: &WaitingFor| {
                limit.until.is_none() && now.since(limit.since) <= limits::LIMIT_RECORD
            };
            if let Some(limit) = row.peer.waiting_for.clone().filter(may_be_recorded)
                && let Some(until) = self.recorded_end(&row).await
            {
                let limit = WaitingFor { until: Some(until), ..limit };
                self.change_limit(row.peer, Some(limit)).await?;
            }
        }
        Ok(())
    }

    async fn recorded_end(&self, row: &PeerRow) -> Option<Timestamp> {
        let (process, session) = (row.process()?.process, row.peer.session_id.clone()?);
        let (backend, now) = (row.peer.backend.clone(), self.core.now());
        let read = move || client_records::limit_end(&backend, &process, &session, now);
        tokio::task::spawn_blocking(read).await.ok().flatten()
    }

    /// Stores a limit; `None` if it is over. Does nothing if the session has changed since `seen`
    /// was read.
    async fn change_limit(&self, seen: Peer, next: Option<WaitingFor>) -> Result<()> {
        let id = seen.peer_id.clone();
        let job = self.core.store.write(job!(|tx| {
            let Some(mut row) = tx.peers().get(&id).await? else { return Ok(()) };
            let peer = &row.peer;
            if (peer.status, &peer.waiting_for) != (seen.status, &seen.waiting_for) {
                return Ok(());
            }
            let (status, reason) = match next {
                Some(_) => (PeerStatus::Waiting, "limit"),
                None => (PeerStatus::Idle, "limit over"),
            };
            let (evidence, at) = (peer.evidence, tx.now());
            let state = PeerState { status, waiting_for: next, at, evidence };
            set_state(tx, &mut row.peer, state, reason).await
        }));
        Ok(job.await?)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use svc_model::{
        Caller, DeliveryState, MessageId,
        hook::{self, HookClient, HookMoment},
    };

    use super::*;
    use crate::service::{
        Services,
        hooks::{HookCall, MailWait, MailWaiter},
        testing::opened,
    };

    async fn tell(services: &Services, name: &str, until: Option<Timestamp>) {
        let payload = json!({
            "session_id": "s", "hook_event_name": name, "error": "rate_limit", "prompt": "go on",
            "tool_name": "Bash", "tool_input": {}, "last_assistant_message": "You've hit your limit",
        });
        let mut event = hook::read(HookClient::ClaudeCode, None, &payload).unwrap();
        if let HookMoment::Refused(limit) = &mut event.moment {
            limit.until = until;
        }
        // This test is the client's process, so the client lives.
        let call = HookCall { pid: Some(std::process::id()), ..HookCall::default() };
        services.hooks.hook(&Caller::Operator, event, call).await.unwrap();
    }

    /// What a process that waits for the session's mail gets at this moment.
    async fn mail(services: &Services, id: &str) -> MailWait {
        let waiter = MailWaiter { id: id.to_owned(), lost: Vec::new() };
        let now = std::future::ready(());
        services.hooks.await_mail(&Caller::Operator, "s", waiter, now).await.unwrap()
    }

    async fn send(services: &Services) -> MessageId {
        let id = services.team.peer_of_session("s").await.unwrap().unwrap().peer_id;
        let message = serde_json::from_value(json!({ "text": "hello" })).unwrap();
        services.team.send_message(&Caller::Operator, id.as_str(), message).await.unwrap().id
    }

    async fn status(services: &Services) -> PeerStatus {
        services.team.sweep_limits().await.unwrap();
        services.team.peer_of_session("s").await.unwrap().unwrap().status
    }

    #[tokio::test]
    async fn mail_waits_for_the_end_of_a_limit_and_wakes_once() {
        let (test, services) = opened().await;
        let until = services.now().plus(Duration::from_hours(1));
        tell(&services, "UserPromptSubmit", None).await;
        tell(&services, "StopFailure", Some(until)).await;
        send(&services).await;
        for (at, expected) in [
            (Duration::ZERO, PeerStatus::Waiting),
            (Duration::from_hours(1), PeerStatus::Waiting),
            (Duration::from_secs(89), PeerStatus::Waiting),
            (Duration::from_secs(1), PeerStatus::Idle),
        ] {
            test.clock.advance(at);
            // Silence does not end the wait.
            services.team.sweep_peers().await.unwrap();
            if expected == PeerStatus::Waiting {
                assert_eq!(mail(&services, "1").await, MailWait::Nothing);
            }
            assert_eq!(status(&services).await, expected, "{at:?}");
        }
        assert!(matches!(mail(&services, "2").await, MailWait::Message(_)));
        assert_eq!(mail(&services, "3").await, MailWait::Nothing, "once");
    }

    #[tokio::test]
    async fn without_a_known_end_mail_waits_for_a_turn_that_is_not_refused() {
        let (test, services) = opened().await;
        tell(&services, "UserPromptSubmit", None).await;
        tell(&services, "StopFailure", None).await;
        let sent = send(&services).await;
        test.clock.advance(Duration::from_hours(1));
        assert_eq!(status(&services).await, PeerStatus::Waiting);
        let state = async || test.store.messages().get(&sent).await.unwrap().unwrap().state;
        // The same for a turn that is refused.
        tell(&services, "UserPromptSubmit", None).await;
        tell(&services, "StopFailure", None).await;
        assert_eq!(status(&services).await, PeerStatus::Waiting);
        assert_eq!(state().await, DeliveryState::Queued);
        tell(&services, "UserPromptSubmit", None).await;
        assert_eq!(status(&services).await, PeerStatus::Busy);
        assert_eq!(state().await, DeliveryState::Queued);
        tell(&services, "PostToolUse", None).await;
        assert_eq!(state().await, DeliveryState::Offered);
    }
}
