//! Tool calls of sessions, counted for a whole commit at once.
//!
//! Every call of every agent is counted, so this is the write there is most of beside appends, and like those it needs no
//! statement of its own: the calls of a group are numbered here and written together.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use svc_model::Timestamp;

use super::{
    db::LaneWrites,
    json::{from_json, to_json},
    statement::{change, select_value},
    tx::WriteTx,
    write_job::WriterJob,
};
use crate::{StoreError, ToolCall, ToolCallCount};

/// How old the last sign of a session may be before a call renews it, in milliseconds: two indexes hang on it.
const SEEN_RESOLUTION_MS: i64 = 1000;

/// The counter of a session or of an agent in it.
#[derive(Serialize)]
struct Counter<'a> {
    session_id: &'a str,
    agent_id: &'a str,
    calls: i64,
    since: i64,
}

impl Counter<'_> {
    fn key(&self) -> (String, String) {
        (self.session_id.to_owned(), self.agent_id.to_owned())
    }
}

impl LaneWrites<'_> {
    /// Counts a tool call, and answers when that is on the disk. Of many calls at one moment exactly one is told that a
    /// check-in is due.
    pub async fn count_tool(self, call: ToolCall) -> Result<ToolCallCount, StoreError> {
        self.hand_over(|reply| WriterJob::Count { call, reply }).await
    }
}

impl WriteTx {
    /// Counts calls, in their order.
    pub(super) async fn count_tools(
        &mut self,
        calls: &[&ToolCall],
    ) -> Result<Vec<ToolCallCount>, StoreError> {
        let mut sessions: BTreeMap<&str, &str> = BTreeMap::new();
        let mut counters: Vec<Counter<'_>> = Vec::new();
        let mut slots: HashMap<(&str, &str), usize> = HashMap::new();
        let mut tools: BTreeMap<(&str, &str, &str), i64> = BTreeMap::new();
        for call in calls {
            let (session_id, agent_id) = (call.session_id.as_str(), call.agent_id.as_str());
            sessions.entry(session_id).or_insert(&call.created_by);
            slots.entry((session_id, agent_id)).or_insert_with(|| {
                counters.push(Counter { session_id, agent_id, calls: 0, since: 0 });
                counters.len() - 1
            });
            if let Some(tool) = &call.tool_name {
                *tools.entry((session_id, agent_id, tool)).or_default() += 1;
            }
        }
        self.see_sessions(sessions).await?;
        let mut all_known = true;
        for counter in &mut counters {
            match self.tally.since.get(&counter.key()) {
                Some(since) => counter.since = *since,
                None => all_known = false,
            }
        }
        if !all_known {
            for (slot, since) in self.tool_counts(&to_json(&counters)).await? {
                counters[slot].since = since;
            }
        }
        let mut counted = Vec::with_capacity(calls.len());
        for call in calls {
            let counter = &mut counters[slots[&(&*call.session_id, &*call.agent_id)]];
            counter.calls += 1;
            counter.since += 1;
            let since = counter.since;
            let due = call.frequency.is_some_and(|frequency| since >= frequency);
            if due {
                counter.since = 0;
            }
            counted.push(ToolCallCount { since, due, active: None });
        }
        self.put_tool_counts(&to_json(&counters)).await?;
        for counter in &counters {
            self.tally.since.insert(counter.key(), counter.since);
        }
        if !tools.is_empty() {
            let tools: Vec<_> = tools.into_iter().collect();
            self.put_tool_uses(&to_json(&tools), self.now).await?;
        }
        for (call, counted) in calls.iter().zip(&mut counted) {
            // A record is the session's, and not that of an agent beneath it.
            if counted.due && call.agent_id.is_empty() {
                counted.active = self.active_ghap(&call.session_id).await?.map(Box::new);
            }
        }
        Ok(counted)
    }

    /// Counts one call among other things that a job writes; answers how many there were since the last reset, this one
    /// included. The session has to be known.
    pub async fn count_tool(
        &mut self,
        session_id: &str,
        agent_id: &str,
        tool_name: &str,
        at: Timestamp,
    ) -> Result<i64, StoreError> {
        self.put_tool_uses(&to_json(&[((session_id, agent_id, tool_name), 1)]), at).await?;
        let since = select_value!(
            self,
            r#"insert into session_counter (session_id, agent_id, total, since) values (?, ?, 1, 1)
            on conflict (session_id, agent_id) do update set total = total + 1, since = since + 1
            returning since as "since!: i64""#,
            session_id,
            agent_id
        );
        Ok(since)
    }

