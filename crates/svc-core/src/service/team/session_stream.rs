//! The streams of sessions and of peers.

use svc_model::{NewEvent, Ownership, PeerId, Principal, StreamName, StreamVisibility, limits};
use svc_store::{StoreError, WriteTx};

/// Appends to a session's stream, which is opened if it is new.
pub(in crate::service) async fn tell(
    tx: &mut WriteTx,
    session_id: &str,
    kind: &'static str,
    data: &serde_json::Value,
) -> Result<(), StoreError> {
    let stream = stream_of(session_id);
    if tx.streams().state(&stream).await?.is_none() {
        let visibility = visibility_of(tx, session_id).await?;
        tx.streams().open(&stream, &visibility).await?;
    }
    tx.append(&stream, vec![NewEvent::new(kind, data)]).await?;
    Ok(())
}

/// Appends to the stream of a peer.
pub(in crate::service) async fn append_to_peer(
    tx: &mut WriteTx,
    to: &PeerId,
    events: Vec<NewEvent>,
) -> Result<(), StoreError> {
    if events.is_empty() {
        return Ok(());
    }
    let stream = StreamName::new("peer", to);
    // It was opened with the peer; that of a peer of long ago may be missing, and is the operator's
    // then.
    tx.streams().open(&stream, &StreamVisibility::private(&Principal::Operator)).await?;
    tx.append(&stream, events).await?;
    Ok(())
}

/// Who may read the stream of a session.
pub(super) async fn visibility_of(
    tx: &mut WriteTx,
    session_id: &str,
) -> Result<StreamVisibility, StoreError> {
    let row = tx.sessions().owner(session_id).await?;
    let mut thing = row.unwrap_or_else(|| Ownership::from_row("", String::new()));
    // One that the operator made known is that of whoever holds a token for it: the operator reads
    // everything anyway.
    if matches!(thing.owner, None | Some(Principal::Operator)) {
        thing.owner = Some(Principal::Session(session_id.into()));
    }
    Ok(StreamVisibility::shared(&thing))
}

/// The stream of a session. A client's own id may hold what a stream's name may not.
pub(super) fn stream_of(session_id: &str) -> StreamName {
    let name = format!("session/{session_id}");
    let fits = session_id.len() <= limits::ID_BYTES;
    StreamName::parse(&name).filter(|_| fits).unwrap_or_else(|| {
        use sha2::{Digest as _, Sha256};
        StreamName::new("session", hex::encode(&Sha256::digest(session_id)[..16]))
    })
}
