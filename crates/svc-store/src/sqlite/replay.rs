//! Reads the log event by event. `frames` reads it as text for a socket.

use std::sync::Arc;

use futures_util::{Stream, TryStreamExt as _};
use svc_model::{Event, Seq, StreamName, Timestamp};

use super::{
    families::EventReads,
    statement::{direct_row, query_fields, query_rows, query_value},
};
use crate::{FeedScope, LogPage, PageSize, StoreError};

/// Streams that a feed reads one by one, for a page.
const FEW_STREAMS: i64 = 32;

direct_row! {
    /// An event of a feed.
    struct FeedRow {
        position: i64,
        name: String,
        seq: Seq,
        kind: String,
        data: String,
        at: Timestamp,
    }
}

impl From<FeedRow> for Event {
    fn from(row: FeedRow) -> Self {
        Self {
            position: row.position,
            stream: StreamName::from(Arc::from(row.name)),
            seq: row.seq,
            kind: row.kind.into(),
            data: row.data.into(),
            at: row.at,
        }
    }
}

async fn page_of(
    take: PageSize,
    mut rows: impl Stream<Item = Result<Event, sqlx::Error>> + Unpin,
) -> Result<LogPage, StoreError> {
    let (mut page, mut bytes) = (LogPage::default(), 0);
    while let Some(event) = rows.try_next().await? {
        bytes += event.data.len();
        let full = page.events.len() >= take.rows as usize || bytes > take.bytes;
        if full && !page.events.is_empty() {
            page.more = true;
            break;
        }
        page.events.push(event);
    }
    Ok(page)
}

impl EventReads<'_> {
    /// The last position whose event is older than `before`; `None` if there is none.
    pub async fn position_before(self, before: Timestamp) -> Result<Option<i64>, StoreError> {
        // Positions follow time, except after a clock was set back. A scan from the oldest event
        // suffices: it stops at the first event that is not older, and retention keeps it short.
        let first_young = query_value!(
            r#"select position as "position!" from event where at >= ? order by position limit 1"#,
            before
        )
        .fetch_optional(&self.store.readers)
        .await?;
        let (_, head) = self.bounds().await?;
        let last_old = first_young.map_or(head, |young| young - 1);
        Ok((last_old > 0).then_some(last_old))
    }

    /// When the oldest event was appended; `None` without events.
    pub async fn first_at(self) -> Result<Option<Timestamp>, StoreError> {
        let first =
            query_value!(r#"select at as "at: Timestamp" from event order by position limit 1"#);
        Ok(first.fetch_optional(&self.store.readers).await?)
    }

    /// The highest position that retention removed, and the highest position of the log.
    pub async fn bounds(self) -> Result<(i64, i64), StoreError> {
        let row = query_fields!(
            { trimmed: Option<i64>, head: Option<i64> },
            r#"select
                (select value from meta where name = 'trimmed') as "trimmed: i64",
                (select max(position) from event) as "head: i64""#
        )
        .fetch_one(&self.store.readers)
        .await?;
        Ok((row.trimmed.unwrap_or(0), row.head.unwrap_or(0)))
    }

    /// Events of one stream after `after`, in order. `kind` filters.
    pub async fn of_stream(
        self,
        stream: i64,
        name: &StreamName,
        after: Seq,
        kind: Option<&str>,
        take: PageSize,
    ) -> Result<LogPage, StoreError> {
        let limit = take.limit();
        let rows = query_fields!(
            { position: i64, seq: i64, kind: String, data: String, at: Timestamp },
            r#"select position as "position!", seq, kind, data, at as "at: Timestamp" from event
            where stream_id = ?1 and seq > ?2 and (?3 is null or kind = ?3)
            order by seq limit ?4"#,
            stream,
            after,
            kind,
            limit
        )
        .fetch(&self.store.readers)
        .map_ok(|row| Event {
            position: row.position,
            stream: name.clone(),
            seq: row.seq,
            kind: row.kind.into(),
            data: row.data.into(),
            at: row.at,
        });
        page_of(take, rows).await
    }

    /// Events of one kind in a stream before the seq `before`, the latest first. The cost depends
    /// on the rows read, not on the length of the stream.
    pub async fn before(
        self,
        stream: i64,
        name: &StreamName,
        before: Seq,
        kind: &str,
        take: PageSize,
    ) -> Result<LogPage, StoreError> {
        let limit = take.limit();
        let rows = query_fields!(
            { position: i64, seq: i64, kind: String, data: String, at: Timestamp },
            r#"select position as "position!", seq, kind, data, at as "at: Timestamp" from event
            where stream_id = ? and seq < ? and kind = ?
            order by seq desc limit ?"#,
            stream,
            before,
            kind,
            limit
        )
        .fetch(&self.store.readers)
        .map_ok(|row| Event {
            position: row.position,
            stream: name.clone(),
            seq: row.seq,
            kind: row.kind.into(),
            data: row.data.into(),
            at: row.at,
        });
        page_of(take, rows).await
    }

    /// Events of several streams after the position `after` and up to `until`, in order. `kind`
    /// filters.
    pub async fn of_feed(
        self,
        scope: &FeedScope,
        after: i64,
        until: i64,
        kind: Option<&str>,
        take: PageSize,
    ) -> Result<LogPage, StoreError> {
        if kind.is_none() && self.is_of_few_streams(scope).await? {
            return self.of_few_streams(scope, after, until, take).await;
        }
        let (lowest, beyond, limit) = (scope.lowest(), scope.beyond(), take.limit());
        let reader = scope.reader();
        let (level, owner, project) = (reader.level(), reader.owner(), reader.project());
        macro_rules! page {
            ($events:literal, $first:literal) => {
                query_rows!(
                    FeedRow,
                    r#"select e.position as "position!", s.name, e.seq, e.kind, e.data, e.at as "at: Timestamp"
            from "#
                        + $events
                        + " cross join stream s on s.id = e.stream_id
            where "
                        + $first
                        + " and e.position > ?1 and s.name >= ?2 and s.name < ?3 and (?4 is null or e.kind = ?4)
                and e.position <= ?6
                and (?7 = 2 or s.visibility = 'team' or s.owner = ?8 or s.runner = ?8 or s.project = ?9
                    or ?7 = 1 and coalesce(s.owner, s.project) is not null)
            order by e.position limit ?5",
                    after,
                    lowest,
                    beyond,
                    kind,
                    limit,
                    until,
                    level,
                    owner,
                    project
                )
                .fetch(&self.store.readers)
            };
        }
        // Frames are most of the log, so they have no index of their kind.
        let rows = match kind {
            None | Some("frame") => page!("event e", "true"),
            // Named, as statistics of the table may make a range of positions look as good.
            Some(_) => {
                page!("event e indexed by event_kind", "e.kind = ?4 and e.kind <> 'frame'")
            }
        };
        page_of(take, rows.map_ok(Event::from)).await
    }
}

