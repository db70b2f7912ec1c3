//! Maintenance of the file: checkpoints, retention, sizes.

use std::{path::Path, time::Duration};

use futures_util::TryStreamExt as _;
use sqlx::{ConnectOptions as _, Connection as _};
use svc_model::{Principal, Timestamp, limits};

use super::{
    connect::{SHRINK, writer_options},
    families::{Upkeep, UpkeepWrites},
    read_query::Readers,
    statement::{bind, change, query_fields, query_value, select_value},
};
use crate::{ServerReport, SizeSample, StoreError, StoreSize, TrimOutcome};

/// How long a checkpoint waits for readers and writers.
const CHECKPOINT_WAIT: Duration = Duration::from_millis(100);

/// A full-text index. Each commit adds a segment to it, and SQLite merges some of them from time to
/// time.
struct TextIndex {
    /// Counts the segments.
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

impl Upkeep<'_> {
    /// Total rows of all principals and the operator, of the kinds that are bounded.
    pub async fn rows_kept_by_all(self) -> Result<u64, StoreError> {
        let rows = query_value!(
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
                + (select count(*) from hook_lost) as "rows!: i64""#
        )
        .fetch_one(&self.store.readers)
        .await?;
        Ok(u64::try_from(rows).unwrap_or(0))
    }

    /// Merges index segments, in bounded write jobs, if there are more than a few: a search reads
    /// each segment. Returns whether the merge is complete.
    pub async fn merge_indexes(self) -> Result<bool, StoreError> {
        // Another engine's search has plain tables.
        let Some(pool) = self.store.readers.file() else { return Ok(true) };
        let mut is_done = true;
        for index in TEXT_INDEXES {
            let mut rounds = 0..limits::INDEX_MERGES;
            while sqlx::query_scalar::<_, i64>(index.pieces).fetch_one(pool).await?
                >= limits::INDEX_SEGMENTS
            {
                if rounds.next().is_none() {
                    is_done = false;
                    break;
                }
                self.store
                    .write(move |tx| Box::pin(async move { tx.upkeep().merge(index.merge).await }))
                    .await?;
            }
        }
        Ok(is_done)
    }

    pub async fn size(self) -> Result<StoreSize, StoreError> {
        let pool = match &self.store.readers {
            Readers::Sqlite(pool) => pool,
            #[cfg(feature = "postgres")]
            Readers::Postgres(readers) => return readers.size().await,
        };
        let schema = sqlx::query_scalar::<_, i64>("select max(version) from _sqlx_migrations")
            .fetch_one(pool)
            .await?;
        let len = |path: &Path| std::fs::metadata(path).map_or(0, |meta| meta.len());
        let mut wal = self.store.path().as_os_str().to_owned();
        wal.push("-wal");
        Ok(StoreSize { database: len(self.store.path()), wal: len(Path::new(&wal)), schema })
    }

    /// The state of the server that has the rows; `None` of a file.
    pub async fn server(self) -> Result<Option<ServerReport>, StoreError> {
        match &self.store.readers {
            Readers::Sqlite(_) => Ok(None),
            #[cfg(feature = "postgres")]
            Readers::Postgres(readers) => readers.report().await.map(Some),
        }
    }

