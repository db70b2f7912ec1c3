//! Rows that a principal keeps.

use svc_model::Principal;

use super::{db::Store, statement::select_value, tx::WriteTx};
use crate::StoreError;

impl WriteTx {
    /// How many rows a principal keeps. Counting ends one above `bound`. Each part is a look at an index.
    pub async fn rows_kept(
        &mut self,
        principal: &Principal,
        bound: u64,
    ) -> Result<u64, StoreError> {
        let name = principal.to_string();
        let sender = format!("by:{name}");
        let owner = match principal {
            Principal::Operator => None,
            Principal::Session(key) => Some(key.to_string()),
        };
        let most = i64::try_from(bound).unwrap_or(i64::MAX).saturating_add(1);
        let used = select_value!(
            self,
            r#"select coalesce((select messages from message_use where holder = ?1), 0) + (select count(*) from (
                select 1 from mcp_session where principal = ?2 and closed_at is null
                union all
                select 1 from mcp_session join mcp_subscription using (session_id)
                where principal = ?2 and closed_at is null
                union all select 1 from peer where owner = ?3
                union all select 1 from session where created_by = ?2 and ended_at is null
                union all select 1 from task where created_by = ?2 and closed_at is null
                union all select 1 from agent where created_by = ?2 and ended_at is null
                union all select 1 from session join ghap using (session_id) where created_by = ?2
                union all select 1 from session join memory using (session_id) where created_by = ?2
                union all select 1 from hook_lost where created_by = ?2
                limit ?4
            )) as "used!: i64""#,
            sender,
            name,
            owner,
            most
        );
        Ok(u64::try_from(used).unwrap_or(0))
    }
}

impl Store {
    /// Rows that all principals and the operator keep together, of the kinds that count.
    pub async fn rows_kept_by_all(&self) -> Result<u64, StoreError> {
        let rows = sqlx::query_scalar!(
            r#"select
                (select count(*) from mcp_session where closed_at is null)
                + (select count(*) from mcp_subscription)
                + (select count(*) from peer)
                + (select count(*) from session where ended_at is null)
                + (select count(*) from task where closed_at is null)
                + (select count(*) from agent where ended_at is null)
                + (select coalesce(sum(messages), 0) from message_use where holder >= 'to:' and holder < 'to;')
                + (select count(*) from ghap)
                + (select count(*) from memory)
                + (select count(*) from hook_lost) as "rows!: i64""#
        )
        .fetch_one(&self.readers)
        .await?;
        Ok(u64::try_from(rows).unwrap_or(0))
    }
}
