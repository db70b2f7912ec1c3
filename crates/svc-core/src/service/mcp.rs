//! What outlives a connection of an MCP client: sessions, subscriptions, and long calls, with their
//! messages in the log.

use std::sync::Arc;

use svc_model::{
    CallId, Caller, McpSessionId, NewEvent, Reader, StreamName, StreamVisibility, limits,
};
use svc_store::{CallRow, CallState, McpSessionRow, McpTransport, PageSize, job};
use svc_wire::mcp::Revision;

use super::{Page, PageBounds, Result, core::Core};
use crate::boxed;

#[derive(Debug, Clone)]
pub struct Mcp {
    core: Core,
}

#[derive(Debug, Clone)]
pub struct NewMcpSession {
    pub transport: McpTransport,
    /// The revision that was negotiated.
    pub revision: Revision,
    /// JSON: the client's name and version.
    pub client: Option<String>,
    /// JSON: the client's capabilities.
    pub capabilities: String,
}

#[derive(Debug, Clone)]
pub struct CallEnd {
    /// A state for which [`CallState::is_terminal`] is true.
    pub state: CallState,
    /// The message to the client: a JSON-RPC message, or the result or error of a task. `None` if
    /// the client asked for no response.
    pub message: Option<String>,
}

/// Kind of the events of an `mcp/` stream.
const MESSAGE: &str = "message";

impl Mcp {
    pub(super) fn new(core: Core) -> Self {
        Self { core }
    }

    #[boxed]
    pub async fn open_mcp_session(
        &self,
        caller: &Caller,
        new: NewMcpSession,
    ) -> Result<McpSessionRow> {
        let (principal, ids) = (Some(caller.principal()), self.core.ids.clone());
        let (caller, budget) = (caller.clone(), self.core.budget.clone());
        let write = self.core.store.on_behalf_of(&caller).write(job!(|tx| {
            budget.check_rows(tx, &caller, 1).await?;
            let row = McpSessionRow {
                session_id: McpSessionId::new(&ids, tx.now()),
                principal,
                transport: new.transport,
                revision: new.revision,
                client: new.client,
                capabilities: new.capabilities,
                log_level: None,
                tools: None,
                client_session: None,
                last_seen_at: tx.now(),
            };
            tx.mcp().insert_session(&row).await?;
            if new.transport == McpTransport::Sse {
                let stream = StreamName::new("mcp", &row.session_id);
                tx.streams().open(&stream, &StreamVisibility::Answers).await?;
            }
            Ok(row)
        }));
        write.await
    }

    /// An open session of this caller; `None` if there is no session of that id, or another caller
    /// owns it.
    #[boxed]
    pub async fn mcp_session(&self, caller: &Caller, id: &str) -> Result<Option<McpSessionRow>> {
        let Some(id) = McpSessionId::parse(id) else { return Ok(None) };
        let row = self.core.store.mcp().session(&id).await?;
        // An idle session has expired, even before the sweep closes it.
        let alive = |seen| self.core.now().since(seen) < limits::MCP_SESSION_IDLE;
        Ok(row.filter(|row| row.principal == Some(caller.principal()) && alive(row.last_seen_at)))
    }

    /// Stores what `initialize` says about a session that was opened before it.
    #[boxed]
    pub async fn describe_mcp_session(
        &self,
        id: &McpSessionId,
        revision: Revision,
        client: Option<String>,
        capabilities: String,
    ) -> Result<()> {
        let id = id.clone();
        let write = self.core.change(job!(|tx| tx
            .mcp()
            .describe_session(&id, revision, client.as_deref(), &capabilities)
            .await));
        write.await
    }

    #[boxed]
    pub async fn touch_mcp_session(&self, id: &McpSessionId) -> Result<()> {
        let id = id.clone();
        self.core.change(job!(|tx| tx.mcp().touch_session(&id).await)).await
    }

