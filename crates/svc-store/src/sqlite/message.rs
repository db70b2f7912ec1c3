//! Rows of messages and of the states of their delivery.

use svc_model::{
    Delivery, DeliveryState, Message, MessageFilter, MessageId, MessageType, PeerId, RunId,
    Timestamp,
    conversation::{Provenance, SourceTool},
};

use super::{
    db::Store,
    errors::all_changed,
    json::to_json,
    page::read_page,
    statement::{
        change, direct_row, pool_query, read_one, select_all, select_one, select_value,
        select_values,
    },
    tx::WriteTx,
};
use crate::{
    ListedMessage, MessageRow, MessageTerms, PageSize, RowPage, StoreError, StrandedInbox,
};

direct_row! {
    struct RawMessage {
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

impl From<RawMessage> for MessageRow {
    fn from(raw: RawMessage) -> Self {
        let provenance = raw.source_tool.zip(raw.run_id).map(|(tool, run)| {
            Provenance::inter_session(raw.source_session, tool, RunId::from(run))
        });
        Self {
            id: raw.id,
            message: Message {
                id: MessageId::from(raw.message_id),
                kind: raw.kind,
                from_peer: raw.from_peer,
                to_peer: PeerId::from(raw.to_peer),
                text: raw.text,
                correlation_id: raw.correlation_id,
                timestamp: raw.at,
                state: raw.state,
                provenance,
            },
        }
    }
}

/// The columns of such a row, for the macros of `statement`.
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

direct_row!(Delivery { state, at, reason });

/// The first characters of a text, of which these bytes are the beginning: the last character may be cut.
fn beginning(bytes: &[u8], characters: u32) -> String {
    let whole = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    whole.chars().take(characters as usize).collect()
}

/// Bytes of a text, as the column holds them.
fn row_bytes(text: &str) -> i64 {
    i64::try_from(text.len()).unwrap_or(i64::MAX)
}

impl WriteTx {
    /// Stores a message, in the state that it has. How it came there, [`Self::note_message_states`] says.
    pub async fn insert_message(
        &mut self,
        message: &Message,
        sent_by: &str,
        idempotency_key: Option<&str>,
        terms: MessageTerms,
    ) -> Result<(), StoreError> {
        let (id, to) = (message.id.as_str(), message.to_peer.as_str());
        let bytes = row_bytes(&message.text);
        let provenance = message.provenance.as_ref();
        let tool = provenance.map(|it| it.source_tool);
        let session = provenance.and_then(|it| it.source_session_key.as_deref());
        let run = provenance.map(|it| it.run_id.as_str());
        change!(
            self,
            "insert into message (message_id, type, from_peer, to_peer, sent_by, text, bytes, correlation_id, \
                idempotency_key, state, at, source_tool, source_session, run_id, turn, held_until, by_call) \
            values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            id,
            message.kind,
            message.from_peer,
            to,
            sent_by,
            message.text,
            bytes,
            message.correlation_id,
            idempotency_key,
            message.state,
            message.timestamp,
            tool,
            session,
            run,
            terms.turn,
            terms.held_until,
            terms.by_call
        );
        Ok(())
    }

    /// Stores a text that several messages share; answers its id. It goes with the last of them.
    pub async fn insert_shared_text(&mut self, text: &str) -> Result<i64, StoreError> {
        let id = select_value!(
            self,
            r#"insert into message_text (text) values (?) returning id as "id!""#,
            text
        );
        Ok(id)
    }

    /// Stores a message once for each of these receivers, under an id of its own. `message` says what the copies have in
    /// common, their state too, but for their text, which is stored already.
    pub async fn insert_copies(
        &mut self,
        message: &Message,
        copies: &[(MessageId, PeerId)],
        (text_id, sent_by): (i64, &str),
        idempotency_key: Option<&str>,
    ) -> Result<(), StoreError> {
        let (list, bytes) = (to_json(copies), row_bytes(&message.text));
        let provenance = message.provenance.as_ref();
        let tool = provenance.map(|it| it.source_tool);
        let session = provenance.and_then(|it| it.source_session_key.as_deref());
        change!(
            self,
            "insert into message (message_id, type, from_peer, to_peer, sent_by, text, text_id, bytes, \
                correlation_id, idempotency_key, state, at, source_tool, source_session, run_id)
            select value ->> 0, ?, ?, value ->> 1, ?, '', ?, ?, ?, ?, ?, ?, ?, ?, 'run_' || substr(value ->> 0, 5)
            from json_each(?)",
            message.kind,
            message.from_peer,
            sent_by,
            text_id,
            bytes,
            message.correlation_id,
            idempotency_key,
            message.state,
            message.timestamp,
            tool,
            session,
            list
        );
        Ok(())
    }

    /// Notes the states that messages went through, in this order. The rows of the messages stay as they are.
    pub async fn note_message_states(
        &mut self,
        ids: &[MessageId],
        states: &[DeliveryState],
        reason: Option<&str>,
    ) -> Result<(), StoreError> {
        if let [id] = ids {
            for state in states {
                change!(
                    self,
                    "insert into message_state (message_id, state, at, reason) values (?, ?, ?, ?)",
                    id,
                    state,
                    self.now,
                    reason
                );
            }
            return Ok(());
        }
        let (list, states) = (to_json(ids), to_json(states));
        change!(
            self,
            "insert into message_state (message_id, state, at, reason)
            select message.value, state.value, ?, ? from json_each(?) message, json_each(?) state",
            self.now,
            reason,
            list,
            states
        );
        Ok(())
    }

    /// Moves messages through `states`, the last of which is their state from now on. One statement for each state of one
    /// message, two for many messages, however many: a full inbox holds up nobody else.
    pub async fn advance_messages(
        &mut self,
        ids: &[MessageId],
        states: &[DeliveryState],
        reason: Option<&str>,
    ) -> Result<(), StoreError> {
        let Some(last) = states.last() else { return Ok(()) };
        self.note_message_states(ids, states, reason).await?;
        let done = if let [id] = ids {
            change!(self, "update message set state = ? where message_id = ?", last, id)
        } else {
            let list = to_json(ids);
            change!(
                self,
                "update message set state = ? where message_id in (select value from json_each(?))",
                last,
                list
            )
        };
        all_changed(done, ids.len(), "message")
    }

    /// Says until when whoever took messages has to acknowledge them, and which call of a hook gave them; `None` if a
    /// reader of the inbox took them.
    pub async fn lease_messages(
        &mut self,
        ids: &[MessageId],
        until: Timestamp,
        given_by: Option<&str>,
    ) -> Result<(), StoreError> {
        let done = if let [id] = ids {
            change!(
                self,
                "update message set leased_until = ?, given_by = ? where message_id = ?",
                until,
                given_by,
                id
            )
        } else {
            let list = to_json(ids);
            change!(
                self,
                "update message set leased_until = ?, given_by = ?
                where message_id in (select value from json_each(?))",
                until,
                given_by,
                list
            )
        };
        all_changed(done, ids.len(), "message")
    }

    /// A message by its id.
    pub async fn message(&mut self, id: &MessageId) -> Result<Option<Message>, StoreError> {
        let id = id.as_str();
        let raw = messages!(select_one, self, "where message_id = ?", id);
        Ok(raw.map(|raw| MessageRow::from(raw).message))
    }

    /// The states that a delivery went through.
    pub async fn deliveries(&mut self, id: &MessageId) -> Result<Vec<Delivery>, StoreError> {
        let id = id.as_str();
        Ok(select_all!(
            r#"select state as "state: DeliveryState", at as "at: Timestamp", reason
            from message_state where message_id = ?"#,
            Delivery,
            self,
            "",
            id
        ))
    }

    /// Those of `ids` that are messages for this receiver, in the order of arrival.
    pub async fn messages_to(
        &mut self,
        to: &PeerId,
        ids: &[MessageId],
    ) -> Result<Vec<Message>, StoreError> {
        let (to, ids) = (to.as_str(), to_json(ids));
        let rows = messages!(
            select_all,
            self,
            "where to_peer = ? and message_id in (select value from json_each(?)) order by id",
            to,
            ids
        );
        Ok(rows.into_iter().map(|raw| MessageRow::from(raw).message).collect())
    }

    /// The message in an inbox that an answer to `asker` names: by its id, or as a question by the correlation id that the
    /// asker gave it. The latest, if it gave the same to several.
    pub async fn answered_message(
        &mut self,
        to: &PeerId,
        asker: &[&str],
        correlation_id: &str,
    ) -> Result<Option<Message>, StoreError> {
        let (to, asker) = (to.as_str(), to_json(asker));
        let by_id = messages!(
            select_one,
            self,
            "where message_id = ? and to_peer = ? and from_peer in (select value from json_each(?))",
            correlation_id,
            to,
            asker
        );
        if let Some(raw) = by_id {
            return Ok(Some(MessageRow::from(raw).message));
        }
        let raw = messages!(
            select_one,
            self,
            "where to_peer = ? and type = 'query' and correlation_id = ?
                and from_peer in (select value from json_each(?))
            order by id desc limit 1",
            to,
            correlation_id,
            asker
        );
        Ok(raw.map(|raw| MessageRow::from(raw).message))
    }

    /// What was stored for this key, from this sender to this receiver.
    pub async fn message_by_key(
        &mut self,
        from: &str,
        to: &PeerId,
        key: &str,
    ) -> Result<Option<Message>, StoreError> {
        let to = to.as_str();
        let raw = messages!(
            select_one,
            self,
            "where from_peer = ? and to_peer = ? and idempotency_key = ?",
            from,
            to,
            key
        );
        Ok(raw.map(|raw| MessageRow::from(raw).message))
    }

    /// What was stored for this key from this sender, whoever the receiver is.
    pub async fn messages_by_key(
        &mut self,
        from: &str,
        key: &str,
    ) -> Result<Vec<Message>, StoreError> {
        let rows = messages!(
            select_all,
            self,
            "where from_peer = ? and idempotency_key = ? and idempotency_key is not null order by id",
            from,
            key
        );
        Ok(rows.into_iter().map(|raw| MessageRow::from(raw).message).collect())
    }

    /// Those of these receivers that have a message of this key from this sender.
    pub async fn receivers_of_key(
        &mut self,
        from: &str,
        receivers: &[PeerId],
        key: &str,
    ) -> Result<Vec<PeerId>, StoreError> {
        let receivers = to_json(receivers);
        let known = select_values!(
            self,
            r#"select to_peer as "to_peer!: PeerId" from message
            where from_peer = ? and to_peer in (select value from json_each(?)) and idempotency_key = ?"#,
            from,
            receivers,
            key
        );
        Ok(known)
    }

    /// Those of these receivers in whose inbox at least `bound` messages wait.
    pub async fn full_inboxes(
        &mut self,
        receivers: &[PeerId],
        bound: u32,
    ) -> Result<Vec<PeerId>, StoreError> {
        let (receivers, last) = (to_json(receivers), bound.saturating_sub(1));
        let full = select_values!(
            self,
            r#"select coalesce(j.value, '') as "to_peer!: PeerId" from json_each(?1) j
            where exists (
                select 1 from message
                where to_peer = j.value and waits = 1
                order by id limit 1 offset ?2
            )"#,
            receivers,
            last
        );
        Ok(full)
    }

    /// Whether at least `bound` messages wait in an inbox.
    pub async fn inbox_full(&mut self, to: &PeerId, bound: u32) -> Result<bool, StoreError> {
        let (to, last) = (to.as_str(), bound.saturating_sub(1));
        let full = select_value!(
            self,
            r#"select exists (
                select 1 from message where to_peer = ? and waits = 1 order by id limit 1 offset ?
            ) as "full!: bool""#,
            to,
            last
        );
        Ok(full)
    }

    /// Waiting messages that nobody has on lease, in order, as many as a page takes; not those that a hook gave and the receiver
    /// has. A lease that ends later than `longest` was given before the clock was set back, and has no meaning any more.
    pub async fn free_messages(
        &mut self,
        to: &PeerId,
        longest: Timestamp,
        size: PageSize,
    ) -> Result<Vec<Message>, StoreError> {
        let to = to.as_str();
        let (limit, bytes) = (size.rows, i64::try_from(size.bytes).unwrap_or(i64::MAX));
        // The lengths are read before the texts. `before` is what the messages in front of one have together.
        let rows = messages!(
            select_all,
            self,
            "where id in (
                select free.id from (
                    select id, bytes, sum(bytes) over (order by id) - bytes as before from (
                        select id, bytes from message
                        where to_peer = ?1 and waits = 1 and (state <> 'injected' or given_by is null)
                            and (leased_until is null or leased_until <= ?2 or leased_until > ?3)
                            and (held_until is null or held_until <= ?2)
                        order by id limit ?4
                    )
                ) free
                where free.before = 0 or free.before + free.bytes <= ?5
            )
            order by id",
            to,
            self.now,
            longest,
            limit,
            bytes
        );
        Ok(rows.into_iter().map(|raw| MessageRow::from(raw).message).collect())
    }

    /// Messages that a hook may give to their receiver, in order, at most `limit`: those that it was not given yet,
    /// those that were taken and whose lease is over, and those that nobody saw. With `all`, those on lease too.
    pub async fn undelivered_messages(
        &mut self,
        to: &PeerId,
        all: bool,
        limit: u32,
    ) -> Result<Vec<Message>, StoreError> {
        let to = to.as_str();
        let rows = messages!(
            select_all,
            self,
            "where to_peer = ?1 and waits = 1
                and (state in ('accepted', 'queued') or (state = 'offered' and (?2 or leased_until <= ?3))
                    or (state = 'injected' and leased_until = 0))
                and (held_until is null or held_until <= ?3)
            order by id limit ?4",
            to,
            all,
            self.now,
            limit
        );
        Ok(rows.into_iter().map(|raw| MessageRow::from(raw).message).collect())
    }

    /// Messages that hooks gave to their receiver by `before`, and that it is not yet known to have, in order.
    pub async fn given_messages(
        &mut self,
        to: &PeerId,
        before: Timestamp,
    ) -> Result<Vec<Message>, StoreError> {
        let to = to.as_str();
        let rows = messages!(
            select_all,
            self,
            "where to_peer = ? and waits = 1 and state = 'offered'
                and given_by is not null
                and not exists (select 1 from hook_seen where hook_id = given_by and hook_seen.at > ?)
            order by id",
            to,
            before
        );
        Ok(rows.into_iter().map(|raw| MessageRow::from(raw).message).collect())
    }

    /// Takes back messages that these calls of hooks gave and nobody saw: their lease is over, and no event shows any
    /// more that the receiver has them. Answers which they are, in order.
    pub async fn take_back_messages(
        &mut self,
        to: &PeerId,
        calls: &[String],
    ) -> Result<Vec<Message>, StoreError> {
        let (to, calls) = (to.as_str(), to_json(calls));
        let rows = messages!(
            select_all,
            self,
            "where to_peer = ? and given_by in (select value from json_each(?)) and state in ('offered', 'injected')
                and substr(given_by, 1, 3) <> 'ag_'
            order by id",
            to,
            calls
        );
        let messages: Vec<Message> =
            rows.into_iter().map(|raw| MessageRow::from(raw).message).collect();
        let ids: Vec<&MessageId> = messages.iter().map(|message| &message.id).collect();
        let ids = to_json(&ids);
        let done = change!(
            self,
            "update message set leased_until = 0, given_by = null
            where message_id in (select value from json_each(?))",
            ids
        );
        all_changed(done, messages.len(), "message")?;
        Ok(messages)
    }

    /// Says of questions whether the turn of their receiver begins with them.
    pub async fn note_turn(
        &mut self,
        ids: &[MessageId],
        begins_turn: bool,
    ) -> Result<(), StoreError> {
        let list = to_json(ids);
        change!(
            self,
            "update message set begins_turn = ?
            where type = 'query' and message_id in (select value from json_each(?))",
            begins_turn,
            list
        );
        Ok(())
    }

    /// The questions with which the present turn of a receiver began, in order. Their texts are left out.
    pub async fn questions_of_turn(&mut self, to: &PeerId) -> Result<Vec<Message>, StoreError> {
        let to = to.as_str();
        let rows = select_all!(
            r#"select id as "id!", message_id, type as "kind: MessageType", from_peer, to_peer, '' as "text!",
                correlation_id, state as "state: DeliveryState", at as "at: Timestamp",
                source_tool as "source_tool: SourceTool", source_session, run_id
            from message where to_peer = ? and begins_turn = 1
            order by id"#,
            RawMessage,
            self,
            "",
            to
        );
        Ok(rows.into_iter().map(|raw| MessageRow::from(raw).message).collect())
    }

    /// Says of questions that their receiver has, and why, that nobody will answer them. They wait no more; their state stays.
    pub async fn close_questions(
        &mut self,
        ids: &[MessageId],
        reason: &str,
    ) -> Result<(), StoreError> {
        let list = to_json(ids);
        let done = change!(
            self,
            "update message set came_to_nothing = 1 where message_id in (select value from json_each(?))",
            list
        );
        change!(
            self,
            "update message_state set reason = ?
            where state = 'injected' and message_id in (select value from json_each(?))",
            reason,
            list
        );
        all_changed(done, ids.len(), "message")
    }

    /// Waiting messages of an inbox, in order, at most `limit`. Their texts are left out.
    pub async fn waiting_messages(
        &mut self,
        to: &PeerId,
        limit: u32,
    ) -> Result<Vec<Message>, StoreError> {
        let to = to.as_str();
        let rows = select_all!(
            r#"select id as "id!", message_id, type as "kind: MessageType", from_peer, to_peer, '' as "text!",
                correlation_id, state as "state: DeliveryState", at as "at: Timestamp",
                source_tool as "source_tool: SourceTool", source_session, run_id
            from message where to_peer = ? and waits = 1
            order by id limit ?"#,
            RawMessage,
            self,
            "",
            to,
            limit
        );
        Ok(rows.into_iter().map(|raw| MessageRow::from(raw).message).collect())
    }
}

