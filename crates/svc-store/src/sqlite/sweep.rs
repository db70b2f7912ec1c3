//! Removes expired rows, in jobs of at most [`limits::SWEPT_ROWS_PER_JOB`] rows, so that a sweep
//! does not delay other writes. Slow queries for expired rows run outside the writer. After a crash
//! the next sweep continues: each job leaves the remaining rows such that the same query finds
//! them.

use futures_util::future::BoxFuture;
use svc_model::{Timestamp, limits};

use super::{
    families::{SweepWrites, Sweeps},
    json::to_json,
    statement::{change, query_value},
    tx::WriteTx,
};
use crate::StoreError;

impl Sweeps<'_> {
    /// Removes ids of hook events older than `before`; returns the number of rows.
    pub async fn forget_hooks(self, before: Timestamp) -> Result<u64, StoreError> {
        self.in_jobs(move |tx| Box::pin(async move { tx.sweeps().forget_some_hooks(before).await }))
            .await
    }

    /// Removes `seen` rows of sessions last used before `before`; returns the number of rows.
    pub async fn forget_seen_by_silent(self, before: Timestamp) -> Result<u64, StoreError> {
        let mut removed = 0;
        loop {
            let sessions = self.silent_sessions_with_seen(before).await?;
            if sessions.is_empty() {
                return Ok(removed);
            }
            let sessions = to_json(&sessions);
            removed += self
                .store
                .write(move |tx| {
                    Box::pin(async move { tx.sweeps().forget_some_seen(&sessions, before).await })
                })
                .await?;
        }
    }

    /// Ends MCP sessions last seen before `before`; returns their number. Also removes the
    /// subscriptions of ended sessions.
    pub async fn close_idle_mcp_sessions(self, before: Timestamp) -> Result<u64, StoreError> {
        // Sessions first: a session that is used again meanwhile keeps its subscriptions.
        let closed = self
            .in_jobs(move |tx| {
                Box::pin(async move { tx.sweeps().close_some_idle_mcp_sessions(before).await })
            })
            .await?;
        loop {
            let sessions = self.closed_mcp_sessions_with_subscriptions().await?;
            if sessions.is_empty() {
                return Ok(closed);
            }
            let sessions = to_json(&sessions);
            self.store
                .write(move |tx| {
                    Box::pin(
                        async move { tx.sweeps().delete_some_mcp_subscriptions(&sessions).await },
                    )
                })
                .await?;
        }
    }

    /// Repeats a job until it changes fewer rows than its bound; returns the total number of rows.
    async fn in_jobs<F>(self, job: F) -> Result<u64, StoreError>
    where
        F: for<'tx> Fn(&'tx mut WriteTx) -> BoxFuture<'tx, Result<u64, StoreError>>
            + Copy
            + Send
            + 'static,
    {
        let mut total = 0;
        loop {
            let changed = self.store.write(job).await?;
            total += changed;
            if changed < u64::from(limits::SWEPT_ROWS_PER_JOB) {
                return Ok(total);
            }
        }
    }

    async fn silent_sessions_with_seen(self, before: Timestamp) -> Result<Vec<String>, StoreError> {
        let sessions = query_value!(
            "select session_id from session
            where last_seen_at < ? and exists (select 1 from seen where seen.session_id = session.session_id)
            limit ?",
            before,
            limits::SWEPT_ROWS_PER_JOB
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(sessions)
    }

    async fn closed_mcp_sessions_with_subscriptions(self) -> Result<Vec<String>, StoreError> {
        let sessions = query_value!(
            "select distinct session_id from mcp_subscription join mcp_session using (session_id)
            where closed_at is not null limit ?",
            limits::SWEPT_ROWS_PER_JOB
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(sessions)
    }
}

impl SweepWrites<'_> {
    async fn forget_some_hooks(&mut self, before: Timestamp) -> Result<u64, StoreError> {
        let seen = change!(
            self.tx,
            "delete from hook_seen where hook_id in (select hook_id from hook_seen where at < ? limit ?)",
            before,
            limits::SWEPT_ROWS_PER_JOB
        );
        let left = i64::from(limits::SWEPT_ROWS_PER_JOB) - i64::try_from(seen).unwrap_or(i64::MAX);
        let lost = change!(
            self.tx,
            "delete from hook_lost where hook_id in (select hook_id from hook_lost where at < ? limit ?)",
            before,
            left
        );
        Ok(seen + lost)
    }

    /// Removes `seen` rows of those of `sessions` (a JSON list) that are still silent.
    async fn forget_some_seen(
        &mut self,
        sessions: &str,
        before: Timestamp,
    ) -> Result<u64, StoreError> {
        let done = change!(
            self.tx,
            "delete from seen where (session_id, kind, item, version) in (
                select seen.session_id, kind, item, version
                from session join seen using (session_id)
                where session.session_id in (select value from json_each(?)) and last_seen_at < ? limit ?
            )",
            sessions,
            before,
            limits::SWEPT_ROWS_PER_JOB
        );
        Ok(done)
    }

    async fn close_some_idle_mcp_sessions(&mut self, before: Timestamp) -> Result<u64, StoreError> {
        let done = change!(
            self.tx,
            "update mcp_session set closed_at = ? where session_id in (
                select session_id from mcp_session where closed_at is null and last_seen_at < ? limit ?
            )",
            self.tx.now,
            before,
            limits::SWEPT_ROWS_PER_JOB
        );
        Ok(done)
    }

    async fn delete_some_mcp_subscriptions(&mut self, sessions: &str) -> Result<u64, StoreError> {
        let done = change!(
            self.tx,
            "delete from mcp_subscription where (session_id, uri) in (
                select session_id, uri from mcp_subscription
                where session_id in (select value from json_each(?)) limit ?
            )",
            sessions,
            limits::SWEPT_ROWS_PER_JOB
        );
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::super::db::Store;
    use super::{super::testing::TestStore, *};

    /// Two full jobs and one row.
    const ROWS: u64 = 2 * limits::SWEPT_ROWS_PER_JOB as u64 + 1;
    /// Rows before this time are expired.
    const BEFORE: Timestamp = Timestamp::from_millis(500);

    async fn count(test: &TestStore, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(test.store.readers.file().unwrap()).await.unwrap()
    }

    /// Runs a sweep; returns the number of jobs and the sweep's result.
    async fn jobs(
        test: &TestStore,
        sweep: impl AsyncFnOnce(&Store) -> Result<u64, StoreError>,
    ) -> (u64, u64) {
        let before = test.store.stats().jobs;
        let answer = sweep(&test.store).await.unwrap();
        (test.store.stats().jobs - before, answer)
    }

    #[tokio::test]
    async fn hook_ids_are_removed_in_bounded_jobs() {
        let test = TestStore::open().await;
        test.execute(
            "insert into hook_seen (hook_id, at)
                with recursive n(i) as (select 1 union all select i + 1 from n where i < 1001)
                select 'old' || i, 499 from n union all select 'new', 500",
        )
        .await;
        test.execute("insert into hook_lost (hook_id, at) values ('old', 499), ('new', 500)").await;
        let swept = jobs(&test, async |store| store.sweeps().forget_hooks(BEFORE).await).await;
        assert_eq!(swept, (3, ROWS + 1));
        assert_eq!(count(&test, "select count(*) from hook_seen").await, 1);
        assert_eq!(count(&test, "select count(*) from hook_lost").await, 1);
    }

    #[tokio::test]
    async fn given_items_of_silent_sessions_are_removed_in_bounded_jobs() {
        let test = TestStore::open().await;
        test.execute(
            "insert into session (session_id, created_by, source, started_at, last_seen_at)
            values ('silent', 'operator', 'startup', 1, 499), ('here', 'operator', 'startup', 1, 500)",
        )
        .await;
        test.execute(
            "insert into seen (session_id, kind, item, version, at)
                with recursive n(i) as (select 1 union all select i + 1 from n where i < 1001)
                select 'silent', 'value', i, 1, 1 from n union all select 'here', 'value', 'v', 1, 1",
        )
        .await;
        let swept =
            jobs(&test, async |store| store.sweeps().forget_seen_by_silent(BEFORE).await).await;
        assert_eq!(swept, (3, ROWS));
        assert_eq!(count(&test, "select count(*) from seen").await, 1);
        assert_eq!(test.store.seen().list("here").await.unwrap().len(), 1);
        let again =
            jobs(&test, async |store| store.sweeps().forget_seen_by_silent(BEFORE).await).await;
        assert_eq!(again, (0, 0), "nothing to write");
    }

    #[tokio::test]
    async fn idle_mcp_sessions_and_their_subscriptions_end_in_bounded_jobs() {
        let test = TestStore::open().await;
        test.execute(
            "insert into mcp_session
                (session_id, principal, transport, revision, capabilities, created_at, last_seen_at)
                with recursive n(i) as (select 1 union all select i + 1 from n where i < 1001)
                select 'idle' || i, 'operator', 'http', '2025-11-25', '{}', 1, 499 from n
                union all select 'here', 'operator', 'http', '2025-11-25', '{}', 1, 500",
        )
        .await;
        test.execute(
            "insert into mcp_subscription (session_id, uri, stream)
                with recursive n(i) as (select 1 union all select i + 1 from n where i < 1001)
                select 'idle7', i, 'team' from n union all select 'here', 'u', 'team'",
        )
        .await;
        let swept =
            jobs(&test, async |store| store.sweeps().close_idle_mcp_sessions(BEFORE).await).await;
        assert_eq!(swept, (6, ROWS));
        let open = "select count(*) from mcp_session where closed_at is null";
        assert_eq!(count(&test, open).await, 1);
        assert_eq!(count(&test, "select count(*) from mcp_subscription").await, 1);

        // After a crash between sessions and subscriptions, the next sweep removes the
        // subscriptions.
        test.execute(
            "insert into mcp_subscription (session_id, uri, stream) values ('idle1', 'u', 'team')",
        )
        .await;
        let swept =
            jobs(&test, async |store| store.sweeps().close_idle_mcp_sessions(BEFORE).await).await;
        assert_eq!(swept, (2, 0));
        assert_eq!(count(&test, "select count(*) from mcp_subscription").await, 1);
    }
}
