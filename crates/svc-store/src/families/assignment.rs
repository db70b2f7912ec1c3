//! Rows of assignments: texts that were given to participants, as tasks or as messages whose turn
//! gives the reply.

use svc_model::{
    AgentId, MessageId, PeerId, RunId, TaskId, Timestamp,
    agent::TurnEnd,
    conversation::{RunMode, RunState, SourceTool, WaitEdge},
};

use super::{AssignmentReads, AssignmentWrites};
use crate::{
    AssignmentRow, AssignmentState, Result, WorkRequirements, boxed_methods,
    readers::Rows as _,
    statement::{change, changed, column, direct_row, fields, query, value},
};

direct_row! {
    AssignmentRow {
        run_id, task_id, message_id, mode, state, source_session, source_peer, source_agent, source_tool, target_session,
        target_peer, target_agent, reason, error, reply_id, waits_until, answered, idempotency_key, created_at, begun_at,
        ended_at, instance, backend, requirements, attempt, deadline, is_spawned, removes_peer, taken_at, has_words, said, turn,
    }
}

macro_rules! assignments {
    ($run:ident($($bound:expr),*), $($rest:tt)*) => {
        query!($run($($bound),*),
            r#"select a.run_id as "run_id!: RunId", a.task_id as "task_id: TaskId",
                a.message_id as "message_id: MessageId", a.mode as "mode!: RunMode",
                a.state as "state!: AssignmentState", a.source_session as "source_session!",
                a.source_peer as "source_peer!: PeerId", a.source_agent as "source_agent: AgentId",
                a.source_tool as "source_tool: SourceTool",
                a.target_session as "target_session!", a.target_peer as "target_peer!: PeerId", a.target_agent as "target_agent: AgentId", a.reason,
                a.error, a.reply_id as "reply_id: MessageId", a.waits_until as "waits_until: Timestamp", a.answered as "answered: RunState",
                a.idempotency_key, a.created_at as "created_at!: Timestamp", a.begun_at as "begun_at: Timestamp",
                a.ended_at as "ended_at: Timestamp", a.instance as "instance!", a.backend as "backend!", a.requirements as "requirements!: WorkRequirements",
                a.attempt as "attempt!: u32", a.deadline as "deadline: Timestamp",
                a.is_spawned as "is_spawned!: bool", a.removes_peer as "removes_peer!: bool", a.taken_at,
                a.has_words as "has_words!: bool", a.said as "said!: u32",
                a.turn as "turn: TurnEnd"
            from assignment a "#,
            $($rest)*
        )
    };
}

direct_row!(WaitEdge { waiter, awaited });

#[boxed_methods]
impl AssignmentWrites<'_> {
    /// Stores an assignment. Its task and its message are stored already.
    pub async fn insert(&mut self, row: &AssignmentRow) -> Result<()> {
        change!(self.tx,
            "insert into assignment (run_id, task_id, message_id, mode, state, source_session, source_peer, source_agent, \
                source_tool, target_session, target_peer, target_agent, waits_until, answered, idempotency_key, created_at, \
                instance, backend, requirements, deadline, removes_peer, project_id) \
            values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, \
                coalesce((select project from task where task_id = ?2), (select project from peer where peer_id = ?7), ''))";
            row.run_id, row.task_id, row.message_id, row.mode, row.state, row.source_session,
            row.source_peer, row.source_agent, row.source_tool, row.target_session, row.target_peer,
            row.target_agent, row.waits_until, row.answered, row.idempotency_key, row.created_at,
            row.instance, row.backend, row.requirements, row.deadline, row.removes_peer);
        Ok(())
    }

    pub async fn update(&mut self, row: &AssignmentRow) -> Result<()> {
        let done = change!(self.tx,
            "update assignment set message_id = ?, state = ?, source_peer = ?, source_agent = ?, target_session = ?, \
                target_peer = ?, target_agent = ?, reason = ?, error = ?, reply_id = ?, waits_until = ?, answered = ?, \
                begun_at = ?, ended_at = ?, instance = ?, backend = ?, requirements = ?, attempt = ?, is_spawned = ?, \
                taken_at = ?, has_words = ?, said = ?, turn = ? where run_id = ?";
            row.message_id, row.state, row.source_peer, row.source_agent, row.target_session,
            row.target_peer, row.target_agent, row.reason, row.error, row.reply_id, row.waits_until,
            row.answered, row.begun_at, row.ended_at, row.instance, row.backend, row.requirements,
            row.attempt, row.is_spawned, row.taken_at, row.has_words, row.said, row.turn,
            row.run_id);
        changed(done, "assignment", row.run_id.as_str())
    }

    pub async fn get(&mut self, id: &RunId) -> Result<Option<AssignmentRow>> {
        Ok(assignments!(one(), self.tx.direct, "where a.run_id = ?"; id))
    }

    pub async fn of_task(&mut self, id: &TaskId) -> Result<Option<AssignmentRow>> {
        Ok(assignments!(one(), self.tx.direct, "where a.task_id = ?"; id))
    }

    pub async fn of_message(&mut self, id: &MessageId) -> Result<Option<AssignmentRow>> {
        Ok(assignments!(one(), self.tx.direct, "where a.message_id = ?"; id))
    }

    pub async fn by_key(&mut self, source: &str, key: &str) -> Result<Option<AssignmentRow>> {
        Ok(assignments!(one(), self.tx.direct,
            "where a.source_session = ? and a.idempotency_key = ?"; source, key))
    }

    /// The open assignments of an incarnation of a hosted agent, in the order of their creation.
    pub async fn of_agent(&mut self, id: &AgentId) -> Result<Vec<AssignmentRow>> {
        Ok(assignments!(all(), self.tx.direct,
            "where a.target_agent = ? and a.ended_at is null order by a.id"; id))
    }

    /// The chain of waits that begins at a session: the sessions whose reply it waits for, those
    /// that they wait for, and so on. Unrelated waits are not read, so the cost does not grow with
    /// their number.
    pub async fn waits_from(&mut self, session: &str) -> Result<Vec<WaitEdge>> {
        Ok(query!(all(), self.tx.direct,
            r#"with recursive waiter(session) as (
                select ?1
                union
                select r.target_session from waiter cross join assignment r on r.source_session = waiter.session
                where r.waits_until > ?2 and r.ended_at is null and r.target_session <> '' and r.mode <> 'steer'
            )
            select r.source_session as "waiter!", r.target_session as "awaited!"
            from waiter cross join assignment r on r.source_session = waiter.session
            where r.waits_until > ?2 and r.ended_at is null and r.target_session <> '' and r.mode <> 'steer'"#; session, self.tx.now))
    }

    /// How often a session has sent to a peer since `since`, including its answers by a call.
    pub async fn count_since(
        &mut self,
        (source, own): (&str, Option<&PeerId>),
        target: &PeerId,
        since: Timestamp,
    ) -> Result<u64> {
        let own = own.map(PeerId::as_str);
        Ok(value!(self.tx.direct,
            r#"select (select count(*) from assignment
                    where source_session = ?1 and target_peer = ?2 and created_at > ?3)
                + (select count(*) from message
                    where from_peer = ?4 and to_peer = ?2 and by_call = 1 and at > ?3) as "count!: i64""#;
            source, target, since, own).cast_unsigned())
    }
}

