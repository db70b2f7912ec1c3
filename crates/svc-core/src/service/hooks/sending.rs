//! Sends a message and reports when it will arrive, which depends on hooks and waiters.

use svc_model::{
    Caller, ExpectedDelivery, HandoverWay, NewMessage, PeerId, PeerStatus, SentMessage,
    agent::AgentState, hook::HookClient, is_agent_key, limits,
};
use svc_store::StoreError;

use super::{event::Hooks, mail_wait::is_gone};
use crate::boxed;
use crate::service::{Error, ResourceKind, Result};

impl Hooks {
    /// Puts a message into a peer's inbox, and reports when it reaches the peer's model.
    ///
    /// # Errors
    /// Those of [`send_message`](crate::service::team::Team::send_message).
    #[boxed]
    pub async fn send_message(
        &self,
        caller: &Caller,
        to: &str,
        input: NewMessage,
    ) -> Result<SentMessage> {
        // Read before the send: a waiter that takes the message no longer waits.
        let expected = match self.team.find_peer(caller, to, ResourceKind::Peer).await {
            // A repeat may name a peer that was removed since.
            Err(Error::NotFound { .. }) => None,
            to => self.expected_delivery(caller, &to?).await?,
        };
        let no_wake = input.no_wake;
        let message = self.team.send_message(caller, to, input).await?;
        let delivery = match expected {
            Some(ExpectedDelivery::Wakes) if no_wake => ExpectedDelivery::NextTurn,
            // The receiver was removed after the message that this one repeats.
            expected => expected.unwrap_or(ExpectedDelivery::Never),
        };
        Ok(SentMessage { message, delivery })
    }

    /// When a message of a caller would reach a peer's model; `None` if there is no such peer.
    pub(in crate::service) async fn expected_delivery(
        &self,
        caller: &Caller,
        to: &PeerId,
    ) -> Result<Option<ExpectedDelivery>, StoreError> {
        let store = &self.core.store;
        let Some(row) = store.peers().get(to).await? else { return Ok(None) };
        let hosted = row.owner.as_deref().filter(|owner| is_agent_key(owner));
        if let Some(key) = hosted
            && let Some(agent) = store.agents().of_key(key).await?
        {
            if agent.ended_at.is_some() {
                return Ok(Some(ExpectedDelivery::Never));
            }
            if row.peer.status == PeerStatus::Unreachable {
                return Ok(Some(ExpectedDelivery::WhenBack));
            }
            // Each message to a hosted agent begins a turn of its own, after the turn under way.
            return Ok(Some(match agent.info.state {
                AgentState::Idle => ExpectedDelivery::Wakes,
                _ => ExpectedDelivery::NextTurn,
            }));
        }
        if row.peer.is_limited() {
            return Ok(Some(ExpectedDelivery::NextTurn));
        }
        let client = HookClient::parse(&row.peer.backend);
        let may_wake = self.may_wake(caller, to).await?;
        let way = self.handovers.way_to(&row).await?;
        let joins_turn = way.is_some_and(HandoverWay::joins_turns);
        let reaches_each_turn =
            may_wake && (joins_turn || client.is_some_and(HookClient::goes_on_at_stop));
        let owner = match &row.peer.session_id {
            Some(session) => store.sessions().owner(session).await?.and_then(|known| known.owner),
            None => None,
        };
        let wakes = owner.zip(row.peer.session_id.as_deref());
        let idle_since = (row.peer.status == PeerStatus::Idle).then_some(row.peer.since);
        let is_waited_for = || {
            wakes.is_some_and(|(owner, session)| {
                self.waiters.wake(&owner, session, (self.core.now(), idle_since))
            })
        };
        let wakes = may_wake
            && !self.handovers.is_off(&row.peer.backend)
            && (way.is_some() || is_waited_for());
        // A client that was killed a moment ago may still be online here, and its waiter may still
        // live.
        Ok(Some(if is_gone(&self.core, &row) {
            ExpectedDelivery::from_status(PeerStatus::Offline, reaches_each_turn, false)
        } else {
            ExpectedDelivery::from_status(row.peer.status, reaches_each_turn, wakes)
        }))
    }

    /// Whether a message of a caller may begin a turn of a peer, considering the turns that its
    /// earlier messages began.
    async fn may_wake(&self, caller: &Caller, to: &PeerId) -> Result<bool, StoreError> {
        let store = &self.core.store;
        let Some(key) = caller.session() else { return Ok(true) };
        let Some(from) = store.peers().of_key(key).await? else { return Ok(true) };
        let since = self.core.now().minus(limits::WAKES_WINDOW);
        let wakes = store.inboxes().count_turns_begun_by(to, &from.peer.peer_id, since).await?;
        Ok(wakes < i64::from(self.core.tuning.wakes))
    }
}
