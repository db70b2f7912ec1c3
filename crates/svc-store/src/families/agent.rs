//! Rows of agents. Their output is in their streams.

use std::time::Duration;

use svc_model::{
    AgentFilter, AgentId, MachineId, Ownership, Principal, ProcessIdentity, Reader, TaskId,
    Timestamp, TokenId,
    agent::{AgentBackend, AgentInfo, AgentState, AnswerKey},
    json_bytes,
};

use super::{AgentReads, AgentWrites};
use crate::{
    AgentRow, PageSize, Result, RowPage, boxed_methods,
    columns::{Columns, DirectRow, Fault},
    readers::Rows as _,
    statement::{change, changed, fields, find_value, query, value},
};

impl DirectRow for AgentRow {
    fn read(columns: &mut Columns<'_>) -> Result<Self, Fault> {
        let id = columns.next("agent_id")?;
        let instance = columns.next("instance")?;
        let backend: String = columns.next("backend")?;
        let backend = AgentBackend::parse(&backend).ok_or("no such backend")?;
        let session_key: String = columns.next("session_key")?;
        let project: String = columns.next("project")?;
        let worktree = columns.next("cwd")?;
        let (task, description) = (columns.next("task")?, columns.next("description")?);
        let created_by: String = columns.next("created_by")?;
        let owned = Ownership {
            runner: Some(Principal::Session(session_key.as_str().into())),
            ..Ownership::from_row(&created_by, project.clone())
        };
        let state = columns.next("state")?;
        let host_pid: Option<u32> = columns.next("host_pid")?;
        let started: Option<String> = columns.next("host_started")?;
        let started = started.unwrap_or_default();
        let host = host_pid.map(|pid| ProcessIdentity { pid, started });
        let machine_id = columns.next("machine_id")?;
        let last_pid = columns.next("pid")?;
        let session_id = columns.next("vendor_session")?;
        let exit_code: Option<i32> = columns.next("exit_code")?;
        let signal: Option<i32> = columns.next("signal")?;
        let error = columns.next("error")?;
        let (token_id, task_id) = (columns.next("token_id")?, columns.next("task_id")?);
        let request_timeout: i64 = columns.next("request_timeout")?;
        let started_at = columns.next("started_at")?;
        let ended_at: Option<Timestamp> = columns.next("ended_at")?;
        let has_exited = ended_at.is_some() || exit_code.is_some() || signal.is_some();
        let pid = if has_exited { 0 } else { last_pid };
        let info = AgentInfo {
            id,
            project,
            state,
            pid,
            worktree,
            started_at,
            task,
            description,
            backend,
            instance,
            session_key,
            session_id,
            exit_code,
            signal,
            error,
        };
        Ok(Self {
            info,
            owned,
            machine_id,
            host,
            last_pid,
            token_id,
            task_id,
            request_timeout: Duration::from_millis(request_timeout.cast_unsigned()),
            ended_at,
        })
    }
}

macro_rules! agents {
    ($run:ident($($bound:expr),*), $($rest:tt)*) => {
        query!($run($($bound),*),
            r#"select a.agent_id as "agent_id!", a.instance as "instance!", a.backend as "backend!",
                a.session_key as "session_key!", a.project as "project!", a.cwd as "cwd!", a.task, a.description,
                a.created_by as "created_by!", a.state as "state!: AgentState", a.host_pid, a.host_started,
                a.machine_id as "machine_id!: MachineId",
                a.pid as "pid!", a.vendor_session, a.exit_code, a.signal, a.error, a.token_id, a.task_id,
                a.request_timeout as "request_timeout!", a.started_at as "started_at!: Timestamp",
                a.ended_at as "ended_at: Timestamp"
            from agent a "#,
            $($rest)*
        )
    };
}