impl Store {
    /// A message by its id.
    pub async fn message(&self, id: &MessageId) -> Result<Option<Message>, StoreError> {
        let id = id.as_str();
        let raw = messages!(read_one, self, "where message_id = ?", id);
        Ok(raw.map(|raw| MessageRow::from(raw).message))
    }

    /// The first answer of a peer to a message, or the word that there is none.
    pub async fn answer_to(
        &self,
        question: &MessageId,
        from: &PeerId,
    ) -> Result<Option<Message>, StoreError> {
        let (question, from) = (question.as_str(), from.as_str());
        let raw = messages!(
            pool_query,
            "where correlation_id = ? and from_peer = ? and type in ('response', 'notification') order by id limit 1",
            question,
            from
        );
        let raw = raw.fetch_optional(&self.readers).await?;
        Ok(raw.map(|raw| MessageRow::from(raw).message))
    }

    /// Peers whose turn ended before this time and left a question unanswered with which it had begun.
    pub async fn peers_of_silent_turns(
        &self,
        before: Timestamp,
    ) -> Result<Vec<PeerId>, StoreError> {
        let peers = sqlx::query_scalar!(
            r#"select distinct to_peer as "peer!: PeerId" from message join peer on peer_id = to_peer
            where begins_turn = 1 and message.state = 'injected' and status in ('idle', 'offline') and since < ?"#,
            before
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(peers)
    }

    /// Messages whose ids begin so, the latest first, at most `limit`.
    pub async fn messages_with_prefix(
        &self,
        prefix: &str,
        limit: u32,
    ) -> Result<Vec<Message>, StoreError> {
        let rows = messages!(
            pool_query,
            "where message_id >= ?1 and message_id < ?1 || '~' order by id desc limit ?2",
            prefix,
            limit
        )
        .fetch(&self.page_readers);
        // Candidates of an id are large rows at times.
        let message = |raw| Ok(MessageRow::from(raw).message);
        Ok(read_page(rows, PageSize::rows(limit), message, |message| message).await?.rows)
    }

    /// The last message to the operator, whatever became of it.
    pub async fn latest_message_to_operator(&self) -> Result<Option<MessageId>, StoreError> {
        let latest = sqlx::query_scalar!(
            r#"select message_id as "message_id!: MessageId" from message
            where to_peer = 'operator' order by id desc limit 1"#
        );
        Ok(latest.fetch_optional(&self.readers).await?)
    }

    /// The states that a delivery went through, in order.
    pub async fn deliveries(&self, id: &MessageId) -> Result<Vec<Delivery>, StoreError> {
        let id = id.as_str();
        let mut states = sqlx::query_as!(
            Delivery,
            r#"select state as "state: DeliveryState", at as "at: Timestamp", reason
            from message_state where message_id = ?"#,
            id
        )
        .fetch_all(&self.readers)
        .await?;
        states.sort_by_key(|delivery| delivery.state);
        Ok(states)
    }

    /// Messages between all peers, the latest first, before the rank `before`, at most `limit`. Of a text there are the first
    /// `characters`.
    pub async fn messages(
        &self,
        filter: &MessageFilter,
        before: Option<i64>,
        characters: u32,
        size: PageSize,
    ) -> Result<RowPage<ListedMessage>, StoreError> {
        let MessageFilter { peer, state, kind, open } = filter;
        // As bytes: of a text, SQL gives only what stands before a NUL. No character has more than four.
        let (bytes, limit) = (characters.saturating_mul(4), size.limit());
        let rows = sqlx::query!(
            r#"select id as "id!", message_id, type as "kind: MessageType", from_peer, to_peer,
                substr(cast(coalesce((select shared.text from message_text shared where shared.id = text_id), text)
                    as blob), 1, ?4) as "text!: Vec<u8>",
                bytes, correlation_id, state as "state: DeliveryState", at as "at: Timestamp",
                source_tool as "source_tool: SourceTool", source_session, run_id,
                (select display_name from peer where peer_id = from_peer) as "from_name?: String",
                (select display_name from peer where peer_id = to_peer) as "to_name?: String",
                exists (
                    select 1 from message answer
                    where answer.correlation_id in (message.message_id, coalesce(message.correlation_id, message.message_id))
                        and answer.from_peer = message.to_peer and answer.type <> 'query' and answer.id > message.id
                ) as "is_answered!: bool"
            from message
            where (?1 is null or id < ?1) and (?2 is null or from_peer = ?2 or to_peer = ?2)
                and (?3 is null or state = ?3) and (?6 is null or type = ?6)
                and (not ?7 or (
                    type = 'query' and state not in ('expired', 'refused', 'undeliverable') and came_to_nothing = 0
                    and not exists (
                        select 1 from message answer
                        where answer.correlation_id in (message.message_id, coalesce(message.correlation_id, message.message_id))
                            and answer.from_peer = message.to_peer and answer.type <> 'query' and answer.id > message.id
                    )
                ))
            order by id desc limit ?5"#,
            before,
            peer,
            state,
            bytes,
            limit,
            kind,
            open
        )
        .fetch(&self.page_readers);
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
                let MessageRow { id, message } = MessageRow::from(raw);
                Ok(ListedMessage {
                    id,
                    bytes: row.bytes,
                    from_name: row.from_name,
                    to_name: row.to_name,
                    open: !row.is_answered && message.may_be_answered(),
                    answered: row.is_answered,
                    message,
                })
            },
            |listed| &listed.message,
        )
        .await
    }

    /// Messages to or from a peer, the latest first, before the rank `before`, at most `limit`.
    pub async fn messages_of(
        &self,
        peer: &PeerId,
        before: Option<i64>,
        size: PageSize,
    ) -> Result<RowPage<MessageRow>, StoreError> {
        let limit = size.limit();
        let peer = peer.as_str();
        let rows = messages!(pool_query,
            "where (to_peer = ?1 or from_peer = ?1) and (?2 is null or id < ?2) order by id desc limit ?3",
            peer,
            before,
            limit
        )
        .fetch(&self.page_readers);
        read_page(rows, size, |raw| Ok(MessageRow::from(raw)), |row| &row.message).await
    }

    /// Messages between two peers, the latest first, before the rank `before`, at most `limit`.
    pub async fn messages_between(
        &self,
        one: &PeerId,
        other: &PeerId,
        before: Option<i64>,
        size: PageSize,
    ) -> Result<RowPage<MessageRow>, StoreError> {
        let limit = size.limit();
        let (one, other) = (one.as_str(), other.as_str());
        let rows = messages!(
            pool_query,
            "where (to_peer = ?1 and from_peer = ?2 or to_peer = ?2 and from_peer = ?1)
                and (?3 is null or id < ?3) order by id desc limit ?4",
            one,
            other,
            before,
            limit
        )
        .fetch(&self.page_readers);
        read_page(rows, size, |raw| Ok(MessageRow::from(raw)), |row| &row.message).await
    }

    /// Inboxes with waiting messages that nobody reads any more, at most `limit`: their peer was removed, or is that of a
    /// hosted agent that has ended.
    pub async fn stranded_inboxes(&self, limit: u32) -> Result<Vec<StrandedInbox>, StoreError> {
        // One seek for each inbox that is not empty, however many messages are in it.
        let inboxes = sqlx::query_as!(
            StrandedInbox,
            r#"with recursive inbox(peer) as (
                select min(to_peer) from message where waits = 1
                union all
                select (
                    select min(to_peer) from message
                    where to_peer > inbox.peer and waits = 1
                ) from inbox where inbox.peer is not null
            )
            select inbox.peer as "peer!: PeerId", p.peer_id is null as "is_removed!: bool"
            from inbox left join peer p on p.peer_id = inbox.peer
            where inbox.peer is not null and (p.peer_id is null or (
                exists (select 1 from agent a where a.session_key = p.owner)
                and not exists (select 1 from agent a where a.session_key = p.owner and a.ended_at is null)
            )) limit ?"#,
            limit
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(inboxes)
    }

    /// Waiting messages of an inbox after the rank `after`, leased ones too, at most `limit`.
    pub async fn inbox(
        &self,
        to: &PeerId,
        after: i64,
        size: PageSize,
    ) -> Result<RowPage<MessageRow>, StoreError> {
        let limit = size.limit();
        let to = to.as_str();
        let rows = messages!(
            pool_query,
            "where to_peer = ? and id > ? and waits = 1
            order by id limit ?",
            to,
            after,
            limit
        )
        .fetch(&self.page_readers);
        read_page(rows, size, |raw| Ok(MessageRow::from(raw)), |row| &row.message).await
    }
}
