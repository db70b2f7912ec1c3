//! What principals hold, counted from rows. Each count is a look at an index that is as long as the bound.

use super::{db::Store, statement::select_value, tx::WriteTx};
use crate::{
    domain::{BudgetKind, PeerId, Principal},
    store::StoreError,
};

impl WriteTx {
    /// How much of a kind a principal holds; 0 of a kind that is no row.
    pub async fn budget_used(
        &mut self,
        kind: BudgetKind,
        principal: &Principal,
    ) -> Result<u64, StoreError> {
        let name = principal.to_string();
        let holder = format!("by:{name}");
        let owner = match principal {
            Principal::Operator => None,
            Principal::Session(key) => Some(key.to_string()),
        };
        let used = match kind {
            BudgetKind::McpSessions => {
                select_value!(
                    self,
                    r#"select count(*) as "used!: i64" from mcp_session where principal = ? and closed_at is null"#,
                    name
                )
            }
            BudgetKind::Subscriptions => {
                select_value!(
                    self,
                    r#"select count(*) as "used!: i64" from mcp_session join mcp_subscription using (session_id)
                    where principal = ? and closed_at is null"#,
                    name
                )
            }
            BudgetKind::Peers => {
                select_value!(
                    self,
                    r#"select count(*) as "used!: i64" from peer where owner = ?"#,
                    owner
                )
            }
            BudgetKind::Sessions => {
                select_value!(
                    self,
                    r#"select count(*) as "used!: i64" from session where created_by = ? and ended_at is null"#,
                    name
                )
            }
            BudgetKind::Tasks => {
                select_value!(
                    self,
                    r#"select count(*) as "used!: i64" from task where created_by = ? and closed_at is null"#,
                    name
                )
            }
            BudgetKind::TaskBytes => {
                select_value!(
                    self,
                    r#"select coalesce(sum(coalesce(octet_length(prompt), 0) + coalesce(octet_length(metadata), 0)), 0)
                        as "used!: i64"
                    from task where created_by = ? and closed_at is null"#,
                    name
                )
            }
            BudgetKind::Messages => {
                select_value!(
                    self,
                    r#"select coalesce(max(messages), 0) as "used!: i64" from message_use where holder = ?"#,
                    holder
                )
            }
            BudgetKind::MessageBytes => {
                select_value!(
                    self,
                    r#"select coalesce(max(bytes), 0) as "used!: i64" from message_use where holder = ?"#,
                    holder
                )
            }
            BudgetKind::Records => {
                select_value!(
                    self,
                    r#"select count(*) as "used!: i64" from session join ghap using (session_id)
                    where created_by = ?"#,
                    name
                )
            }
            BudgetKind::Memories => {
                select_value!(
                    self,
                    r#"select count(*) as "used!: i64" from session join memory using (session_id)
                    where created_by = ?"#,
                    name
                )
            }
            BudgetKind::LostReplies => {
                select_value!(
                    self,
                    r#"select count(*) as "used!: i64" from hook_lost where created_by = ?"#,
                    name
                )
            }
            BudgetKind::Streams
            | BudgetKind::Calls
            | BudgetKind::RequestBytes
            | BudgetKind::BytesPerHour
            | BudgetKind::InboxBytes => 0,
        };
        Ok(u64::try_from(used).unwrap_or(0))
    }

    /// Bytes of the texts that wait in an inbox.
    pub async fn inbox_bytes(&mut self, to: &PeerId) -> Result<u64, StoreError> {
        let holder = format!("to:{to}");
        let bytes = select_value!(
            self,
            r#"select coalesce(max(bytes), 0) as "bytes!: i64" from message_use where holder = ?"#,
            holder
        );
        Ok(u64::try_from(bytes).unwrap_or(0))
    }
}

impl Store {
    /// What all principals together hold of the kinds that are rows.
    pub async fn budget_totals(&self) -> Result<Vec<(BudgetKind, u64)>, StoreError> {
        let row = sqlx::query!(
            r#"select
                (select count(*) from mcp_session where closed_at is null) as "mcp_sessions!: i64",
                (select count(*) from mcp_subscription) as "subscriptions!: i64",
                (select count(*) from peer) as "peers!: i64",
                (select count(*) from session where ended_at is null) as "sessions!: i64",
                (select count(*) from task where closed_at is null) as "tasks!: i64",
                (select coalesce(sum(messages), 0) from message_use where holder >= 'to:' and holder < 'to;')
                    as "messages!: i64",
                (select coalesce(sum(bytes), 0) from message_use where holder >= 'to:' and holder < 'to;')
                    as "message_bytes!: i64",
                (select count(*) from ghap) as "records!: i64",
                (select count(*) from memory) as "memories!: i64",
                (select count(*) from hook_lost) as "lost_replies!: i64""#
        )
        .fetch_one(&self.readers)
        .await?;
        let totals = [
            (BudgetKind::McpSessions, row.mcp_sessions),
            (BudgetKind::Subscriptions, row.subscriptions),
            (BudgetKind::Peers, row.peers),
            (BudgetKind::Sessions, row.sessions),
            (BudgetKind::Tasks, row.tasks),
            (BudgetKind::Messages, row.messages),
            (BudgetKind::InboxBytes, row.message_bytes),
            (BudgetKind::Records, row.records),
            (BudgetKind::Memories, row.memories),
            (BudgetKind::LostReplies, row.lost_replies),
        ];
        Ok(totals.map(|(kind, held)| (kind, u64::try_from(held).unwrap_or(0))).to_vec())
    }
}