impl EventReads<'_> {
    /// Whether so few streams are in a scope that a page is read stream by stream.
    async fn is_of_few_streams(self, scope: &FeedScope) -> Result<bool, StoreError> {
        let (lowest, beyond) = (scope.lowest(), scope.beyond());
        if lowest.is_empty() {
            return Ok(false);
        }
        let count = query_value!(
            r#"select count(*) as "count!: i64"
            from (select 1 from stream where name >= ?1 and name < ?2 limit ?3)"#,
            lowest,
            beyond,
            FEW_STREAMS + 1
        )
        .fetch_one(&self.store.readers)
        .await?;
        Ok(count <= FEW_STREAMS)
    }

    /// Events of few streams, whatever the other streams have between them: the place of the
    /// position `after` in each stream is found by halving, since both grow together and seqs have
    /// no holes.
    async fn of_few_streams(
        self,
        scope: &FeedScope,
        after: i64,
        until: i64,
        take: PageSize,
    ) -> Result<LogPage, StoreError> {
        let (lowest, beyond, limit) = (scope.lowest(), scope.beyond(), take.limit());
        let reader = scope.reader();
        let (level, owner, project) = (reader.level(), reader.owner(), reader.project());
        let rows = query_rows!(
            FeedRow,
            r#"with recursive place (id, name, low, high) as (
                select s.id, s.name, (select coalesce(min(seq), 1) - 1 from event where stream_id = s.id),
                    (select coalesce(max(seq), 0) from event where stream_id = s.id)
                from stream s
                where s.name >= ?2 and s.name < ?3
                    and (?6 = 2 or s.visibility = 'team' or s.owner = ?7 or s.runner = ?7 or s.project = ?8
                        or ?6 = 1 and coalesce(s.owner, s.project) is not null)
                union all
                select id, name,
                    iif((select position from event where stream_id = id and seq = (low + high + 1) / 2) <= ?1,
                        (low + high + 1) / 2, low),
                    iif((select position from event where stream_id = id and seq = (low + high + 1) / 2) <= ?1,
                        high, (low + high + 1) / 2 - 1)
                from place where low < high
            )
            select e.position as "position!: i64", p.name as "name!: String", e.seq as "seq!: i64",
                e.kind as "kind!: String", e.data as "data!: String", e.at as "at!: Timestamp"
            from place p
            cross join event e on e.stream_id = p.id and e.seq > p.low and e.seq <= p.low + ?5
            where p.low = p.high and e.position <= ?4
            order by e.position limit ?5"#,
            after,
            lowest,
            beyond,
            until,
            limit,
            level,
            owner,
            project
        )
        .fetch(&self.store.readers);
        page_of(take, rows.map_ok(Event::from)).await
    }
}

