//! The Model Context Protocol: sessions, subscriptions and calls on record; and child servers, with
//! their lists, states and processes, each on its machine.

use svc_model::{CallId, McpSessionId, Principal, Timestamp};
use svc_wire::mcp::Revision;

use super::{McpReads, McpWrites, SourceReads, SourceWrites};
use crate::{
    CallRow, CallState, McpSessionRow, McpTransport, Result, SourceListRow, SourcePinRow,
    SourceProcessRow, SourceStateRow, boxed_methods,
    columns::{Columns, DirectRow, Fault},
    readers::Rows as _,
    statement::{change, changed, direct_row, query, value},
};

#[expect(clippy::needless_pass_by_value, reason = "a column is read as an owned text")]
fn principal_of(text: String) -> Option<Principal> {
    Principal::parse(&text)
}

#[expect(clippy::needless_pass_by_value, reason = "a column is read as an owned text")]
fn revision_of(text: String) -> Option<Revision> {
    Revision::parse(&text)
}

/// `None` if the revision does not parse: then the session cannot be resumed.
impl DirectRow for Option<McpSessionRow> {
    fn read(columns: &mut Columns<'_>) -> Result<Self, Fault> {
        let session_id = columns.next("session_id")?;
        let principal = principal_of(columns.next("principal")?);
        let transport = columns.next("transport")?;
        let Some(revision) = revision_of(columns.next("revision")?) else { return Ok(None) };
        Ok(Some(McpSessionRow {
            session_id,
            principal,
            transport,
            revision,
            client: columns.next("client")?,
            capabilities: columns.next("capabilities")?,
            log_level: columns.next("log_level")?,
            tools: columns.next("tools")?,
            client_session: columns.next("client_session")?,
            last_seen_at: columns.next("last_seen_at")?,
        }))
    }
}

direct_row!(CallRow {
    call_id,
    session_id,
    principal: principal_of,
    credential,
    acts_for,
    revision: revision_of,
    rpc_id,
    tool,
    params,
    is_task,
    state,
    asks,
    answers,
    started_at,
    updated_at,
});

macro_rules! calls {
    ($run:ident($($bound:expr),*), $($rest:tt)*) => {
        query!($run($($bound),*),
            r#"select call_id as "call_id!", session_id, principal, credential, acts_for, revision, rpc_id, tool, params,
                is_task as "is_task: bool", state as "state: CallState", asks, answers,
                started_at as "started_at: Timestamp", updated_at as "updated_at: Timestamp"
            from mcp_call "#,
            $($rest)*
        )
    };
}

