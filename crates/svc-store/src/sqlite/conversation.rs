//! Rows of sends between sessions, and what mail there is for hosted agents.

use svc_model::{
    AgentId, DeliveryState, Message, MessageId, MessageType, PeerId, Principal, RunId, StreamName,
    TaskId, Timestamp,
    conversation::{Provenance, RunMode, RunState, SourceTool, WaitEdge},
};

use super::{
    db::Store,
    errors::changed,
    statement::{
        change, direct_row, read_all, read_one, read_value, select_all, select_fields, select_one,
        select_value,
    },
    tx::WriteTx,
};
use crate::{AgentMail, RunEnd, RunRow, StoreError, TaskAsker};

direct_row! {
    /// The columns of a message that waits to become a turn.
    struct RawMail {
        message_id: MessageId,
        kind: MessageType,
        from_peer: String,
        text: String,
        correlation_id: Option<String>,
        at: Timestamp,
        state: DeliveryState,
        source_tool: Option<SourceTool>,
        source_session: Option<String>,
        run_id: Option<RunId>,
        turn: Option<u32>,
        mode: Option<RunMode>,
    }
}

direct_row! {
    struct RawRun {
        run_id: RunId,
        message_id: MessageId,
        mode: RunMode,
        source_session: String,
        source_peer: PeerId,
        source_agent: Option<String>,
        target_session: String,
        target_peer: PeerId,
        target_agent: Option<String>,
        state: RunState,
        reason: Option<String>,
        error: Option<String>,
        reply_id: Option<String>,
        waits_until: Option<Timestamp>,
        answered: Option<RunState>,
        idempotency_key: Option<String>,
        created_at: Timestamp,
        begun_at: Option<Timestamp>,
        ended_at: Option<Timestamp>,
    }
}

impl From<RawRun> for RunRow {
    fn from(raw: RawRun) -> Self {
        Self {
            run_id: raw.run_id,
            message_id: raw.message_id,
            mode: raw.mode,
            source: RunEnd {
                session: raw.source_session,
                peer: raw.source_peer,
                agent: raw.source_agent.map(AgentId::from),
            },
            target: RunEnd {
                session: raw.target_session,
                peer: raw.target_peer,
                agent: raw.target_agent.map(AgentId::from),
            },
            state: raw.state,
            reason: raw.reason,
            error: raw.error,
            reply_id: raw.reply_id.map(MessageId::from),
            waits_until: raw.waits_until,
            answered: raw.answered,
            idempotency_key: raw.idempotency_key,
            created_at: raw.created_at,
            begun_at: raw.begun_at,
            ended_at: raw.ended_at,
        }
    }
}

/// The columns of such a row, for the macros of `statement`.
macro_rules! runs {
    ($run:ident, $($rest:tt)*) => {
        $run!(
            r#"select r.run_id as "run_id!: RunId", r.message_id as "message_id!: MessageId",
                r.mode as "mode!: RunMode", r.source_session as "source_session!",
                r.source_peer as "source_peer!: PeerId", r.source_agent, r.target_session as "target_session!",
                r.target_peer as "target_peer!: PeerId", r.target_agent, r.state as "state!: RunState", r.reason,
                r.error, r.reply_id, r.waits_until as "waits_until: Timestamp", r.answered as "answered: RunState",
                r.idempotency_key, r.created_at as "created_at!: Timestamp", r.begun_at as "begun_at: Timestamp",
                r.ended_at as "ended_at: Timestamp"
            from conversation_run r "#,
            RawRun,
            $($rest)*
        )
    };
}

direct_row!(WaitEdge { waiter, awaited });

impl WriteTx {
    /// Stores a send. Its message is stored already.
    pub async fn insert_run(&mut self, row: &RunRow) -> Result<(), StoreError> {
        let (source_agent, target_agent) = (
            row.source.agent.as_ref().map(AgentId::as_str),
            row.target.agent.as_ref().map(AgentId::as_str),
        );
        change!(
            self,
            "insert into conversation_run (run_id, message_id, mode, source_session, source_peer, source_agent, \
                target_session, target_peer, target_agent, state, waits_until, idempotency_key, created_at) \
            values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            row.run_id,
            row.message_id,
            row.mode,
            row.source.session,
            row.source.peer,
            source_agent,
            row.target.session,
            row.target.peer,
            target_agent,
            row.state,
            row.waits_until,
            row.idempotency_key,
            row.created_at
        );
        Ok(())
    }

