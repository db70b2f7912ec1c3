//! Sessions of clients: begin, end and owner, and how often they called tools.

use svc_model::{
    Ownership, PeerId, Principal, Reader, SessionFilter, Timestamp, TokenHash, backend_names,
    journal::{Session, SessionSource, ToolUse},
    json_bytes,
};

use super::{SessionReads, SessionWrites, ToolCountReads, ToolCountWrites};
use crate::{
    PageSize, Result, RowPage, SessionRestrictions, SessionStart, ToolCall, ToolCallCount, boxed,
    boxed_methods,
    columns::{Columns, DirectRow, Fault, non_empty, to_json},
    readers::Rows as _,
    statement::{change, changed, column, direct_row, fields, find_value, query, value},
};

direct_row!(Session {
    session_id,
    project: non_empty,
    client,
    source,
    started_at,
    last_seen_at,
    ended_at,
    end_reason,
    tool_calls,
    tool_count,
});
direct_row!(ToolUse { tool_name, agent_id: non_empty, count, last_at });

impl DirectRow for Ownership {
    fn read(columns: &mut Columns<'_>) -> Result<Self, Fault> {
        let created_by: String = columns.next("created_by")?;
        Ok(Self::from_row(&created_by, columns.next("project")?))
    }
}

macro_rules! owners {
    ($run:ident($($bound:expr),*), $($rest:tt)*) => {
        query!($run($($bound),*),"select created_by, project from session ", $($rest)*)
    };
}

macro_rules! sessions {
    ($run:ident($($bound:expr),*), $($rest:tt)*) => {
        query!($run($($bound),*),
            r#"select s.session_id as "session_id!", s.project, s.client, s.source as "source: SessionSource",
                s.started_at as "started_at: Timestamp", s.last_seen_at as "last_seen_at: Timestamp",
                s.ended_at as "ended_at: Timestamp", s.end_reason,
                coalesce(c.total, 0) as "tool_calls!: i64", coalesce(c.since, 0) as "tool_count!: i64"
            from session s
            left join session_counter c on c.session_id = s.session_id and c.agent_id = '' "#,
            $($rest)*
        )
    };
}

