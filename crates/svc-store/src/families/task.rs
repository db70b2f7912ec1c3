//! Rows of tasks. The last seq and the time of the last change are read from the task's stream.

use svc_model::{
    MachineId, MachineProcess, Ownership, Principal, ProcessIdentity, Reader, Seq, StreamName,
    Task, TaskFilter, TaskId, TaskReport, TaskStatus, Timestamp, is_cut_result, json_bytes,
};

use super::{TaskReads, TaskWrites};
use crate::{
    PageSize, Result, RowPage, StreamState, TaskRow, boxed_methods,
    columns::{Columns, DirectRow, Fault},
    readers::Rows as _,
    statement::{change, changed, query},
};

impl DirectRow for TaskRow {
    fn read(columns: &mut Columns<'_>) -> Result<Self, Fault> {
        let task_id = columns.next("task_id")?;
        let (title, agent) = (columns.next("title")?, columns.next("agent")?);
        let (prompt, from) = (columns.next("prompt")?, columns.next("from_peer")?);
        let metadata = columns.json_if_any("metadata")?;
        let status: TaskStatus = columns.next("status")?;
        let report = TaskReport {
            exit_code: columns.next("exit_code")?,
            signal: columns.next("signal")?,
            error: columns.next("error")?,
        };
        let created_by: String = columns.next("created_by")?;
        let runner: Option<String> = columns.next("runner")?;
        let owned = Ownership {
            runner: runner.as_deref().and_then(Principal::parse),
            ..Ownership::from_row(&created_by, columns.next("project")?)
        };
        let runner_pid: Option<u32> = columns.next("runner_pid")?;
        let started: Option<String> = columns.next("runner_started")?;
        let started = started.unwrap_or_default();
        let machine_id = columns.next("machine_id")?;
        let process = runner_pid.map(|pid| ProcessIdentity { pid, started });
        let process = process.map(|process| MachineProcess { machine_id, process });
        let reason = columns.next("reason")?;
        let result: Option<String> = columns.next("result")?;
        let task = Task {
            task_id,
            title,
            agent,
            prompt,
            from,
            metadata,
            status,
            report,
            reason,
            result_truncated: result.as_deref().is_some_and(is_cut_result),
            result,
            cancel_requested_at: columns.next("cancel_requested_at")?,
            created_at: columns.next("created_at")?,
            updated_at: columns.next("updated_at")?,
            closed_at: columns.next("closed_at")?,
            last_id: columns.next("last_id")?,
        };
        if status.is_terminal() != task.closed_at.is_some() {
            let closed_at = task.closed_at;
            return Err(format!("closed_at: {closed_at:?} contradicts {}", status.as_str()).into());
        }
        Ok(Self { task, owned, process })
    }
}

macro_rules! tasks {
    ($run:ident($($bound:expr),*), $($rest:tt)*) => {
        query!($run($($bound),*),
            r#"select t.task_id as "task_id!", t.title, t.agent, t.prompt, t.from_peer, t.metadata,
                t.status as "status: TaskStatus", t.exit_code, t.signal, t.error, t.created_by, t.runner, t.project,
                t.runner_pid, t.runner_started, t.machine_id as "machine_id!: MachineId", t.reason, t.result,
                t.cancel_requested_at as "cancel_requested_at: Timestamp",
                t.created_at as "created_at: Timestamp", coalesce(e.at, t.created_at) as "updated_at!: Timestamp",
                t.closed_at as "closed_at: Timestamp", coalesce(e.seq, 0) as "last_id!: Seq"
            from task t
            left join event e on e.stream_id = t.stream_id
                and e.seq = (select max(seq) from event where stream_id = t.stream_id) "#,
            $($rest)*
        )
    };
}

fn task_bytes(row: &TaskRow) -> usize {
    json_bytes(&row.task)
}

#[boxed_methods]
impl TaskWrites<'_> {
    /// A task by its id, with the stream's head including uncommitted events.
    pub async fn get(&mut self, id: &TaskId) -> Result<Option<TaskRow>> {
        let row = tasks!(one(), self.tx.direct, "where t.task_id = ?"; id);
        self.with_head(row).await
    }

    pub async fn by_key(&mut self, created_by: &str, key: &str) -> Result<Option<TaskRow>> {
        let row = tasks!(one(), self.tx.direct,
            "where t.created_by = ? and t.idempotency_key = ?"; created_by, key);
        self.with_head(row).await
    }

    /// Events of the current commit are not in the table yet, so the head comes from the writer's
    /// state.
    async fn with_head(&mut self, row: Option<TaskRow>) -> Result<Option<TaskRow>> {
        let Some(mut row) = row else { return Ok(None) };
        let stream = StreamName::new("task", &row.task.task_id);
        if let Some(StreamState { head, .. }) = self.tx.streams().state(&stream).await? {
            row.task.last_id = head;
        }
        Ok(Some(row))
    }

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