    /// Bytes of the database pages that are in use.
    pub async fn used_bytes(self) -> Result<u64, StoreError> {
        let Some(pool) = self.store.readers.file() else { return Ok(self.size().await?.database) };
        let mut conn = pool.acquire().await?;
        let mut read = async |pragma: &'static str| {
            sqlx::query_scalar::<_, i64>(pragma).fetch_one(&mut *conn).await
        };
        let pages = read("pragma page_count").await? - read("pragma freelist_count").await?;
        let size = read("pragma page_size").await?;
        Ok(u64::try_from(pages.saturating_mul(size)).unwrap_or(0))
    }

    /// The newest measurement of the size until then.
    pub async fn size_at(self, until: Timestamp) -> Result<Option<SizeSample>, StoreError> {
        let row = query_fields!(
            { at: Timestamp, used_bytes: i64 },
            r#"select at as "at!: Timestamp", used_bytes from store_size where at <= ? order by at desc limit 1"#,
            until
        )
        .fetch_optional(&self.store.readers)
        .await?;
        Ok(row
            .map(|row| SizeSample { at: row.at, used: u64::try_from(row.used_bytes).unwrap_or(0) }))
    }

    /// When the size was first measured, of the measurements that are kept.
    pub async fn first_size(self) -> Result<Option<Timestamp>, StoreError> {
        let first = query_value!(r#"select min(at) as "at: Timestamp" from store_size"#);
        Ok(first.fetch_one(&self.store.readers).await?)
    }

    /// Closes idle connections but for one of each kind, and empties the page caches of those. Each
    /// connection has a copy of the schema, its statements, and what it read.
    pub async fn release_memory(self) -> Result<(), StoreError> {
        for readers in [&self.store.readers, &self.store.page_readers] {
            let Some(pool) = readers.file() else { return Ok(()) };
            // All at once: one that is given back would be the next.
            let mut idle = Vec::new();
            while let Some(conn) = pool.try_acquire() {
                idle.push(conn);
            }
            for conn in idle.split_off(idle.len().min(1)) {
                conn.close().await?;
            }
            for conn in &mut idle {
                sqlx::query(SHRINK).execute(&mut **conn).await?;
            }
        }
        self.store.frame_source.release_memory()?;
        self.store.row_readers.release_memory()?;
        self.store.write(|tx| Box::pin(async move { tx.upkeep().release_memory().await })).await
    }

    /// Checkpoints the write-ahead log, on a connection of its own. SQLite does so by itself after
    /// every 1,000 pages; this call takes the rest and truncates the file. Truncation blocks the
    /// writer, so it waits at most 100 ms for readers and is otherwise left to the next call.
    pub async fn checkpoint(self) -> Result<(), StoreError> {
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
    pub async fn trim(self, until: i64, bytes: u64) -> Result<TrimOutcome, StoreError> {
        // Selected outside the writer: an event that is not the last of its stream never becomes
        // the last.
        let (positions, more) = self.oldest(until, bytes.min(limits::TRIM_BYTES)).await?;
        let Some(last) = positions.last().copied() else {
            return Ok(TrimOutcome { removed: 0, more: false });
        };
        let positions = serde_json::to_string(&positions).expect("numbers have a JSON form");
        let removed = self
            .store
            .write(move |tx| {
                Box::pin(async move { tx.upkeep().remove_events(&positions, last).await })
            })
            .await;
        removed.map(|removed| TrimOutcome { removed, more })
    }

    /// Positions of the oldest removable events, up to `bytes` or the bound of one step, and
    /// whether there are more.
    async fn oldest(self, until: i64, bytes: u64) -> Result<(Vec<i64>, bool), StoreError> {
        // One more than a step removes shows that there are more. A server sends all rows.
        let rows = i64::try_from(limits::TRIM_BATCH).unwrap_or(i64::MAX).saturating_add(1);
        let mut rows = query_fields!(
            { position: i64, bytes: i64 },
            r#"select position as "position!",
                octet_length(data) + octet_length(kind) + 2 * coalesce(octet_length(producer_id), 0) as "bytes!: i64"
            from event
            where position <= ?1
                and seq < (select max(last.seq) from event last where last.stream_id = event.stream_id)
            order by position limit ?2"#,
            until,
            rows
        )
        .fetch(&self.store.readers);
        let (mut positions, mut taken) = (Vec::new(), 0);
        while let Some(row) = rows.try_next().await? {
            if taken >= bytes || positions.len() >= limits::TRIM_BATCH {
                return Ok((positions, true));
            }
            positions.push(row.position);
            taken += limits::EVENT_ROW_BYTES + u64::try_from(row.bytes).unwrap_or(0);
        }
        Ok((positions, false))
    }
}

impl UpkeepWrites<'_> {
    /// How many rows a principal has. Counting ends one above `bound`. Each part reads an index
    /// only.
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
            self.tx,
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

    async fn release_memory(&mut self) -> Result<(), StoreError> {
        self.tx.direct.change(SHRINK, &[]).await?;
        Ok(())
    }

    /// Keeps a measurement, and forgets those of before `oldest` and of a clock that was ahead.
    pub async fn note_size(
        &mut self,
        sample: SizeSample,
        oldest: Timestamp,
    ) -> Result<(), StoreError> {
        let used = i64::try_from(sample.used).unwrap_or(i64::MAX);
        change!(self.tx, "delete from store_size where at < ?1 or at >= ?2", oldest, sample.at);
        change!(
            self.tx,
            "insert into store_size (at, used_bytes) values (?1, ?2)",
            sample.at,
            used
        );
        Ok(())
    }

    async fn merge(&mut self, statement: &'static str) -> Result<(), StoreError> {
        self.tx.direct.change(statement, bind!(limits::INDEX_MERGE_PAGES)).await?;
        Ok(())
    }

    /// Removes the events at these positions (a JSON array). `last` is the highest position.
    async fn remove_events(&mut self, positions: &str, last: i64) -> Result<u64, StoreError> {
        let removed = change!(
            self.tx,
            "delete from event where position in (select value from json_each(?))",
            positions
        );
        change!(
            self.tx,
            "insert into meta (name, value) values ('trimmed', ?1)
            on conflict (name) do update set value = max(value, ?1)",
            last
        );
        Ok(removed)
    }
}

#[cfg(test)]
mod tests {
    use svc_model::Reader;

    use super::{
        super::testing::{TestStore, journal::record},
        *,
    };
    use crate::SearchFilter;

    #[tokio::test]
    async fn merged_index_segments_return_the_same_results() {
        let at = TestStore::open().await;
        // The jobs of one commit leave several segments, too: a savepoint ends a segment.
        for number in 1..=40_usize {
            let ghap = record(&at, number, &format!("The tokenizer hangs on word{number}")).await;
            let done: Result<(), StoreError> = at
                .store
                .write(move |tx| Box::pin(async move { tx.ghaps().insert(&ghap).await }))
                .await;
            done.unwrap();
        }
        let found = async || {
            let mut index = at.store.search().index().await.unwrap();
            let filter = SearchFilter::default();
            index.postings(&Reader::All, &["token", "word7"], &filter).await.unwrap()
        };
        let pieces = async |index: &TextIndex| -> i64 {
            sqlx::query_scalar(index.pieces)
                .fetch_one(at.store.readers.file().unwrap())
                .await
                .unwrap()
        };
        let before = found().await;
        assert_eq!((before[0].1.len(), before[1].1.as_slice()), (40, [7].as_slice()));
        assert!(pieces(&TEXT_INDEXES[0]).await >= limits::INDEX_SEGMENTS);
        while !at.store.upkeep().merge_indexes().await.unwrap() {}
        for index in &TEXT_INDEXES {
            assert!(pieces(index).await < limits::INDEX_SEGMENTS, "{}", index.merge);
        }
        assert_eq!(found().await, before);
    }
}
