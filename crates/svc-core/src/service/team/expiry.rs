//! The expiry of messages that nobody took in time.

use std::time::Duration;

use svc_model::{DeliveryState, PeerId, Timestamp, limits};
use svc_store::{StoreError, WriteTx};

use super::{Team, delivery::advance};
use crate::service::Error;

/// The reason of an expired delivery.
const NOBODY_TOOK_IT: &str = "nobody took it in time";

impl Team {
    /// Expires messages that nobody took for `age`. Spares messages that a reader has leased, and
    /// questions that their receiver has seen.
    pub async fn expire_messages(&self, age: Duration) -> Result<(), Error> {
        let before = self.core.now().minus(age);
        for peer in self.core.store.inboxes().with_old_messages(before).await? {
            let mut more = true;
            while more {
                let peer = peer.clone();
                let job = self.core.store.write(move |tx| {
                    Box::pin(async move { Ok::<_, Error>(expire_some(tx, &peer, before).await?) })
                });
                more = job.await?;
            }
        }
        Ok(())
    }
}

/// Expires as many messages as one write job may. Returns whether more may be left.
async fn expire_some(
    tx: &mut WriteTx,
    peer: &PeerId,
    before: Timestamp,
) -> Result<bool, StoreError> {
    let limit = limits::ENDED_MESSAGES_PER_JOB;
    let ids = tx.inboxes().old(peer, before, limit).await?;
    let mut messages = Vec::new();
    for id in &ids {
        messages.extend(tx.messages().get(id).await?);
    }
    advance(tx, peer, &mut messages, DeliveryState::Expired, Some(NOBODY_TOOK_IT)).await?;
    Ok(u32::try_from(ids.len()).is_ok_and(|count| count == limit))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use svc_model::{Caller, MessageId};
    use svc_store::testing::TestStore;

    use super::*;
    use crate::service::{PageBounds, testing::services};

    const AGE: Duration = Duration::from_hours(720);

    #[tokio::test]
    async fn a_message_that_nobody_took_for_long_expires_with_a_reason() {
        let test = TestStore::open().await;
        let services = services(&test);
        let operator = Caller::Operator;
        let input = json!({ "display_name": "a", "backend": "test", "path": "/a" });
        let peer =
            services.team.register_peer(&operator, serde_json::from_value(input).unwrap()).await;
        let peer = peer.unwrap().peer_id;
        let send = async || {
            let message = serde_json::from_value(json!({ "text": "hello" })).unwrap();
            services.team.send_message(&operator, peer.as_str(), message).await.unwrap().id
        };
        let state =
            async |id: &MessageId| services.team.message(&operator, id.as_str()).await.unwrap();
        let mut old = Vec::new();
        for _ in 0..=limits::ENDED_MESSAGES_PER_JOB {
            old.push(send().await);
        }
        let seen = old.remove(0);
        let ids = vec![seen.as_str().to_owned()];
        services.team.ack_messages(&operator, peer.as_str(), ids).await.unwrap();
        test.clock.advance(AGE);
        services.team.expire_messages(AGE).await.unwrap();
        assert_eq!(state(&old[0]).await.message.state, DeliveryState::Queued, "not older");
        let taken = services
            .team
            .take_messages(&operator, peer.as_str(), PageBounds::new(None, Some(1)))
            .await
            .unwrap();
        let taken = taken.items[0].id.clone();
        test.clock.advance(Duration::from_secs(1));
        let young = send().await;
        services.team.expire_messages(AGE).await.unwrap();
        assert_eq!(state(&seen).await.message.state, DeliveryState::Acked);
        assert_eq!(state(&young).await.message.state, DeliveryState::Queued);
        assert_eq!(state(&taken).await.message.state, DeliveryState::Offered, "a reader has it");
        let end = state(old.last().unwrap()).await;
        assert_eq!(end.message.state, DeliveryState::Expired);
        let last = end.states.last().unwrap();
        assert_eq!(
            (last.state, last.reason.as_deref()),
            (DeliveryState::Expired, Some(NOBODY_TOOK_IT))
        );
        test.clock.advance(limits::LEASE);
        services.team.expire_messages(AGE).await.unwrap();
        assert_eq!(
            state(&taken).await.message.state,
            DeliveryState::Expired,
            "nobody has it any more"
        );
    }
}
