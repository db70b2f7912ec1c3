//! Pages of a replay: rows copied from SQLite's cursor directly into the text for the socket.
//!
//! sqlx passes each row from its own thread to the caller, which costs more than reading and
//! framing the row. These statements therefore use rusqlite, in jobs on the runtime's blocking
//! threads. A job reads a bounded number of pages: no reader holds a thread, a connection or a
//! snapshot while its client takes a page. The statements are not checked at compile time; a test
//! below prepares each against the migrated schema.

use bytes::Bytes;
use rusqlite::{Rows, fallible_streaming_iterator::FallibleStreamingIterator as _, params};
use svc_model::{Framing, Seq, StreamName, Timestamp, limits};
use svc_wire::sse::{self, EventParts};
use tokio::sync::mpsc;

use super::FrameReads;
use crate::{FeedScope, FramePage, Result, readers::Readers};

macro_rules! stream_rows {
    () => {
        "select position, seq, kind, data, at from event
    where stream_id = ?1 and seq > ?2 order by seq"
    };
}

macro_rules! feed_rows {
    () => {
        "select e.position, e.seq, e.kind, e.data, e.at, s.name
    from event e
    cross join stream s on s.id = e.stream_id
    where e.position > ?1 and e.position <= ?2 and s.name >= ?3 and s.name < ?4
        and (?5 = 2 or s.visibility = 'team' or s.owner = ?6 or s.runner = ?6 or s.project = ?7
            or ?5 = 1 and coalesce(s.owner, s.project) is not null)
    order by e.position"
    };
}

pub(crate) const STREAM_ROWS: &str = stream_rows!();
pub(crate) const FEED_ROWS: &str = feed_rows!();
/// The end of a gap that retention left.
pub(crate) const NEXT_POSITION: &str = "select min(position) from event where position > ?1";

impl FrameReads<'_> {
    /// Sends the framed pages of one stream that follow `after`: one if there is any event, then as
    /// many as the channel has capacity for. In a file, one statement reads up to
    /// [`limits::REPLAY_RUN`] of them, so a page costs no switch between threads. Waits for no
    /// receiver while it holds a connection.
    pub async fn of_stream(
        self,
        stream: i64,
        name: &StreamName,
        after: Seq,
        framing: Framing,
        pages: mpsc::Sender<FramePage>,
    ) -> Result<()> {
        let name = name.clone();
        let readers = match &self.store.readers {
            Readers::Sqlite(file) => &file.frames,
            #[cfg(feature = "postgres")]
            Readers::Postgres(readers) => {
                let read = server::of_stream(readers, stream, &name, after, framing, pages);
                return Box::pin(read).await;
            }
        };
        let run = readers.read(move |conn| {
            let mut statement = conn.prepare_cached(STREAM_ROWS)?;
            let mut rows = statement.query(params![stream, after])?;
            rows.advance()?;
            let mut cursor = after;
            for _ in 0..limits::REPLAY_RUN {
                if rows.get().is_none() {
                    break;
                }
                // An error means that the channel is full, or that the receiver is gone.
                let Ok(permit) = pages.try_reserve() else { break };
                let mut page = PageText::new(framing, cursor);
                page.fill(&mut rows, Some(name.as_str()))?;
                cursor = page.cursor;
                permit.send(page.finish());
            }
            Ok(())
        });
        run.await
    }

    /// The next framed page of several streams after the position `after` and up to `head`. Reads a
    /// bounded number of positions, so a page may be empty and still advance the cursor. `None` if
    /// `after` is the head.
    pub async fn of_feed(
        self,
        scope: &FeedScope,
        after: i64,
        head: i64,
    ) -> Result<Option<FramePage>> {
        if after >= head {
            return Ok(None);
        }
        let until = head.min(after.saturating_add(limits::SCAN_POSITIONS));
        let readers = match &self.store.readers {
            Readers::Sqlite(file) => &file.frames,
            #[cfg(feature = "postgres")]
            Readers::Postgres(readers) => {
                let page = Box::pin(server::of_feed(readers, scope, after, until, head)).await?;
                return Ok(Some(FramePage { more: page.cursor < head, ..page.finish() }));
            }
        };
        let scope = scope.clone();
        let page = readers.read(move |conn| {
            let mut page = PageText::new(Framing::ItemByPosition, after);
            let reader = scope.reader();
            let (lowest, beyond) = (scope.lowest(), scope.beyond());
            let (level, owner, project) = (reader.level(), reader.owner(), reader.project());
            let mut rows = conn.prepare_cached(FEED_ROWS)?;
            let values = params![after, until, lowest, beyond, level, owner, project];
            let mut rows = rows.query(values)?;
            rows.advance()?;
            page.fill(&mut rows, None)?;
            if !page.is_full {
                // The whole window was read. If it ends in a gap, the cursor skips the gap.
                let mut next = conn.prepare_cached(NEXT_POSITION)?;
                let next: Option<i64> = next.query_row([until], |row| row.get(0))?;
                page.cursor = next.map_or(head, |next| (next - 1).min(head));
            }
            Ok(page)
        });
        let page = page.await?;
        Ok(Some(FramePage { more: page.cursor < head, ..page.finish() }))
    }
}

