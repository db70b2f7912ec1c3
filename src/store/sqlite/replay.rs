//! Reading the log: pages of events, and pages of frames that SQLite itself writes.
//!
//! A replay's page is one row whose text is ready for the socket. To fetch the rows and frame them here would take two
//! to three times as long, as handing over each row is the cost. The text is the same as that of
//! [`crate::domain::sse`]; a test below holds the two together.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _};

use super::{db::Store, streams::visibility_of};
use crate::{
    domain::{Event, Framing, Seq, StreamName, Timestamp, limits},
    store::{FeedScope, FramePage, LogPage, PageSize, StoreError, StreamView, render},
};

/// Takes rows until the page is full.
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

impl Store {
    /// Looks at a stream; `None` if there is none of that name.
    pub async fn view(&self, name: &StreamName) -> Result<Option<StreamView>, StoreError> {
        let text = name.as_str();
        let row = sqlx::query!(
            r#"select id, closed_at, visibility, owner, runner, project,
                (select coalesce(min(seq), 1) - 1 from event where stream_id = stream.id) as "floor!: i64",
                (select coalesce(max(seq), 0) from event where stream_id = stream.id) as "head!: i64"
            from stream where name = ?"#,
            text
        )
        .fetch_optional(&self.readers)
        .await?;
        Ok(row.map(|row| StreamView {
            id: row.id,
            floor: row.floor,
            head: row.head,
            closed: row.closed_at.is_some(),
            visibility: visibility_of(&row.visibility, row.owner, row.runner, row.project),
        }))
    }

    /// Highest position that retention removed, and highest position there is.
    pub async fn log_bounds(&self) -> Result<(i64, i64), StoreError> {
        let row = sqlx::query!(
            r#"select
                (select value from meta where name = 'trimmed') as "trimmed: i64",
                (select max(position) from event) as "head: i64""#
        )
        .fetch_one(&self.readers)
        .await?;
        Ok((row.trimmed.unwrap_or(0), row.head.unwrap_or(0)))
    }

    /// Events of one stream after `after`, of `kind` if one is given, in order.
    pub async fn events(
        &self,
        stream: i64,
        name: &StreamName,
        after: Seq,
        kind: Option<&str>,
        take: PageSize,
    ) -> Result<LogPage, StoreError> {
        let limit = take.limit();
        let rows = sqlx::query!(
            r#"select position as "position!", seq, kind, data, at as "at: Timestamp" from event
            where stream_id = ?1 and seq > ?2 and (?3 is null or kind = ?3)
            order by seq limit ?4"#,
            stream,
            after,
            kind,
            limit
        )
        .fetch(&self.readers)
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

    /// Events of several streams after the position `after` and up to `until`, of `kind` if one is given, in order.
    pub async fn feed_events(
        &self,
        scope: &FeedScope,
        after: i64,
        until: i64,
        kind: Option<&str>,
        take: PageSize,
    ) -> Result<LogPage, StoreError> {
        let (lowest, beyond, limit) = (scope.lowest(), scope.beyond(), take.limit());
        let reader = scope.reader();
        let (level, owner, project) = (reader.level(), reader.owner(), reader.project());
        let rows = sqlx::query!(
            r#"select e.position as "position!", s.name, e.seq, e.kind, e.data, e.at as "at: Timestamp"
            from event e
            cross join stream s on s.id = e.stream_id
            where e.position > ?1 and s.name >= ?2 and s.name < ?3 and (?4 is null or e.kind = ?4)
                and e.position <= ?6
                and (?7 = 3 or s.visibility = 'team' or s.owner = ?8 or s.runner = ?8 or s.project = ?9
                    or ?7 = 2 and coalesce(s.owner, s.project) is not null or ?7 = 1 and s.project is not null)
            order by e.position limit ?5"#,
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
        .fetch(&self.readers)
        .map_ok(|row| Event {
            position: row.position,
            stream: StreamName::from(Arc::from(row.name)),
            seq: row.seq,
            kind: row.kind.into(),
            data: row.data.into(),
            at: row.at,
        });
        page_of(take, rows).await
    }

    /// The next page of one stream after `after`, framed. `None` if there is nothing after it.
    pub async fn frames(
        &self,
        stream: i64,
        name: &StreamName,
        after: Seq,
        framing: Framing,
    ) -> Result<Option<FramePage>, StoreError> {
        let page = match framing {
            Framing::Data => self.data_page(stream, after).await?,
            Framing::ItemBySeq | Framing::ItemByPosition => {
                self.item_page(stream, name, after).await?
            }
        };
        if let Some(frames) = page {
            return Ok(Some(frames));
        }
        // Nothing, or a row so large that it goes alone.
        let events = self.events(stream, name, after, None, PageSize::rows(1)).await?.events;
        Ok(events.last().map(|event| FramePage {
            bytes: render(&events, framing),
            cursor: event.seq,
            more: true,
        }))
    }

    // The limits stand in the text: for a bound one the statement would be prepared anew. A blob is handed over as it
    // is, where a text is copied once more to be terminated and checked.
    async fn data_page(&self, stream: i64, after: Seq) -> Result<Option<FramePage>, StoreError> {
        let row = sqlx::query!(
            r#"select max(seq) as "cursor: i64", count(*) as "rows!: i64", cast(group_concat(
                'id: ' || seq || char(10) || 'event: ' || kind || char(10) || 'data: ' || data,
                char(10, 10)) || char(10, 10) as blob) as "text: Vec<u8>",
                (select min(seq) from event where stream_id = ?1 and seq > ?2 and length(data) > 8192)
                as "large: Seq"
            from (
                select seq, kind, data from event
                where stream_id = ?1 and seq > ?2 and seq < coalesce(
                    (select min(seq) from event where stream_id = ?1 and seq > ?2 and length(data) > 8192),
                    9223372036854775807)
                order by seq limit 256
            )"#,
            stream,
            after
        )
        .fetch_one(&self.readers)
        .await?;
        Ok(page(row.cursor, row.text, row.rows, row.large))
    }