#[cfg(test)]
mod tests {
    use crate::StreamView;
    use svc_model::{NewEvent, Ownership, Principal, Reader, StreamVisibility};

    use super::*;
    use crate::testing::{TestStore, append, event};

    /// The SQL conditions of visibility agree with `Reader::may_read`.
    #[tokio::test]
    async fn sql_visibility_agrees_with_the_reader_rules() {
        let test = TestStore::open().await;
        let shared = |owner: &str, project: &str| {
            StreamVisibility::shared(&Ownership::from_row(owner, project.to_owned()))
        };
        let streams: Vec<(StreamName, StreamVisibility)> = [
            StreamVisibility::Team,
            StreamVisibility::for_daemon(),
            shared("session:a", "/p"),
            shared("session:a", ""),
            shared("session:b", "/q"),
            StreamVisibility::shared(&Ownership {
                runner: Some(Principal::Session("d".into())),
                ..Ownership::from_row("session:b", "/q".to_owned())
            }),
            shared("nobody that we know", ""),
            StreamVisibility::private(&Principal::Operator),
            StreamVisibility::private(&Principal::Session("a".into())),
            StreamVisibility::Answers,
        ]
        .into_iter()
        // Two digits each, so that names sort like numbers.
        .zip(10..)
        .map(|(visibility, number)| (StreamName::new("x", number), visibility))
        .collect();
        for (name, visibility) in streams.clone() {
            let done: Result<(), StoreError> = test
                .store
                .write(move |tx| {
                    Box::pin(async move {
                        // Opened for the operator only; then the visibility is set.
                        tx.streams().open(&name, &StreamVisibility::Answers).await?;
                        tx.streams().set_visibility(&name, &visibility).await?;
                        tx.append(&name, vec![event("a", "{}")]).await?;
                        Ok(())
                    })
                })
                .await;
            done.unwrap();
        }
        let session = |key: &str, project: Option<&str>| Reader::Session {
            key: key.into(),
            owner: format!("session:{key}").into(),
            project: project.map(Arc::from),
        };
        for reader in [
            Reader::All,
            Reader::AllButCallResults,
            session("a", Some("/p")),
            session("b", Some("/p")),
            session("c", Some("/q")),
            session("d", None),
        ] {
            let mut expected = Vec::new();
            for (name, visibility) in &streams {
                let stored = test.store.streams().view(name).await.unwrap().unwrap().visibility;
                assert_eq!(stored, *visibility);
                if reader.may_read(&stored) {
                    expected.push(name.as_str().to_owned());
                }
            }
            let scope = FeedScope::prefix("x/", reader.clone());
            let size = PageSize::rows(100);
            let page = test.store.events().of_feed(&scope, 0, i64::MAX, None, size).await.unwrap();
            let fed = page.events.iter().map(|event| event.stream.as_str().to_owned());
            assert_eq!(fed.collect::<Vec<_>>(), expected, "{reader:?}");
            let head = i64::try_from(streams.len()).unwrap();
            let frames = test.store.frames().of_feed(&scope, 0, head).await.unwrap().unwrap();
            let frames = std::str::from_utf8(&frames.bytes).unwrap();
            assert_eq!(frames.matches("event: a").count(), expected.len(), "{reader:?}: {frames}");
            let named = test.store.streams().names(&reader, "x/", 100).await.unwrap();
            assert_eq!(named, expected, "{reader:?}");
            let mut latest = test
                .store
                .streams()
                .latest(&reader, i64::MAX, PageSize::rows(100))
                .await
                .unwrap()
                .rows;
            latest.reverse();
            let latest: Vec<String> = latest.into_iter().map(|(_, name)| name).collect();
            assert_eq!(latest, expected, "{reader:?}");
            let names: Vec<String> =
                streams.iter().map(|(name, _)| name.as_str().to_owned()).collect();
            let moved = test.store.streams().moved(&reader, &names, 0).await.unwrap();
            let moved: Vec<String> = moved.into_iter().map(|(name, _)| name).collect();
            assert_eq!(moved, expected, "{reader:?}");
        }
    }

