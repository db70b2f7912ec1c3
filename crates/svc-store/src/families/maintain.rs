//! Maintenance: checkpoints, retention, sizes, and the removal of expired rows.
//!
//! A sweep removes rows in jobs of at most [`limits::SWEPT_ROWS_PER_JOB`] rows, so that it does not
//! delay other writes. Slow queries for expired rows run outside the writer. After a crash the next
//! sweep continues: each job leaves the remaining rows such that the same query finds them.

use std::{path::Path, time::Duration};

use futures_util::future::BoxFuture;
use sqlx::{ConnectOptions as _, Connection as _};
use svc_model::{Principal, Timestamp, limits};

use super::{Sweeps, Upkeep, UpkeepWrites, streams::RETIRED};
use crate::{
    Result, ServerReport, SizeSample, StoreError, StoreSize, TrimOutcome, boxed_methods,
    columns::to_json,
    readers::{Readers, Rows as _, by_engine},
    sqlite::{
        direct_connection::number,
        file::{SHRINK, writer_options},
    },
    statement::{bind, change, column, query, value},
    tx::WriteTx,
};

/// How long a checkpoint waits for readers and writers.
const CHECKPOINT_WAIT: Duration = Duration::from_millis(100);

/// A full-text index. Each commit adds a segment to it, and SQLite merges some of them from time to
/// time.
struct TextIndex {
    pieces: &'static str,
    /// Merges a bounded part of all segments into one. A negative argument includes segments of
    /// different levels (<https://sqlite.org/fts5.html#the_merge_command>).
    merge: &'static str,
}

macro_rules! text_index {
    ($name:literal) => {
        TextIndex {
            // Steps from segment to segment, which avoids a scan of all index pages.
            pieces: concat!(
                "with recursive piece (id) as (select min(segid) from ",
                $name,
                "_idx union all select (select min(segid) from ",
                $name,
                "_idx where segid > piece.id) from piece where piece.id is not null) select count(id) from piece"
            ),
            merge: concat!("insert into ", $name, " (", $name, ", rank) values ('merge', -?)"),
        }
    };
}

const TEXT_INDEXES: [TextIndex; 2] = [text_index!("ghap_fts"), text_index!("term_trigram")];

