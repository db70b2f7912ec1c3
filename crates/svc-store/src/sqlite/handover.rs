//! Texts that were handed to a client's own queue or inbox, until the client shows that it has
//! them.

use svc_model::{
    DeliveryState, HandoverId, HandoverWay, Message, MessageId, MessageType, PeerId, Timestamp,
    conversation::SourceTool,
};

use super::{
    errors::all_changed,
    families::{HandoverReads, HandoverWrites},
    json::to_json,
    message::{RawMessage, messages},
    statement::{change, direct_row, read_all, select_all, select_one},
};
use crate::{HandoverRow, MessageRow, StoreError};

direct_row! {
    struct RawHandover {
        handover_id: HandoverId,
        peer_id: PeerId,
        session_id: String,
        via: HandoverWay,
        joins_turn: bool,
        is_held: bool,
        record: Option<String>,
        at: Timestamp,
    }
}

impl From<RawHandover> for HandoverRow {
    fn from(raw: RawHandover) -> Self {
        let RawHandover { handover_id, peer_id, session_id, via, joins_turn, is_held, record, at } =
            raw;
        Self { handover_id, peer_id, session_id, via, joins_turn, is_held, record, at }
    }
}

/// Runs a query whose rows are hand-overs.
macro_rules! handovers {
    ($run:ident, $($rest:tt)*) => {
        $run!(
            r#"select handover_id as "handover_id!: HandoverId", peer_id as "peer_id!: PeerId", session_id,
                via as "via: HandoverWay", joins_turn as "joins_turn: bool", is_held as "is_held: bool", record,
                at as "at: Timestamp"
            from handover "#,
            RawHandover,
            $($rest)*
        )
    };
}

impl HandoverWrites<'_> {
    /// Stores a hand-over of these messages.
    pub async fn insert(
        &mut self,
        row: &HandoverRow,
        messages: &[MessageId],
    ) -> Result<(), StoreError> {
        change!(
            self.tx,
            "insert into handover (handover_id, peer_id, session_id, via, joins_turn, is_held, record, at) \
            values (?, ?, ?, ?, ?, ?, ?, ?)",
            row.handover_id,
            row.peer_id,
            row.session_id,
            row.via,
            row.joins_turn,
            row.is_held,
            row.record,
            row.at
        );
        let list = to_json(messages);
        let done = change!(
            self.tx,
            "update message set handover_id = ? where message_id in (select value from json_each(?))",
            row.handover_id,
            list
        );
        all_changed(done, messages.len(), "message")
    }

    pub async fn get(&mut self, id: &HandoverId) -> Result<Option<HandoverRow>, StoreError> {
        let raw = handovers!(select_one, self.tx, "where handover_id = ?", id);
        Ok(raw.map(HandoverRow::from))
    }

    /// The open ones of a peer, in order.
    pub async fn of_peer(&mut self, peer: &PeerId) -> Result<Vec<HandoverRow>, StoreError> {
        let rows = handovers!(select_all, self.tx, "where peer_id = ? order by handover_id", peer);
        Ok(rows.into_iter().map(HandoverRow::from).collect())
    }

    /// The messages of a hand-over that the client has not shown to have, in order.
    pub async fn messages(&mut self, id: &HandoverId) -> Result<Vec<Message>, StoreError> {
        let rows = messages!(select_all, self.tx, "where handover_id = ? order by id", id);
        Ok(rows.into_iter().map(|raw| MessageRow::from(raw).message).collect())
    }

    /// Notes that the client keeps a text for its person.
    pub async fn note_held(&mut self, id: &HandoverId, reason: &str) -> Result<(), StoreError> {
        change!(self.tx, "update handover set is_held = 1 where handover_id = ?", id);
        change!(
            self.tx,
            "update message_state set reason = ?
            where state = 'offered' and message_id in (select message_id from message where handover_id = ?)",
            reason,
            id
        );
        Ok(())
    }

    /// Takes messages out of a hand-over, and ends it with the last of them.
    pub async fn release(
        &mut self,
        id: &HandoverId,
        messages: &[MessageId],
    ) -> Result<(), StoreError> {
        let list = to_json(messages);
        change!(
            self.tx,
            "update message set handover_id = null
            where handover_id = ? and message_id in (select value from json_each(?))",
            id,
            list
        );
        change!(
            self.tx,
            "delete from handover where handover_id = ?1
                and not exists (select 1 from message where message.handover_id = ?1)",
            id
        );
        Ok(())
    }

    /// Makes messages free that the client did not get: the next way may take them.
    pub async fn note_failed(&mut self, messages: &[MessageId]) -> Result<(), StoreError> {
        let list = to_json(messages);
        let done = change!(
            self.tx,
            "update message set leased_until = 0, given_by = null, failed_handovers = failed_handovers + 1
            where message_id in (select value from json_each(?))",
            list
        );
        all_changed(done, messages.len(), "message")
    }
}

impl HandoverReads<'_> {
    /// All that are open.
    pub async fn all(self) -> Result<Vec<HandoverRow>, StoreError> {
        let rows = handovers!(read_all, self.store, "order by handover_id");
        Ok(rows.into_iter().map(HandoverRow::from).collect())
    }

    /// The open ones of a peer, in order.
    pub async fn of_peer(self, peer: &PeerId) -> Result<Vec<HandoverRow>, StoreError> {
        let rows = handovers!(read_all, self.store, "where peer_id = ? order by handover_id", peer);
        Ok(rows.into_iter().map(HandoverRow::from).collect())
    }

    /// The ids of the messages of a hand-over.
    pub async fn messages(self, id: &HandoverId) -> Result<Vec<Message>, StoreError> {
        let rows = messages!(read_all, self.store, "where handover_id = ? order by id", id);
        Ok(rows.into_iter().map(|raw| MessageRow::from(raw).message).collect())
    }
}