    #[tokio::test]
    async fn trim_removes_a_prefix_and_keeps_the_last_event() {
        let test = TestStore::open().await;
        let store = &test.store;
        let (one, two) = (StreamName::new("task", "one"), StreamName::new("task", "two"));
        append(store, &two, vec![event("frame", "{}")]).await;
        for _ in 0..20 {
            append(store, &one, vec![event("frame", "{}")]).await;
        }
        assert_eq!(store.upkeep().trim(11, u64::MAX).await.unwrap().removed, 10);
        let bounds = |view: StreamView| (view.floor, view.head);
        assert_eq!(bounds(store.streams().view(&one).await.unwrap().unwrap()), (10, 20));
        assert_eq!(bounds(store.streams().view(&two).await.unwrap().unwrap()), (0, 1));
        assert_eq!(store.events().bounds().await.unwrap(), (11, 21));
        let appended = store.append(two.clone(), vec![event("frame", "{}")]).await.unwrap();
        assert_eq!(appended.last, 2, "a seq is never used twice");
        let feed = FeedScope::prefix("", Reader::All);
        let frames = store.frames().of_feed(&feed, 0, 21).await.unwrap().unwrap();
        assert!(frames.bytes.starts_with(b"id: 1\n"));
    }

    /// The feed of few streams, which is read stream by stream, has what the whole log has of them.
    #[tokio::test]
    async fn a_feed_of_few_streams_agrees_with_the_log() {
        let test = TestStore::open().await;
        for number in 0..200_u32 {
            let name = StreamName::new(["a", "b", "ab"][number as usize % 3], number % 7);
            append(&test.store, &name, vec![event("frame", "{}")]).await;
        }
        test.store.upkeep().trim(50, u64::MAX).await.unwrap();
        let all = FeedScope::prefix("", Reader::All);
        let page = async |scope: &FeedScope, after, rows| {
            let (events, size) = (test.store.events(), PageSize::rows(rows));
            events.of_feed(scope, after, i64::MAX, None, size).await.unwrap()
        };
        let log = page(&all, 0, 1_000).await.events;
        for prefix in ["a", "a/", "a/3", "b", "c"] {
            let scope = FeedScope::prefix(prefix, Reader::All);
            for after in [0, 7, 49, 50, 51, 120, 199, 200, 900] {
                let expected: Vec<&Event> = log
                    .iter()
                    .filter(|event| {
                        event.position > after && event.stream.as_str().starts_with(prefix)
                    })
                    .collect();
                let found = page(&scope, after, 5).await;
                assert_eq!(
                    found.events.iter().collect::<Vec<_>>(),
                    expected[..expected.len().min(5)]
                );
                assert_eq!(found.more, expected.len() > 5, "{prefix} after {after}");
            }
        }
    }

    #[tokio::test]
    async fn events_of_a_stream_can_be_read_by_kind() {
        let test = TestStore::open().await;
        let name = StreamName::fixed("team");
        let kind: Arc<str> = "peer.status".into();
        let events = (0..3).map(|_| NewEvent { kind: Arc::clone(&kind), ..event("", "{}") });
        append(&test.store, &name, events.collect()).await;
        append(&test.store, &name, vec![event("other", "{}")]).await;
        let view = test.store.streams().view(&name).await.unwrap().unwrap();
        let page = test
            .store
            .events()
            .of_stream(view.id, &name, 0, Some("peer.status"), PageSize::rows(10))
            .await
            .unwrap()
            .events;
        assert_eq!(page.len(), 3);
    }
}
