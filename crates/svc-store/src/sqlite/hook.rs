//! Rows of hooks that belong to no session, peer or message.

use svc_model::Principal;

use super::{
    errors::changed,
    families::HookWrites,
    json::to_json,
    statement::{change, select_value},
};
use crate::StoreError;

impl HookWrites<'_> {
    /// Records the id of an event; returns false if it was recorded before.
    pub async fn remember(&mut self, id: &str) -> Result<bool, StoreError> {
        let done = change!(
            self.tx,
            "insert into hook_seen (hook_id, at) values (?, ?) on conflict (hook_id) do nothing",
            id,
            self.tx.now
        );
        Ok(done == 1)
    }

    /// Records that no client took, or will take, the answers to these hook calls.
    pub async fn remember_lost(
        &mut self,
        calls: &[String],
        by: &Principal,
    ) -> Result<(), StoreError> {
        let (calls, by) = (to_json(calls), by.to_string());
        change!(
            self.tx,
            "insert into hook_lost (hook_id, at, created_by) select value, ?, ? from json_each(?) where true
            on conflict (hook_id) do nothing",
            self.tx.now,
            by,
            calls
        );
        Ok(())
    }

    /// Whether no client will take the answer to a call.
    pub async fn is_lost(&mut self, call: &str) -> Result<bool, StoreError> {
        let is_lost = select_value!(
            self.tx,
            r#"select exists (select 1 from hook_lost where hook_id = ?) as "lost!: bool""#,
            call
        );
        Ok(is_lost)
    }

    /// Records that the answer to a call contains a reminder, and the number of tool calls before
    /// it.
    pub async fn note_reminder(
        &mut self,
        call: &str,
        agent_id: &str,
        after: i64,
    ) -> Result<(), StoreError> {
        let done = change!(
            self.tx,
            "update hook_seen set reminded_agent = ?, reminded_after = ? where hook_id = ?",
            agent_id,
            after,
            call
        );
        changed(done, "hook_seen", call)
    }

    /// Reverts the reminders of these calls: the session's next tool call is due for a reminder
    /// again.
    pub async fn take_back_reminders(
        &mut self,
        session_id: &str,
        calls: &[String],
    ) -> Result<(), StoreError> {
        let calls = to_json(calls);
        change!(
            self.tx,
            "update session_counter set since = since + lost.after
            from (select reminded_agent, sum(reminded_after) as after from hook_seen
                where hook_id in (select value from json_each(?2)) and reminded_after is not null
                group by reminded_agent) as lost
            where session_id = ?1 and agent_id = lost.reminded_agent",
            session_id,
            calls
        );
        change!(
            self.tx,
            "update hook_seen set reminded_agent = null, reminded_after = null
            where hook_id in (select value from json_each(?)) and reminded_after is not null",
            calls
        );
        Ok(())
    }
}