/// A page that reaches this size reserves the memory of a full page at once, instead of growing
/// step by step.
const SMALL_PAGE_BYTES: usize = 2 * 1024;

struct PageText {
    text: String,
    framing: Framing,
    cursor: i64,
    is_full: bool,
}

impl PageText {
    fn new(framing: Framing, cursor: i64) -> Self {
        Self { text: String::new(), framing, cursor, is_full: false }
    }

    /// Appends rows from the current one on until the page is full. The current row is then the
    /// first of the next page. A row that is larger than a page has a page of its own. `stream` is
    /// the name if one stream is read; else each row has its stream's name.
    fn fill(&mut self, rows: &mut Rows<'_>, stream: Option<&str>) -> rusqlite::Result<()> {
        while let Some(row) = rows.get() {
            let event = EventParts {
                position: row.get(0)?,
                seq: row.get(1)?,
                kind: row.get_ref(2)?.as_str()?,
                data: row.get_ref(3)?.as_str()?,
                at: Timestamp::from_millis(row.get(4)?),
                stream: match stream {
                    Some(name) => name,
                    None => row.get_ref(5)?.as_str()?,
                },
            };
            if !self.push(event) {
                return Ok(());
            }
            rows.advance()?;
        }
        Ok(())
    }

    fn push(&mut self, event: EventParts<'_>) -> bool {
        let len = self.text.len() + event.data.len();
        if len > limits::REPLAY_BYTES && !self.text.is_empty() {
            self.is_full = true;
            return false;
        }
        // Each new subscriber reads a page, mostly of a few rows: a full page of memory for each
        // subscriber would add up.
        if (SMALL_PAGE_BYTES..limits::REPLAY_BYTES).contains(&len) {
            self.text.reserve(limits::REPLAY_BYTES - self.text.len());
        }
        self.cursor = event.id(self.framing);
        sse::push_frame(&mut self.text, event, self.framing);
        true
    }

    fn finish(self) -> FramePage {
        FramePage { bytes: Bytes::from(self.text), cursor: self.cursor, more: self.is_full }
    }
}

/// Pages of a replay from PostgreSQL. A server sends all rows of a query, wanted or not, so each
/// query asks for some. The rows of the next one are read while the receiver takes these pages.
#[cfg(feature = "postgres")]
mod server {
    use std::{mem, time::Duration};

    use sqlx::postgres::PgRow;
    use tokio::time::timeout;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;
    use crate::{
        StoreError,
        columns::{Parameter, read_row},
        postgres::{PgReaders, event_parts},
        statement::bind,
    };

    const STREAM_ROWS: &str = concat!(stream_rows!(), " limit ?3");
    const FEED_ROWS: &str = concat!(feed_rows!(), " limit ?8");

    /// Rows of the first query, and of the largest.
    const ROWS: [i64; 2] = [32, 8192];
    /// Bytes of data after which a query's further rows are not taken.
    const BATCH_BYTES: usize = 1024 * 1024;
    /// How long pages that were read wait for their receiver.
    const RECEIVER: Duration = Duration::from_millis(200);

    struct Batch {
        /// Full pages, without the last one.
        pages: Vec<FramePage>,
        /// The last page. The next query begins after its cursor.
        open: PageText,
        /// Rows of the next query. `None`: no row follows.
        next: Option<i64>,
    }