#[boxed_methods]
impl McpWrites<'_> {
    pub async fn tie_session(&mut self, id: &McpSessionId, client_session: &str) -> Result<()> {
        let done = change!(self.tx,
            "update mcp_session set client_session = ? where session_id = ?"; client_session, id);
        changed(done, "mcp_session", id)
    }

    pub async fn insert_session(&mut self, row: &McpSessionRow) -> Result<()> {
        let (id, revision) = (row.session_id.as_str(), row.revision.as_str());
        let principal = row.principal.as_ref().map(ToString::to_string);
        change!(self.tx,
            "insert into mcp_session (session_id, principal, transport, revision, client, capabilities, log_level,
                tools, created_at, last_seen_at)
            values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
            id, principal, row.transport, revision, row.client, row.capabilities, row.log_level,
            row.tools, self.tx.now, self.tx.now);
        Ok(())
    }

    pub async fn touch_session(&mut self, id: &McpSessionId) -> Result<()> {
        let done = change!(self.tx,
            "update mcp_session set last_seen_at = ? where session_id = ?"; self.tx.now, id);
        changed(done, "mcp_session", id)
    }

    /// Stores the values of `initialize` for a session that was opened before it.
    pub async fn describe_session(
        &mut self,
        id: &McpSessionId,
        revision: Revision,
        client: Option<&str>,
        capabilities: &str,
    ) -> Result<()> {
        let (id, revision) = (id.as_str(), revision.as_str());
        let done = change!(self.tx,
            "update mcp_session set revision = ?, client = ?, capabilities = ? where session_id = ?";
            revision, client, capabilities, id);
        changed(done, "mcp_session", id)
    }

    pub async fn set_log_level(&mut self, id: &McpSessionId, level: &str) -> Result<()> {
        let done = change!(self.tx,
            "update mcp_session set log_level = ? where session_id = ?"; level, id);
        changed(done, "mcp_session", id)
    }

    pub async fn set_tools(&mut self, id: &McpSessionId, tools: i64) -> Result<()> {
        let done =
            change!(self.tx, "update mcp_session set tools = ? where session_id = ?"; tools, id);
        changed(done, "mcp_session", id)
    }

    /// Ends a session; returns false if it had ended.
    pub async fn close_session(&mut self, id: &McpSessionId) -> Result<bool> {
        let done = change!(self.tx,
            "update mcp_session set closed_at = ? where session_id = ? and closed_at is null";
            self.tx.now, id);
        Ok(done > 0)
    }

    pub async fn insert_subscription(
        &mut self,
        id: &McpSessionId,
        uri: &str,
        stream: &str,
    ) -> Result<()> {
        change!(self.tx,
            "insert into mcp_subscription (session_id, uri, stream) values (?, ?, ?) on conflict do nothing";
            id, uri, stream);
        Ok(())
    }

    pub async fn delete_subscription(&mut self, id: &McpSessionId, uri: &str) -> Result<()> {
        change!(self.tx, "delete from mcp_subscription where session_id = ? and uri = ?"; id, uri);
        Ok(())
    }

    pub async fn insert_call(&mut self, row: &CallRow) -> Result<()> {
        let (id, session) =
            (row.call_id.as_str(), row.session_id.as_ref().map(McpSessionId::as_str));
        let revision = row.revision.map(Revision::as_str);
        let principal = row.principal.as_ref().map(ToString::to_string);
        change!(self.tx,
            "insert into mcp_call (call_id, session_id, principal, credential, acts_for, revision, rpc_id, tool, params,
                is_task, state, asks, answers, started_at, updated_at)
            values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
            id, session, principal, row.credential, row.acts_for, revision, row.rpc_id, row.tool,
            row.params, row.is_task, row.state, row.asks, row.answers, row.started_at, self.tx.now);
        Ok(())
    }

    pub async fn call(&mut self, id: &CallId) -> Result<Option<CallRow>> {
        Ok(calls!(one(), self.tx.direct, "where call_id = ?"; id))
    }

    pub async fn update_call(
        &mut self,
        id: &CallId,
        state: CallState,
        asks: Option<&str>,
        answers: Option<&str>,
    ) -> Result<()> {
        let ended = state.is_terminal().then_some(self.tx.now);
        let done = change!(self.tx,
            "update mcp_call set state = ?, asks = ?, answers = ?, updated_at = ?, ended_at = ? where call_id = ?";
            state, asks, answers, self.tx.now, ended, id);
        changed(done, "mcp_call", id)
    }
}

#[boxed_methods]
impl McpReads<'_> {
    pub async fn session(&self, id: &McpSessionId) -> Result<Option<McpSessionRow>> {
        let session: Option<Option<McpSessionRow>> = query!(one(), self.store.pool(),
            r#"select session_id as "session_id!", principal, transport as "transport: McpTransport", revision, client,
                capabilities, log_level, tools, client_session, last_seen_at as "last_seen_at: Timestamp"
            from mcp_session where session_id = ? and closed_at is null"#; id);
        Ok(session.flatten())
    }

    /// Whether an agent's session has an open MCP session, its own or one opened with its token,
    /// that was used since `since`.
    pub async fn is_session_open(&self, session: &str, since: Timestamp) -> Result<bool> {
        let principal = Principal::Session(session.into()).to_string();
        Ok(value!(self.store.pool(),
            r#"select exists (select 1 from mcp_session
                where closed_at is null and last_seen_at >= ?1
                    and (session_id = ?2 or client_session = ?2 or principal = ?3)) as "open!: bool""#;
            since, session, principal))
    }

    pub async fn subscriptions(&self, id: &McpSessionId) -> Result<Vec<(String, String)>> {
        Ok(query!(all(), self.store.pool(),
            "select uri, stream from mcp_subscription where session_id = ? order by uri"; id))
    }

    pub async fn call(&self, id: &CallId) -> Result<Option<CallRow>> {
        Ok(calls!(one(), self.store.pool(), "where call_id = ?"; id))
    }

    pub async fn open_calls(&self) -> Result<Vec<CallRow>> {
        Ok(calls!(
            all(),
            self.store.pool(),
            "where state in ('working', 'input_required') order by call_id"
        ))
    }
}

