//! Rows that hooks need beyond those of sessions, peers and messages.

use super::{Store, StoreError, WriteTx};
use crate::domain::{McpSessionId, PeerId, Timestamp};

impl WriteTx {
    /// Remembers the id of an event; `false` if it came before.
    pub async fn remember_hook(&mut self, id: &str) -> Result<bool, StoreError> {
        let done = sqlx::query!(
            "insert into hook_seen (hook_id, at) values (?, ?) on conflict (hook_id) do nothing",
            id,
            self.now
        )
        .execute(&mut self.conn)
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Forgets ids of events that are older.
    pub async fn forget_hooks(&mut self, before: Timestamp) -> Result<(), StoreError> {
        sqlx::query!("delete from hook_seen where at < ?", before).execute(&mut self.conn).await?;
        Ok(())
    }

    /// Notes which of a client's sessions an MCP connection belongs to.
    pub async fn tie_mcp_session(
        &mut self,
        id: &McpSessionId,
        client_session: &str,
    ) -> Result<(), StoreError> {
        let id = id.as_str();
        sqlx::query!(
            "update mcp_session set client_session = ? where session_id = ?",
            client_session,
            id
        )
        .execute(&mut self.conn)
        .await?;
        Ok(())
    }
}

impl Store {
    /// Whether a peer has messages that it was not given, or given and not yet known to have.
    pub async fn has_mail(&self, peer: &PeerId) -> Result<bool, StoreError> {
        let peer = peer.as_str();
        let has = sqlx::query_scalar!(
            r#"select exists (select 1 from message
                where to_peer = ? and state in ('accepted', 'queued', 'offered')) as "has!: bool""#,
            peer
        )
        .fetch_one(&self.readers)
        .await?;
        Ok(has)
    }
}
