//! The streams of sessions and of peers.

use svc_model::{NewEvent, Ownership, PeerId, Principal, StreamName, StreamVisibility, limits};
use svc_store::{StoreError, WriteTx};

/// Appends to a session's stream, and opens the stream if it is new.
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

pub(in crate::service) async fn append_to_peer(
    tx: &mut WriteTx,
    to: &PeerId,
    events: Vec<NewEvent>,
) -> Result<(), StoreError> {
    if events.is_empty() {
        return Ok(());
    }
    let stream = StreamName::new("peer", to);
    // The stream is opened with the peer. For a peer of an old database it may be missing, and is
    // the operator's then.
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
    // A session that the operator registered is shown to whoever holds a token for it. The operator
    // reads everything anyway.
    if matches!(thing.owner, None | Some(Principal::Operator)) {
        thing.owner = Some(Principal::Session(session_id.into()));
    }
    Ok(StreamVisibility::shared(&thing))
}

/// The stream of a session. A client's own id that does not fit a stream's name is replaced by its
/// hash.
pub(super) fn stream_of(session_id: &str) -> StreamName {
    let name = format!("session/{session_id}");
    let fits = session_id.len() <= limits::ID_BYTES;
    StreamName::parse(&name).filter(|_| fits).unwrap_or_else(|| {
        use sha2::{Digest as _, Sha256};
        StreamName::new("session", hex::encode(&Sha256::digest(session_id)[..16]))
    })
}