#[boxed_methods]
impl SessionWrites<'_> {
    pub async fn begin(&mut self, start: &SessionStart) -> Result<()> {
        change!(self.tx,
            "update session set created_by = ?2 where session_id = ?1 and created_by = 'removed'";
            start.session_id, start.created_by);
        change!(self.tx,
            "insert into session (session_id, project, client, source, created_by, started_at, last_seen_at)
            values (?1, coalesce(?2, ''), ?3, ?4, ?5, ?6, ?6)
            on conflict (session_id) do update set
                project = coalesce(?2, project), client = coalesce(?3, client), source = ?4, last_seen_at = ?6,
                ended_at = null, end_reason = null";
            start.session_id, start.project, start.client, start.source, start.created_by,
            self.tx.now);
        Ok(())
    }

    /// Creates the session if it is missing, and records that it is alive. Reopens an ended
    /// session. A session that has no project gets this one.
    pub async fn touch(
        &mut self,
        session_id: &str,
        created_by: &str,
        project: Option<&str>,
    ) -> Result<()> {
        change!(self.tx,
            "insert into session (session_id, project, source, created_by, started_at, last_seen_at)
            values (?1, coalesce(?4, ''), 'startup', ?2, ?3, ?3)
            on conflict (session_id) do update set
                project = coalesce(nullif(project, ''), ?4, ''), last_seen_at = ?3, ended_at = null,
                end_reason = null";
            session_id, created_by, self.tx.now, project);
        Ok(())
    }

    pub async fn get(&mut self, session_id: &str) -> Result<Option<Session>> {
        Ok(sessions!(one(), self.tx.direct,
            "where s.session_id = ? and s.created_by <> 'removed'"; session_id))
    }

    pub async fn owner(&mut self, session_id: &str) -> Result<Option<Ownership>> {
        Ok(owners!(one(), self.tx.direct, "where session_id = ?"; session_id))
    }

    /// Restrictions on who may use a session, besides its owner.
    pub async fn lock(&mut self, session_id: &str) -> Result<SessionRestrictions> {
        let row = fields!(one(), self.tx.direct,
            { secret: Option<Vec<u8>>, ended_at: Option<Timestamp> },
            r#"select secret, ended_at as "ended_at: Timestamp" from session where session_id = ?"#;
            session_id);
        Ok(row.map_or_else(SessionRestrictions::default, |row| SessionRestrictions {
            secret: row.secret.and_then(|hash| hash.try_into().ok()),
            ended_at: row.ended_at,
        }))
    }

    pub async fn put_secret(&mut self, session_id: &str, secret: &TokenHash) -> Result<()> {
        let secret = secret.as_slice();
        change!(self.tx, "update session set secret = ? where session_id = ?"; secret, session_id);
        Ok(())
    }

    /// Removes the secrets of those sessions of `ids` that ended before `before`.
    pub async fn forget_secrets(&mut self, ids: &[String], before: Timestamp) -> Result<()> {
        let ids = to_json(&ids);
        change!(self.tx,
            "update session set secret = null
            where session_id in (select value from json_each(?)) and ended_at < ?"; ids, before);
        Ok(())
    }

    /// The open sessions of this owner, the latest seen first, at most `limit`.
    pub async fn open_of(&mut self, owner: &Principal, limit: u32) -> Result<Vec<String>> {
        let owner = owner.to_string();
        Ok(column!(self.tx.direct,
            r#"select session_id as "session_id!" from session where created_by = ? and ended_at is null
            order by last_seen_at desc, session_id desc limit ?"#; owner, limit))
    }

    /// Gives a session to another owner, and those of its peers that the former owner had, whose
    /// key is `from` (`None`: the operator). Returns these peers. The caller then sets the
    /// visibility of their streams and of the session's
    /// ([`set_visibility`](super::StreamWrites::set_visibility)).
    pub async fn adopt(
        &mut self,
        session_id: &str,
        from: Option<&str>,
        to: &str,
    ) -> Result<Vec<PeerId>> {
        let owner = Principal::Session(to.into()).to_string();
        let done = change!(self.tx,
            "update session set created_by = ? where session_id = ?"; owner, session_id);
        changed(done, "session", session_id)?;
        Ok(column!(self.tx.direct,
            r#"update peer set owner = ?1 where session_id = ?2 and session_id <> '' and owner is ?3
            returning peer_id as "peer_id!: PeerId""#; to, session_id, from))
    }

    pub async fn end(&mut self, session_id: &str, reason: Option<&str>) -> Result<()> {
        let done = change!(self.tx,
            "update session set ended_at = ?, end_reason = ?, last_seen_at = ? where session_id = ?";
            self.tx.now, reason, self.tx.now, session_id);
        changed(done, "session", session_id)
    }

    /// Sessions of this owner, open and ended, at most `limit`.
    pub async fn all_of(&mut self, owner: &Principal, limit: u32) -> Result<Vec<String>> {
        let owner = owner.to_string();
        Ok(column!(self.tx.direct,
            r#"select session_id as "session_id!" from session where created_by = ? limit ?"#; owner, limit))
    }

    /// Removes a session that has ended, with its counters, its prompts, and what it was given.
    ///
    /// Records, observed outcomes and memories stay: they are the team's history. Records and
    /// outcomes name their session, so a session that has any keeps its row, without an owner and
    /// hidden from the reads of sessions. The operator who begins a session with that id gets the
    /// row; a client that does has a session of its own.
    pub async fn remove(&mut self, session_id: &str) -> Result<()> {
        change!(self.tx,
            "delete from request where session_key = ? and agent_id is null"; session_id);
        change!(self.tx, "delete from seen where session_id = ?"; session_id);
        change!(self.tx, "delete from session_counter where session_id = ?"; session_id);
        change!(self.tx, "delete from tool_use where session_id = ?"; session_id);
        let done = change!(self.tx,
            "delete from session where session_id = ?1
                and not exists (select 1 from ghap g where g.session_id = ?1)
                and not exists (select 1 from outcome o where o.session_id = ?1)"; session_id);
        if done == 0 {
            change!(self.tx,
                "update session set created_by = 'removed', secret = null, ended_at = coalesce(ended_at, ?2) \
                where session_id = ?1"; session_id, self.tx.now);
        }
        Ok(())
    }

    /// Replaces the times that this job wrote by the event's time, for an event that was reported
    /// late because the daemon was down.
    pub async fn date(&mut self, session_id: &str, at: Timestamp, is_new: bool) -> Result<()> {
        let done = change!(self.tx,
            "update session set last_seen_at = ?2, started_at = iif(?3, ?2, started_at),
                ended_at = iif(ended_at is null, null, ?2)
            where session_id = ?1"; session_id, at, is_new);
        changed(done, "session", session_id)
    }
}

#[boxed_methods]
impl SessionReads<'_> {
    pub async fn get(&self, session_id: &str) -> Result<Option<Session>> {
        Ok(sessions!(one(), self.store.near(),
            "where s.session_id = ? and s.created_by <> 'removed'"; session_id))
    }

    pub async fn owner(&self, session_id: &str) -> Result<Option<Ownership>> {
        Ok(owners!(one(), self.store.near(), "where session_id = ?"; session_id))
    }

    pub async fn latest_of(&self, owner: &Principal) -> Result<Option<String>> {
        let owner = owner.to_string();
        Ok(find_value!(self.store.pool(),
            r#"select session_id as "session_id!" from session where created_by = ? and ended_at is null
            order by last_seen_at desc, started_at desc, session_id desc limit 1"#; owner))
    }

    /// Sessions with a secret that ended before `before`, at most `limit`.
    pub async fn to_forget(&self, before: Timestamp, limit: u32) -> Result<Vec<String>> {
        Ok(column!(self.store.pool(),
            r#"select session_id as "session_id!" from session
            where secret is not null and ended_at < ? order by ended_at limit ?"#; before, limit))
    }

    /// Sessions that the reader may read, the latest seen first.
    pub async fn list(
        &self,
        reader: &Reader,
        filter: &SessionFilter,
        before: Option<(Timestamp, &str)>,
        size: PageSize,
    ) -> Result<RowPage<Session>> {
        let limit = size.limit();
        let (at, id) = before.map_or((i64::MAX, ""), |(at, id)| (at.as_millis(), id));
        // A client has either of its names.
        let (client, other) = filter.client.as_deref().map(backend_names).unzip();
        // Each condition has an index in the order of the list.
        macro_rules! page {
            ($first:literal) => {
                sessions!(page(size, json_bytes), self.store.pool(),
                    $first + "and (?1 is null or s.project = ?1) and (?2 is null or s.client in (?2, ?9))
                and (?3 is null or (s.ended_at is null) = ?3)
                and (s.last_seen_at, s.session_id) < (?4, ?5)
                and (?7 is null or s.project = ?8 or s.reader_key = ?7) and s.created_by <> 'removed'
            order by s.last_seen_at desc, s.session_id desc limit ?6";
                    filter.project, client, filter.open, at, id, limit, reader.key(),
                    reader.project(), other)
            };
        }
        Ok(if filter.open == Some(true) {
            page!("where s.ended_at is null ")
        } else if filter.project.is_some() {
            page!("where s.project = ?1 ")
        } else {
            page!("where true ")
        })
    }

    /// Sessions that the reader may read and whose ids begin with `prefix`, open ones first, at
    /// most `limit`.
    pub async fn with_prefix(
        &self,
        reader: &Reader,
        prefix: &str,
        limit: u32,
    ) -> Result<Vec<Session>> {
        Ok(sessions!(all(), self.store.pool(),
            "where s.session_id >= ?1 and substr(s.session_id, 1, length(?1)) = ?1
                and (?3 is null or s.project = ?4 or s.reader_key = ?3) and s.created_by <> 'removed'
            order by s.ended_at is not null, s.last_seen_at desc limit ?2";
            prefix, limit, reader.key(), reader.project()))
    }
}

#[boxed_methods]
impl ToolCountWrites<'_> {
    /// Counts a tool call of a session that exists. Of concurrent calls, exactly one is told that a
    /// check-in is due.
    pub async fn count_call(&mut self, call: &ToolCall) -> Result<ToolCallCount> {
        let (session_id, agent_id) = (call.session_id.as_str(), call.agent_id.as_str());
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
    ) -> Result<i64> {
        self.put_tool_use(session_id, agent_id, tool_name, at).await?;
        self.add_call(session_id, agent_id).await
    }

    async fn add_call(&mut self, session_id: &str, agent_id: &str) -> Result<i64> {
        Ok(value!(self.tx.direct,
            r#"insert into session_counter (session_id, agent_id, total, since) values (?, ?, 1, 1)
            on conflict (session_id, agent_id) do update set total = total + 1, since = since + 1
            returning since as "since!: i64""#; session_id, agent_id))
    }

    async fn put_tool_use(
        &mut self,
        session_id: &str,
        agent_id: &str,
        tool_name: &str,
        at: Timestamp,
    ) -> Result<()> {
        change!(self.tx,
            "insert into tool_use (session_id, agent_id, tool_name, count, first_at, last_at)
            values (?1, ?2, ?3, 1, ?4, ?4)
            on conflict (session_id, agent_id, tool_name) do update set
                count = count + 1, last_at = max(last_at, ?4)";
            session_id, agent_id, tool_name, at);
        Ok(())
    }

    pub async fn reset(&mut self, session_id: &str, agent_id: &str) -> Result<()> {
        change!(self.tx,
            "update session_counter set since = 0 where session_id = ? and agent_id = ?";
            session_id, agent_id);
        Ok(())
    }
}

impl ToolCountReads<'_> {
    /// How often each tool was called in a session, by sub-agent, the most called first.
    #[boxed]
    pub async fn uses(&self, session_id: &str) -> Result<Vec<ToolUse>> {
        Ok(query!(all(), self.store.pool(),
            r#"select tool_name, agent_id, count, last_at as "last_at: Timestamp" from tool_use
            where session_id = ? order by agent_id, count desc, tool_name"#; session_id))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;
    use crate::{Store, testing::TestStore};

    async fn count(store: &Store, call: ToolCall) -> ToolCallCount {
        let counted: Result<_> = store
            .write(job!(|tx| {
                tx.sessions().touch(&call.session_id, "operator", None).await?;
                tx.tool_counts().count_call(&call).await
            }))
            .await;
        counted.unwrap()
    }

    fn call(session: &str, agent: &str, tool: Option<&str>) -> ToolCall {
        ToolCall {
            session_id: session.to_owned(),
            agent_id: agent.to_owned(),
            tool_name: tool.map(str::to_owned),
            frequency: Some(10),
        }
    }

    #[tokio::test]
    async fn touch_gives_a_project_to_a_session_without_one() {
        let test = TestStore::open().await;
        let store = &test.store;
        for (session, projects, expected) in [
            ("a", &[Some("/p")][..], Some("/p")),
            ("b", &[None, Some("/p"), Some("/q"), None], Some("/p")),
            ("c", &[None, None], None),
        ] {
            for &project in projects {
                let touched: Result<()> = store
                    .write(job!(|tx| tx.sessions().touch(session, "operator", project).await))
                    .await;
                touched.unwrap();
            }
            let row = store.sessions().get(session).await.unwrap().unwrap();
            assert_eq!(row.project.as_deref(), expected, "{session}");
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
        let reset = store.write(job!(|tx| tx.tool_counts().reset("a", "").await));
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
