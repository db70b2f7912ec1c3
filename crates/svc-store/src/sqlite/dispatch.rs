//! Rows of the work that was given to agents.

use svc_model::{AgentId, TaskId, Timestamp, agent::TurnEnd, conversation::SourceTool};

use super::{
    errors::changed,
    families::{DispatchReads, DispatchWrites},
    json::to_json,
    statement::{change, direct_row, pool_query, select_all, select_fields, select_one},
};
use crate::{DispatchMode, DispatchRow, DispatchState, DispatchWish, StoreError, TaskAsker};

direct_row! {
    struct RawDispatch {
        id: i64,
        task_id: String,
        instance: String,
        backend: String,
        mode: DispatchMode,
        wish: String,
        failover: String,
        attempt: i64,
        state: DispatchState,
        agent_id: Option<String>,
        is_spawned: i64,
        taken_at: Option<i64>,
        has_words: i64,
        said: i64,
        turn: Option<String>,
    }
}

impl TryFrom<RawDispatch> for DispatchRow {
    type Error = StoreError;

    fn try_from(raw: RawDispatch) -> Result<Self, StoreError> {
        let bad = |what: &str, error: &dyn std::fmt::Display| StoreError::BadRow {
            table: "dispatch",
            id: raw.task_id.clone(),
            why: format!("{what}: {error}"),
        };
        let wish: DispatchWish =
            serde_json::from_str(&raw.wish).map_err(|error| bad("wish", &error))?;
        let failover: Vec<String> =
            serde_json::from_str(&raw.failover).map_err(|error| bad("failover", &error))?;
        let turn = raw.turn.as_deref().map(serde_json::from_str::<TurnEnd>).transpose();
        let turn = turn.map_err(|error| bad("turn", &error))?;
        let attempt = u32::try_from(raw.attempt).map_err(|error| bad("attempt", &error))?;
        Ok(Self {
            id: raw.id,
            task_id: TaskId::from(raw.task_id),
            instance: raw.instance,
            backend: raw.backend,
            mode: raw.mode,
            wish,
            failover,
            attempt,
            state: raw.state,
            agent_id: raw.agent_id.map(AgentId::from),
            is_spawned: raw.is_spawned != 0,
            taken_at: raw.taken_at,
            has_words: raw.has_words != 0,
            said: usize::try_from(raw.said).unwrap_or(0),
            turn,
        })
    }
}

/// The columns of such a row, for the macros of `statement`.
macro_rules! dispatches {
    ($run:ident, $($rest:tt)*) => {
        $run!(
            r#"select id as "id!", task_id as "task_id!", instance as "instance!", backend as "backend!",
                mode as "mode!: DispatchMode", wish as "wish!", failover as "failover!", attempt as "attempt!",
                state as "state!: DispatchState", agent_id, is_spawned as "is_spawned!", taken_at,
                has_words as "has_words!", said as "said!", turn
            from dispatch "#,
            RawDispatch,
            $($rest)*
        )
    };
}

impl DispatchWrites<'_> {
    /// The dispatch of a task.
    pub async fn get(&mut self, task: &TaskId) -> Result<Option<DispatchRow>, StoreError> {
        let id = task.as_str();
        let raw = dispatches!(select_one, self.tx, "where task_id = ?", id);
        raw.map(DispatchRow::try_from).transpose()
    }

    /// The dispatches that an agent has and that are not over, in the order in which they came.
    pub async fn of_agent(&mut self, agent: &AgentId) -> Result<Vec<DispatchRow>, StoreError> {
        let id = agent.as_str();
        let rows = dispatches!(
            select_all,
            self.tx,
            "where agent_id = ? and state <> 'over' order by id",
            id
        );
        rows.into_iter().map(DispatchRow::try_from).collect()
    }

    /// Stores a dispatch; its rank is the database's.
    pub async fn insert(&mut self, row: &DispatchRow) -> Result<(), StoreError> {
        let (task, wish, failover) =
            (row.task_id.as_str(), to_json(&row.wish), to_json(&row.failover));
        change!(
            self.tx,
            "insert into dispatch (task_id, instance, backend, mode, wish, failover, state) \
            values (?, ?, ?, ?, ?, ?, ?)",
            task,
            row.instance,
            row.backend,
            row.mode,
            wish,
            failover,
            row.state
        );
        Ok(())
    }

    /// Stores what changed of a dispatch.
    pub async fn update(&mut self, row: &DispatchRow) -> Result<(), StoreError> {
        let (task, failover) = (row.task_id.as_str(), to_json(&row.failover));
        let wish = to_json(&row.wish);
        let agent = row.agent_id.as_ref().map(AgentId::as_str);
        let said = i64::try_from(row.said).unwrap_or(0);
        let (attempt, turn) = (i64::from(row.attempt), row.turn.as_ref().map(to_json));
        let done = change!(
            self.tx,
            "update dispatch set instance = ?, backend = ?, wish = ?, failover = ?, attempt = ?, state = ?, agent_id = ?, \
                is_spawned = ?, taken_at = ?, has_words = ?, said = ?, turn = ? where task_id = ?",
            row.instance,
            row.backend,
            wish,
            failover,
            attempt,
            row.state,
            agent,
            row.is_spawned,
            row.taken_at,
            row.has_words,
            said,
            turn,
            task
        );
        changed(done, "dispatch", task)
    }

    /// Notes who asked for a dispatched task.
    pub async fn note_asker(&mut self, task: &TaskId, asker: &TaskAsker) -> Result<(), StoreError> {
        let (id, agent) = (task.as_str(), asker.agent.as_ref().map(AgentId::as_str));
        let done = change!(
            self.tx,
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
    pub async fn asker(&mut self, task: &TaskId) -> Result<TaskAsker, StoreError> {
        let id = task.as_str();
        let row = select_fields!(
            select_one,
            self.tx,
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

impl DispatchReads<'_> {
    /// The dispatch of a task.
    pub async fn get(self, task: &TaskId) -> Result<Option<DispatchRow>, StoreError> {
        let id = task.as_str();
        let raw = dispatches!(pool_query, "where task_id = ?", id)
            .fetch_optional(&self.store.readers)
            .await?;
        raw.map(DispatchRow::try_from).transpose()
    }

    /// The dispatches that have an agent and are to be cancelled.
    pub async fn cancelled(self) -> Result<Vec<DispatchRow>, StoreError> {
        let rows = dispatches!(pool_query,
            "where state in ('starting', 'sent') and exists (
                select 1 from task t where t.task_id = dispatch.task_id and t.cancel_requested_at is not null
                    and t.closed_at is null
            ) order by id limit 500"
        )
        .fetch_all(&self.store.readers)
        .await?;
        rows.into_iter().map(DispatchRow::try_from).collect()
    }

    /// The dispatches that are in this state, in the order in which they came.
    pub async fn in_state(self, state: DispatchState) -> Result<Vec<DispatchRow>, StoreError> {
        let rows = dispatches!(pool_query, "where state = ? order by id limit 2000", state)
            .fetch_all(&self.store.readers)
            .await?;
        rows.into_iter().map(DispatchRow::try_from).collect()
    }

    /// The tasks whose time is over.
    pub async fn overdue(self, now: Timestamp) -> Result<Vec<TaskId>, StoreError> {
        let ids = sqlx::query_scalar!(
            r#"select d.task_id as "task_id!: TaskId" from dispatch d join task t using (task_id)
            where d.state <> 'over' and d.deadline <= ? and t.cancel_requested_at is null and t.closed_at is null"#,
            now
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(ids)
    }
}