impl DirectRow for SourcePinRow {
    fn read(columns: &mut Columns<'_>) -> Result<Self, Fault> {
        let list = SourceListRow {
            name: columns.next("name")?,
            project: columns.next("project")?,
            fingerprint: columns.next("basis")?,
            tools: columns.next("tools")?,
            resources: columns.next("resources")?,
            templates: columns.next("templates")?,
            prompts: columns.next("prompts")?,
        };
        Ok(Self { list, told: columns.next("told")? })
    }
}

direct_row!(SourceListRow { name, project, fingerprint, tools, resources, templates, prompts });
direct_row!(SourceProcessRow { mark, pid, started, name, project, instance });

#[boxed_methods]
impl SourceWrites<'_> {
    pub async fn put_list(&mut self, row: &SourceListRow) -> Result<()> {
        change!(self.tx,
            "insert into source_list (machine_id, name, project, fingerprint, tools, resources, templates, prompts, listed_at)
            values (?, ?, ?, ?, ?, ?, ?, ?, ?)
            on conflict (machine_id, name, project) do update set fingerprint = excluded.fingerprint, tools = excluded.tools,
                resources = excluded.resources, templates = excluded.templates, prompts = excluded.prompts,
                listed_at = excluded.listed_at";
            self.tx.machine, row.name, row.project, row.fingerprint, row.tools, row.resources,
            row.templates, row.prompts, self.tx.now);
        Ok(())
    }

    /// Stores the definitions of a server that a person has approved.
    pub async fn put_pin(&mut self, row: &SourcePinRow) -> Result<()> {
        let SourcePinRow { list, told } = row;
        change!(self.tx,
            "insert into source_pin (machine_id, name, project, basis, tools, resources, templates, prompts, told,
                pinned_at)
            values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
            on conflict (machine_id, name, project) do update set basis = excluded.basis, tools = excluded.tools,
                resources = excluded.resources, templates = excluded.templates, prompts = excluded.prompts,
                told = excluded.told, pinned_at = excluded.pinned_at";
            self.tx.machine, list.name, list.project, list.fingerprint, list.tools, list.resources,
            list.templates, list.prompts, told, self.tx.now);
        Ok(())
    }

    pub async fn put_state(&mut self, row: &SourceStateRow) -> Result<()> {
        change!(self.tx,
            "insert into source_state (machine_id, name, project, state, reason, next_action, attempt, next_at, since)
            values (?, ?, ?, ?, ?, ?, ?, ?, ?)
            on conflict (machine_id, name, project) do update set state = excluded.state, reason = excluded.reason,
                next_action = excluded.next_action, attempt = excluded.attempt, next_at = excluded.next_at,
                since = excluded.since";
            self.tx.machine, row.name, row.project, row.state, row.reason, row.next_action,
            row.attempt, row.next_at, self.tx.now);
        Ok(())
    }

    /// Stores a process before the first request to it.
    pub async fn insert_process(&mut self, row: &SourceProcessRow) -> Result<()> {
        change!(self.tx,
            "insert into source_process (mark, machine_id, pid, started, name, project, instance, at)
            values (?, ?, ?, ?, ?, ?, ?, ?)";
            row.mark, self.tx.machine, row.pid, row.started, row.name, row.project, row.instance,
            self.tx.now);
        Ok(())
    }

    /// Removes a process of which no descendant is left.
    pub async fn delete_process(&mut self, mark: &str) -> Result<()> {
        change!(self.tx, "delete from source_process where mark = ?"; mark);
        Ok(())
    }
}

#[boxed_methods]
impl SourceReads<'_> {
    /// What the servers of this machine listed when they last worked.
    pub async fn lists(&self) -> Result<Vec<SourceListRow>> {
        Ok(query!(all(), self.store.pool(),
            "select name, project, fingerprint, tools, resources, templates, prompts from source_list where machine_id = ?"; self.store.machine_id()))
    }

    pub async fn pins(&self) -> Result<Vec<SourcePinRow>> {
        Ok(query!(all(), self.store.pool(),
            "select name, project, basis, tools, resources, templates, prompts, told from source_pin where machine_id = ?";
            self.store.machine_id()))
    }

    /// Processes of this machine that were started and whose end was not recorded.
    pub async fn processes(&self) -> Result<Vec<SourceProcessRow>> {
        Ok(query!(all(), self.store.pool(),
            r#"select mark, pid as "pid: u32", started, name, project, instance from source_process
            where machine_id = ?"#; self.store.machine_id()))
    }
}