#[boxed_methods]
impl AgentWrites<'_> {
    pub async fn get(&mut self, id: &AgentId) -> Result<Option<AgentRow>> {
        Ok(agents!(one(), self.tx.direct, "where a.agent_id = ?"; id))
    }

    pub async fn live(&mut self, session_key: &str) -> Result<Option<AgentRow>> {
        Ok(agents!(one(), self.tx.direct,
            "where a.session_key = ? and a.ended_at is null"; session_key))
    }

    /// Whether another project has, or had, an agent with this session key.
    pub async fn is_key_of_another_project(
        &mut self,
        session_key: &str,
        project: &str,
    ) -> Result<bool> {
        Ok(value!(self.tx.direct,
            r#"select exists (select 1 from agent
                where session_key = ?1 and project <> ?2) as "taken!: bool""#;
            session_key, project))
    }

    /// The agent that a caller started with this idempotency key, and the fingerprint of that
    /// request.
    pub async fn by_key(
        &mut self,
        created_by: &str,
        key: &str,
    ) -> Result<Option<(AgentRow, Option<String>)>> {
        let request_fingerprint = fields!(one(), self.tx.direct,
            { agent_id: String, request_fingerprint: Option<String> },
            r#"select agent_id as "agent_id!", request_fingerprint as "request_fingerprint?" from agent where created_by = ? and idempotency_key = ?"#;
            created_by, key);
        let Some(found) = request_fingerprint else { return Ok(None) };
        let row = self.get(&AgentId::from(found.agent_id)).await?;
        Ok(row.map(|row| (row, found.request_fingerprint)))
    }

    /// The number of live agents of an instance on this machine.
    pub async fn count_live_in(&mut self, instance: &str) -> Result<u64> {
        Ok(value!(self.tx.direct,
            r#"select count(*) as "count!: i64" from agent
            where instance = ? and ended_at is null and machine_id = ?"#; instance, self.tx.machine)
        .cast_unsigned())
    }

    /// Session key of a live agent of an instance that the vendor rejects because of a usage limit.
    pub async fn limited_in(&mut self, instance: &str) -> Result<Option<String>> {
        Ok(find_value!(self.tx.direct,
            r#"select session_key as "key!" from agent
            where instance = ? and ended_at is null and state = 'limited' limit 1"#; instance))
    }

    /// Agents of an instance started since `since`: their number, and the start of the first.
    pub async fn starts_in(
        &mut self,
        instance: &str,
        since: Timestamp,
    ) -> Result<(u64, Option<Timestamp>)> {
        let row = fields!(row(), self.tx.direct, { count: i64, first: Option<Timestamp> },
            r#"select count(*) as "count!: i64", min(started_at) as "first: Timestamp" from agent
            where instance = ? and started_at > ?"#; instance, since);
        Ok((row.count.cast_unsigned(), row.first))
    }

    /// Live agents of an instance on this machine, at most `limit`: idle ones first, then oldest.
    /// Agents that were started for a task of their own are excluded, and agents at a usage limit,
    /// as the vendor would refuse the work. For a session: only other agents of its project.
    pub async fn free(
        &mut self,
        instance: &str,
        asker: &Ownership,
        limit: u32,
    ) -> Result<Vec<AgentRow>> {
        let session = match &asker.owner {
            Some(Principal::Operator) => None,
            Some(Principal::Session(key)) => Some(&**key),
            None => return Ok(Vec::new()),
        };
        let project = asker.project.as_deref();
        Ok(agents!(all(), self.tx.direct,
            "where a.instance = ?1 and a.ended_at is null and a.task_id is null and a.state not in ('stopping', 'limited')
                and a.machine_id = ?4 and (?2 is null or a.project <> '' and a.project = ?3 and a.session_key <> ?2)
            order by a.state <> 'idle', a.started_at, a.agent_id limit ?5";
            instance, session, project, self.tx.machine, limit))
    }

    /// Stores an agent whose stream exists. `key` is the idempotency key and the fingerprint of the
    /// request.
    pub async fn insert(
        &mut self,
        row: &AgentRow,
        stream: i64,
        key: Option<(&str, &str)>,
        answer_key: &AnswerKey,
    ) -> Result<()> {
        let (idempotency_key, request_fingerprint) = key.unzip();
        let info = &row.info;
        let (id, backend) = (info.id.as_str(), info.backend.as_str());
        let created_by = row.owned.owner.as_ref().map_or_else(String::new, ToString::to_string);
        let token_id = row.token_id.as_ref().map(TokenId::as_str);
        let task_id = row.task_id.as_ref().map(TaskId::as_str);
        let timeout = i64::try_from(row.request_timeout.as_millis()).unwrap_or(i64::MAX);
        let pid = i64::from(row.last_pid);
        let answer_key = answer_key.expose();
        change!(self.tx,
            "insert into agent (agent_id, stream_id, instance, backend, session_key, project, cwd, task, description, \
                created_by, state, pid, vendor_session, token_id, task_id, request_timeout, idempotency_key, request_fingerprint, \
                started_at, answer_key, machine_id) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
            id, stream, info.instance, backend, info.session_key, info.project, info.worktree,
            info.task, info.description, created_by, info.state, pid, info.session_id, token_id,
            task_id, timeout, idempotency_key, request_fingerprint, info.started_at, answer_key,
            row.machine_id);
        Ok(())
    }

    /// Stores changes of an agent. Its end also removes the key with which its host checks answers.
    pub async fn update(&mut self, row: &AgentRow) -> Result<()> {
        let info = &row.info;
        let id = info.id.as_str();
        let host_pid = row.host.as_ref().map(|host| i64::from(host.pid));
        let host_started = row.host.as_ref().map(|host| &*host.started);
        let pid = i64::from(row.last_pid);
        let done = change!(self.tx,
            "update agent set state = ?, task = ?, description = ?, host_pid = ?, host_started = ?, pid = ?, \
                vendor_session = ?, exit_code = ?, signal = ?, error = ?, ended_at = ?, \
                answer_key = case when cast(? as integer) is null then answer_key end where agent_id = ?";
            info.state, info.task, info.description, host_pid, host_started, pid, info.session_id,
            info.exit_code, info.signal, info.error, row.ended_at, row.ended_at, id);
        changed(done, "agent", id)
    }

    /// The number of live agents that a principal has started, including pending starts of
    /// `sessions_spawn`.
    pub async fn count_children(&mut self, parent: &Principal) -> Result<u64> {
        let parent = parent.to_string();
        Ok(value!(self.tx.direct,
            r#"select (select count(*) from agent where created_by = ?1 and ended_at is null)
                + (select count(*) from assignment d join task t on t.task_id = d.task_id
                    where d.state = 'queued' and d.task_id is not null and d.ended_at is null
                        and d.source_tool = 'sessions_spawn' and t.created_by = ?1) as "count!: i64""#;
            parent).cast_unsigned())
    }

    pub async fn count_live_children(&mut self, parent: &Principal) -> Result<u64> {
        let parent = parent.to_string();
        Ok(value!(self.tx.direct,
            r#"select count(*) as "count!: i64" from agent where created_by = ? and ended_at is null"#;
            parent).cast_unsigned())
    }

    pub async fn was_run(&mut self, session_key: &str) -> Result<bool> {
        Ok(value!(self.tx.direct,
            r#"select exists (select 1 from agent where session_key = ?) as "was!: bool""#;
            session_key))
    }

    pub async fn note_parent(&mut self, agent: &AgentId, parent: &AgentId) -> Result<()> {
        let done = change!(self.tx,
            "update agent set parent_agent = ? where agent_id = ?"; parent, agent);
        changed(done, "agent", agent)
    }

    /// Removes an ended agent with its requests. What it started counts as started by what started
    /// it, so that the chain keeps its other links. The caller takes its stream out of the log
    /// ([`retire`](super::StreamWrites::retire)).
    pub async fn remove(&mut self, id: &AgentId) -> Result<()> {
        change!(self.tx,
            "update agent set parent_agent = (select own.parent_agent from agent own where own.agent_id = ?1) \
            where parent_agent = ?1"; id);
        change!(self.tx, "delete from request where agent_id = ?"; id);
        let done =
            change!(self.tx, "delete from agent where agent_id = ? and ended_at is not null"; id);
        changed(done, "agent", id)
    }
}

#[boxed_methods]
impl AgentReads<'_> {
    /// The key with which the host of a live agent checks answers; `None` for an ended agent, or if
    /// its host requires none.
    pub async fn answer_key(&self, id: &AgentId) -> Result<Option<AnswerKey>> {
        let key = find_value!(self.store.pool(),
            "select answer_key from agent where agent_id = ?"; id);
        Ok(key.flatten().map(AnswerKey::from_text))
    }

    pub async fn get(&self, id: &AgentId) -> Result<Option<AgentRow>> {
        Ok(agents!(one(), self.store.near(), "where a.agent_id = ?"; id))
    }

    /// The agent with this session key: the live one, else the latest.
    pub async fn of_key(&self, session_key: &str) -> Result<Option<AgentRow>> {
        Ok(agents!(one(), self.store.near(),
            "where a.session_key = ? order by a.ended_at is not null, a.started_at desc, a.agent_id desc limit 1";
            session_key))
    }

    /// Agents whose id begins with `text`, if that has at least 6 characters, or whose session key
    /// is `agent:<text>` or `agent:<text>:main`. If there are none, agents that were started with
    /// the name `text`. Live agents come first, then the latest; at most 20.
    pub async fn named(&self, text: &str) -> Result<Vec<AgentRow>> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let mut rows: Vec<AgentRow> = agents!(all(), self.store.pool(),
            "where length(?1) >= 6 and substr(a.agent_id, 1, length(?1)) = ?1
                or a.session_key in ('agent:' || ?1, 'agent:' || ?1 || ':main', 'agent:' || a.instance || ':' || ?1)
            order by a.session_key = 'agent:' || a.instance || ':' || ?1, a.ended_at is not null, a.started_at desc,
                a.agent_id desc limit 20"; text);
        let was_started_as =
            |row: &AgentRow| row.info.session_key == format!("agent:{}:{text}", row.info.instance);
        if !rows.iter().all(was_started_as) {
            rows.retain(|row| !was_started_as(row));
        }
        Ok(rows)
    }

    pub async fn live(&self) -> Result<Vec<AgentRow>> {
        Ok(agents!(
            all(),
            self.store.pool(),
            "where a.ended_at is null order by a.started_at, a.agent_id"
        ))
    }

    /// Ended agents that were started for a task of which nothing else remains
    /// ([`AssignmentRow::removes_peer`](crate::AssignmentRow)), and whose task has ended: who asked
    /// for it has been told.
    pub async fn to_remove(&self, limit: u32) -> Result<Vec<AgentRow>> {
        // Agents first: their tasks are looked up by an index.
        Ok(agents!(all(), self.store.pool(),
            "cross join assignment d on d.task_id = a.task_id
            where a.task_id is not null and a.ended_at is not null and d.removes_peer = 1 and d.ended_at is not null
            order by a.ended_at, a.agent_id limit ?"; limit))
    }

    pub async fn live_counts(&self) -> Result<Vec<(String, u64)>> {
        let rows = fields!(all(), self.store.pool(), { instance: String, count: i64 },
            r#"select instance as "instance!", count(*) as "count!: i64" from agent
            where ended_at is null group by instance"#);
        Ok(rows.into_iter().map(|row| (row.instance, row.count.cast_unsigned())).collect())
    }

    /// The load of each instance that has any: its live agents, plus accepted work that has no
    /// agent of its own.
    pub async fn busy_counts(&self) -> Result<Vec<(String, u64)>> {
        let rows = fields!(all(), self.store.pool(), { instance: String, count: i64 },
            r#"select instance as "instance!: String", count(*) as "count!: i64" from (
                select instance from agent where ended_at is null
                union all select instance from assignment
                where state in ('queued', 'starting', 'sent', 'running') and task_id is not null and ended_at is null
                    and is_spawned = 0
            ) group by instance"#);
        Ok(rows.into_iter().map(|row| (row.instance, row.count.cast_unsigned())).collect())
    }

    /// Agents, the latest first, before the cursor `before`.
    pub async fn list(
        &self,
        reader: &Reader,
        filter: &AgentFilter,
        before: Option<&(Timestamp, String)>,
        size: PageSize,
    ) -> Result<RowPage<AgentRow>> {
        let limit = size.limit();
        let (at, id) = before.map(|(at, id)| (*at, id.as_str())).unzip();
        Ok(agents!(page(size, |row: &AgentRow| json_bytes(&row.info)), self.store.pool(),
            "where (?1 is null or a.project <> '' and a.project = ?2 or a.created_by = ?3 or a.session_key = ?1)
                and (?4 is null or a.state = ?4) and (?5 is null or a.instance = ?5)
                and (?6 is null or a.backend = ?6) and (?7 is null or a.project = ?7 or substr(a.project, -length(?7) - 1) = '/' || ?7)
                and (not ?8 or a.ended_at is null) and (?9 is null or (a.started_at, a.agent_id) < (?9, ?10))
            order by a.started_at desc, a.agent_id desc limit ?11";
            reader.key(), reader.project(), reader.owner(), filter.state, filter.instance,
            filter.backend, filter.project, filter.live, at, id, limit))
    }

    pub async fn of_host(&self, host: &ProcessIdentity) -> Result<Option<AgentRow>> {
        let (pid, started, here) = (i64::from(host.pid), &*host.started, self.store.machine_id());
        Ok(agents!(one(), self.store.pool(),
            "where a.ended_at is null and a.host_pid = ? and a.host_started = ? and a.machine_id = ?";
            pid, started, here))
    }

    /// The incarnation that started an agent, if a hosted agent did.
    pub async fn parent_of(&self, agent: &AgentId) -> Result<Option<AgentId>> {
        let parent = find_value!(self.store.pool(),
            r#"select parent_agent as "parent_agent: AgentId" from agent where agent_id = ?"#; agent);
        Ok(parent.flatten())
    }
}

#[cfg(test)]
mod tests {
    use svc_model::{RunId, SessionFilter, StreamName, StreamVisibility, limits};

    use super::*;
    use crate::{
        AssignmentRow, AssignmentState, FeedScope, Store, WriteTx,
        testing::{
            TestStore, append, event,
            journal::{active, session},
            task,
        },
    };

    const AT: Timestamp = Timestamp::from_millis(1_000);
    const KEY: &str = "agent:x:kid";
    const OWNER: &str = "session:agent:x:kid";

    fn child() -> AgentRow {
        AgentRow {
            info: AgentInfo {
                id: AgentId::from("ag_1".to_owned()),
                project: String::new(),
                state: AgentState::Done,
                pid: 0,
                worktree: "/".to_owned(),
                started_at: AT,
                task: None,
                description: None,
                backend: AgentBackend::Exec,
                instance: "x".to_owned(),
                session_key: KEY.to_owned(),
                session_id: None,
                exit_code: Some(0),
                signal: None,
                error: None,
            },
            owned: Ownership::from_row("operator", String::new()),
            machine_id: MachineId::from("mach_test".to_owned()),
            host: None,
            last_pid: 7,
            token_id: None,
            task_id: Some(TaskId::from("task_1".to_owned())),
            request_timeout: Duration::from_secs(1),
            ended_at: Some(AT),
        }
    }

    async fn begin(tx: &mut WriteTx, row: &AgentRow) -> Result<()> {
        let visibility = StreamVisibility::for_daemon();
        let stream = tx.streams().open(&StreamName::new("agent", "ag_1"), &visibility).await?;
        tx.agents().insert(row, stream.id, None, &AnswerKey::from_text("k".to_owned())).await?;
        tx.agents().update(row).await?;
        let stream = tx.streams().open(&StreamName::new("task", "task_1"), &visibility).await?;
        let task = task(TaskId::from("task_1".to_owned()), AT);
        tx.tasks().insert(&task, &row.owned, stream.id, None).await?;
        let work = AssignmentRow {
            task_id: row.task_id.clone(),
            removes_peer: true,
            ..AssignmentRow::new(RunId::from("run_1".to_owned()), "operator".to_owned(), AT)
        };
        tx.assignments().insert(&work).await?;
        for id in ["wrote", "read"] {
            tx.sessions().begin(&session(id, OWNER)).await?;
            tx.tool_counts().count_tool(id, "", "Bash", AT).await?;
        }
        tx.ghaps().insert(&active(1, "wrote", "g", AT)).await
    }

    async fn end_work(tx: &mut WriteTx) -> Result<()> {
        let found = tx.assignments().get(&RunId::from("run_1".to_owned())).await?;
        let mut work = found.ok_or(crate::StoreError::NoStream)?;
        (work.state, work.ended_at) = (AssignmentState::Ok, Some(AT));
        tx.assignments().update(&work).await
    }

    async fn remove(tx: &mut WriteTx, row: &AgentRow) -> Result<Vec<String>> {
        let ids = tx.sessions().all_of(&Principal::Session(KEY.into()), 9).await?;
        for id in &ids {
            tx.streams().retire(&StreamName::new("session", id)).await?;
            tx.sessions().remove(id).await?;
        }
        tx.streams().retire(&StreamName::new("agent", "ag_1")).await?;
        tx.agents().remove(&row.info.id).await?;
        Ok(ids)
    }

    async fn check_removal(store: &Store) {
        let row = child();
        let begun = row.clone();
        let done: Result<()> = store.write(job!(|tx| begin(tx, &begun).await)).await;
        done.unwrap();
        let agent = StreamName::new("agent", "ag_1");
        let task = StreamName::new("task", "task_1");
        for name in ["wrote", "read"] {
            append(store, &StreamName::new("session", name), vec![event("a", "{}")]).await;
        }
        append(store, &task, vec![event("a", "{}")]).await;
        // More than one job removes, and the last event of the log.
        for _ in 0..3 {
            let many = (0..limits::TRIM_BATCH / 2).map(|_| event("output", "{}")).collect();
            append(store, &agent, many).await;
        }
        let due = async || store.agents().to_remove(9).await.unwrap().len();
        assert_eq!(due().await, 0, "its task has not ended");
        let done: Result<()> = store.write(job!(|tx| end_work(tx).await)).await;
        done.unwrap();
        assert_eq!(due().await, 1);

        let (feed, size) = (FeedScope::prefix("", Reader::All), PageSize::rows(9_999));
        let streams = async || {
            let page = store.events().of_feed(&feed, 0, i64::MAX, None, size).await.unwrap();
            let mut names: Vec<String> =
                page.rows.iter().map(|event| event.stream.as_str().to_owned()).collect();
            names.dedup();
            names
        };
        let (_, head) = store.events().bounds().await.unwrap();
        let removing = row.clone();
        let ids: Result<Vec<String>> = store.write(job!(|tx| remove(tx, &removing).await)).await;
        assert_eq!(ids.unwrap().len(), 2);
        assert_eq!(due().await, 0);
        assert!(store.agents().get(&row.info.id).await.unwrap().is_none());
        assert!(store.streams().view(&agent).await.unwrap().is_none(), "at once");
        let filter = SessionFilter::default();
        let listed = store.sessions().list(&Reader::All, &filter, None, PageSize::rows(9)).await;
        assert_eq!(listed.unwrap().rows.len(), 0);
        for id in ["wrote", "read"] {
            assert!(store.sessions().get(id).await.unwrap().is_none(), "{id}");
            assert!(store.tool_counts().uses(id).await.unwrap().is_empty(), "{id}");
        }
        let kept = store.sessions().owner("wrote").await.unwrap();
        assert_eq!(kept.map(|kept| kept.owner), Some(None), "a record names it");
        assert!(store.sessions().owner("read").await.unwrap().is_none());
        assert!(store.ghaps().active("wrote").await.unwrap().is_some());

        // The last event of the log holds its head.
        store.upkeep().remove_retired().await.unwrap();
        assert_eq!(store.events().bounds().await.unwrap(), (0, head));
        let left = streams().await;
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(left[0] == task.as_str() && left[1].starts_with("removed/"), "{left:?}");
        append(store, &StreamName::fixed(StreamName::TEAM), vec![event("a", "{}")]).await;
        assert_eq!(store.upkeep().remove_retired().await.unwrap(), 1);
        assert_eq!(store.events().bounds().await.unwrap(), (0, head + 1), "no gap is told");
        assert_eq!(streams().await, [task.as_str(), StreamName::TEAM]);
        let names = store.streams().names(&Reader::All, "removed/", 9).await.unwrap();
        assert_eq!(names, [""; 0]);
        let frames = store.frames().of_feed(&feed, 0, head + 1).await.unwrap().unwrap();
        assert_eq!(frames.cursor, head + 1);

        // A name that is used again is another stream's, and its session another one.
        let again: Result<()> =
            store.write(job!(|tx| tx.sessions().begin(&session("wrote", OWNER)).await)).await;
        again.unwrap();
        assert!(store.sessions().get("wrote").await.unwrap().is_some());
        let name = StreamName::new("session", "wrote");
        append(store, &name, vec![event("a", "{}")]).await;
        assert_eq!(store.streams().view(&name).await.unwrap().unwrap().head, 1);
    }

    #[tokio::test]
    async fn an_agent_is_removed_whole_and_the_log_keeps_its_order() {
        let test = TestStore::open().await;
        check_removal(&test.store).await;
    }

    #[cfg(feature = "postgres")]
    #[tokio::test]
    async fn an_agent_is_removed_from_a_server_whole() {
        if !crate::postgres::testing::is_installed() {
            return;
        }
        let clock = std::sync::Arc::new(svc_model::ManualClock::new(AT));
        let (store, writer) = crate::testing::open_on_server(clock).await;
        check_removal(&store).await;
        writer.close(store).await.unwrap();
    }
}