    /// Stores what changed of a send.
    pub async fn update_run(&mut self, row: &RunRow) -> Result<(), StoreError> {
        let done = change!(
            self,
            "update conversation_run set state = ?, reason = ?, error = ?, reply_id = ?, waits_until = ?, answered = ?, \
                begun_at = ?, ended_at = ? where run_id = ?",
            row.state,
            row.reason,
            row.error,
            row.reply_id,
            row.waits_until,
            row.answered,
            row.begun_at,
            row.ended_at,
            row.run_id
        );
        changed(done, "conversation_run", row.run_id.as_str())
    }

    /// A send by its id.
    pub async fn run(&mut self, id: &RunId) -> Result<Option<RunRow>, StoreError> {
        let raw = runs!(select_one, self, "where r.run_id = ?", id);
        Ok(raw.map(RunRow::from))
    }

    /// The send of a message.
    pub async fn run_of_message(&mut self, id: &MessageId) -> Result<Option<RunRow>, StoreError> {
        let raw = runs!(select_one, self, "where r.message_id = ?", id);
        Ok(raw.map(RunRow::from))
    }

    /// What a source has sent under this key.
    pub async fn run_by_key(
        &mut self,
        source: &str,
        key: &str,
    ) -> Result<Option<RunRow>, StoreError> {
        let raw = runs!(
            select_one,
            self,
            "where r.source_session = ? and r.idempotency_key = ?",
            source,
            key
        );
        Ok(raw.map(RunRow::from))
    }

    /// How many live agents a principal has started, with those that `sessions_spawn` is about to start for it.
    pub async fn children_of(&mut self, parent: &Principal) -> Result<u64, StoreError> {
        let parent = parent.to_string();
        let count = select_value!(
            self,
            r#"select (select count(*) from agent where created_by = ?1 and ended_at is null)
                + (select count(*) from dispatch d join task t on t.task_id = d.task_id
                    where d.state = 'queued' and d.source_tool = 'sessions_spawn' and t.created_by = ?1) as "count!: i64""#,
            parent
        );
        Ok(count.cast_unsigned())
    }

    /// The live agents that somebody has started.
    pub async fn live_children_of(&mut self, parent: &Principal) -> Result<u64, StoreError> {
        let parent = parent.to_string();
        let count = select_value!(
            self,
            r#"select count(*) as "count!: i64" from agent where created_by = ? and ended_at is null"#,
            parent
        );
        Ok(count.cast_unsigned())
    }

    /// The open sends to an incarnation of a hosted agent, in order.
    pub async fn open_runs_of_agent(
        &mut self,
        peer: &PeerId,
        agent: &AgentId,
    ) -> Result<Vec<RunRow>, StoreError> {
        let agent = agent.as_str();
        let rows = runs!(
            select_all,
            self,
            "where r.target_peer = ? and r.ended_at is null and r.target_agent = ? order by r.id",
            peer,
            agent
        );
        Ok(rows.into_iter().map(RunRow::from).collect())
    }

