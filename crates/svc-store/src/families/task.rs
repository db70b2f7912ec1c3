//! Rows of tasks. The last seq and the time of the last change are read from the task's stream.

use futures_util::TryStreamExt as _;
use svc_model::{
    MachineId, MachineProcess, Ownership, Principal, ProcessIdentity, Reader, Seq, StreamName,
    Task, TaskFilter, TaskId, TaskReport, TaskStatus, Timestamp, is_cut_result,
};

use super::{TaskReads, TaskWrites};
use crate::{
    PageSize, Result, RowPage, StoreError, StreamState, TaskRow, boxed,
    read_query::read_page,
    statement::{
        StoredRow, change, changed, direct_row, pool_all, pool_one, pool_page, row_of, rows_of,
        select_fields, select_one,
    },
};

direct_row! {
    struct RawTask {
        task_id: String,
        title: Option<String>,
        agent: Option<String>,
        prompt: Option<String>,
        from_peer: Option<String>,
        metadata: Option<String>,
        status: TaskStatus,
        exit_code: Option<i64>,
        signal: Option<String>,
        error: Option<String>,
        created_by: String,
        runner: Option<String>,
        project: String,
        runner_pid: Option<i64>,
        runner_started: Option<String>,
        machine_id: MachineId,
        reason: Option<String>,
        result: Option<String>,
        cancel_requested_at: Option<Timestamp>,
        created_at: Timestamp,
        updated_at: Timestamp,
        closed_at: Option<Timestamp>,
        last_id: Seq,
    }
}

impl TryFrom<RawTask> for TaskRow {
    type Error = StoreError;

    fn try_from(raw: RawTask) -> Result<Self> {
        let row = StoredRow { table: "task", id: &raw.task_id };
        let metadata = raw.metadata.as_deref();
        let metadata = metadata.map(|text| row.json("metadata", text)).transpose()?;
        let exit_code = raw.exit_code.map(|code| row.number("exit_code", code)).transpose()?;
        let runner_pid = raw.runner_pid.map(|pid| row.number("runner_pid", pid)).transpose()?;
        if raw.status.is_terminal() != raw.closed_at.is_some() {
            let (closed_at, status) = (raw.closed_at, raw.status.as_str());
            return Err(row.bad(format!("closed_at: {closed_at:?} contradicts {status}")));
        }
        Ok(Self {
            task: Task {
                task_id: TaskId::from(raw.task_id),
                title: raw.title,
                agent: raw.agent,
                prompt: raw.prompt,
                from: raw.from_peer,
                metadata,
                status: raw.status,
                report: TaskReport { exit_code, signal: raw.signal, error: raw.error },
                reason: raw.reason,
                result_truncated: raw.result.as_deref().is_some_and(is_cut_result),
                result: raw.result,
                cancel_requested_at: raw.cancel_requested_at,
                created_at: raw.created_at,
                updated_at: raw.updated_at,
                closed_at: raw.closed_at,
                last_id: raw.last_id,
            },
            owned: Ownership {
                runner: raw.runner.as_deref().and_then(Principal::parse),
                ..Ownership::from_row(&raw.created_by, raw.project)
            },
            process: runner_pid.map(|pid| MachineProcess {
                machine_id: raw.machine_id,
                process: ProcessIdentity { pid, started: raw.runner_started.unwrap_or_default() },
            }),
        })
    }
}

macro_rules! tasks {
    ($run:ident, $($rest:tt)*) => {
        $run!(
            r#"select t.task_id as "task_id!", t.title, t.agent, t.prompt, t.from_peer, t.metadata,
                t.status as "status: TaskStatus", t.exit_code, t.signal, t.error, t.created_by, t.runner, t.project,
                t.runner_pid, t.runner_started, t.machine_id as "machine_id!: MachineId", t.reason, t.result,
                t.cancel_requested_at as "cancel_requested_at: Timestamp",
                t.created_at as "created_at: Timestamp", coalesce(e.at, t.created_at) as "updated_at!: Timestamp",
                t.closed_at as "closed_at: Timestamp", coalesce(e.seq, 0) as "last_id!: Seq"
            from task t
            left join event e on e.stream_id = t.stream_id
                and e.seq = (select max(seq) from event where stream_id = t.stream_id) "#,
            RawTask,
            $($rest)*
        )
    };
}