    async fn item_page(
        &self,
        stream: i64,
        name: &StreamName,
        after: Seq,
    ) -> Result<Option<FramePage>, StoreError> {
        let name = name.as_str();
        let row = sqlx::query!(
            r#"select max(seq) as "cursor: i64", count(*) as "rows!: i64", cast(group_concat(
                'id: ' || seq || char(10) || 'event: ' || kind || char(10)
                || 'data: {"position":' || position || ',"stream":"' || ?3 || '","seq":' || seq
                || ',"kind":"' || kind || '","data":' || data
                || ',"at":"' || strftime('%Y-%m-%dT%H:%M:%fZ', at / 1000.0, 'unixepoch') || '"}',
                char(10, 10)) || char(10, 10) as blob) as "text: Vec<u8>",
                (select min(seq) from event where stream_id = ?1 and seq > ?2 and length(data) > 8192)
                as "large: Seq"
            from (
                select position, seq, kind, data, at from event
                where stream_id = ?1 and seq > ?2 and seq < coalesce(
                    (select min(seq) from event where stream_id = ?1 and seq > ?2 and length(data) > 8192),
                    9223372036854775807)
                order by seq limit 256
            )"#,
            stream,
            after,
            name
        )
        .fetch_one(&self.readers)
        .await?;
        Ok(page(row.cursor, row.text, row.rows, row.large))
    }

    /// The next page of several streams after the position `after` and up to `head`, framed. It looks at a bounded
    /// number of positions, so a page may be empty and still move the cursor. `None` if `after` is the head.
    pub async fn feed_frames(
        &self,
        scope: &FeedScope,
        after: i64,
        head: i64,
    ) -> Result<Option<FramePage>, StoreError> {
        if after >= head {
            return Ok(None);
        }
        let until = head.min(after.saturating_add(limits::SCAN_POSITIONS));
        let (lowest, beyond) = (scope.lowest(), scope.beyond());
        let reader = scope.reader();
        let (level, owner, project) = (reader.level(), reader.owner(), reader.project());
        let row = sqlx::query!(
            r#"select max(position) as "cursor: i64", count(*) as "rows!: i64", cast(group_concat(
                'id: ' || position || char(10) || 'event: ' || kind || char(10)
                || 'data: {"position":' || position || ',"stream":"' || name || '","seq":' || seq
                || ',"kind":"' || kind || '","data":' || data
                || ',"at":"' || strftime('%Y-%m-%dT%H:%M:%fZ', at / 1000.0, 'unixepoch') || '"}' || char(10, 10),
                '') as blob) as "text: Vec<u8>",
                (select min(position) from event where position > ?1 and length(data) > 8192) as "large: i64",
                (select min(position) from event where position > ?1) as "next: i64"
            from (
                select e.position, s.name, e.seq, e.kind, e.data, e.at
                from event e
                cross join stream s on s.id = e.stream_id
                where e.position > ?1 and e.position <= ?2 and e.position < coalesce(
                        (select min(position) from event where position > ?1 and length(data) > 8192),
                        9223372036854775807)
                    and s.name >= ?3 and s.name < ?4
                    and (?5 = 3 or s.visibility = 'team' or s.owner = ?6 or s.runner = ?6 or s.project = ?7
                        or ?5 = 2 and coalesce(s.owner, s.project) is not null or ?5 = 1 and s.project is not null)
                order by e.position limit 256
            )"#,
            after,
            until,
            lowest,
            beyond,
            level,
            owner,
            project
        )
        .fetch_one(&self.readers)
        .await?;
        if row.large.is_some_and(|large| Some(large) == row.next) {
            return self.large_page(scope, row.large.unwrap_or(until)).await.map(Some);
        }
        let cursor = if row.rows >= i64::from(limits::REPLAY_ROWS) {
            row.cursor.unwrap_or(until)
        } else {
            // All of the window was looked at, up to a large row; and where retention left a hole, all of the hole.
            let before = |position: Option<i64>| position.map_or(i64::MAX, |at| at - 1);
            until.max(before(row.next).min(head)).min(before(row.large))
        };
        let bytes = Bytes::from(row.text.unwrap_or_default());
        Ok(Some(FramePage { bytes, cursor, more: cursor < head }))
    }

    async fn large_page(&self, scope: &FeedScope, position: i64) -> Result<FramePage, StoreError> {
        let events =
            self.feed_events(scope, position - 1, position, None, PageSize::rows(1)).await?.events;
        let bytes = render(&events, Framing::ItemByPosition);
        Ok(FramePage { bytes, cursor: position, more: true })
    }
}