    /// The chain of waits that begins at a session: for whom it waits, for whom those wait, and so on. Unrelated waits are
    /// not read, so the cost does not grow with their number.
    pub async fn waits_from(&mut self, session: &str) -> Result<Vec<WaitEdge>, StoreError> {
        let edges = select_all!(
            r#"with recursive waiter(session) as (
                select ?1
                union
                select r.target_session from waiter cross join conversation_run r on r.source_session = waiter.session
                where r.waits_until > ?2 and r.ended_at is null
            )
            select r.source_session as "waiter!", r.target_session as "awaited!"
            from waiter cross join conversation_run r on r.source_session = waiter.session
            where r.waits_until > ?2 and r.ended_at is null"#,
            WaitEdge,
            self,
            "",
            session,
            self.now
        );
        Ok(edges)
    }

    /// How often one session has sent to the peer of another since then, its answers by a call included.
    pub async fn sends_since(
        &mut self,
        (source, own): (&str, Option<&PeerId>),
        target: &PeerId,
        since: Timestamp,
    ) -> Result<u64, StoreError> {
        let own = own.map(PeerId::as_str);
        let count = select_value!(
            self,
            r#"select (select count(*) from conversation_run
                    where source_session = ?1 and target_peer = ?2 and created_at > ?3)
                + (select count(*) from message
                    where from_peer = ?4 and to_peer = ?2 and by_call = 1 and at > ?3) as "count!: i64""#,
            source,
            target,
            since,
            own
        );
        Ok(count.cast_unsigned())
    }

    /// Whether a peer is that of a live hosted agent, whose messages become its turns.
    pub async fn is_hosted(&mut self, peer: &PeerId) -> Result<bool, StoreError> {
        let is = select_value!(
            self,
            r#"select exists (
                select 1 from peer p join agent a on a.session_key = p.owner and a.ended_at is null
                where p.peer_id = ? and p.owner like 'agent:%'
            ) as "is!: bool""#,
            peer
        );
        Ok(is)
    }

    /// Whether an agent of this key was ever run.
    pub async fn was_agent(&mut self, session_key: &str) -> Result<bool, StoreError> {
        let was = select_value!(
            self,
            r#"select exists (select 1 from agent where session_key = ?) as "was!: bool""#,
            session_key
        );
        Ok(was)
    }

    /// The number of the turn that a message begins, if it is a reply that answers a reply.
    pub async fn turn_of_message(&mut self, id: &MessageId) -> Result<Option<u32>, StoreError> {
        let turn = select_value!(
            self,
            r#"select max(turn) as "turn: u32" from message where message_id = ?"#,
            id
        );
        Ok(turn)
    }

    /// Notes the incarnation that started an agent.
    pub async fn note_parent(
        &mut self,
        agent: &AgentId,
        parent: &AgentId,
    ) -> Result<(), StoreError> {
        let (id, parent) = (agent.as_str(), parent.as_str());
        let done =
            change!(self, "update agent set parent_agent = ? where agent_id = ?", parent, id);
        changed(done, "agent", id)
    }

    /// Notes who asked for a dispatched task.
    pub async fn note_asker(&mut self, task: &TaskId, asker: &TaskAsker) -> Result<(), StoreError> {
        let (id, agent) = (task.as_str(), asker.agent.as_ref().map(AgentId::as_str));
        let done = change!(
            self,
            "update dispatch set asker_agent = ?, source_tool = ?, removes_peer = ?, deadline = ? where task_id = ?",
            agent,
            asker.tool,
            asker.removes_peer,
            asker.deadline,
            id
        );
        changed(done, "dispatch", id)
    }

    /// Who asked for a dispatched task.
    pub async fn asker_of(&mut self, task: &TaskId) -> Result<TaskAsker, StoreError> {
        let id = task.as_str();
        let row = select_fields!(
            select_one,
            self,
            {
                asker_agent: Option<String>,
                source_tool: Option<SourceTool>,
                removes_peer: bool,
                deadline: Option<Timestamp>
            },
            r#"select asker_agent, source_tool as "source_tool: SourceTool", removes_peer as "removes_peer: bool",
                deadline as "deadline: Timestamp"
            from dispatch where task_id = ?"#,
            id
        );
        Ok(row.map_or_else(TaskAsker::default, |row| TaskAsker {
            agent: row.asker_agent.map(AgentId::from),
            tool: row.source_tool,
            removes_peer: row.removes_peer,
            deadline: row.deadline,
        }))
    }
}

impl Store {
    /// A send by its id.
    pub async fn run(&self, id: &RunId) -> Result<Option<RunRow>, StoreError> {
        let raw = runs!(read_one, self, "where r.run_id = ?", id);
        Ok(raw.map(RunRow::from))
    }

    /// The send of a message.
    pub async fn run_of_message(&self, id: &MessageId) -> Result<Option<RunRow>, StoreError> {
        let raw = runs!(read_one, self, "where r.message_id = ?", id);
        Ok(raw.map(RunRow::from))
    }