#[boxed_methods]
impl TaskReads<'_> {
    pub async fn get(&self, id: &TaskId) -> Result<Option<TaskRow>> {
        Ok(tasks!(one(), self.store.pool(), "where t.task_id = ?"; id))
    }

    /// Tasks that the reader may read, the latest first, before the cursor `before` (time of
    /// creation and id).
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
                tasks!(page(size, task_bytes), self.store.pool(),
                    $first + "and (?1 is null or t.status = ?1) and (?2 is null or t.agent = ?2)
                and (?3 is null or t.from_peer = ?3) and t.created_at >= ?4 and (t.created_at, t.task_id) < (?5, ?6)
                and (?8 is null or t.created_by = ?8 or t.runner = ?8 or t.project = ?9)
            order by t.created_at desc, t.task_id desc limit ?7";
                    filter.status, filter.agent, filter.from, since, at, id, limit, reader.owner(),
                    reader.project())
            };
        }
        let is_open = filter.status.is_some_and(|status| !status.is_terminal());
        Ok(if is_open {
            page!("where t.status = ?1 ")
        } else if filter.agent.is_some() {
            page!("where t.agent = ?2 ")
        } else if filter.from.is_some() {
            page!("where t.from_peer = ?3 ")
        } else if filter.status.is_some() {
            page!("where t.status = ?1 ")
        } else {
            page!("where true ")
        })
    }

    /// Tasks that the reader may read and whose ids begin with `prefix`, unfinished ones first, at
    /// most `limit`.
    pub async fn with_prefix(
        &self,
        reader: &Reader,
        prefix: &str,
        limit: u32,
    ) -> Result<Vec<TaskRow>> {
        // Tasks can be large, so the page is also bounded in bytes.
        let page = tasks!(page(PageSize::rows(limit), task_bytes), self.store.pool(),
            "where t.task_id >= ?1 and t.task_id < ?1 || '~'
                and (?3 is null or t.created_by = ?3 or t.runner = ?3 or t.project = ?4)
            order by t.closed_at is not null, t.created_at desc, t.task_id desc limit ?2";
            prefix, limit, reader.owner(), reader.project());
        Ok(page.rows)
    }

    /// Seq and data of the last frames of a task, in order: at most `count`, and at most `bytes` in
    /// total, but at least one. The flag states whether `bytes` was the bound that applied.
    pub async fn last_frames(
        &self,
        id: &TaskId,
        count: u32,
        bytes: usize,
    ) -> Result<(Vec<(Seq, String)>, bool)> {
        let size = PageSize { rows: count, bytes };
        let length = |(_, data): &(Seq, String)| data.len();
        let RowPage { rows: mut frames, more } = query!(page(size, length), self.store.pool(),
            "select e.seq, e.data
            from event e
            where e.stream_id = (select stream_id from task where task_id = ?) and e.kind = 'frame'
            order by e.seq desc limit ?"; id, count);
        frames.reverse();
        Ok((frames, more))
    }

    /// Tasks that nobody has begun and that have no event since `before`.
    pub async fn old_pending(&self, before: Timestamp) -> Result<Vec<TaskRow>> {
        Ok(tasks!(all(), self.store.pool(),
            "where t.status = 'pending' and e.at <= ? order by e.at limit 500"; before))
    }

    /// Tasks whose runners' processes are on a machine, and that have not ended.
    pub async fn active_on(&self, machine: &MachineId) -> Result<Vec<TaskRow>> {
        Ok(tasks!(all(), self.store.pool(),
            "where t.status = 'active' and t.machine_id = ? order by t.task_id limit 500"; machine))
    }

    /// Running tasks that have no event since `before`, without those that another machine runs.
    pub async fn silent(&self, before: Timestamp) -> Result<Vec<TaskRow>> {
        Ok(tasks!(all(), self.store.pool(),
            "where t.status = 'active' and e.at <= ? and t.machine_id in ('', ?) order by e.at limit 500";
            before, self.store.machine_id()))
    }
}
