//! Rows of sends between sessions.

use svc_model::{
    AgentId, MessageId, PeerId, RunId, Timestamp,
    conversation::{RunMode, RunState, WaitEdge},
};

use super::{
    errors::changed,
    families::{RunReads, RunWrites},
    statement::{change, direct_row, read_one, select_all, select_one, select_value},
};
use crate::{RunEnd, RunRow, StoreError};

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

impl RunWrites<'_> {
    /// Stores a send. Its message is stored already.
    pub async fn insert(&mut self, row: &RunRow) -> Result<(), StoreError> {
        let (source_agent, target_agent) = (
            row.source.agent.as_ref().map(AgentId::as_str),
            row.target.agent.as_ref().map(AgentId::as_str),
        );
        change!(
            self.tx,
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
    pub async fn update(&mut self, row: &RunRow) -> Result<(), StoreError> {
        let done = change!(
            self.tx,
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
    pub async fn get(&mut self, id: &RunId) -> Result<Option<RunRow>, StoreError> {
        let raw = runs!(select_one, self.tx, "where r.run_id = ?", id);
        Ok(raw.map(RunRow::from))
    }

    /// The send of a message.
    pub async fn of_message(&mut self, id: &MessageId) -> Result<Option<RunRow>, StoreError> {
        let raw = runs!(select_one, self.tx, "where r.message_id = ?", id);
        Ok(raw.map(RunRow::from))
    }

    /// What a source has sent under this key.
    pub async fn by_key(&mut self, source: &str, key: &str) -> Result<Option<RunRow>, StoreError> {
        let raw = runs!(
            select_one,
            self.tx,
            "where r.source_session = ? and r.idempotency_key = ?",
            source,
            key
        );
        Ok(raw.map(RunRow::from))
    }

    /// The open sends to an incarnation of a hosted agent, in order.
    pub async fn open_of_agent(
        &mut self,
        peer: &PeerId,
        agent: &AgentId,
    ) -> Result<Vec<RunRow>, StoreError> {
        let agent = agent.as_str();
        let rows = runs!(
            select_all,
            self.tx,
            "where r.target_peer = ? and r.ended_at is null and r.target_agent = ? order by r.id",
            peer,
            agent
        );
        Ok(rows.into_iter().map(RunRow::from).collect())
    }

    /// The chain of waits that begins at a session: for whom it waits, for whom those wait, and so
    /// on. Unrelated waits are not read, so the cost does not grow with their number.
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
            self.tx,
            "",
            session,
            self.tx.now
        );
        Ok(edges)
    }

    /// How often one session has sent to the peer of another since then, its answers by a call
    /// included.
    pub async fn count_since(
        &mut self,
        (source, own): (&str, Option<&PeerId>),
        target: &PeerId,
        since: Timestamp,
    ) -> Result<u64, StoreError> {
        let own = own.map(PeerId::as_str);
        let count = select_value!(
            self.tx,
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
}

impl RunReads<'_> {
    /// A send by its id.
    pub async fn get(self, id: &RunId) -> Result<Option<RunRow>, StoreError> {
        let raw = runs!(read_one, self.store, "where r.run_id = ?", id);
        Ok(raw.map(RunRow::from))
    }

    /// The send of a message.
    pub async fn of_message(self, id: &MessageId) -> Result<Option<RunRow>, StoreError> {
        let raw = runs!(read_one, self.store, "where r.message_id = ?", id);
        Ok(raw.map(RunRow::from))
    }

    /// Whose reply a session waits for now, since when and until when.
    pub async fn awaited_by(
        self,
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
        .fetch_optional(&self.store.readers)
        .await?;
        Ok(awaited.map(|row| (row.session, row.since, row.until)))
    }

    /// How many sends of a session are open.
    pub async fn count_open(self, session: &str) -> Result<u64, StoreError> {
        let open = sqlx::query_scalar!(
            r#"select count(*) as "count!: i64" from conversation_run where source_session = ? and ended_at is null"#,
            session
        )
        .fetch_one(&self.store.readers)
        .await?;
        Ok(open.cast_unsigned())
    }
}