    /// Messages that wait to become turns of a hosted agent, in order, at most `limit`.
    pub async fn agent_mail(
        &self,
        peer: &PeerId,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<AgentMail>, StoreError> {
        let rows = read_all!(
            r#"select m.message_id as "message_id!: MessageId", m.type as "kind!: MessageType", m.from_peer as "from_peer!",
                coalesce((select shared.text from message_text shared where shared.id = m.text_id), m.text) as "text!",
                m.correlation_id, m.at as "at!: Timestamp", m.state as "state!: DeliveryState",
                m.source_tool as "source_tool: SourceTool", m.source_session, m.run_id as "run_id: RunId",
                m.turn as "turn: u32", r.mode as "mode?: RunMode"
            from message m left join conversation_run r on r.message_id = m.message_id "#,
            RawMail,
            self,
            "where m.to_peer = ?1 and m.waits = 1 and m.state in ('accepted', 'queued')
                and (m.held_until is null or m.held_until <= ?2)
            order by m.id limit ?3",
            peer,
            now,
            limit
        );
        let mail = rows.into_iter().map(|row| AgentMail {
            message: Message {
                id: row.message_id,
                kind: row.kind,
                from_peer: row.from_peer,
                to_peer: peer.clone(),
                text: row.text,
                correlation_id: row.correlation_id,
                timestamp: row.at,
                state: row.state,
                provenance: row
                    .source_tool
                    .zip(row.run_id)
                    .map(|(tool, run)| Provenance::inter_session(row.source_session, tool, run)),
            },
            mode: row.mode,
            turn: row.turn,
        });
        Ok(mail.collect())
    }

    /// When the next message that is held back for somebody who waits becomes mail of a peer.
    pub async fn next_held_mail(&self, peer: &PeerId) -> Result<Option<Timestamp>, StoreError> {
        let next = read_value!(
            self,
            r#"select min(held_until) as "next: Timestamp" from message
            where to_peer = ? and waits = 1 and held_until is not null and state in ('accepted', 'queued')"#,
            peer
        );
        Ok(next)
    }

    /// Whose reply a session waits for now, since when and until when.
    pub async fn awaited_by(
        &self,
        session: &str,
        now: Timestamp,
    ) -> Result<Option<(String, Timestamp, Timestamp)>, StoreError> {
        let awaited = sqlx::query!(
            r#"select target_session as "session!", created_at as "since!: Timestamp", waits_until as "until!: Timestamp"
            from conversation_run
            where source_session = ? and waits_until > ? and ended_at is null order by id limit 1"#,
            session,
            now
        )
        .fetch_optional(&self.readers)
        .await?;
        Ok(awaited.map(|row| (row.session, row.since, row.until)))
    }

    /// How many sends of a session are open.
    pub async fn open_sends_of(&self, session: &str) -> Result<u64, StoreError> {
        let open = sqlx::query_scalar!(
            r#"select count(*) as "count!: i64" from conversation_run where source_session = ? and ended_at is null"#,
            session
        )
        .fetch_one(&self.readers)
        .await?;
        Ok(open.cast_unsigned())
    }

    /// How many messages wait for a peer that it has not before its eyes.
    pub async fn mail_of_peer(&self, peer: &PeerId) -> Result<u64, StoreError> {
        let waiting = sqlx::query_scalar!(
            r#"select count(*) as "count!: i64" from message where to_peer = ? and waits = 1 and state <> 'injected'"#,
            peer
        )
        .fetch_one(&self.readers)
        .await?;
        Ok(waiting.cast_unsigned())
    }

    /// The incarnation that started an agent, if that was a hosted agent.
    pub async fn parent_of(&self, agent: &AgentId) -> Result<Option<AgentId>, StoreError> {
        let id = agent.as_str();
        let parent = sqlx::query_scalar!("select parent_agent from agent where agent_id = ?", id)
            .fetch_optional(&self.readers)
            .await?;
        Ok(parent.flatten().map(AgentId::from))
    }

    /// When the last event of a stream was.
    pub async fn last_event_at(&self, name: &StreamName) -> Result<Option<Timestamp>, StoreError> {
        let name = name.as_str();
        let at = sqlx::query_scalar!(
            r#"select e.at as "at!: Timestamp" from event e
            where e.stream_id = (select id from stream where name = ?) order by e.seq desc limit 1"#,
            name
        )
        .fetch_optional(&self.readers)
        .await?;
        Ok(at)
    }

    /// The tasks whose time is over.
    pub async fn overdue_dispatches(&self, now: Timestamp) -> Result<Vec<TaskId>, StoreError> {
        let ids = sqlx::query_scalar!(
            r#"select d.task_id as "task_id!: TaskId" from dispatch d join task t using (task_id)
            where d.state <> 'over' and d.deadline <= ? and t.cancel_requested_at is null and t.closed_at is null"#,
            now
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(ids)
    }
}