    /// Sets the lowest level of log messages that the client gets.
    #[boxed]
    pub async fn set_mcp_log_level(&self, id: &McpSessionId, level: &'static str) -> Result<()> {
        let id = id.clone();
        self.core.change(job!(|tx| tx.mcp().set_log_level(&id, level).await)).await
    }

    /// Stores which list of tools the client has seen.
    #[boxed]
    pub async fn set_mcp_tools(&self, id: &McpSessionId, tools: i64) -> Result<()> {
        let id = id.clone();
        self.core.change(job!(|tx| tx.mcp().set_tools(&id, tools).await)).await
    }

    /// Ends a session, but not the calls that run in it.
    #[boxed]
    pub async fn close_mcp_session(&self, id: &McpSessionId) -> Result<()> {
        let id = id.clone();
        self.core
            .change(job!(|tx| {
                tx.mcp().close_session(&id).await?;
                let stream = StreamName::new("mcp", &id);
                if tx.streams().state(&stream).await?.is_some_and(|state| !state.closed) {
                    tx.streams().close(&stream).await?;
                }
                Ok(())
            }))
            .await
    }

    #[boxed]
    pub async fn sweep_mcp_sessions(&self) -> Result<()> {
        let before = self.core.now().minus(limits::MCP_SESSION_IDLE);
        let closed = self.core.store.sweeps().close_idle_mcp_sessions(before).await?;
        if closed > 0 {
            tracing::info!(mcp.sessions = closed, "ended idle MCP sessions");
        }
        Ok(())
    }

    #[boxed]
    pub async fn subscribe_resource(
        &self,
        caller: &Caller,
        id: &McpSessionId,
        uri: String,
        stream: String,
    ) -> Result<()> {
        let (id, caller, budget) = (id.clone(), caller.clone(), self.core.budget.clone());
        let write = self.core.store.on_behalf_of(&caller).write(job!(|tx| {
            budget.check_rows(tx, &caller, 1).await?;
            Ok(tx.mcp().insert_subscription(&id, &uri, &stream).await?)
        }));
        write.await
    }

    #[boxed]
    pub async fn unsubscribe_resource(&self, id: &McpSessionId, uri: String) -> Result<()> {
        let id = id.clone();
        self.core.change(job!(|tx| tx.mcp().delete_subscription(&id, &uri).await)).await
    }

    /// The URIs that a session is subscribed to, with their streams.
    #[boxed]
    pub async fn resource_subscriptions(&self, id: &McpSessionId) -> Result<Vec<(String, String)>> {
        Ok(self.core.store.mcp().subscriptions(id).await?)
    }

    pub fn new_call_id(&self) -> CallId {
        CallId::new(&self.core.ids, self.core.now())
    }

    /// Puts a call on record before its tool runs. `first` is the first message to the client, if
    /// any.
    #[boxed]
    pub async fn begin_call(
        &self,
        caller: &Caller,
        row: CallRow,
        transport: McpTransport,
        first: Option<String>,
    ) -> Result<()> {
        let write = self.core.store.on_behalf_of(caller).write(job!(|tx| {
            let stream = row.stream(transport);
            tx.mcp().insert_call(&row).await?;
            tx.streams().open(&stream, &StreamVisibility::Answers).await?;
            if let Some(first) = first {
                tx.append(&stream, vec![message(first)]).await?;
            }
            Ok(())
        }));
        write.await
    }

    /// Sends a message to the client during a call.
    #[boxed]
    pub async fn say(&self, caller: &Caller, stream: &StreamName, text: String) -> Result<()> {
        let writes = self.core.store.on_behalf_of(caller);
        writes.append(stream.clone(), vec![message(text)]).await?;
        Ok(())
    }

