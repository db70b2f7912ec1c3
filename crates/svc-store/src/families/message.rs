//! Rows of messages and of their delivery states.

use svc_model::{
    Delivery, DeliveryState, Message, MessageFilter, MessageId, MessageType, PeerId, RunId,
    Timestamp,
    conversation::{Provenance, SourceTool},
};

use super::{MessageReads, MessageWrites};
use crate::{
    DeliveryTerms, ListedMessage, MessageRow, PageSize, Result, RowPage, boxed,
    columns::to_json,
    read_query::read_page,
    statement::{
        all_changed, change, direct_row, pool_all, pool_find_value, pool_page, pool_values,
        read_one, select_all, select_fields, select_one, select_value, select_values,
    },
};

direct_row! {
    pub(super) struct RawMessage {
        id: i64,
        message_id: String,
        kind: MessageType,
        from_peer: String,
        to_peer: String,
        text: String,
        correlation_id: Option<String>,
        state: DeliveryState,
        at: Timestamp,
        source_tool: Option<SourceTool>,
        source_session: Option<String>,
        run_id: Option<String>,
    }
}

direct_row! {
    struct RawListed {
        id: i64,
        message_id: String,
        kind: MessageType,
        from_peer: String,
        to_peer: String,
        text: Vec<u8>,
        bytes: i64,
        correlation_id: Option<String>,
        state: DeliveryState,
        at: Timestamp,
        source_tool: Option<SourceTool>,
        source_session: Option<String>,
        run_id: Option<String>,
        from_name: Option<String>,
        to_name: Option<String>,
        is_answered: bool,
        came_to_nothing: bool,
    }
}

impl From<RawMessage> for MessageRow {
    fn from(raw: RawMessage) -> Self {
        Self { id: raw.id, message: raw.into() }
    }
}

impl From<RawMessage> for Message {
    fn from(raw: RawMessage) -> Self {
        let provenance = raw.source_tool.zip(raw.run_id).map(|(tool, run)| {
            Provenance::inter_session(raw.source_session, tool, RunId::from(run))
        });
        Self {
            id: MessageId::from(raw.message_id),
            kind: raw.kind,
            from_peer: raw.from_peer,
            to_peer: PeerId::from(raw.to_peer),
            text: raw.text,
            correlation_id: raw.correlation_id,
            timestamp: raw.at,
            state: raw.state,
            provenance,
        }
    }
}

pub(super) fn messages_of(rows: Vec<RawMessage>) -> Vec<Message> {
    rows.into_iter().map(Message::from).collect()
}

macro_rules! messages {
    ($run:ident, $($rest:tt)*) => {
        $run!(
            r#"select id as "id!", message_id, type as "kind: MessageType", from_peer, to_peer,
                coalesce((select shared.text from message_text shared where shared.id = text_id), text) as "text!",
                correlation_id, state as "state: DeliveryState", at as "at: Timestamp",
                source_tool as "source_tool: SourceTool", source_session, run_id
            from message "#,
            RawMessage,
            $($rest)*
        )
    };
}

pub(super) use messages;

direct_row!(Delivery { state, at, reason, via });

/// The first characters of a text, from its first bytes, which may end within a character.
fn beginning(bytes: &[u8], characters: u32) -> String {
    let whole = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    whole.chars().take(characters as usize).collect()
}

fn row_bytes(text: &str) -> i64 {
    i64::try_from(text.len()).unwrap_or(i64::MAX)
}

