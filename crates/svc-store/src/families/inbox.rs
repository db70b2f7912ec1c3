//! Messages that wait for their receiver, the leases on them, and texts that were handed to a
//! client's own queue or inbox, until the client shows that it has them.

use svc_model::{
    DeliveryState, HandoverId, HandoverWay, Message, MessageId, MessageType, PeerId, RunId,
    Timestamp,
    conversation::{RunMode, SourceTool},
    limits,
};

use super::{
    HandoverReads, HandoverWrites, InboxReads, InboxWrites,
    message::{messages, row_bytes},
};
use crate::{
    AgentMail, HandoverRow, MessageRow, PageSize, Result, RowPage, StrandedInbox, boxed_methods,
    columns::{Columns, DirectRow, Fault, to_json},
    readers::Rows as _,
    statement::{all_changed, change, changed, column, direct_row, query, value},
};

direct_row!(StrandedInbox { peer, is_removed });

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UndeliveredChoice {
    /// Senders whose messages are left out.
    pub excluded: Vec<String>,
    /// Least and greatest number of failed hand-overs of a message.
    pub failed_handovers: (u32, u32),
}

impl DirectRow for AgentMail {
    fn read(columns: &mut Columns<'_>) -> Result<Self, Fault> {
        let message = Message::read(columns)?;
        Ok(Self { message, turn: columns.next("turn")?, mode: columns.next("mode")? })
    }
}

