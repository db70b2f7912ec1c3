//! What the daemon writes in the name of an agent.

use std::sync::Arc;

use svc_model::{Caller, MessageType, NewMessage, PeerId, TokenId, conversation::SourceTool};
use svc_store::{DeliveryTerms, StoreError, WriteTx};

use crate::service::{Error, core::Core, team};

/// Who a message of a session is from: its peer, if it has one.
pub(in crate::service) async fn sender_of(
    tx: &mut WriteTx,
    session: &str,
) -> Result<String, StoreError> {
    let own = tx.peers().of_key(session).await?;
    Ok(own.map_or_else(|| session.to_owned(), |own| own.peer.peer_id.as_str().to_owned()))
}

/// A session as whose caller the daemon sends.
pub(in crate::service) fn caller_as(key: Arc<str>, project: Option<&str>) -> Caller {
    Caller::Session {
        key,
        token: TokenId::from("tok_of_agent".to_owned()),
        scopes: Arc::from([]),
        project: project.map(Arc::from),
        process: None,
        root: None,
        folder: None,
    }
}

/// Who sends a message about an agent.
pub(in crate::service) struct AgentSender<'a> {
    pub(in crate::service) session: &'a str,
    /// The id of its peer, or its session key if it has none.
    pub(in crate::service) peer: String,
    pub(in crate::service) project: Option<&'a str>,
}

/// A message of an agent's to a peer. One for which there is no room is left out: what it tells of
/// stands elsewhere, too.
pub(in crate::service) async fn tell(
    tx: &mut WriteTx,
    core: &Core,
    sender: AgentSender<'_>,
    to: PeerId,
    (tool, text): (SourceTool, String),
    (key, terms): (Option<String>, DeliveryTerms),
) -> Result<(), Error> {
    let input = NewMessage {
        text,
        kind: Some(MessageType::Notification),
        from_peer: None,
        correlation_id: None,
        idempotency_key: key,
        no_wake: false,
    };
    let outgoing = team::OutgoingMessage {
        core: core.clone(),
        caller: caller_as(sender.session.into(), sender.project),
        from: sender.peer,
        input: Arc::new(input),
        text_id: None,
        tool,
        run_id: None,
    };
    match team::deliver(tx, &outgoing, to, MessageType::Notification, terms).await {
        Ok(_) => Ok(()),
        Err(Error::LimitReached(reason)) => {
            tracing::warn!(reason, "no room for a word about an agent");
            Ok(())
        }
        Err(error) => Err(error),
    }
}