    /// Notes that sessions were heard of, each with who makes it known.
    async fn see_sessions(&mut self, mut sessions: BTreeMap<&str, &str>) -> Result<(), StoreError> {
        let before = self.now.as_millis() - SEEN_RESOLUTION_MS;
        sessions.retain(|id, _| self.tally.seen.get(*id).is_none_or(|at| at.as_millis() <= before));
        if sessions.is_empty() {
            return Ok(());
        }
        let ids = to_json(&sessions);
        change!(
            self,
            "insert into session (session_id, source, created_by, started_at, last_seen_at)
            select key, 'startup', value, ?2, ?2 from json_each(?1) where true
            on conflict (session_id) do update set last_seen_at = ?2, ended_at = null, end_reason = null",
            ids,
            self.now
        );
        let now = self.now;
        self.tally.seen.extend(sessions.into_keys().map(|id| (id.to_owned(), now)));
        Ok(())
    }

    /// Calls since the last reset, of those counters that there are: the slot of each in the list, and how many.
    async fn tool_counts(&mut self, counters: &str) -> Result<Vec<(usize, i64)>, StoreError> {
        // One row of JSON: with each row, the writer wakes and waits anew.
        let counts = select_value!(
            self,
            r#"select json_group_array(json_array(j.key, c.since)) as "counts!: String"
            from json_each(?) j cross join session_counter c
                on c.session_id = j.value ->> 'session_id' and c.agent_id = j.value ->> 'agent_id'"#,
            counters
        );
        from_json(&counts)
    }

    async fn put_tool_counts(&mut self, counters: &str) -> Result<(), StoreError> {
        change!(
            self,
            "insert into session_counter (session_id, agent_id, total, since)
            select value ->> 'session_id', value ->> 'agent_id', value ->> 'calls', value ->> 'since'
            from json_each(?) where true
            on conflict (session_id, agent_id) do update set total = total + excluded.total, since = excluded.since",
            counters
        );
        Ok(())
    }

    async fn put_tool_uses(&mut self, tools: &str, at: Timestamp) -> Result<(), StoreError> {
        change!(
            self,
            "insert into tool_use (session_id, agent_id, tool_name, count, first_at, last_at)
            select value ->> '$[0][0]', value ->> '$[0][1]', value ->> '$[0][2]', value ->> '$[1]', ?2, ?2
            from json_each(?1) where true
            on conflict (session_id, agent_id, tool_name) do update set
                count = count + excluded.count, last_at = max(last_at, ?2)",
            tools,
            at
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use svc_model::Caller;

    use super::*;
    use crate::testing::TestStore;

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
    async fn calls_of_one_moment_are_numbered_one_by_one() {
        let test = TestStore::open().await;
        let store = &test.store;
        let before = store.stats().commits;
        let calls = (0..60).map(|number| async move {
            let (session, agent) = [("a", ""), ("a", "sub"), ("b", "")][number % 3];
            store
                .on_behalf_of(&Caller::Operator)
                .count_tool(call(session, agent, Some("Bash")))
                .await
                .unwrap()
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
        let tools = store.tool_uses("a").await.unwrap();
        assert_eq!(tools.iter().map(|tool| tool.count).sum::<i64>(), 40);
        assert_eq!(store.session("a").await.unwrap().unwrap().tool_count, 0);
    }

    #[tokio::test]
    async fn a_job_between_calls_comes_between_them() {
        let test = TestStore::open().await;
        let store = &test.store;
        // Handed over together, so that they share a commit.
        let reset = store.write(|tx| Box::pin(async move { tx.reset_tool_count("a", "").await }));
        let (first, reset, second) = tokio::join!(
            store.on_behalf_of(&Caller::Operator).count_tool(call("a", "", None)),
            reset,
            store.on_behalf_of(&Caller::Operator).count_tool(call("a", "", None))
        );
        assert_eq!(first.unwrap().since, 1);
        reset.unwrap();
        assert_eq!(second.unwrap().since, 1, "counted from zero again");
    }
}