#[boxed_methods]
impl InboxWrites<'_> {
    /// Senders whose messages began a turn of a peer by `bound` or more hand-overs within the last
    /// [`limits::WAKES_WINDOW`]. Never includes a person.
    pub async fn senders_at_wake_bound(
        &mut self,
        peer: &PeerId,
        bound: u32,
    ) -> Result<Vec<String>> {
        let (peer, since) = (peer.as_str(), self.tx.now.minus(limits::WAKES_WINDOW));
        Ok(column!(self.tx.direct,
            r#"select from_peer as "from!" from message
            where to_peer = ? and wakes = 1 and at >= ? and from_peer <> 'operator'
                and not exists (select 1 from peer p where p.peer_id = from_peer and p.role = 'human')
            group by from_peer having count(distinct given_by) >= ?"#; peer, since, bound))
    }

    /// Sets the lease on messages: the receiver has to acknowledge them by `until`. `given_by` is
    /// the hook call that gave them; `None` if a reader of the inbox took them.
    pub async fn lease(
        &mut self,
        ids: &[MessageId],
        until: Timestamp,
        given_by: Option<&str>,
    ) -> Result<()> {
        let done = if let [id] = ids {
            change!(self.tx,
                "update message set leased_until = ?, given_by = ? where message_id = ?";
                until, given_by, id)
        } else {
            let list = to_json(ids);
            change!(self.tx,
                "update message set leased_until = ?, given_by = ?
                where message_id in (select value from json_each(?))"; until, given_by, list)
        };
        all_changed(done, ids.len(), "message")
    }

    /// Holds a message for a waiting call until `until`; `None` if no call waits for it.
    pub async fn hold(&mut self, id: &MessageId, until: Option<Timestamp>) -> Result<()> {
        let done = change!(self.tx,
            "update message set held_until = ? where message_id = ?"; until, id);
        changed(done, "message", id.as_str())
    }

    /// Those of `ids` that are messages for this receiver, in the order of arrival.
    pub async fn messages(&mut self, to: &PeerId, ids: &[MessageId]) -> Result<Vec<Message>> {
        let (to, ids) = (to.as_str(), to_json(ids));
        Ok(messages!(all(), self.tx.direct,
            "where to_peer = ? and message_id in (select value from json_each(?)) order by id";
            to, ids))
    }

    /// Those of these receivers whose inbox has at least `bound` waiting messages.
    pub async fn full(&mut self, receivers: &[PeerId], bound: u32) -> Result<Vec<PeerId>> {
        let (receivers, last) = (to_json(receivers), bound.saturating_sub(1));
        Ok(column!(self.tx.direct,
            r#"select coalesce(j.value, '') as "to_peer!: PeerId" from json_each(?1) j
            where exists (
                select 1 from message
                where to_peer = j.value and waits = 1
                order by id limit 1 offset ?2
            )"#; receivers, last))
    }

    pub async fn is_full(&mut self, to: &PeerId, bound: u32) -> Result<bool> {
        let (to, last) = (to.as_str(), bound.saturating_sub(1));
        Ok(value!(self.tx.direct,
            r#"select exists (
                select 1 from message where to_peer = ? and waits = 1 order by id limit 1 offset ?
            ) as "full!: bool""#; to, last))
    }

    /// Waiting messages without a lease, in order, up to a page; without those that a hook gave and
    /// the receiver has. A lease that ends later than `longest` is from before the clock was set
    /// back, and is ignored.
    pub async fn unleased(
        &mut self,
        to: &PeerId,
        longest: Timestamp,
        size: PageSize,
    ) -> Result<Vec<Message>> {
        let (limit, bytes) = (size.rows, i64::try_from(size.bytes).unwrap_or(i64::MAX));
        // Lengths are read before texts. `before` is the total length of the preceding messages.
        Ok(messages!(all(), self.tx.direct,
            "where id in (
                select free.id from (
                    select id, bytes, sum(bytes) over (order by id) - bytes as before from (
                        select id, bytes from message
                        where to_peer = ?1 and waits = 1 and handover_id is null
                            and (state <> 'injected' or given_by is null)
                            and (leased_until is null or leased_until <= ?2 or leased_until > ?3)
                            and (held_until is null or held_until <= ?2)
                        order by id limit ?4
                    )
                ) free
                where free.before = 0 or free.before + free.bytes <= ?5
            )
            order by id"; to, self.tx.now, longest, limit, bytes))
    }

    /// Messages that a hook may give to their receiver, in order, at most `limit`: those that were
    /// not given yet, those whose lease has ended, and injected ones that were taken back. With
    /// `all`, leased ones, too. Leaves out messages that were handed to the client's own queue.
    pub async fn undelivered(
        &mut self,
        to: &PeerId,
        all: bool,
        chosen: &UndeliveredChoice,
        limit: u32,
    ) -> Result<Vec<Message>> {
        let (to, excluded) = (to.as_str(), to_json(&chosen.excluded));
        let (least, most) = chosen.failed_handovers;
        Ok(messages!(all(), self.tx.direct,
            "where to_peer = ?1 and waits = 1 and handover_id is null
                and (state in ('accepted', 'queued') or (state = 'offered' and (?2 or leased_until <= ?3))
                    or (state = 'injected' and leased_until = 0))
                and (held_until is null or held_until <= ?3)
                and from_peer not in (select value from json_each(?5))
                and failed_handovers between ?6 and ?7
            order by id limit ?4"; to, all, self.tx.now, limit, excluded, least, most))
    }

    /// Messages that hooks gave to their receiver by `before` and whose receipt is not confirmed,
    /// in order.
    pub async fn given(&mut self, to: &PeerId, before: Timestamp) -> Result<Vec<Message>> {
        Ok(messages!(all(), self.tx.direct,
            "where to_peer = ? and waits = 1 and state = 'offered'
                and given_by is not null and handover_id is null
                and not exists (select 1 from hook_seen where hook_id = given_by and hook_seen.at > ?)
            order by id"; to, before))
    }

    /// Messages that the hook which was called at `at` gave to their receiver, and whose receipt is
    /// not confirmed, in order.
    pub async fn given_at(&mut self, to: &PeerId, at: Timestamp) -> Result<Vec<Message>> {
        Ok(messages!(all(), self.tx.direct,
            "where to_peer = ? and waits = 1 and state = 'offered'
                and exists (select 1 from hook_seen where hook_id = given_by and hook_seen.at = ?)
            order by id"; to, at))
    }

    /// Those of `ids` that begin no turn by themselves.
    pub async fn sleeping(&mut self, ids: &[MessageId]) -> Result<Vec<MessageId>> {
        let ids = to_json(ids);
        Ok(column!(self.tx.direct,
            r#"select message_id as "id!: MessageId" from message
            where no_wake = 1 and message_id in (select value from json_each(?))"#; ids))
    }

    /// Whether a question was given to a peer to begin its turn, and neither a hook nor the end of
    /// its lease has settled the delivery.
    pub async fn is_waking(&mut self, to: &PeerId) -> Result<bool> {
        Ok(value!(self.tx.direct,
            r#"select exists (select 1 from message
                where to_peer = ? and begins_turn = 1 and state = 'offered' and leased_until > ?) as "is!: bool""#;
            to, self.tx.now))
    }

    /// Reverts the delivery of messages that these hook calls gave but no client took: ends their
    /// lease, so that no later event can confirm the receipt. Returns these messages, in order.
    pub async fn take_back(&mut self, to: &PeerId, calls: &[String]) -> Result<Vec<Message>> {
        let (to, calls) = (to.as_str(), to_json(calls));
        let messages: Vec<Message> = messages!(all(), self.tx.direct,
            "where to_peer = ? and given_by in (select value from json_each(?)) and state in ('offered', 'injected')
                and substr(given_by, 1, 3) <> 'ag_'
            order by id"; to, calls);
        let ids: Vec<&MessageId> = messages.iter().map(|message| &message.id).collect();
        let ids = to_json(&ids);
        let done = change!(self.tx,
            "update message set leased_until = 0, given_by = null
            where message_id in (select value from json_each(?))"; ids);
        all_changed(done, messages.len(), "message")?;
        Ok(messages)
    }

    /// Waiting messages of an inbox, in order, at most `limit`, with empty texts.
    pub async fn waiting(&mut self, to: &PeerId, limit: u32) -> Result<Vec<Message>> {
        Ok(query!(all(), self.tx.direct,
            r#"select id as "id!", message_id, type as "kind: MessageType", from_peer, to_peer, '' as "text!",
                correlation_id, state as "state: DeliveryState", at as "at: Timestamp",
                source_tool as "source_tool: SourceTool", source_session, run_id
            from message where to_peer = ? and waits = 1
            order by id limit ?"#; to, limit))
    }

    /// Messages of an inbox from before `before` that nobody took and that have no lease, at most
    /// `limit`.
    pub async fn old(
        &mut self,
        to: &PeerId,
        before: Timestamp,
        limit: u32,
    ) -> Result<Vec<MessageId>> {
        let (to, now) = (to.as_str(), self.tx.now());
        Ok(column!(self.tx.direct,
            r#"select message_id as "id!: MessageId" from message
            where to_peer = ? and waits = 1 and state in ('accepted', 'queued', 'offered') and at < ?
                and coalesce(leased_until, 0) <= ?
            order by id limit ?"#; to, before, now, limit))
    }
}

#[boxed_methods]
impl InboxReads<'_> {
    /// Whether a peer has messages that were not given to it, or whose receipt is not confirmed.
    pub async fn has_mail(&self, peer: &PeerId, now: Timestamp) -> Result<bool> {
        Ok(value!(self.store.near(),
            r#"select exists (select 1 from message
                where to_peer = ? and waits = 1 and handover_id is null
                    and (state <> 'injected' or leased_until = 0)
                    and (held_until is null or held_until <= ?)) as "has!: bool""#; peer, now))
    }

    /// How many hand-overs with messages of a sender began a turn of a peer since a time.
    pub async fn count_turns_begun_by(
        &self,
        peer: &PeerId,
        from: &PeerId,
        since: Timestamp,
    ) -> Result<i64> {
        Ok(value!(self.store.near(),
            r#"select count(distinct given_by) as "count!: i64" from message
            where to_peer = ? and wakes = 1 and at >= ? and from_peer = ?"#; peer, since, from))
    }

    /// Inboxes with waiting messages that nobody reads any more, at most `limit`: their peer was
    /// removed, or is that of an ended agent.
    pub async fn stranded(&self, limit: u32) -> Result<Vec<StrandedInbox>> {
        // One seek for each non-empty inbox, independent of its number of messages.
        Ok(query!(all(), self.store.pool(),
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
            )) limit ?"#; limit))
    }

    /// Waiting messages of an inbox after the sequence number `after`, including leased ones.
    pub async fn list(
        &self,
        to: &PeerId,
        after: i64,
        size: PageSize,
    ) -> Result<RowPage<MessageRow>> {
        let limit = size.limit();
        Ok(messages!(page(size, row_bytes), self.store.pool(),
            "where to_peer = ? and id > ? and waits = 1
            order by id limit ?"; to, after, limit))
    }

    /// Messages that wait to become turns of a hosted agent, in order, at most `limit`.
    pub async fn mail_of_agent(
        &self,
        peer: &PeerId,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<AgentMail>> {
        Ok(query!(all(),
            r#"select m.id as "id!", m.message_id as "message_id!: MessageId", m.type as "kind!: MessageType",
                m.from_peer as "from_peer!", m.to_peer as "to_peer!: PeerId",
                coalesce((select shared.text from message_text shared where shared.id = m.text_id), m.text) as "text!",
                m.correlation_id, m.state as "state!: DeliveryState", m.at as "at!: Timestamp",
                m.source_tool as "source_tool: SourceTool", m.source_session, m.run_id as "run_id: RunId",
                m.turn as "turn: u32", r.mode as "mode?: RunMode"
            from message m left join assignment r on r.message_id = m.message_id "#, self.store.near(),
            "where m.to_peer = ?1 and m.waits = 1 and m.state in ('accepted', 'queued')
                and (m.held_until is null or m.held_until <= ?2)
            order by m.id limit ?3"; peer, now, limit))
    }

    /// When the next message that is held for a waiting call becomes mail of a peer.
    pub async fn next_held_mail(&self, peer: &PeerId) -> Result<Option<Timestamp>> {
        Ok(value!(self.store.near(),
            r#"select min(held_until) as "next: Timestamp" from message
            where to_peer = ? and waits = 1 and held_until is not null and state in ('accepted', 'queued')"#;
            peer))
    }

    /// The number of waiting messages that have not been injected into a peer's context.
    pub async fn count_mail(&self, peer: &PeerId) -> Result<u64> {
        Ok(value!(self.store.pool(),
            r#"select count(*) as "count!: i64" from message where to_peer = ? and waits = 1 and state <> 'injected'"#;
            peer).cast_unsigned())
    }

    /// Inboxes with messages from before `before` that nobody took, at most 500.
    pub async fn with_old_messages(&self, before: Timestamp) -> Result<Vec<PeerId>> {
        Ok(column!(self.store.pool(),
            r#"select distinct to_peer as "peer!: PeerId" from message
            where waits = 1 and state in ('accepted', 'queued', 'offered') and at < ?
            limit ?"#; before, limits::SWEPT_ROWS_PER_JOB))
    }
}

direct_row!(HandoverRow { handover_id, peer_id, session_id, via, joins_turn, is_held, record, at });

macro_rules! handovers {
    ($run:ident($($bound:expr),*), $($rest:tt)*) => {
        query!($run($($bound),*),
            r#"select handover_id as "handover_id!: HandoverId", peer_id as "peer_id!: PeerId", session_id,
                via as "via: HandoverWay", joins_turn as "joins_turn: bool", is_held as "is_held: bool", record,
                at as "at: Timestamp"
            from handover "#,
            $($rest)*
        )
    };
}

#[boxed_methods]
impl HandoverWrites<'_> {
    pub async fn insert(&mut self, row: &HandoverRow, messages: &[MessageId]) -> Result<()> {
        change!(self.tx,
            "insert into handover (handover_id, peer_id, session_id, via, joins_turn, is_held, record, at) \
            values (?, ?, ?, ?, ?, ?, ?, ?)";
            row.handover_id, row.peer_id, row.session_id, row.via, row.joins_turn, row.is_held,
            row.record, row.at);
        let list = to_json(messages);
        let done = change!(self.tx,
            "update message set handover_id = ? where message_id in (select value from json_each(?))";
            row.handover_id, list);
        all_changed(done, messages.len(), "message")
    }

    pub async fn get(&mut self, id: &HandoverId) -> Result<Option<HandoverRow>> {
        Ok(handovers!(one(), self.tx.direct, "where handover_id = ?"; id))
    }

    pub async fn of_peer(&mut self, peer: &PeerId) -> Result<Vec<HandoverRow>> {
        Ok(handovers!(all(), self.tx.direct, "where peer_id = ? order by handover_id"; peer))
    }

    /// Messages of a hand-over whose receipt the client has not shown, in order.
    pub async fn messages(&mut self, id: &HandoverId) -> Result<Vec<Message>> {
        Ok(messages!(all(), self.tx.direct, "where handover_id = ? order by id"; id))
    }

    /// Records that the client keeps a text for its person.
    pub async fn note_held(&mut self, id: &HandoverId, reason: &str) -> Result<()> {
        change!(self.tx, "update handover set is_held = 1 where handover_id = ?"; id);
        change!(self.tx,
            "update message_state set reason = ?
            where state = 'offered' and message_id in (select message_id from message where handover_id = ?)";
            reason, id);
        Ok(())
    }

    /// Removes messages from a hand-over, and the hand-over with the last of them.
    pub async fn release(&mut self, id: &HandoverId, messages: &[MessageId]) -> Result<()> {
        let list = to_json(messages);
        change!(self.tx,
            "update message set handover_id = null
            where handover_id = ? and message_id in (select value from json_each(?))"; id, list);
        change!(self.tx,
            "delete from handover where handover_id = ?1
                and not exists (select 1 from message where message.handover_id = ?1)"; id);
        Ok(())
    }

    /// Releases messages that the client did not get: another way may deliver them.
    pub async fn note_failed(&mut self, messages: &[MessageId]) -> Result<()> {
        let list = to_json(messages);
        let done = change!(self.tx,
            "update message set leased_until = 0, given_by = null, failed_handovers = failed_handovers + 1
            where message_id in (select value from json_each(?))"; list);
        all_changed(done, messages.len(), "message")
    }
}

#[boxed_methods]
impl HandoverReads<'_> {
    pub async fn all(&self) -> Result<Vec<HandoverRow>> {
        Ok(handovers!(all(), self.store.near(), "order by handover_id"))
    }

    pub async fn of_peer(&self, peer: &PeerId) -> Result<Vec<HandoverRow>> {
        Ok(handovers!(all(), self.store.near(), "where peer_id = ? order by handover_id"; peer))
    }

    pub async fn messages(&self, id: &HandoverId) -> Result<Vec<Message>> {
        Ok(messages!(all(), self.store.near(), "where handover_id = ? order by id"; id))
    }
}