impl TaskWrites<'_> {
    /// A task by its id, with the stream's head including uncommitted events.
    #[boxed]
    pub async fn get(&mut self, id: &TaskId) -> Result<Option<TaskRow>> {
        let raw = tasks!(select_one, self.tx, "where t.task_id = ?"; id);
        self.with_head(raw).await
    }

    #[boxed]
    pub async fn by_key(&mut self, created_by: &str, key: &str) -> Result<Option<TaskRow>> {
        let raw = tasks!(select_one, self.tx,
            "where t.created_by = ? and t.idempotency_key = ?"; created_by, key);
        self.with_head(raw).await
    }

    /// Events of the current commit are not in the table yet, so the head comes from the writer's
    /// state.
    async fn with_head(&mut self, raw: Option<RawTask>) -> Result<Option<TaskRow>> {
        let Some(mut row) = raw.map(TaskRow::try_from).transpose()? else {
            return Ok(None);
        };
        let stream = StreamName::new("task", &row.task.task_id);
        if let Some(StreamState { head, .. }) = self.tx.streams().state(&stream).await? {
            row.task.last_id = head;
        }
        Ok(Some(row))
    }

    #[boxed]
    pub async fn insert(
        &mut self,
        task: &Task,
        owned: &Ownership,
        stream: i64,
        idempotency_key: Option<&str>,
    ) -> Result<()> {
        let created_by = owned.owner.as_ref().map_or_else(String::new, ToString::to_string);
        let runner = owned.runner.as_ref().map(ToString::to_string);
        let project = owned.project.as_deref().unwrap_or_default();
        let id = task.task_id.as_str();
        let metadata = task
            .metadata
            .as_ref()
            .map(|map| serde_json::to_string(map).expect("a JSON map has a JSON form"));
        change!(self.tx,
            "insert into task (task_id, stream_id, title, agent, prompt, from_peer, metadata, status, created_by, \
                runner, project, idempotency_key, created_at) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
            id, stream, task.title, task.agent, task.prompt, task.from, metadata, task.status,
            created_by, runner, project, idempotency_key, task.created_at);
        Ok(())
    }

    #[boxed]
    pub async fn update(&mut self, row: &TaskRow) -> Result<()> {
        let task = &row.task;
        let id = task.task_id.as_str();
        let runner = row.owned.runner.as_ref().map(ToString::to_string);
        let process = row.process.as_ref();
        let pid = process.map(|it| it.process.pid);
        let started = process.map(|it| &*it.process.started).filter(|started| !started.is_empty());
        let machine = process.map_or("", |it| it.machine_id.as_str());
        let done = change!(self.tx,
            "update task set status = ?, exit_code = ?, signal = ?, error = ?, runner_pid = ?, runner_started = ?, machine_id = ?, \
                cancel_requested_at = ?, closed_at = ?, runner = ?, reason = ?, result = ? where task_id = ?";
            task.status, task.report.exit_code, task.report.signal, task.report.error, pid, started,
            machine, task.cancel_requested_at, task.closed_at, runner, task.reason, task.result,
            id);
        changed(done, "task", id)
    }
}