impl MessageWrites<'_> {
    /// Stores a message with its state. The history of states is stored by [`Self::note_states`].
    #[boxed]
    pub async fn insert(
        &mut self,
        message: &Message,
        sent_by: &str,
        idempotency_key: Option<&str>,
        terms: DeliveryTerms,
    ) -> Result<()> {
        let (id, to) = (message.id.as_str(), message.to_peer.as_str());
        let bytes = row_bytes(&message.text);
        let provenance = message.provenance.as_ref();
        let tool = provenance.map(|it| it.source_tool);
        let session = provenance.and_then(|it| it.source_session_key.as_deref());
        let run = provenance.map(|it| it.run_id.as_str());
        change!(self.tx,
            "insert into message (message_id, type, from_peer, to_peer, sent_by, text, bytes, correlation_id, \
                idempotency_key, state, at, source_tool, source_session, run_id, turn, held_until, by_call, \
                no_wake) \
            values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
            id, message.kind, message.from_peer, to, sent_by, message.text, bytes,
            message.correlation_id, idempotency_key, message.state, message.timestamp, tool,
            session, run, terms.turn, terms.held_until, terms.by_call, terms.no_wake);
        Ok(())
    }

    /// Stores a text that several messages share; returns its id. Removed with the last of these
    /// messages.
    #[boxed]
    pub async fn insert_shared_text(&mut self, text: &str) -> Result<i64> {
        Ok(select_value!(self.tx,
            r#"insert into message_text (text) values (?) returning id as "id!""#; text))
    }

    /// Stores one message per receiver, each with its own id. `message` has the common values,
    /// including the state; the shared text is stored already.
    #[boxed]
    pub async fn insert_copies(
        &mut self,
        message: &Message,
        copies: &[(MessageId, PeerId)],
        (text_id, sent_by): (i64, &str),
        (idempotency_key, no_wake): (Option<&str>, bool),
    ) -> Result<()> {
        let (list, bytes) = (to_json(copies), row_bytes(&message.text));
        let provenance = message.provenance.as_ref();
        let tool = provenance.map(|it| it.source_tool);
        let session = provenance.and_then(|it| it.source_session_key.as_deref());
        change!(self.tx,
            "insert into message (message_id, type, from_peer, to_peer, sent_by, text, text_id, bytes, \
                correlation_id, idempotency_key, state, at, source_tool, source_session, no_wake, run_id)
            select value ->> 0, ?, ?, value ->> 1, ?, '', ?, ?, ?, ?, ?, ?, ?, ?, ?, 'run_' || substr(value ->> 0, 5)
            from json_each(?)";
            message.kind, message.from_peer, sent_by, text_id, bytes, message.correlation_id,
            idempotency_key, message.state, message.timestamp, tool, session, no_wake, list);
        Ok(())
    }

    /// Appends states to the history of messages, in this order. Leaves the messages' rows
    /// unchanged.
    #[boxed]
    pub async fn note_states(
        &mut self,
        ids: &[MessageId],
        states: &[DeliveryState],
        reason: Option<&str>,
    ) -> Result<()> {
        if let [id] = ids {
            for state in states {
                change!(self.tx,
                    "insert into message_state (message_id, state, at, reason) values (?, ?, ?, ?)";
                    id, state, self.tx.now, reason);
            }
            return Ok(());
        }
        let (list, states) = (to_json(ids), to_json(states));
        change!(self.tx,
            "insert into message_state (message_id, state, at, reason)
            select message.value, state.value, ?, ? from json_each(?) message, json_each(?) state";
            self.tx.now, reason, list, states);
        Ok(())
    }

    /// Records how messages were offered (`via`). The last call counts, and clears the reason.
    #[boxed]
    pub async fn note_via(&mut self, ids: &[MessageId], via: &str) -> Result<()> {
        let list = to_json(ids);
        let done = change!(self.tx,
            "update message_state set via = ?, reason = null
            where state = 'offered' and message_id in (select value from json_each(?))"; via, list);
        all_changed(done, ids.len(), "message_state")
    }

    /// Moves messages through `states`; the last is their new state. One statement for each state
    /// of a single message, two statements for any number of messages, so a full inbox does not
    /// delay other jobs.
    #[boxed]
    pub async fn advance(
        &mut self,
        ids: &[MessageId],
        states: &[DeliveryState],
        reason: Option<&str>,
    ) -> Result<()> {
        let Some(last) = states.last() else { return Ok(()) };
        self.note_states(ids, states, reason).await?;
        let done = if let [id] = ids {
            change!(self.tx, "update message set state = ? where message_id = ?"; last, id)
        } else {
            let list = to_json(ids);
            change!(self.tx,
                "update message set state = ? where message_id in (select value from json_each(?))";
                last, list)
        };
        all_changed(done, ids.len(), "message")
    }

    #[boxed]
    pub async fn get(&mut self, id: &MessageId) -> Result<Option<Message>> {
        Ok(messages!(select_one, self.tx, "where message_id = ?"; id).map(Message::from))
    }

    #[boxed]
    pub async fn deliveries(&mut self, id: &MessageId) -> Result<Vec<Delivery>> {
        Ok(select_all!(
            r#"select state as "state: DeliveryState", at as "at: Timestamp", reason, via
            from message_state where message_id = ?"#,
            Delivery, self.tx; id))
    }

    /// The message in an inbox that an answer to `asker` refers to: by its id, or by the
    /// correlation id that the asker gave the question. Of several with the same correlation id,
    /// the latest.
    #[boxed]
    pub async fn answered(
        &mut self,
        to: &PeerId,
        asker: &[&str],
        correlation_id: &str,
    ) -> Result<Option<Message>> {
        let (to, asker) = (to.as_str(), to_json(asker));
        let by_id = messages!(select_one, self.tx,
            "where message_id = ? and to_peer = ? and from_peer in (select value from json_each(?))";
            correlation_id, to, asker);
        if let Some(raw) = by_id {
            return Ok(Some(raw.into()));
        }
        Ok(messages!(select_one, self.tx,
            "where to_peer = ? and type = 'query' and correlation_id = ?
                and from_peer in (select value from json_each(?))
            order by id desc limit 1"; to, correlation_id, asker)
        .map(Message::from))
    }

    #[boxed]
    pub async fn by_key(&mut self, from: &str, to: &PeerId, key: &str) -> Result<Option<Message>> {
        Ok(messages!(select_one, self.tx,
            "where from_peer = ? and to_peer = ? and idempotency_key = ?"; from, to, key)
        .map(Message::from))
    }

    #[boxed]
    pub async fn all_by_key(&mut self, from: &str, key: &str) -> Result<Vec<Message>> {
        Ok(messages_of(messages!(select_all, self.tx,
            "where from_peer = ? and idempotency_key = ? and idempotency_key is not null order by id";
            from, key)))
    }

    /// Messages with this key whose receivers were removed, the oldest first, at most eight. Copies
    /// of a broadcast are left out: each would be read with the broadcast's whole text.
    #[boxed]
    pub async fn to_removed_by_key(&mut self, from: &str, key: &str) -> Result<Vec<Message>> {
        Ok(messages_of(messages!(select_all, self.tx,
            "where from_peer = ? and idempotency_key = ? and idempotency_key is not null and type <> 'broadcast'
                and not exists (select 1 from peer p where p.peer_id = to_peer) order by id limit 8";
            from, key)))
    }

    /// Those of these receivers that have a message with this key from this sender.
    #[boxed]
    pub async fn receivers_of_key(
        &mut self,
        from: &str,
        receivers: &[PeerId],
        key: &str,
    ) -> Result<Vec<PeerId>> {
        let receivers = to_json(receivers);
        Ok(select_values!(self.tx,
            r#"select to_peer as "to_peer!: PeerId" from message
            where from_peer = ? and to_peer in (select value from json_each(?)) and idempotency_key = ?"#;
            from, receivers, key))
    }

    /// The fingerprint and, if it is complete, the answer of the broadcast that a principal sent as
    /// `from` with this key.
    #[boxed]
    pub async fn broadcast_of_key(
        &mut self,
        sent_by: &str,
        from: &str,
        key: &str,
    ) -> Result<Option<(String, Option<String>)>> {
        let row = select_fields!(select_one, self.tx,
            { request_fingerprint: String, answer: Option<String> },
            "select request_fingerprint, answer from broadcast
            where sent_by = ? and idempotency_key = ? and from_peer = ?"; sent_by, key, from);
        Ok(row.map(|row| (row.request_fingerprint, row.answer)))
    }

    /// Notes that a broadcast begins.
    #[boxed]
    pub async fn begin_broadcast(
        &mut self,
        sent_by: &str,
        from: &str,
        (key, fingerprint): (&str, &str),
    ) -> Result<()> {
        change!(self.tx,
            "insert into broadcast (sent_by, idempotency_key, from_peer, request_fingerprint, at) \
            values (?, ?, ?, ?, ?)"; sent_by, key, from, fingerprint, self.tx.now);
        Ok(())
    }

    /// Stores the answer of a broadcast that is complete. Without an answer, forgets the broadcast,
    /// which may be sent again.
    #[boxed]
    pub async fn end_broadcast(
        &mut self,
        sent_by: &str,
        (from, key): (&str, &str),
        answer: Option<&str>,
    ) -> Result<()> {
        if answer.is_some() {
            change!(self.tx,
                "update broadcast set answer = ?
                where sent_by = ? and idempotency_key = ? and from_peer = ?"; answer, sent_by, key, from);
        } else {
            change!(self.tx,
                "delete from broadcast where sent_by = ? and idempotency_key = ? and from_peer = ?";
                sent_by, key, from);
        }
        Ok(())
    }

    /// Forgets the keys of broadcasts that were sent before `before`, at most `limit`; returns their
    /// number.
    #[boxed]
    pub async fn forget_broadcasts(&mut self, before: Timestamp, limit: u32) -> Result<u64> {
        Ok(change!(self.tx,
            "delete from broadcast where (sent_by, idempotency_key, from_peer) in (
                select sent_by, idempotency_key, from_peer from broadcast where at < ? order by at limit ?
            )"; before, limit))
    }

    /// Records whether the receiver's turn begins with these messages. If so, the turn's final text
    /// answers the questions among them.
    #[boxed]
    pub async fn note_turn(&mut self, ids: &[MessageId], begins_turn: bool) -> Result<()> {
        let list = to_json(ids);
        change!(self.tx,
            "update message set begins_turn = iif(type = 'query' and ?1, 1, 0), wakes = iif(wakes = 1 or ?1, 1, 0)
            where message_id in (select value from json_each(?2))"; begins_turn, list);
        Ok(())
    }

    /// The questions with which the receiver's current turn began, in order, with empty texts.
    #[boxed]
    pub async fn questions_of_turn(&mut self, to: &PeerId) -> Result<Vec<Message>> {
        Ok(messages_of(select_all!(
            r#"select id as "id!", message_id, type as "kind: MessageType", from_peer, to_peer, '' as "text!",
                correlation_id, state as "state: DeliveryState", at as "at: Timestamp",
                source_tool as "source_tool: SourceTool", source_session, run_id
            from message where to_peer = ? and begins_turn = 1
            order by id"#,
            RawMessage, self.tx; to)))
    }

    /// Records that nobody will answer these questions, and why. They are no longer open; their
    /// state does not change.
    #[boxed]
    pub async fn close_questions(&mut self, ids: &[MessageId], reason: &str) -> Result<()> {
        let list = to_json(ids);
        let done = change!(self.tx,
            "update message set came_to_nothing = 1 where message_id in (select value from json_each(?))";
            list);
        change!(self.tx,
            "update message_state set reason = ?
            where state = 'injected' and message_id in (select value from json_each(?))";
            reason, list);
        all_changed(done, ids.len(), "message")
    }

    /// The number of the turn that a message begins, if it is a reply to a reply.
    #[boxed]
    pub async fn turn_of(&mut self, id: &MessageId) -> Result<Option<u32>> {
        Ok(select_value!(self.tx,
            r#"select max(turn) as "turn: u32" from message where message_id = ?"#; id))
    }
}

impl MessageReads<'_> {
    #[boxed]
    pub async fn get(&self, id: &MessageId) -> Result<Option<Message>> {
        Ok(messages!(read_one, self.store, "where message_id = ?"; id).map(Message::from))
    }

    /// Peers whose turn ended before `before` without an answer to a question with which it had
    /// begun.
    #[boxed]
    pub async fn peers_of_silent_turns(&self, before: Timestamp) -> Result<Vec<PeerId>> {
        Ok(pool_values!(self.store,
            r#"select distinct to_peer as "peer!: PeerId" from message join peer on peer_id = to_peer
            where begins_turn = 1 and message.state = 'injected' and status in ('idle', 'offline') and since < ?"#;
            before))
    }

    /// Messages whose ids begin with `prefix`, the latest first, at most `limit`.
    #[boxed]
    pub async fn with_prefix(&self, prefix: &str, limit: u32) -> Result<Vec<Message>> {
        let rows = messages!(pool_page, self.store,
            "where message_id >= ?1 and message_id < ?1 || '~' order by id desc limit ?2";
            prefix, limit);
        // Messages can be large, so the page is also bounded in bytes.
        let message = |raw| Ok(Message::from(raw));
        Ok(read_page(rows, PageSize::rows(limit), message, |message| message).await?.rows)
    }

    #[boxed]
    pub async fn latest_to_operator(&self) -> Result<Option<MessageId>> {
        Ok(pool_find_value!(
            self.store,
            r#"select message_id as "message_id!: MessageId" from message
            where to_peer = 'operator' order by id desc limit 1"#
        ))
    }

    #[boxed]
    pub async fn deliveries(&self, id: &MessageId) -> Result<Vec<Delivery>> {
        let mut states = pool_all!(
            r#"select state as "state: DeliveryState", at as "at: Timestamp", reason, via
            from message_state where message_id = ?"#,
            Delivery, self.store; id);
        states.sort_by_key(|delivery| delivery.state);
        Ok(states)
    }

    /// Messages between all peers, the latest first, before the sequence number `before`. Texts are
    /// cut to `characters`.
    #[boxed]
    pub async fn list(
        &self,
        filter: &MessageFilter,
        before: Option<i64>,
        characters: u32,
        size: PageSize,
    ) -> Result<RowPage<ListedMessage>> {
        let MessageFilter { peer, state, kind, open } = filter;
        // As bytes: SQLite's text functions stop at a NUL character. A character has at most four
        // bytes.
        let (bytes, limit) = (characters.saturating_mul(4), size.limit());
        let before = before.unwrap_or(i64::MAX);
        macro_rules! page {
            ($first:literal) => {
                pool_page!(
                    r#"select id as "id!", message_id, type as "kind: MessageType", from_peer, to_peer,
                substr(cast(coalesce((select shared.text from message_text shared where shared.id = text_id), text)
                    as blob), 1, ?4) as "text!: Vec<u8>",
                bytes, correlation_id, state as "state: DeliveryState", at as "at: Timestamp",
                source_tool as "source_tool: SourceTool", source_session, run_id,
                (select display_name from peer where peer_id = from_peer) as "from_name?: String",
                (select display_name from peer where peer_id = to_peer) as "to_name?: String",
                is_answered as "is_answered!: bool", came_to_nothing as "came_to_nothing!: bool"
            from message
            where "#,
                    RawListed, self.store,
                    $first + " and id < ?1 and (?2 is null or from_peer = ?2 or to_peer = ?2)
                and (?3 is null or state = ?3) and (?6 is null or type = ?6)
            order by id desc limit ?5"; before, peer, state, bytes, limit, kind)
            };
        }
        let rows = if *open {
            page!(
                "type = 'query' and state not in ('expired', 'refused', 'undeliverable') and came_to_nothing = 0
                and is_answered = 0"
            )
        } else {
            page!("true")
        };
        read_page(
            rows,
            size,
            |row| {
                let raw = RawMessage {
                    id: row.id,
                    message_id: row.message_id,
                    kind: row.kind,
                    from_peer: row.from_peer,
                    to_peer: row.to_peer,
                    text: beginning(&row.text, characters),
                    correlation_id: row.correlation_id,
                    state: row.state,
                    at: row.at,
                    source_tool: row.source_tool,
                    source_session: row.source_session,
                    run_id: row.run_id,
                };
                let message = Message::from(raw);
                // The notice that no answer will come is a response, too, but acknowledges nothing.
                let is_real = !row.came_to_nothing || message.state == DeliveryState::Acked;
                Ok(ListedMessage {
                    id: row.id,
                    bytes: row.bytes,
                    from_name: row.from_name,
                    to_name: row.to_name,
                    open: !row.is_answered && !row.came_to_nothing && message.may_be_answered(),
                    answered: row.is_answered && is_real,
                    message,
                })
            },
            |listed| &listed.message,
        )
        .await
    }

    /// Messages to or from a peer, the latest first, before the sequence number `before`.
    #[boxed]
    pub async fn of_peer(
        &self,
        peer: &PeerId,
        before: Option<i64>,
        size: PageSize,
    ) -> Result<RowPage<MessageRow>> {
        let (limit, before) = (size.limit(), before.unwrap_or(i64::MAX));
        let rows = messages!(pool_page, self.store,
            "where id in (
                select id from (select id from message where to_peer = ?1 and id < ?2 order by id desc limit ?3)
                union all
                select id from (select id from message where from_peer = ?1 and id < ?2 order by id desc limit ?3)
            ) order by id desc limit ?3"; peer, before, limit);
        read_page(rows, size, |raw| Ok(MessageRow::from(raw)), |row| &row.message).await
    }

    /// Messages between two peers, the latest first, before the sequence number `before`.
    #[boxed]
    pub async fn between(
        &self,
        one: &PeerId,
        other: &PeerId,
        before: Option<i64>,
        size: PageSize,
    ) -> Result<RowPage<MessageRow>> {
        let (limit, before) = (size.limit(), before.unwrap_or(i64::MAX));
        let rows = messages!(pool_page, self.store,
            "where id in (
                select id from (
                    select id from message where from_peer = ?1 and to_peer = ?2 and id < ?3 order by id desc limit ?4
                )
                union all
                select id from (
                    select id from message where from_peer = ?2 and to_peer = ?1 and id < ?3 order by id desc limit ?4
                )
            ) order by id desc limit ?4"; one, other, before, limit);
        read_page(rows, size, |raw| Ok(MessageRow::from(raw)), |row| &row.message).await
    }
}
