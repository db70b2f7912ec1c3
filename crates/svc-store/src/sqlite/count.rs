//! Counts of tool calls.

use svc_model::{Timestamp, journal::ToolUse};

use super::{
    columns::non_empty,
    families::{ToolCountReads, ToolCountWrites},
    statement::{change, query_fields, select_value},
};
use crate::{StoreError, ToolCall, ToolCallCount};

impl ToolCountWrites<'_> {
    /// Counts a tool call. Of concurrent calls, exactly one is told that a check-in is due.
    pub async fn count_call(&mut self, call: &ToolCall) -> Result<ToolCallCount, StoreError> {
        let (session_id, agent_id) = (call.session_id.as_str(), call.agent_id.as_str());
        self.tx.sessions().touch(session_id, &call.created_by).await?;
        if let Some(tool_name) = &call.tool_name {
            self.put_tool_use(session_id, agent_id, tool_name, self.tx.now).await?;
        }
        let since = self.add_call(session_id, agent_id).await?;
        let due = call.frequency.is_some_and(|frequency| since >= frequency);
        let mut active = None;
        if due {
            self.reset(session_id, agent_id).await?;
            // A record belongs to the session, not to a sub-agent.
            if agent_id.is_empty() {
                active = self.tx.ghaps().active(session_id).await?.map(Box::new);
            }
        }
        Ok(ToolCallCount { since, due, active })
    }

    /// Counts one call within a larger job; returns the calls since the last reset, including this
    /// one. The session must exist.
    pub async fn count_tool(
        &mut self,
        session_id: &str,
        agent_id: &str,
        tool_name: &str,
        at: Timestamp,
    ) -> Result<i64, StoreError> {
        self.put_tool_use(session_id, agent_id, tool_name, at).await?;
        self.add_call(session_id, agent_id).await
    }

    async fn add_call(&mut self, session_id: &str, agent_id: &str) -> Result<i64, StoreError> {
        let since = select_value!(
            self.tx,
            r#"insert into session_counter (session_id, agent_id, total, since) values (?, ?, 1, 1)
            on conflict (session_id, agent_id) do update set total = total + 1, since = since + 1
            returning since as "since!: i64""#,
            session_id,
            agent_id
        );
        Ok(since)
    }

    async fn put_tool_use(
        &mut self,
        session_id: &str,
        agent_id: &str,
        tool_name: &str,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        change!(
            self.tx,
            "insert into tool_use (session_id, agent_id, tool_name, count, first_at, last_at)
            values (?1, ?2, ?3, 1, ?4, ?4)
            on conflict (session_id, agent_id, tool_name) do update set
                count = count + 1, last_at = max(last_at, ?4)",
            session_id,
            agent_id,
            tool_name,
            at
        );
        Ok(())
    }

    pub async fn reset(&mut self, session_id: &str, agent_id: &str) -> Result<(), StoreError> {
        change!(
            self.tx,
            "update session_counter set since = 0 where session_id = ? and agent_id = ?",
            session_id,
            agent_id
        );
        Ok(())
    }
}

impl ToolCountReads<'_> {
    /// How often each tool was called in a session, the most called first.
    pub async fn uses(self, session_id: &str) -> Result<Vec<ToolUse>, StoreError> {
        let rows = query_fields!(
            { tool_name: String, agent_id: String, count: i64, last_at: Timestamp },
            r#"select tool_name, agent_id, count, last_at as "last_at: Timestamp" from tool_use
            where session_id = ? order by agent_id, count desc, tool_name"#,
            session_id
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| ToolUse {
                tool_name: row.tool_name,
                agent_id: non_empty(row.agent_id),
                count: row.count,
                last_at: row.last_at,
            })
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;
    use crate::{Store, testing::TestStore};

    async fn count(store: &Store, call: ToolCall) -> ToolCallCount {
        let counted: Result<_, StoreError> = store
            .write(move |tx| Box::pin(async move { tx.tool_counts().count_call(&call).await }))
            .await;
        counted.unwrap()
    }

    fn call(session: &str, agent: &str, tool: Option<&str>) -> ToolCall {
        ToolCall {
            session_id: session.to_owned(),
            agent_id: agent.to_owned(),
            tool_name: tool.map(str::to_owned),
            created_by: "operator".to_owned(),
            frequency: Some(10),
        }
    }

    #[tokio::test]
    async fn concurrent_calls_get_consecutive_counts() {
        let test = TestStore::open().await;
        let store = &test.store;
        let before = store.stats().commits;
        let calls = (0..60).map(|number| async move {
            let (session, agent) = [("a", ""), ("a", "sub"), ("b", "")][number % 3];
            count(store, call(session, agent, Some("Bash"))).await
        });
        let counted = join_all(calls).await;
        let commits = store.stats().commits - before;
        assert!(commits < 60, "they shared commits: {commits}");
        for first in 0..3 {
            let own: Vec<(i64, bool)> = counted
                .iter()
                .skip(first)
                .step_by(3)
                .map(|counter| (counter.since, counter.due))
                .collect();
            let expected: Vec<(i64, bool)> =
                (0..20).map(|number| (number % 10 + 1, number % 10 == 9)).collect();
            assert_eq!(own, expected);
        }
        let tools = store.tool_counts().uses("a").await.unwrap();
        assert_eq!(tools.iter().map(|tool| tool.count).sum::<i64>(), 40);
        assert_eq!(store.sessions().get("a").await.unwrap().unwrap().tool_count, 0);
    }

    #[tokio::test]
    async fn a_reset_between_two_calls_applies_in_queue_order() {
        let test = TestStore::open().await;
        let store = &test.store;
        // Queued together, so that they share a commit.
        let reset =
            store.write(|tx| Box::pin(async move { tx.tool_counts().reset("a", "").await }));
        let (first, reset, second) = tokio::join!(
            count(store, call("a", "", None)),
            reset,
            count(store, call("a", "", None))
        );
        assert_eq!(first.since, 1);
        reset.unwrap();
        assert_eq!(second.since, 1, "counted from zero again");
    }
}