fn page(
    cursor: Option<i64>,
    text: Option<Vec<u8>>,
    rows: i64,
    large: Option<Seq>,
) -> Option<FramePage> {
    let more = rows >= i64::from(limits::REPLAY_ROWS) || large.is_some();
    Some(FramePage { cursor: cursor?, bytes: Bytes::from(text?), more })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::{NewEvent, Ownership, Principal, StreamReader, StreamVisibility, sse},
        store::testing::{TestStore, append, event},
    };

    async fn replayed(store: &Store, name: &StreamName, after: Seq, framing: Framing) -> String {
        let view = store.view(name).await.unwrap().unwrap();
        let (mut text, mut cursor) = (String::new(), after);
        while let Some(page) = store.frames(view.id, name, cursor, framing).await.unwrap() {
            assert!(page.cursor > cursor, "a page moves the cursor");
            cursor = page.cursor;
            text.push_str(std::str::from_utf8(&page.bytes).unwrap());
        }
        text
    }

    async fn fed(store: &Store, prefix: &str, after: i64) -> String {
        let (_, head) = store.log_bounds().await.unwrap();
        let scope = FeedScope::prefix(prefix, StreamReader::Operator);
        let (mut text, mut cursor) = (String::new(), after);
        while let Some(page) = store.feed_frames(&scope, cursor, head).await.unwrap() {
            assert!(page.cursor > cursor && page.cursor <= head, "a page moves the cursor");
            cursor = page.cursor;
            text.push_str(std::str::from_utf8(&page.bytes).unwrap());
        }
        assert_eq!(cursor, head);
        text
    }

    fn framed<'a>(events: impl IntoIterator<Item = &'a Event>, framing: Framing) -> String {
        let mut text = String::new();
        for event in events {
            sse::push_frame(&mut text, event, framing);
        }
        text
    }

    /// SQL and Rust write the same frames, for small rows, large rows, and around the ends of pages.
    #[tokio::test]
    async fn sql_frames_as_the_domain_does() {
        let test = TestStore::open().await;
        let (store, clock) = (&test.store, &test.clock);
        let (one, two) = (StreamName::of("task", "one"), StreamName::of("peer", "two"));
        let data = |n: usize| match n {
            // Alone on a page, next to each other, and first and last of a page.
            3 | 4 | 256 | 257 => format!(r#"{{"n":{n},"big":"{}"}}"#, "x".repeat(9000)),
            _ => format!(r#"{{"n":{n},"text":"ünï \u2028 \"q\" 😀"}}"#),
        };
        for n in 0..700 {
            clock.set(Timestamp::from_millis(1_795_181_760_000 + n * 7));
            let events = vec![event("frame", &data(usize::try_from(n).unwrap()))];
            append(store, if n % 3 == 0 { &two } else { &one }, events).await;
        }
        let all = store
            .feed_events(
                &FeedScope::prefix("", StreamReader::Operator),
                0,
                i64::MAX,
                None,
                PageSize::rows(1000),
            )
            .await
            .unwrap()
            .events;
        assert_eq!(all.len(), 700);
        assert!(all.iter().zip(1..).all(|(event, position)| event.position == position));
        for name in [&one, &two] {
            for framing in [Framing::Data, Framing::ItemBySeq] {
                for after in [0, 1, 100, 400] {
                    let expected =
                        all.iter().filter(|event| event.stream == *name && event.seq > after);
                    assert_eq!(
                        replayed(store, name, after, framing).await,
                        framed(expected, framing)
                    );
                }
            }
        }
        for (prefix, name) in [("", None), ("task/", Some(&one)), ("peer", Some(&two))] {
            for after in [0, 3, 255, 256, 699] {
                let expected = all.iter().filter(|event| {
                    event.position > after && name.is_none_or(|name| event.stream == *name)
                });
                let expected = framed(expected, Framing::ItemByPosition);
                assert_eq!(fed(store, prefix, after).await, expected, "{prefix} after {after}");
            }
        }
        assert_eq!(fed(store, "nobody/", 0).await, "");
    }

    /// What a query says of who may read a stream is what the domain says.
    #[tokio::test]
    async fn queries_show_each_reader_what_it_may_read() {
        let test = TestStore::open().await;
        let shared = |owner: &str, project: &str| {
            StreamVisibility::shared(&Ownership::of_row(owner, project.to_owned()))
        };
        let streams: Vec<(StreamName, StreamVisibility)> = [
            StreamVisibility::Team,
            StreamVisibility::of_daemon(),
            shared("session:a", "/p"),
            shared("session:a", ""),
            shared("session:b", "/q"),
            StreamVisibility::shared(&Ownership {
                runner: Some(Principal::Session("d".into())),
                ..Ownership::of_row("session:b", "/q".to_owned())
            }),
            shared("nobody that we know", ""),
            StreamVisibility::private(&Principal::Operator),
            StreamVisibility::private(&Principal::Session("a".into())),
            StreamVisibility::Answers,
        ]
        .into_iter()
        .zip(1..)
        .map(|(visibility, number)| (StreamName::of("x", number), visibility))
        .collect();
        for (name, visibility) in streams.clone() {
            let done: Result<(), StoreError> = test
                .store
                .write(move |tx| {
                    Box::pin(async move {
                        // Opened for the operator alone, and then for those whom it is for.
                        tx.open_stream(&name, &StreamVisibility::Answers).await?;
                        tx.set_visibility(&name, &visibility).await?;
                        tx.append(&name, vec![event("a", "{}")]).await?;
                        Ok(())
                    })
                })
                .await;
            done.unwrap();
        }
        let session = |key: &str, project: Option<&str>, reads_all| StreamReader::Session {
            owner: format!("session:{key}").into(),
            project: project.map(Arc::from),
            reads_all,
        };
        for reader in [
            StreamReader::Operator,
            StreamReader::OperatorTool,
            session("a", Some("/p"), false),
            session("b", Some("/p"), false),
            session("c", Some("/q"), false),
            session("d", None, false),
            session("e", None, true),
        ] {
            let mut expected = Vec::new();
            for (name, visibility) in &streams {
                let stored = test.store.view(name).await.unwrap().unwrap().visibility;
                assert_eq!(stored, *visibility);
                if reader.may_read(&stored) {
                    expected.push(name.as_str().to_owned());
                }
            }
            let scope = FeedScope::prefix("x/", reader.clone());
            let size = PageSize::rows(100);
            let page = test.store.feed_events(&scope, 0, i64::MAX, None, size).await.unwrap();
            let fed = page.events.iter().map(|event| event.stream.as_str().to_owned());
            assert_eq!(fed.collect::<Vec<_>>(), expected, "{reader:?}");
            let frames = test.store.feed_frames(&scope, 0, 9).await.unwrap().unwrap();
            let frames = std::str::from_utf8(&frames.bytes).unwrap();
            assert_eq!(frames.matches("event: a").count(), expected.len(), "{reader:?}: {frames}");
            let named = test.store.stream_names(&reader, "x/", 100).await.unwrap();
            assert_eq!(named, expected, "{reader:?}");
            let mut latest = test.store.latest_streams(&reader, i64::MAX, 100).await.unwrap();
            latest.reverse();
            let latest: Vec<String> = latest.into_iter().map(|(_, name)| name).collect();
            assert_eq!(latest, expected, "{reader:?}");
            let names: Vec<String> =
                streams.iter().map(|(name, _)| name.as_str().to_owned()).collect();
            let moved = test.store.moved_streams(&reader, &names, 0).await.unwrap();
            let moved: Vec<String> = moved.into_iter().map(|(name, _)| name).collect();
            assert_eq!(moved, expected, "{reader:?}");
        }
    }

    #[tokio::test]
    async fn retention_takes_a_prefix_and_leaves_the_last() {
        let test = TestStore::open().await;
        let store = &test.store;
        let (one, two) = (StreamName::of("task", "one"), StreamName::of("task", "two"));
        append(store, &two, vec![event("frame", "{}")]).await;
        for _ in 0..20 {
            append(store, &one, vec![event("frame", "{}")]).await;
        }
        assert_eq!(store.trim(11, u64::MAX).await.unwrap().removed, 10);
        let bounds = |view: StreamView| (view.floor, view.head);
        assert_eq!(bounds(store.view(&one).await.unwrap().unwrap()), (10, 20));
        assert_eq!(bounds(store.view(&two).await.unwrap().unwrap()), (0, 1));
        assert_eq!(store.log_bounds().await.unwrap(), (11, 21));
        let appended = store.append(two.clone(), vec![event("frame", "{}")]).await.unwrap();
        assert_eq!(appended.last, 2, "a seq is never used twice");
        assert!(fed(store, "", 0).await.starts_with("id: 1\n"));
    }

    #[tokio::test]
    async fn kinds_are_shared_and_kept() {
        let test = TestStore::open().await;
        let name = StreamName::fixed("team");
        let kind: Arc<str> = "peer.status".into();
        let events = (0..3).map(|_| NewEvent { kind: Arc::clone(&kind), ..event("", "{}") });
        append(&test.store, &name, events.collect()).await;
        append(&test.store, &name, vec![event("other", "{}")]).await;
        let view = test.store.view(&name).await.unwrap().unwrap();
        let page = test
            .store
            .events(view.id, &name, 0, Some("peer.status"), PageSize::rows(10))
            .await
            .unwrap()
            .events;
        assert_eq!(page.len(), 3);
    }
}
