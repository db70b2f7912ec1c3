//! Rows of messages and of their delivery states.

use svc_model::{
    Delivery, DeliveryState, Message, MessageFilter, MessageId, MessageType, PeerId, RunId,
    Timestamp,
    conversation::{Provenance, SourceTool},
    json_bytes, limits,
};

use super::{MessageReads, MessageWrites};
use crate::{
    DeliveryTerms, ListedMessage, MessageRow, PageSize, Result, RowPage, boxed_methods,
    columns::{Columns, DirectRow, Fault, to_json},
    readers::Rows as _,
    statement::{all_changed, change, column, direct_row, find_value, query, value},
};

impl DirectRow for MessageRow {
    fn read(columns: &mut Columns<'_>) -> Result<Self, Fault> {
        message_row(columns, |columns| columns.next("text"))
    }
}

impl DirectRow for Message {
    fn read(columns: &mut Columns<'_>) -> Result<Self, Fault> {
        Ok(MessageRow::read(columns)?.message)
    }
}

fn message_row(
    columns: &mut Columns<'_>,
    text: impl FnOnce(&mut Columns<'_>) -> Result<String, Fault>,
) -> Result<MessageRow, Fault> {
    let id = columns.next("id")?;
    let message = Message {
        id: columns.next("message_id")?,
        kind: columns.next("kind")?,
        from_peer: columns.next("from_peer")?,
        to_peer: columns.next("to_peer")?,
        text: text(columns)?,
        correlation_id: columns.next("correlation_id")?,
        state: columns.next("state")?,
        timestamp: columns.next("at")?,
        provenance: provenance(columns)?,
    };
    Ok(MessageRow { id, message })
}

/// Where a message comes from, as its columns `source_tool`, `source_session` and `run_id` have it.
fn provenance(columns: &mut Columns<'_>) -> Result<Option<Provenance>, Fault> {
    let tool: Option<SourceTool> = columns.next("source_tool")?;
    let session = columns.next("source_session")?;
    let run: Option<RunId> = columns.next("run_id")?;
    Ok(tool.zip(run).map(|(tool, run)| Provenance::inter_session(session, tool, run)))
}

impl DirectRow for ListedMessage {
    fn read(columns: &mut Columns<'_>) -> Result<Self, Fault> {
        let text = |columns: &mut Columns<'_>| Ok(beginning(&columns.next::<Vec<u8>>("text")?));
        let MessageRow { id, message } = message_row(columns, text)?;
        let bytes = columns.next("bytes")?;
        let (from_name, to_name) = (columns.next("from_name")?, columns.next("to_name")?);
        let is_answered: bool = columns.next("is_answered")?;
        let came_to_nothing: bool = columns.next("came_to_nothing")?;
        // The notice that no answer will come is a response, too, but acknowledges nothing.
        let is_real = !came_to_nothing || message.state == DeliveryState::Acked;
        Ok(Self {
            id,
            bytes,
            from_name,
            to_name,
            open: !is_answered && !came_to_nothing && message.may_be_answered(),
            answered: is_answered && is_real,
            message,
        })
    }
}

macro_rules! messages {
    ($run:ident($($bound:expr),*), $($rest:tt)*) => {
        query!($run($($bound),*),
            r#"select id as "id!", message_id, type as "kind: MessageType", from_peer, to_peer,
                coalesce((select shared.text from message_text shared where shared.id = text_id), text) as "text!",
                correlation_id, state as "state: DeliveryState", at as "at: Timestamp",
                source_tool as "source_tool: SourceTool", source_session, run_id
            from message "#,
            $($rest)*
        )
    };
}

pub(super) use messages;

direct_row!(Delivery { state, at, reason, via });

/// The first characters of a text, from its first bytes, which may end within a character.
fn beginning(bytes: &[u8]) -> String {
    let whole = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    whole.chars().take(limits::LISTED_TEXT_CHARS as usize).collect()
}

fn text_bytes(text: &str) -> i64 {
    i64::try_from(text.len()).unwrap_or(i64::MAX)
}

fn listed_bytes(listed: &ListedMessage) -> usize {
    json_bytes(&listed.message)
}

pub(super) fn row_bytes(row: &MessageRow) -> usize {
    json_bytes(&row.message)
}

#[boxed_methods]
impl MessageWrites<'_> {
    /// Stores a message with its state. The history of states is stored by [`Self::note_states`].
    pub async fn insert(
        &mut self,
        message: &Message,
        sent_by: &str,
        idempotency_key: Option<&str>,
        terms: DeliveryTerms,
    ) -> Result<()> {
        let (id, to) = (message.id.as_str(), message.to_peer.as_str());
        let bytes = text_bytes(&message.text);
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
    pub async fn insert_shared_text(&mut self, text: &str) -> Result<i64> {
        Ok(value!(self.tx.direct,
            r#"insert into message_text (text) values (?) returning id as "id!""#; text))
    }

    /// Stores one message per receiver, each with its own id. `message` has the common values,
    /// including the state; the shared text is stored already.
    pub async fn insert_copies(
        &mut self,
        message: &Message,
        copies: &[(MessageId, PeerId)],
        (text_id, sent_by): (i64, &str),
        (idempotency_key, no_wake): (Option<&str>, bool),
    ) -> Result<()> {
        let (list, bytes) = (to_json(copies), text_bytes(&message.text));
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

    pub async fn get(&mut self, id: &MessageId) -> Result<Option<Message>> {
        Ok(messages!(one(), self.tx.direct, "where message_id = ?"; id))
    }

    pub async fn deliveries(&mut self, id: &MessageId) -> Result<Vec<Delivery>> {
        Ok(query!(all(), self.tx.direct,
            r#"select state as "state: DeliveryState", at as "at: Timestamp", reason, via
            from message_state where message_id = ?"#; id))
    }

    /// The message in an inbox that an answer to `asker` refers to: by its id, or by the
    /// correlation id that the asker gave the question. Of several with the same correlation id,
    /// the latest.
    pub async fn answered(
        &mut self,
        to: &PeerId,
        asker: &[&str],
        correlation_id: &str,
    ) -> Result<Option<Message>> {
        let (to, asker) = (to.as_str(), to_json(asker));
        let by_id: Option<Message> = messages!(one(), self.tx.direct,
            "where message_id = ? and to_peer = ? and from_peer in (select value from json_each(?))";
            correlation_id, to, asker);
        if let Some(message) = by_id {
            return Ok(Some(message));
        }
        Ok(messages!(one(), self.tx.direct,
            "where to_peer = ? and type = 'query' and correlation_id = ?
                and from_peer in (select value from json_each(?))
            order by id desc limit 1"; to, correlation_id, asker))
    }

    pub async fn by_key(&mut self, from: &str, to: &PeerId, key: &str) -> Result<Option<Message>> {
        Ok(messages!(one(), self.tx.direct,
            "where from_peer = ? and to_peer = ? and idempotency_key = ?"; from, to, key))
    }

    pub async fn all_by_key(&mut self, from: &str, key: &str) -> Result<Vec<Message>> {
        Ok(messages!(all(), self.tx.direct,
            "where from_peer = ? and idempotency_key = ? and idempotency_key is not null order by id";
            from, key))
    }

    /// Messages with this key whose receivers were removed, the oldest first, at most eight. Copies
    /// of a broadcast are left out: each would be read with the broadcast's whole text.
    pub async fn to_removed_by_key(&mut self, from: &str, key: &str) -> Result<Vec<Message>> {
        Ok(messages!(all(), self.tx.direct,
            "where from_peer = ? and idempotency_key = ? and idempotency_key is not null and type <> 'broadcast'
                and not exists (select 1 from peer p where p.peer_id = to_peer) order by id limit 8";
            from, key))
    }

    /// Those of these receivers that have a message with this key from this sender.
    pub async fn receivers_of_key(
        &mut self,
        from: &str,
        receivers: &[PeerId],
        key: &str,
    ) -> Result<Vec<PeerId>> {
        let receivers = to_json(receivers);
        Ok(column!(self.tx.direct,
            r#"select to_peer as "to_peer!: PeerId" from message
            where from_peer = ? and to_peer in (select value from json_each(?)) and idempotency_key = ?"#;
            from, receivers, key))
    }

    /// The fingerprint and, if it is complete, the answer of the broadcast that a principal sent as
    /// `from` with this key.
    pub async fn broadcast_of_key(
        &mut self,
        sent_by: &str,
        from: &str,
        key: &str,
    ) -> Result<Option<(String, Option<String>)>> {
        Ok(query!(one(), self.tx.direct,
            "select request_fingerprint, answer from broadcast
            where sent_by = ? and idempotency_key = ? and from_peer = ?"; sent_by, key, from))
    }

    /// The answer of the last complete broadcast of a principal with this key and fingerprint, from
    /// any of its peers, or from `from`: that peer may be gone.
    pub async fn broadcast_answer(
        &mut self,
        sent_by: &str,
        from: Option<&str>,
        (key, fingerprint): (&str, &str),
    ) -> Result<Option<String>> {
        Ok(find_value!(self.tx.direct,
            "select answer from broadcast
            where sent_by = ?1 and idempotency_key = ?2 and request_fingerprint = ?3
                and (?4 is null or from_peer = ?4) and answer is not null
            order by at desc limit 1"; sent_by, key, fingerprint, from)
        .flatten())
    }

    /// Notes that a broadcast begins.
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

    /// Forgets the keys of broadcasts that were sent before `before`, at most `limit`; returns
    /// their number.
    pub async fn forget_broadcasts(&mut self, before: Timestamp, limit: u32) -> Result<u64> {
        Ok(change!(self.tx,
            "delete from broadcast where (sent_by, idempotency_key, from_peer) in (
                select sent_by, idempotency_key, from_peer from broadcast where at < ? order by at limit ?
            )"; before, limit))
    }

    /// Records whether the receiver's turn begins with these messages. If so, the turn's final text
    /// answers the questions among them.
    pub async fn note_turn(&mut self, ids: &[MessageId], begins_turn: bool) -> Result<()> {
        let list = to_json(ids);
        change!(self.tx,
            "update message set begins_turn = iif(type = 'query' and ?1, 1, 0), wakes = iif(wakes = 1 or ?1, 1, 0)
            where message_id in (select value from json_each(?2))"; begins_turn, list);
        Ok(())
    }

    /// The questions with which the receiver's current turn began, in order, with empty texts.
    pub async fn questions_of_turn(&mut self, to: &PeerId) -> Result<Vec<Message>> {
        Ok(query!(all(), self.tx.direct,
            r#"select id as "id!", message_id, type as "kind: MessageType", from_peer, to_peer, '' as "text!",
                correlation_id, state as "state: DeliveryState", at as "at: Timestamp",
                source_tool as "source_tool: SourceTool", source_session, run_id
            from message where to_peer = ? and begins_turn = 1
            order by id"#; to))
    }

    /// Records that nobody will answer these questions, and why. They are no longer open; their
    /// state does not change.
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
    pub async fn turn_of(&mut self, id: &MessageId) -> Result<Option<u32>> {
        Ok(value!(self.tx.direct,
            r#"select max(turn) as "turn: u32" from message where message_id = ?"#; id))
    }
}

#[boxed_methods]
impl MessageReads<'_> {
    pub async fn get(&self, id: &MessageId) -> Result<Option<Message>> {
        Ok(messages!(one(), self.store.near(), "where message_id = ?"; id))
    }

    /// Peers whose turn ended before `before` without an answer to a question with which it had
    /// begun.
    pub async fn peers_of_silent_turns(&self, before: Timestamp) -> Result<Vec<PeerId>> {
        Ok(column!(self.store.pool(),
            r#"select distinct to_peer as "peer!: PeerId" from message join peer on peer_id = to_peer
            where begins_turn = 1 and message.state = 'injected' and status in ('idle', 'offline') and since < ?"#;
            before))
    }

    /// Messages whose ids begin with `prefix`, the latest first, at most `limit`.
    pub async fn with_prefix(&self, prefix: &str, limit: u32) -> Result<Vec<Message>> {
        // Messages can be large, so the page is also bounded in bytes.
        let page = messages!(page(PageSize::rows(limit), json_bytes), self.store.pool(),
            "where message_id >= ?1 and message_id < ?1 || '~' order by id desc limit ?2";
            prefix, limit);
        Ok(page.rows)
    }

    pub async fn latest_to_operator(&self) -> Result<Option<MessageId>> {
        Ok(find_value!(
            self.store.pool(),
            r#"select message_id as "message_id!: MessageId" from message
            where to_peer = 'operator' order by id desc limit 1"#
        ))
    }

    pub async fn deliveries(&self, id: &MessageId) -> Result<Vec<Delivery>> {
        let mut states = query!(all(), self.store.pool(),
            r#"select state as "state: DeliveryState", at as "at: Timestamp", reason, via
            from message_state where message_id = ?"#; id);
        states.sort_by_key(|delivery: &Delivery| delivery.state);
        Ok(states)
    }

    /// Messages between all peers, the latest first, before the sequence number `before`. Texts are
    /// cut to [`limits::LISTED_TEXT_CHARS`].
    pub async fn list(
        &self,
        filter: &MessageFilter,
        before: Option<i64>,
        size: PageSize,
    ) -> Result<RowPage<ListedMessage>> {
        let MessageFilter { peer, state, kind, open } = filter;
        // As bytes: SQLite's text functions stop at a NUL character. A character has at most four
        // bytes.
        let (bytes, limit) = (limits::LISTED_TEXT_CHARS.saturating_mul(4), size.limit());
        let before = before.unwrap_or(i64::MAX);
        macro_rules! page {
            ($first:literal) => {
                query!(page(size, listed_bytes),
                    r#"select id as "id!", message_id, type as "kind: MessageType", from_peer, to_peer,
                substr(cast(coalesce((select shared.text from message_text shared where shared.id = text_id), text)
                    as blob), 1, ?4) as "text!: Vec<u8>",
                correlation_id, state as "state: DeliveryState", at as "at: Timestamp",
                source_tool as "source_tool: SourceTool", source_session, run_id, bytes,
                (select display_name from peer where peer_id = from_peer) as "from_name?: String",
                (select display_name from peer where peer_id = to_peer) as "to_name?: String",
                is_answered as "is_answered!: bool", came_to_nothing as "came_to_nothing!: bool"
            from message
            where "#,
                    self.store.pool(),
                    $first + " and id < ?1 and (?2 is null or from_peer = ?2 or to_peer = ?2)
                and (?3 is null or state = ?3) and (?6 is null or type = ?6)
            order by id desc limit ?5"; before, peer, state, bytes, limit, kind)
            };
        }
        Ok(if *open {
            page!(
                "type = 'query' and state not in ('expired', 'refused', 'undeliverable') and came_to_nothing = 0
                and is_answered = 0"
            )
        } else {
            page!("true")
        })
    }

    /// Messages to or from a peer, the latest first, before the sequence number `before`.
    pub async fn of_peer(
        &self,
        peer: &PeerId,
        before: Option<i64>,
        size: PageSize,
    ) -> Result<RowPage<MessageRow>> {
        let (limit, before) = (size.limit(), before.unwrap_or(i64::MAX));
        Ok(messages!(page(size, row_bytes), self.store.pool(),
            "where id in (
                select id from (select id from message where to_peer = ?1 and id < ?2 order by id desc limit ?3)
                union all
                select id from (select id from message where from_peer = ?1 and id < ?2 order by id desc limit ?3)
            ) order by id desc limit ?3"; peer, before, limit))
    }

    /// Messages between two peers, the latest first, before the sequence number `before`.
    pub async fn between(
        &self,
        one: &PeerId,
        other: &PeerId,
        before: Option<i64>,
        size: PageSize,
    ) -> Result<RowPage<MessageRow>> {
        let (limit, before) = (size.limit(), before.unwrap_or(i64::MAX));
        Ok(messages!(page(size, row_bytes), self.store.pool(),
            "where id in (
                select id from (
                    select id from message where from_peer = ?1 and to_peer = ?2 and id < ?3 order by id desc limit ?4
                )
                union all
                select id from (
                    select id from message where from_peer = ?2 and to_peer = ?1 and id < ?3 order by id desc limit ?4
                )
            ) order by id desc limit ?4"; one, other, before, limit))
    }
}
