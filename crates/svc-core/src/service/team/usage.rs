//! Usage limits of attended sessions: their ends, as clients record them, and what happens at the
//! end. The daemon does not continue a session; messages that wait for it wake it.

use svc_model::{Peer, PeerId, PeerState, PeerStatus, Timestamp, WaitingFor, is_agent_key, limits};
use svc_store::{PeerRow, StoreError};
use svc_sys::client_records;

use super::{Team, peers::set_state};
use crate::service::Error;

impl Team {
    /// Checks the usage limits: adds the ends that clients have recorded meanwhile, and ends the
    /// limits that have been over for [`limits::AFTER_LIMIT`].
    pub async fn sweep_limits(&self) -> Result<(), Error> {
        let now = self.core.now();
        for row in self.core.store.peers().limited().await? {
            if row.owner.as_deref().is_some_and(is_agent_key) {
                // Its host reports its limit.
                continue;
            }
            if row.peer.is_past_limit(now) {
                self.change_limit(row.peer, None).await?;
                continue;
            }
            let known = row.peer.waiting_for.as_ref();
            let is_told = known.is_none_or(|known| {
                known.until.is_some() || now.since(known.since) > limits::LIMIT_RECORD
            });
            if !is_told && let Some(until) = self.recorded_end(&row).await {
                let mut waiting_for = row.peer.waiting_for.clone();
                if let Some(waiting) = &mut waiting_for {
                    waiting.until = Some(until);
                }
                self.change_limit(row.peer, waiting_for).await?;
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

    /// Stores what is known of a limit; `None` if the limit is over. Does nothing if the session
    /// has gone on since `seen` was read.
    async fn change_limit(&self, seen: Peer, next: Option<WaitingFor>) -> Result<(), Error> {
        let id: PeerId = seen.peer_id.clone();
        let job = self.core.store.write(move |tx| {
            Box::pin(async move {
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
            })
        });
        let done: Result<(), StoreError> = job.await;
        Ok(done?)
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
    use svc_store::testing::TestStore;

    use super::*;
    use crate::service::{
        Services,
        hooks::{HookCall, MailWait, MailWaiter},
        testing::services,
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
        // Its client lives.
        let call = HookCall { pid: Some(std::process::id()), ..HookCall::default() };
        services.hooks.hook(&Caller::Operator, event, call).await.unwrap();
    }

    /// What a process that waits for the session's mail gets now.
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
        let test = TestStore::open().await;
        let services = services(&test);
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
        let test = TestStore::open().await;
        let services = services(&test);
        tell(&services, "UserPromptSubmit", None).await;
        tell(&services, "StopFailure", None).await;
        let sent = send(&services).await;
        test.clock.advance(Duration::from_hours(1));
        assert_eq!(status(&services).await, PeerStatus::Waiting);
        let state = async || test.store.messages().get(&sent).await.unwrap().unwrap().state;
        // A turn that is refused, too.
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
