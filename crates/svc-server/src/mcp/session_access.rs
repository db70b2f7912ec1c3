//! Opening, finding and ending sessions: the row and its copy in memory together.

use std::sync::Arc;

use svc_core::{
    service::{self, mcp::NewMcpSession},
    tools::LogLevel,
};
use svc_model::{Caller, limits};
use svc_sys::telemetry;
use svc_wire::mcp::Revision;

use super::{McpServer, session::McpSession};

impl McpServer {
    /// Opens a session for this caller.
    pub(crate) async fn open_session(
        &self,
        caller: &Caller,
        new: NewMcpSession,
    ) -> Result<Arc<McpSession>, service::Error> {
        let row = self.services.mcp.open_mcp_session(caller, new).await?;
        Ok(self.sessions.insert(McpSession::new(row)))
    }

    /// An open session of this caller; `None` if there is none of that id, or it is another caller's.
    pub(crate) async fn session(
        &self,
        caller: &Caller,
        id: &str,
    ) -> Result<Option<Arc<McpSession>>, service::Error> {
        let session = match self.sessions.get(id) {
            Some(session) => session,
            None => match Box::pin(self.services.mcp.mcp_session(caller, id)).await? {
                Some(row) => self.sessions.insert(McpSession::new(row)),
                None => return Ok(None),
            },
        };
        if session.principal != Some(caller.principal()) || session.closed.is_cancelled() {
            return Ok(None);
        }
        if self.services.now().since(session.seen_at()) >= limits::MCP_SESSION_IDLE {
            self.sessions.remove(&session.id);
            return Ok(None);
        }
        self.touch_session(&session);
        Ok(Some(session))
    }

    /// Notes, once in a while, that a session is alive. The caller does not wait for the row.
    pub(crate) fn touch_session(&self, session: &Arc<McpSession>) {
        if !session.note_alive(self.services.now()) {
            return;
        }
        let (server, session) = (self.clone(), Arc::clone(session));
        self.background.spawn(async move {
            if let Err(error) = server.services.mcp.touch_mcp_session(&session.id).await {
                let error = telemetry::chain(&error);
                tracing::warn!(error, "cannot note that a session is alive");
            }
        });
    }

    /// The result of `initialize` in a session that was opened before it.
    pub(crate) async fn describe_session(
        &self,
        session: &McpSession,
        revision: Revision,
        client: Option<String>,
        capabilities: String,
    ) -> Result<(), service::Error> {
        self.services
            .mcp
            .describe_mcp_session(&session.id, revision, client, capabilities.clone())
            .await?;
        session.describe_client(revision, &capabilities);
        Ok(())
    }

    /// Sets the lightest log messages that the client is sent.
    pub(crate) async fn set_log_level(
        &self,
        session: &McpSession,
        level: LogLevel,
    ) -> Result<(), service::Error> {
        self.services.mcp.set_mcp_log_level(&session.id, level.as_str()).await?;
        session.set_log_level(level);
        Ok(())
    }

    /// Remembers which list of tools the client was given, so that it hears of a change, also after a restart.
    pub(crate) async fn note_tools_seen(&self, session: &McpSession) -> Result<(), service::Error> {
        let tools = self.catalogue.fingerprint(self.exposure);
        if session.tools() == Some(tools) {
            return Ok(());
        }
        session.set_tools(tools);
        self.services.mcp.set_mcp_tools(&session.id, tools).await
    }

    /// Ends a session, its streams and its calls.
    pub(crate) async fn close_session(&self, session: &McpSession) -> Result<(), service::Error> {
        self.services.mcp.close_mcp_session(&session.id).await?;
        session.closed.cancel();
        self.sessions.remove(&session.id);
        Ok(())
    }
}
