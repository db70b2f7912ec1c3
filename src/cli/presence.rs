//! Keeps the operator present while a command shows what happens.

use std::time::Duration;

use serde_json::{Value, json};
use svc_client::{Client, ClientError, TokenSource};
use svc_model::PeerId;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::Context;

/// The heartbeat's period: a peer without one for a minute is away.
const INTERVAL: Duration = Duration::from_secs(10);

/// Sends one heartbeat of the operator; the first one creates the operator's peer.
pub(super) async fn say(client: &Client) -> Result<Value, ClientError> {
    client.post(&format!("/v1/peers/{}/heartbeat", PeerId::OPERATOR), &json!({})).await
}

/// Sends heartbeats until it is dropped.
#[derive(Debug)]
pub(super) struct OperatorPresence(JoinHandle<()>);

impl OperatorPresence {
    pub(super) fn keep(context: &Context) -> Self {
        let context = context.clone();
        Self(tokio::spawn(async move {
            loop {
                // A failure is ignored: the next heartbeat reaches a daemon that is back. A
                // session's token is not the operator's.
                if let Ok(client) = context.client()
                    && client.target().token_source != TokenSource::Env
                {
                    say(&client).await.ok();
                }
                sleep(INTERVAL).await;
            }
        }))
    }
}

impl Drop for OperatorPresence {
    fn drop(&mut self) {
        self.0.abort();
    }
}