#[boxed_methods]
impl Upkeep<'_> {
    /// Total rows of all principals and the operator, of the kinds that are bounded.
    pub async fn rows_kept_by_all(&self) -> Result<u64> {
        let rows = value!(
            self.store.pool(),
            r#"select
                (select count(*) from mcp_session where closed_at is null)
                + (select count(*) from mcp_subscription)
                + (select count(*) from peer)
                + (select count(*) from session where ended_at is null)
                + (select count(*) from task where closed_at is null)
                + (select count(*) from agent where ended_at is null)
                + (select coalesce(sum(messages), 0) from message_use where holder >= 'to:' and holder < 'to;')
                + (select coalesce(sum(records), 0) from ghap_sum where scope = '*' and subject = 'record')
                + (select coalesce(sum(memories), 0) from search_scope where name = '')
                + (select count(*) from hook_lost) + (select count(*) from broadcast) as "rows!: i64""#
        );
        Ok(u64::try_from(rows).unwrap_or(0))
    }

    /// Merges index segments, in bounded write jobs, if there are more than a few: a search reads
    /// each segment. Returns whether the merge is complete.
    pub async fn merge_indexes(&self) -> Result<bool> {
        // On PostgreSQL, search reads plain tables, which need no merge.
        let Some(file) = self.store.readers.file() else { return Ok(true) };
        let mut is_done = true;
        for index in TEXT_INDEXES {
            let mut rounds = 0..limits::INDEX_MERGES;
            while file.rows.read(move |conn| number(conn, index.pieces)).await?
                >= limits::INDEX_SEGMENTS
            {
                if rounds.next().is_none() {
                    is_done = false;
                    break;
                }
                let pages = limits::INDEX_MERGE_PAGES;
                self.store
                    .write(job!(|tx| tx.direct.change(index.merge, bind!(pages)).await))
                    .await?;
            }
        }
        Ok(is_done)
    }

    pub async fn size(&self) -> Result<StoreSize> {
        let file = match &self.store.readers {
            Readers::Sqlite(file) => file,
            #[cfg(feature = "postgres")]
            Readers::Postgres(readers) => return readers.size().await,
        };
        let version = "select max(version) from _sqlx_migrations";
        let schema = file.rows.read_here(|conn| number(conn, version))?;
        let len = |path: &Path| std::fs::metadata(path).map_or(0, |meta| meta.len());
        let mut wal = self.store.path().as_os_str().to_owned();
        wal.push("-wal");
        Ok(StoreSize { database: len(self.store.path()), wal: len(Path::new(&wal)), schema })
    }

    /// The state of the server that has the rows; `None` of a file.
    pub async fn server(&self) -> Result<Option<ServerReport>> {
        by_engine!(&self.store.readers, Readers, Ok(None), readers => {
            readers.report().await.map(Some)
        })
    }

    pub async fn used_bytes(&self) -> Result<u64> {
        let Some(file) = self.store.readers.file() else { return Ok(self.size().await?.database) };
        let used = file.rows.read_here(|conn| {
            let read = |pragma| number(conn, pragma);
            let pages = read("pragma page_count")? - read("pragma freelist_count")?;
            Ok(pages.saturating_mul(read("pragma page_size")?))
        });
        Ok(u64::try_from(used?).unwrap_or(0))
    }

    /// The newest measurement of the size at or before `until`.
    pub async fn size_at(&self, until: Timestamp) -> Result<Option<SizeSample>> {
        let row: Option<(Timestamp, i64)> = query!(one(), self.store.pool(),
            r#"select at as "at!: Timestamp", used_bytes from store_size where at <= ? order by at desc limit 1"#;
            until);
        Ok(row.map(|(at, used)| SizeSample { at, used: u64::try_from(used).unwrap_or(0) }))
    }

    /// When the size was first measured, of the measurements that are kept.
    pub async fn first_size(&self) -> Result<Option<Timestamp>> {
        Ok(value!(self.store.pool(), r#"select min(at) as "at: Timestamp" from store_size"#))
    }

    /// Closes idle connections but for one of each kind, and empties the page caches of those. Each
    /// connection has a copy of the schema, its statements, and what it read.
    pub async fn release_memory(&self) -> Result<()> {
        let Some(file) = self.store.readers.file() else { return Ok(()) };
        file.rows.release_memory()?;
        file.frames.release_memory()?;
        self.store.write(job!(|tx| tx.direct.change(SHRINK, &[]).await)).await?;
        Ok(())
    }

    /// Checkpoints the write-ahead log, on a connection of its own. SQLite does so by itself after
    /// every 1,000 pages; this call takes the rest and truncates the file. Truncation blocks the
    /// writer, so it waits at most 100 ms for readers and is otherwise left to the next call.
    pub async fn checkpoint(&self) -> Result<()> {
        if self.store.readers.file().is_none() {
            // A server does so by itself.
            return Ok(());
        }
        let statement = if self.size().await?.wal > limits::WAL_TRUNCATE_BYTES {
            "pragma wal_checkpoint(truncate)"
        } else {
            "pragma wal_checkpoint(passive)"
        };
        let options = writer_options(self.store.path())?.busy_timeout(CHECKPOINT_WAIT);
        let mut conn = options.connect().await?;
        sqlx::query(statement).execute(&mut conn).await?;
        conn.close().await?;
        Ok(())
    }

    /// Removes the oldest events up to position `until`, about `bytes` of them, within the bounds
    /// of one step ([`limits::TRIM_BATCH`], [`limits::TRIM_BYTES`]). The last event of a stream
    /// stays, because it holds the stream's head. So each stream loses only a prefix.
    pub async fn trim(&self, until: i64, bytes: u64) -> Result<TrimOutcome> {
        // Selected outside the writer: an event that is not the last of its stream never becomes
        // the last.
        let (positions, more) = self.oldest(until, bytes.min(limits::TRIM_BYTES)).await?;
        let Some(last) = positions.last().copied() else {
            return Ok(TrimOutcome { removed: 0, more: false });
        };
        let positions = serde_json::to_string(&positions).expect("numbers have a JSON form");
        let removed = self.store.write(job!(|tx| {
            let removed = change!(tx,
                "delete from event where position in (select value from json_each(?))"; positions);
            change!(tx,
                "insert into meta (name, value) values ('trimmed', ?1)
            on conflict (name) do update set value = max(value, ?1)"; last);
            Ok::<_, StoreError>(removed)
        }));
        Ok(TrimOutcome { removed: removed.await?, more })
    }

    /// Removes the events of the streams that have lost their names, and then these streams, in
    /// jobs of at most [`limits::TRIM_BATCH`] events and about [`limits::TRIM_BYTES`]. Returns the
    /// number of events.
    ///
    /// Each job removes the beginning of what a stream still has. The last event of the log stays
    /// until another follows it, because it holds the log's head: a later call removes it. Readers
    /// of the whole log are told of no gap, as the events before and after are there.
    pub async fn remove_retired(&self) -> Result<u64> {
        let mut removed = 0;
        for stream in self.retired().await? {
            while let Some(until) = self.end_of_step(stream).await? {
                let step = self.store.write(job!(|tx| Ok::<_, StoreError>(change!(tx,
                    "delete from event where stream_id = ?1 and seq <= ?2 and position < (select max(position) from event)";
                    stream, until))));
                let step = step.await?;
                removed += step;
                if step == 0 {
                    break;
                }
            }
            let end = self.store.write(job!(|tx| Ok::<_, StoreError>(change!(tx,
                "delete from stream where id = ?1 and not exists (select 1 from event where stream_id = ?1)";
                stream))));
            end.await?;
        }
        Ok(removed)
    }

    async fn retired(self) -> Result<Vec<i64>> {
        let beyond = format!("{RETIRED}\x7f");
        Ok(column!(self.store.pool(),
            r#"select id as "id!: i64" from stream where name >= ?1 and name < ?2"#; RETIRED, beyond))
    }

    /// Seq of the last event of a stream that one step removes; `None` if the stream has no event.
    async fn end_of_step(self, stream: i64) -> Result<Option<i64>> {
        let limit = i64::try_from(limits::TRIM_BATCH).unwrap_or(i64::MAX);
        let page = query!(rows(trim_step(limits::TRIM_BYTES)), self.store.pool(),
            r#"select seq as "seq!",
                octet_length(data) + octet_length(kind) + 2 * coalesce(octet_length(producer_id), 0) as "bytes!: i64"
            from event where stream_id = ?1 order by seq limit ?2"#; stream, limit);
        Ok(page.rows.last().map(|(seq, _)| *seq))
    }

    /// Positions of the oldest removable events, up to `bytes` or the bound of one step, and
    /// whether there are more.
    async fn oldest(self, until: i64, bytes: u64) -> Result<(Vec<i64>, bool)> {
        // One row more than a step removes shows whether there are more. The query needs a limit
        // because a server sends all rows.
        let rows = i64::try_from(limits::TRIM_BATCH).unwrap_or(i64::MAX).saturating_add(1);
        let page = query!(rows(trim_step(bytes)), self.store.pool(),
            r#"select position as "position!",
                octet_length(data) + octet_length(kind) + 2 * coalesce(octet_length(producer_id), 0) as "bytes!: i64"
            from event
            where position <= ?1
                and seq < (select max(last.seq) from event last where last.stream_id = event.stream_id)
            order by position limit ?2"#; until, rows);
        Ok((page.rows.into_iter().map(|(position, _)| position).collect(), page.more))
    }
}

/// Tells of one event after the other whether one step removes no more, at about `bytes`: each as
/// its position or seq, and the bytes of its texts.
fn trim_step(bytes: u64) -> impl FnMut(&(i64, i64)) -> bool {
    let (mut rows, mut taken) = (0, 0);
    move |(_, texts)| {
        let is_full = taken >= bytes || rows >= limits::TRIM_BATCH;
        rows += 1;
        taken += limits::EVENT_ROW_BYTES + u64::try_from(*texts).unwrap_or(0);
        is_full
    }
}

#[boxed_methods]
impl UpkeepWrites<'_> {
    /// How many rows a principal has. Counting ends one above `bound`. Each part reads an index
    /// only.
    pub async fn rows_kept(&mut self, principal: &Principal, bound: u64) -> Result<u64> {
        let name = principal.to_string();
        let sender = format!("by:{name}");
        let owner = match principal {
            Principal::Operator => None,
            Principal::Session(key) => Some(key.to_string()),
        };
        let most = i64::try_from(bound).unwrap_or(i64::MAX).saturating_add(1);
        let used = value!(self.tx.direct,
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
                union all select 1 from broadcast where sent_by = ?2
                limit ?4
            )) as "used!: i64""#; sender, name, owner, most);
        Ok(u64::try_from(used).unwrap_or(0))
    }

    /// Stores a measurement, and removes those before `oldest` and those of a clock that was ahead.
    pub async fn note_size(&mut self, sample: SizeSample, oldest: Timestamp) -> Result<()> {
        let used = i64::try_from(sample.used).unwrap_or(i64::MAX);
        change!(self.tx, "delete from store_size where at < ?1 or at >= ?2"; oldest, sample.at);
        change!(self.tx,
            "insert into store_size (at, used_bytes) values (?1, ?2)"; sample.at, used);
        Ok(())
    }
}

#[boxed_methods]
impl Sweeps<'_> {
    /// Removes ids of hook events older than `before`; returns the number of rows.
    pub async fn forget_hooks(&self, before: Timestamp) -> Result<u64> {
        self.in_jobs(job!(|tx| {
            let seen = change!(tx,
                "delete from hook_seen where hook_id in (select hook_id from hook_seen where at < ? limit ?)";
                before, limits::SWEPT_ROWS_PER_JOB);
            let left =
                i64::from(limits::SWEPT_ROWS_PER_JOB) - i64::try_from(seen).unwrap_or(i64::MAX);
            let lost = change!(tx,
                "delete from hook_lost where hook_id in (select hook_id from hook_lost where at < ? limit ?)";
                before, left);
            Ok(seen + lost)
        }))
        .await
    }

    /// Removes `seen` rows of sessions last used before `before`; returns the number of rows.
    pub async fn forget_seen_by_silent(&self, before: Timestamp) -> Result<u64> {
        let mut removed = 0;
        loop {
            let sessions = self.silent_sessions_with_seen(before).await?;
            if sessions.is_empty() {
                return Ok(removed);
            }
            let sessions = to_json(&sessions);
            // Only of those that are still silent.
            let forgotten = self.store.write(job!(|tx| Ok::<_, StoreError>(change!(tx,
                "delete from seen where (session_id, kind, item, version) in (
                select seen.session_id, kind, item, version
                from session join seen using (session_id)
                where session.session_id in (select value from json_each(?)) and last_seen_at < ? limit ?
            )"; sessions, before, limits::SWEPT_ROWS_PER_JOB))));
            removed += forgotten.await?;
        }
    }

    /// Ends MCP sessions last seen before `before`; returns their number. Also removes the
    /// subscriptions of ended sessions.
    pub async fn close_idle_mcp_sessions(&self, before: Timestamp) -> Result<u64> {
        // Sessions first: a session that is used again meanwhile keeps its subscriptions.
        let closed = self.in_jobs(job!(|tx| Ok(change!(tx,
            "update mcp_session set closed_at = ? where session_id in (
                select session_id from mcp_session where closed_at is null and last_seen_at < ? limit ?
            )"; tx.now, before, limits::SWEPT_ROWS_PER_JOB))));
        let closed = closed.await?;
        loop {
            let sessions = self.closed_mcp_sessions_with_subscriptions().await?;
            if sessions.is_empty() {
                return Ok(closed);
            }
            let sessions = to_json(&sessions);
            let deleted = self.store.write(job!(|tx| Ok::<_, StoreError>(change!(tx,
                "delete from mcp_subscription where (session_id, uri) in (
                select session_id, uri from mcp_subscription
                where session_id in (select value from json_each(?)) limit ?
            )"; sessions, limits::SWEPT_ROWS_PER_JOB))));
            deleted.await?;
        }
    }

    /// Repeats a job until it changes fewer rows than its bound; returns the total number of rows.
    async fn in_jobs<F>(self, job: F) -> Result<u64>
    where
        F: for<'tx> Fn(&'tx mut WriteTx) -> BoxFuture<'tx, Result<u64>> + Copy + Send + 'static,
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

    async fn silent_sessions_with_seen(self, before: Timestamp) -> Result<Vec<String>> {
        Ok(column!(self.store.pool(),
            "select session_id from session
            where last_seen_at < ? and exists (select 1 from seen where seen.session_id = session.session_id)
            limit ?"; before, limits::SWEPT_ROWS_PER_JOB))
    }

    async fn closed_mcp_sessions_with_subscriptions(self) -> Result<Vec<String>> {
        Ok(column!(self.store.pool(),
            "select distinct session_id from mcp_subscription join mcp_session using (session_id)
            where closed_at is not null limit ?"; limits::SWEPT_ROWS_PER_JOB))
    }
}

#[cfg(test)]
mod tests {
    use svc_model::Reader;

    use super::*;
    use crate::{
        SearchFilter,
        store::Store,
        testing::{
            TestStore,
            journal::{put, record},
        },
    };

    #[tokio::test]
    async fn merged_index_segments_return_the_same_results() {
        let at = TestStore::open().await;
        // The jobs of one commit leave several segments, too: a savepoint ends a segment.
        for number in 1..=40_usize {
            let ghap = record(&at, number, &format!("The tokenizer hangs on word{number}")).await;
            put(&at, ghap).await;
        }
        let found = async || {
            let index = at.store.search();
            let filter = SearchFilter::default();
            index.postings(&Reader::All, &["token", "word7"], &filter).await.unwrap()
        };
        let pieces = async |index: &TextIndex| -> i64 { at.column(index.pieces)[0] };
        let before = found().await;
        assert_eq!((before[0].1.len(), before[1].1.as_slice()), (40, [7].as_slice()));
        assert!(pieces(&TEXT_INDEXES[0]).await >= limits::INDEX_SEGMENTS);
        while !at.store.upkeep().merge_indexes().await.unwrap() {}
        for index in &TEXT_INDEXES {
            assert!(pieces(index).await < limits::INDEX_SEGMENTS, "{}", index.merge);
        }
        assert_eq!(found().await, before);
    }

    const ROWS: u64 = 2 * limits::SWEPT_ROWS_PER_JOB as u64 + 1;
    const BEFORE: Timestamp = Timestamp::from_millis(500);

    fn count(test: &TestStore, sql: &'static str) -> i64 {
        test.column(sql)[0]
    }

    /// Runs a sweep; returns the number of jobs and the sweep's result.
    async fn jobs(test: &TestStore, sweep: impl AsyncFnOnce(&Store) -> Result<u64>) -> (u64, u64) {
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
        assert_eq!(count(&test, "select count(*) from hook_seen"), 1);
        assert_eq!(count(&test, "select count(*) from hook_lost"), 1);
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
        assert_eq!(count(&test, "select count(*) from seen"), 1);
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
        assert_eq!(count(&test, open), 1);
        assert_eq!(count(&test, "select count(*) from mcp_subscription"), 1);

        // After a crash between sessions and subscriptions, the next sweep removes the
        // subscriptions.
        test.execute(
            "insert into mcp_subscription (session_id, uri, stream) values ('idle1', 'u', 'team')",
        )
        .await;
        let swept =
            jobs(&test, async |store| store.sweeps().close_idle_mcp_sessions(BEFORE).await).await;
        assert_eq!(swept, (2, 0));
        assert_eq!(count(&test, "select count(*) from mcp_subscription"), 1);
    }
}