    /// Ends a call. Idempotent: returns false if the call has ended, or its message was not kept
    /// because its stream is closed.
    #[boxed]
    pub async fn end_call(&self, id: &CallId, stream: &StreamName, end: CallEnd) -> Result<bool> {
        let (id, stream) = (id.clone(), stream.clone());
        let write = self.core.store.write(job!(|tx| {
            let Some(row) = tx.mcp().call(&id).await? else { return Ok(false) };
            if row.state.is_terminal() {
                return Ok(false);
            }
            tx.mcp().update_call(&id, end.state, None, row.answers.as_deref()).await?;
            let open = tx.streams().state(&stream).await?.is_some_and(|state| !state.closed);
            let is_kept = open || end.message.is_none();
            if let Some(text) = end.message.filter(|_| open) {
                tx.append(&stream, vec![message(text)]).await?;
            }
            // The stream of a whole session stays open.
            if open && stream == StreamName::new("mcp", &id) {
                tx.streams().close(&stream).await?;
            }
            Ok(is_kept)
        }));
        write.await
    }

    /// Records what a task asks its client, or that it continues; also stores the answers.
    #[boxed]
    pub async fn ask_in_call(
        &self,
        id: &CallId,
        asks: Option<String>,
        answers: Option<String>,
    ) -> Result<()> {
        let id = id.clone();
        self.core
            .change(job!(|tx| {
                let state =
                    if asks.is_some() { CallState::InputRequired } else { CallState::Working };
                if tx.mcp().call(&id).await?.is_some_and(|row| !row.state.is_terminal()) {
                    tx.mcp().update_call(&id, state, asks.as_deref(), answers.as_deref()).await?;
                }
                Ok(())
            }))
            .await
    }

    #[boxed]
    pub async fn call(&self, caller: &Caller, id: &str) -> Result<Option<CallRow>> {
        let Some(id) = CallId::parse(id) else { return Ok(None) };
        let row = self.core.store.mcp().call(&id).await?;
        Ok(row.filter(|row| row.principal == Some(caller.principal())))
    }

    /// Calls that have not ended, oldest first. When the daemon starts, these are the calls that
    /// the last stop or crash interrupted.
    #[boxed]
    pub async fn open_calls(&self) -> Result<Vec<CallRow>> {
        Ok(self.core.store.mcp().open_calls().await?)
    }

    #[boxed]
    pub async fn mcp_transport(&self, id: &McpSessionId) -> Result<Option<McpTransport>> {
        Ok(self.core.store.mcp().session(id).await?.map(|row| row.transport))
    }

    #[boxed]
    pub async fn last_message(&self, stream: &StreamName) -> Result<Option<Arc<str>>> {
        let Some(view) = self.core.store.streams().view(stream).await? else { return Ok(None) };
        let (events, size) = (self.core.store.events(), PageSize::rows(1));
        let last = events.of_stream(view.id, stream, view.head - 1, None, size).await?.rows;
        Ok(last.into_iter().next().map(|event| event.data))
    }

    /// A page of the streams that the caller may read, latest first, without streams of responses.
    #[boxed]
    pub async fn readable_streams(
        &self,
        caller: &Caller,
        cursor: Option<&str>,
        limit: u32,
    ) -> Result<Page<String>> {
        let reader = Reader::for_tool(caller);
        let read = async |before: Option<i64>, limit| {
            let before = before.unwrap_or(i64::MAX);
            self.core.store.streams().latest(&reader, before, limit).await
        };
        let bounds = PageBounds::new(cursor, Some(limit));
        let page = Page::read("resources", bounds, read, |row: &(i64, String)| row.0).await?;
        Ok(page.map(|(_, name)| name))
    }

    /// A key of the daemon's own, made at first use and kept in the database.
    #[boxed]
    pub async fn secret(&self, name: &'static str) -> Result<Vec<u8>> {
        let mut fresh = [0_u8; 32];
        svc_model::random_bytes(&mut fresh);
        self.core.change(job!(|tx| tx.settings().secret(name, &fresh).await)).await
    }
}

fn message(text: String) -> NewEvent {
    NewEvent { kind: MESSAGE.into(), data: text.into(), producer_id: None }
}