    /// What ends a batch, and the name of the stream if its rows do not have it.
    struct Bounds<'a> {
        rows: i64,
        pages: usize,
        stream: Option<&'a str>,
    }

    impl Batch {
        /// Reads rows into `open` and into pages that follow it.
        async fn read(
            readers: &PgReaders,
            sql: &'static str,
            values: &[Parameter<'_>],
            bounds: Bounds<'_>,
            open: PageText,
        ) -> Result<Self> {
            let (mut rows, mut bytes) = (0, 0);
            let mut batch = Self { pages: Vec::new(), open, next: None };
            let mut is_all = true;
            let mut take = |row: &PgRow| {
                let event = event_parts(row, bounds.stream)?;
                if !batch.open.push(event) {
                    if bytes >= BATCH_BYTES || batch.pages.len() + 1 >= bounds.pages {
                        is_all = false;
                        return Ok(false);
                    }
                    let next = PageText::new(batch.open.framing, batch.open.cursor);
                    batch.pages.push(mem::replace(&mut batch.open, next).finish());
                    batch.open.push(event);
                }
                rows += 1;
                bytes += event.data.len();
                Ok(true)
            };
            readers.each(sql, values, &mut take).await?;
            if !is_all || rows >= bounds.rows {
                // The next rows are about as large as these.
                let fitting = BATCH_BYTES.saturating_mul(usize::try_from(rows).unwrap_or(1));
                let fitting = i64::try_from(fitting / bytes.max(1)).unwrap_or(i64::MAX);
                batch.next = Some(fitting.clamp(1, ROWS[1]).min(2 * bounds.rows));
            }
            Ok(batch)
        }

        async fn of_stream(
            readers: PgReaders,
            stream: i64,
            name: StreamName,
            rows: i64,
            open: PageText,
        ) -> Result<Self> {
            let cursor = open.cursor;
            let bounds = Bounds { rows, pages: usize::MAX, stream: Some(name.as_str()) };
            Self::read(&readers, STREAM_ROWS, bind!(stream, cursor, rows), bounds, open).await
        }
    }

    pub(super) async fn of_stream(
        readers: &PgReaders,
        stream: i64,
        name: &StreamName,
        after: Seq,
        framing: Framing,
        pages: mpsc::Sender<FramePage>,
    ) -> Result<()> {
        let read = |rows, open| Batch::of_stream(readers.clone(), stream, name.clone(), rows, open);
        let mut batch = read(ROWS[0], PageText::new(framing, after)).await?;
        loop {
            let (following, last) = match batch.next {
                Some(rows) => {
                    let read = tokio::spawn(read(rows, batch.open));
                    (Some(AbortOnDropHandle::new(read)), None)
                }
                None => (None, (!batch.open.text.is_empty()).then(|| batch.open.finish())),
            };
            for page in batch.pages.into_iter().chain(last) {
                // Otherwise the receiver is gone or slow, and the pages that were read for it are
                // dropped.
                let Ok(Ok(permit)) = timeout(RECEIVER, pages.reserve()).await else {
                    return Ok(());
                };
                permit.send(page);
            }
            let Some(following) = following else { return Ok(()) };
            batch = following.await.map_err(|_| StoreError::Stopped)??;
        }
    }

    pub(super) async fn of_feed(
        readers: &PgReaders,
        scope: &FeedScope,
        after: i64,
        until: i64,
        head: i64,
    ) -> Result<PageText> {
        let reader = scope.reader();
        let (lowest, beyond) = (scope.lowest(), scope.beyond());
        let (level, owner, project) = (reader.level(), reader.owner(), reader.project());
        let (mut page, mut following) =
            (PageText::new(Framing::ItemByPosition, after), Some(ROWS[0]));
        while let Some(rows) = following {
            let at = page.cursor;
            let values = bind!(at, until, lowest, beyond, level, owner, project, rows);
            let bounds = Bounds { rows, pages: 1, stream: None };
            let batch = Batch::read(readers, FEED_ROWS, values, bounds, page).await?;
            page = batch.open;
            following = batch.next.filter(|_| !page.is_full);
        }
        if !page.is_full {
            // The whole window was read. If it ends in a gap, the cursor skips the gap.
            let mut next = None;
            let mut take = |row: &PgRow| {
                (next,) = read_row(row)?;
                Ok(true)
            };
            readers.each(NEXT_POSITION, bind!(until), &mut take).await?;
            page.cursor = next.map_or(head, |next: i64| (next - 1).min(head));
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "postgres")]
    use std::sync::Arc;

    use svc_model::{Event, ManualClock, Reader};

    use super::*;
    use crate::{
        PageSize, StoreError,
        sqlite::direct_connection::open,
        store::Store,
        testing::{TestStore, append, event},
    };

    async fn replayed(store: &Store, name: &StreamName, after: Seq, framing: Framing) -> String {
        let view = store.streams().view(name).await.unwrap().unwrap();
        let (mut text, mut cursor) = (String::new(), after);
        loop {
            // Runs of one page, three and five.
            let capacity = 1 + 2 * (text.len() % 3);
            let (sender, mut pages) = mpsc::channel(capacity);
            store.frames().of_stream(view.id, name, cursor, framing, sender).await.unwrap();
            if pages.is_empty() {
                return text;
            }
            while let Some(page) = pages.recv().await {
                assert!(page.cursor > cursor, "a page moves the cursor");
                assert_eq!(
                    page.more,
                    page.cursor < view.head,
                    "a page knows whether it is the last"
                );
                check_size(&page);
                cursor = page.cursor;
                text.push_str(std::str::from_utf8(&page.bytes).unwrap());
            }
        }
    }

    async fn fed(store: &Store, prefix: &str, after: i64) -> String {
        let (_, head) = store.events().bounds().await.unwrap();
        let scope = FeedScope::prefix(prefix, Reader::All);
        let (mut text, mut cursor) = (String::new(), after);
        while let Some(page) = store.frames().of_feed(&scope, cursor, head).await.unwrap() {
            assert!(page.cursor > cursor && page.cursor <= head, "a page moves the cursor");
            check_size(&page);
            cursor = page.cursor;
            text.push_str(std::str::from_utf8(&page.bytes).unwrap());
        }
        assert_eq!(cursor, head);
        text
    }

    /// A page exceeds the bound only if it has a single event.
    fn check_size(page: &FramePage) {
        let frames = page.bytes.windows(5).filter(|bytes| bytes == b"\nid: ").count();
        let rest = 512;
        assert!(page.bytes.len() <= limits::REPLAY_BYTES + rest || frames == 0, "{frames}");
    }

    fn framed<'a>(events: impl IntoIterator<Item = &'a Event>, framing: Framing) -> String {
        let mut text = String::new();
        for event in events {
            sse::push_frame(&mut text, event, framing);
        }
        text
    }

    /// The joined pages contain every event once, in order, for small and large rows and at the
    /// page boundaries.
    #[tokio::test]
    async fn joined_pages_contain_every_event_once() {
        let test = TestStore::open().await;
        check_joined_pages(&test.store, &test.clock).await;
    }

    #[cfg(feature = "postgres")]
    #[tokio::test]
    async fn joined_pages_of_a_server_contain_every_event_once() {
        if !crate::postgres::testing::is_installed() {
            return;
        }
        let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_000)));
        let (store, writer) = crate::testing::open_on_server(Arc::clone(&clock)).await;
        check_joined_pages(&store, &clock).await;
        writer.close(store).await.unwrap();
    }

    async fn check_joined_pages(store: &Store, clock: &ManualClock) {
        let (one, two) = (StreamName::new("task", "one"), StreamName::new("peer", "two"));
        let data = |n: usize| match n {
            // Larger than a page: the first, two adjacent ones, and the last.
            0 | 300 | 301 | 302 | 699 => {
                format!(r#"{{"n":{n},"big":"{}"}}"#, "x".repeat(limits::REPLAY_BYTES))
            }
            100..110 => format!(r#"{{"n":{n},"big":"{}"}}"#, "y".repeat(50_000)),
            _ => format!(r#"{{"n":{n},"text":"ünï \u2028 \"q\" 😀{}"}}"#, "z".repeat(n)),
        };
        for n in 0..700 {
            clock.set(Timestamp::from_millis(1_795_181_760_000 + n * 7));
            let events = vec![event("frame", &data(usize::try_from(n).unwrap()))];
            append(store, if n % 3 == 0 { &two } else { &one }, events).await;
        }
        let everything = FeedScope::prefix("", Reader::All);
        let size = PageSize { rows: 1000, bytes: usize::MAX };
        let all = store.events().of_feed(&everything, 0, i64::MAX, None, size).await.unwrap().rows;
        assert_eq!(all.len(), 700);
        assert!(all.iter().zip(1..).all(|(event, position)| event.position == position));
        for name in [&one, &two] {
            for framing in [Framing::Data, Framing::ItemBySeq] {
                for after in [0, 1, 100, 400] {
                    let expected =
                        all.iter().filter(|event| event.stream == *name && event.seq > after);
                    let expected = framed(expected, framing);
                    assert!(replayed(store, name, after, framing).await == expected, "{name}");
                }
            }
        }
        for (prefix, name) in [("", None), ("task/", Some(&one)), ("peer", Some(&two))] {
            for after in [0, 3, 299, 300, 699] {
                let expected = all.iter().filter(|event| {
                    event.position > after && name.is_none_or(|name| event.stream == *name)
                });
                let expected = framed(expected, Framing::ItemByPosition);
                assert!(fed(store, prefix, after).await == expected, "{prefix} after {after}");
            }
        }
        assert_eq!(fed(store, "nobody/", 0).await, "");
    }

    /// A feed skips a gap that retention left, however wide, without a page for each window.
    #[tokio::test]
    async fn a_feed_skips_a_gap_in_one_page() {
        let test = TestStore::open().await;
        let (store, name) = (&test.store, StreamName::new("task", "one"));
        append(store, &StreamName::fixed("team"), vec![event("a", "{}")]).await;
        let hole = limits::SCAN_POSITIONS * 2 + 10;
        for _ in 0..hole / 500 {
            append(store, &name, (0..500).map(|_| event("a", "{}")).collect()).await;
        }
        let (_, head) = store.events().bounds().await.unwrap();
        while store.upkeep().trim(head - 1, u64::MAX).await.unwrap().removed > 0 {}
        let everything = FeedScope::prefix("", Reader::All);
        let first = store.frames().of_feed(&everything, 0, head).await.unwrap().unwrap();
        assert_eq!((first.cursor, first.more), (head - 1, true));
        let last = store.frames().of_feed(&everything, first.cursor, head).await.unwrap().unwrap();
        assert_eq!((last.cursor, last.more), (head, false));
        assert!(last.bytes.starts_with(format!("id: {head}\n").as_bytes()));
    }

    /// Replaces the check at compile time: prepares each statement against the current schema.
    #[tokio::test]
    async fn replay_statements_prepare_against_the_schema() {
        let test = TestStore::open().await;
        let conn = open(test.store.path()).unwrap();
        for (sql, columns) in [
            (STREAM_ROWS, ["position", "seq", "kind", "data", "at"].as_slice()),
            (FEED_ROWS, &["position", "seq", "kind", "data", "at", "name"]),
            (NEXT_POSITION, &["min(position)"]),
        ] {
            assert_eq!(conn.prepare(sql).unwrap().column_names(), columns, "{sql}");
        }
        let plan = |sql: &str| {
            let mut plan = conn.prepare(&format!("explain query plan {sql}")).unwrap();
            let (mut rows, mut steps) = (plan.raw_query(), Vec::new());
            while let Some(row) = rows.next().unwrap() {
                steps.push(row.get::<_, String>(3).unwrap());
            }
            steps.join("; ")
        };
        // A page begins at its rows by an index, without a sort.
        assert!(plan(STREAM_ROWS).contains("(stream_id=? AND seq>?)"), "{}", plan(STREAM_ROWS));
        assert!(plan(FEED_ROWS).contains("(rowid>? AND rowid<?)"), "{}", plan(FEED_ROWS));
        assert!(!plan(STREAM_ROWS).contains("TEMP B-TREE"), "{}", plan(STREAM_ROWS));
        assert!(!plan(FEED_ROWS).contains("TEMP B-TREE"), "{}", plan(FEED_ROWS));
        let error = conn.execute("delete from event", []).unwrap_err();
        assert!(matches!(StoreError::from(error), StoreError::ReadOnly(_)), "it only reads");
    }

    /// A receiver that does not take its pages blocks no thread, and a dropped receiver ends the
    /// read.
    #[tokio::test]
    async fn a_replay_ends_when_its_receiver_is_full_or_dropped() {
        let test = TestStore::open().await;
        let (store, name) = (&test.store, StreamName::new("task", "one"));
        let data = format!(r#"{{"big":"{}"}}"#, "x".repeat(limits::REPLAY_BYTES));
        let count = limits::REPLAY_RUN + 2;
        append(store, &name, (0..count).map(|_| event("a", &data)).collect()).await;
        for (capacity, read) in [(1, 1), (2, 2), (count, limits::REPLAY_RUN)] {
            let (sender, pages) = mpsc::channel(capacity);
            store.frames().of_stream(1, &name, 0, Framing::Data, sender).await.unwrap();
            assert_eq!(pages.len(), read, "{capacity}");
        }
        let (sender, pages) = mpsc::channel(1);
        drop(pages);
        store.frames().of_stream(1, &name, 0, Framing::Data, sender).await.unwrap();
    }

    #[tokio::test]
    async fn page_reads_fail_after_the_store_closes() {
        let test = TestStore::open().await;
        let name = StreamName::new("task", "one");
        append(&test.store, &name, vec![event("a", "{}")]).await;
        let store = test.store.clone();
        let (sender, mut pages) = mpsc::channel(2);
        store.frames().of_stream(1, &name, 0, Framing::Data, sender.clone()).await.unwrap();
        assert!(pages.try_recv().is_ok());
        let readers = &store.readers.file().unwrap().frames;
        readers.close().await;
        let after = store.frames().of_stream(1, &name, 0, Framing::Data, sender).await;
        assert!(matches!(after, Err(StoreError::Stopped)), "{after:?}");
        assert!(readers.idle().is_empty(), "no connection holds the file open");
    }
}