#[boxed_methods]
impl AssignmentReads<'_> {
    pub async fn get(&self, id: &RunId) -> Result<Option<AssignmentRow>> {
        Ok(assignments!(one(), self.store.near(), "where a.run_id = ?"; id))
    }

    pub async fn of_task(&self, id: &TaskId) -> Result<Option<AssignmentRow>> {
        Ok(assignments!(one(), self.store.near(), "where a.task_id = ?"; id))
    }

    /// Open assignments of tasks in this state, in the order of their creation.
    pub async fn in_state(&self, state: AssignmentState) -> Result<Vec<AssignmentRow>> {
        Ok(assignments!(all(), self.store.pool(),
            "where a.state = ? and a.task_id is not null and a.ended_at is null order by a.id limit 2000";
            state))
    }

    /// Tasks whose answer a call waits for after `now`, with the end of its wait. The answer may be
    /// there, and be held for the call.
    pub async fn awaited(&self, now: Timestamp) -> Result<Vec<(RunId, Timestamp)>> {
        Ok(query!(all(), self.store.pool(),
            r#"select run_id as "run_id!: RunId", waits_until as "waits_until!: Timestamp" from assignment
            where task_id is not null and waits_until > ? order by id"#; now))
    }

    /// Begun tasks whose cancellation was requested.
    pub async fn cancelled(&self) -> Result<Vec<AssignmentRow>> {
        Ok(assignments!(all(), self.store.pool(),
            "where a.state in ('starting', 'sent', 'running') and a.task_id is not null and a.ended_at is null and exists (
                select 1 from task t where t.task_id = a.task_id and t.cancel_requested_at is not null
                    and t.closed_at is null
            ) order by a.id limit 500"))
    }

    pub async fn overdue(&self, now: Timestamp) -> Result<Vec<TaskId>> {
        Ok(column!(self.store.pool(),
            r#"select a.task_id as "task_id!: TaskId" from assignment a join task t using (task_id)
            where a.state in ('queued', 'starting', 'sent', 'running') and a.task_id is not null and a.ended_at is null
                and a.deadline <= ? and t.cancel_requested_at is null and t.closed_at is null"#;
            now))
    }

    /// The session whose reply a session waits for now, since when and until when.
    pub async fn awaited_by(
        &self,
        session: &str,
        now: Timestamp,
    ) -> Result<Option<(String, Timestamp, Timestamp)>> {
        let awaited = fields!(one(), self.store.pool(),
            { session: String, since: Timestamp, until: Timestamp },
            r#"select target_session as "session!", created_at as "since!: Timestamp", waits_until as "until!: Timestamp"
            from assignment
            where source_session = ? and waits_until > ? and ended_at is null and message_id is not null
                and mode <> 'steer'
            order by id limit 1"#; session, now);
        Ok(awaited.map(|row| (row.session, row.since, row.until)))
    }

    pub async fn count_open(&self, session: &str) -> Result<u64> {
        Ok(value!(self.store.pool(),
            r#"select count(*) as "count!: i64" from assignment
            where source_session = ? and ended_at is null and message_id is not null"#; session)
        .cast_unsigned())
    }
}