impl TaskReads<'_> {
    #[boxed]
    pub async fn get(&self, id: &TaskId) -> Result<Option<TaskRow>> {
        row_of(tasks!(pool_one, self.store, "where t.task_id = ?"; id))
    }

    /// Tasks that the reader may read, the latest first, before the cursor `before` (time of
    /// creation and id).
    #[boxed]
    pub async fn list(
        &self,
        reader: &Reader,
        filter: &TaskFilter,
        before: Option<&(Timestamp, String)>,
        size: PageSize,
    ) -> Result<RowPage<TaskRow>> {
        let limit = size.limit();
        let since = filter.since.map_or(i64::MIN, Timestamp::as_millis);
        let (at, id) = before.map_or((i64::MAX, ""), |(at, id)| (at.as_millis(), id.as_str()));
        // Each condition has an index in the order of the list. Of several, the one that leaves the
        // fewest tasks is read, and the others filter it.
        macro_rules! page {
            ($first:literal) => {
                tasks!(pool_page, self.store,
                    $first + "and (?1 is null or t.status = ?1) and (?2 is null or t.agent = ?2)
                and (?3 is null or t.from_peer = ?3) and t.created_at >= ?4 and (t.created_at, t.task_id) < (?5, ?6)
                and (?8 is null or t.created_by = ?8 or t.runner = ?8 or t.project = ?9)
            order by t.created_at desc, t.task_id desc limit ?7";
                    filter.status, filter.agent, filter.from, since, at, id, limit, reader.owner(),
                    reader.project())
            };
        }
        let is_open = filter.status.is_some_and(|status| !status.is_terminal());
        let rows = if is_open {
            page!("where t.status = ?1 ")
        } else if filter.agent.is_some() {
            page!("where t.agent = ?2 ")
        } else if filter.from.is_some() {
            page!("where t.from_peer = ?3 ")
        } else if filter.status.is_some() {
            page!("where t.status = ?1 ")
        } else {
            page!("where true ")
        };
        read_page(rows, size, TaskRow::try_from, |row| &row.task).await
    }

    /// Tasks that the reader may read and whose ids begin with `prefix`, unfinished ones first, at
    /// most `limit`.
    #[boxed]
    pub async fn with_prefix(
        &self,
        reader: &Reader,
        prefix: &str,
        limit: u32,
    ) -> Result<Vec<TaskRow>> {
        let rows = tasks!(pool_page, self.store,
            "where t.task_id >= ?1 and t.task_id < ?1 || '~'
                and (?3 is null or t.created_by = ?3 or t.runner = ?3 or t.project = ?4)
            order by t.closed_at is not null, t.created_at desc, t.task_id desc limit ?2";
            prefix, limit, reader.owner(), reader.project());
        // Tasks can be large, so the page is also bounded in bytes.
        let page =
            read_page(rows, PageSize::rows(limit), TaskRow::try_from, |row| &row.task).await?;
        Ok(page.rows)
    }

    /// Seq and data of the last frames of a task, in order: at most `count`, and at most `bytes` in
    /// total, but at least one. The flag states whether `bytes` was the bound that applied.
    #[boxed]
    pub async fn last_frames(
        &self,
        id: &TaskId,
        count: u32,
        bytes: usize,
    ) -> Result<(Vec<(Seq, String)>, bool)> {
        let mut rows = select_fields!(pool_stream, self.store, { seq: i64, data: String },
            "select e.seq, e.data
            from event e
            where e.stream_id = (select stream_id from task where task_id = ?) and e.kind = 'frame'
            order by e.seq desc limit ?"; id, count);
        let (mut frames, mut total, mut cut) = (Vec::new(), 0, false);
        while let Some(row) = rows.try_next().await? {
            total += row.data.len();
            if total > bytes && !frames.is_empty() {
                cut = true;
                break;
            }
            frames.push((row.seq, row.data));
        }
        frames.reverse();
        Ok((frames, cut))
    }

    /// Tasks that nobody has begun and that have no event since `before`.
    #[boxed]
    pub async fn old_pending(&self, before: Timestamp) -> Result<Vec<TaskRow>> {
        rows_of(tasks!(pool_all, self.store,
            "where t.status = 'pending' and e.at <= ? order by e.at limit 500"; before))
    }

    /// Tasks whose runners' processes are on a machine, and that have not ended.
    #[boxed]
    pub async fn active_on(&self, machine: &MachineId) -> Result<Vec<TaskRow>> {
        rows_of(tasks!(pool_all, self.store,
            "where t.status = 'active' and t.machine_id = ? order by t.task_id limit 500"; machine))
    }

    /// Running tasks that have no event since `before`, without those that another machine runs.
    #[boxed]
    pub async fn silent(&self, before: Timestamp) -> Result<Vec<TaskRow>> {
        rows_of(tasks!(pool_all, self.store,
            "where t.status = 'active' and e.at <= ? and t.machine_id in ('', ?) order by e.at limit 500";
            before, self.store.machine_id()))
    }
}
