//! Streams: lists of them, their visibility, how one begins and ends, and their events as values.
//! `frames` reads events as text for a socket.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use svc_model::{
    Event, NewEvent, Reader, Seq, StreamName, StreamVisibility, Timestamp, json_bytes,
};

use super::{EventReads, StreamReads, StreamWrites};
use crate::{
    FeedScope, PageSize, Result, RowPage, StoreError, StreamState, StreamView, boxed_methods,
    bus::StreamChange,
    columns::{Columns, DirectRow, Fault, VisibilityColumns, to_json, visibility_of},
    readers::Rows as _,
    statement::{change, changed, column, direct_row, fields, find_value, query, value},
    tx::Undo,
};

/// How the names of streams begin that were taken out of the log and still have events.
pub(super) const RETIRED: &str = "removed/";

impl DirectRow for StreamView {
    fn read(columns: &mut Columns<'_>) -> Result<Self, Fault> {
        let (id, closed_at) = (columns.next("id")?, columns.next::<Option<i64>>("closed_at")?);
        let visibility: String = columns.next("visibility")?;
        let (owner, runner) = (columns.next("owner")?, columns.next("runner")?);
        let visibility = visibility_of(&visibility, owner, runner, columns.next("project")?);
        let (floor, head) = (columns.next("floor")?, columns.next("head")?);
        Ok(Self { id, floor, head, closed: closed_at.is_some(), visibility })
    }
}

macro_rules! stream_views {
    ($from:expr, $name:expr) => {
        query!(one() as StreamView, $from,
            r#"select id, closed_at, visibility, owner, runner, project,
                (select coalesce(min(seq), 1) - 1 from event where stream_id = stream.id) as "floor!: i64",
                (select coalesce(max(seq), 0) from event where stream_id = stream.id) as "head!: i64"
            from stream where name = ?"#; $name.as_str())
    };
}

#[boxed_methods]
impl StreamWrites<'_> {
    pub async fn state(&mut self, name: &StreamName) -> Result<Option<StreamState>> {
        if let Some(state) = self.tx.streams.get(name.as_str()) {
            return Ok(Some(state.clone()));
        }
        let view = stream_views!(self.tx.direct, name);
        let state = view.map(|StreamView { id, head, closed, visibility, .. }| StreamState {
            id,
            head,
            closed,
            visibility: Arc::new(visibility),
        });
        if let Some(state) = &state {
            self.tx.streams.insert(name.shared(), state.clone());
        }
        Ok(state)
    }

    /// The state of the stream `name`. A missing stream is created with this visibility.
    pub async fn open(
        &mut self,
        name: &StreamName,
        visibility: &StreamVisibility,
    ) -> Result<StreamState> {
        if let Some(state) = self.state(name).await? {
            return Ok(state);
        }
        let (text, columns) = (name.as_str(), VisibilityColumns::from(visibility));
        let id = value!(self.tx.direct,
            r#"insert into stream (name, created_at, visibility, owner, runner, project) values (?, ?, ?, ?, ?, ?)
            returning id as "id!: i64""#;
            text, self.tx.now, columns.visibility, columns.owner, columns.runner, columns.project);
        let visibility = Arc::new(visibility.clone());
        let state = StreamState { id, head: 0, closed: false, visibility };
        self.tx.undo.push(Undo::Forget(name.shared()));
        self.tx.streams.insert(name.shared(), state.clone());
        Ok(state)
    }

    pub async fn close(&mut self, name: &StreamName) -> Result<()> {
        let text = name.as_str();
        let before = self.state(name).await?.ok_or(StoreError::NoStream)?;
        let done = change!(self.tx,
            "update stream set closed_at = ? where id = ?"; self.tx.now, before.id);
        changed(done, "stream", text)?;
        let after = StreamState { closed: true, ..before.clone() };
        self.tx.put_state(name.shared(), before, after);
        self.tx.changes.push((name.shared(), StreamChange::Closed));
        Ok(())
    }

    /// Takes a stream's name away, if there is a stream of that name: from the commit on nobody
    /// finds it, and its name is free. [`remove_retired`](super::Upkeep::remove_retired) then
    /// removes its events, in bounded jobs, also after a crash.
    pub async fn retire(&mut self, name: &StreamName) -> Result<()> {
        let Some(before) = self.state(name).await? else { return Ok(()) };
        let retired = format!("{RETIRED}{}", before.id);
        let done = change!(self.tx,
            "update stream set name = ?, closed_at = coalesce(closed_at, ?), visibility = 'operator', owner = null, \
                runner = null, project = null where id = ?";
            retired, self.tx.now, before.id);
        changed(done, "stream", name.as_str())?;
        self.tx.undo.push(Undo::Restore(name.shared(), before));
        self.tx.streams.remove(name.as_str());
        self.tx.changes.push((name.shared(), StreamChange::Retired));
        Ok(())
    }

    /// Seqs of those events whose producer ids the stream already has, in the table or in the
    /// current commit.
    pub async fn known_producer_ids(
        &mut self,
        name: &StreamName,
        events: &[NewEvent],
    ) -> Result<HashMap<Arc<str>, Seq>> {
        let ids = producer_ids(events);
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let mut known = self.uncommitted_producer_ids(name, &ids);
        let Some(state) = self.state(name).await? else {
            return Ok(known);
        };
        let ids = to_json(&ids);
        let rows = fields!(all(), self.tx.direct, { producer_id: String, seq: Seq },
            r#"select producer_id as "producer_id!", seq from event
            where stream_id = ? and producer_id in (select value from json_each(?))"#;
            state.id, ids);
        known.extend(rows.into_iter().map(|row| (row.producer_id.into(), row.seq)));
        Ok(known)
    }

    fn uncommitted_producer_ids(
        &self,
        name: &StreamName,
        ids: &HashSet<&str>,
    ) -> HashMap<Arc<str>, Seq> {
        self.tx
            .pending
            .iter()
            .filter(|pending| *pending.stream == *name.as_str())
            .filter_map(|pending| Some((pending.producer_id.clone()?, pending.seq)))
            .filter(|(id, _)| ids.contains(&**id))
            .collect()
    }

    /// Sets the visibility of a stream, if it exists. Its readers are checked again.
    pub async fn set_visibility(
        &mut self,
        name: &StreamName,
        visibility: &StreamVisibility,
    ) -> Result<()> {
        let Some(before) = self.state(name).await? else { return Ok(()) };
        if *before.visibility == *visibility {
            return Ok(());
        }
        let columns = VisibilityColumns::from(visibility);
        let done = change!(self.tx,
            "update stream set visibility = ?, owner = ?, runner = ?, project = ? where id = ?";
            columns.visibility, columns.owner, columns.runner, columns.project, before.id);
        changed(done, "stream", name.as_str())?;
        let after = StreamState { visibility: Arc::new(visibility.clone()), ..before.clone() };
        self.tx.undo.push(Undo::Restore(name.shared(), before));
        self.tx.streams.insert(name.shared(), after);
        self.tx.changes.push((name.shared(), StreamChange::Readers));
        Ok(())
    }
}

#[boxed_methods]
impl StreamReads<'_> {
    pub async fn view(&self, name: &StreamName) -> Result<Option<StreamView>> {
        Ok(stream_views!(self.store.pool(), name))
    }

    pub async fn last_event_at(&self, name: &StreamName) -> Result<Option<Timestamp>> {
        Ok(find_value!(self.store.pool(),
            r#"select e.at as "at!: Timestamp" from event e
            where e.stream_id = (select id from stream where name = ?) order by e.seq desc limit 1"#;
            name.as_str()))
    }

    /// Which of these streams have events after the position `after`: names, and the last position
    /// of each.
    pub async fn moved(
        &self,
        reader: &Reader,
        names: &[String],
        after: i64,
    ) -> Result<Vec<(String, i64)>> {
        let (names, level) = (to_json(names), reader.level());
        Ok(query!(all(), self.store.pool(),
            r#"select name as "name!: String", head as "head!: i64" from (
                select s.name, (select position from event e where e.stream_id = s.id order by seq desc limit 1) as head
                from stream s
                where s.name in (select value from json_each(?1))
                    and (?3 = 2 or s.visibility = 'team' or s.owner = ?4 or s.runner = ?4 or s.project = ?5
                        or ?3 = 1 and coalesce(s.owner, s.project) is not null)
            ) where head > ?2 order by head"#;
            names, after, level, reader.owner(), reader.project()))
    }

    /// Streams, the latest first: those created before the stream with the row id `before`.
    pub async fn latest(
        &self,
        reader: &Reader,
        before: i64,
        size: PageSize,
    ) -> Result<RowPage<(i64, String)>> {
        let limit = size.limit();
        Ok(query!(page(size, json_bytes), self.store.pool(),
            r"select id, name from stream s
            where id < ?1 and (?3 = 2 or s.visibility = 'team' or s.owner = ?4 or s.runner = ?4 or s.project = ?5
                or ?3 = 1 and coalesce(s.owner, s.project) is not null)
            order by id desc limit ?2";
            before, limit, reader.level(), reader.owner(), reader.project()))
    }

    /// Names of streams that begin with `prefix`, sorted.
    pub async fn names(&self, reader: &Reader, prefix: &str, limit: u32) -> Result<Vec<String>> {
        let beyond = format!("{prefix}\x7f");
        Ok(column!(self.store.pool(),
            "select name from stream s
            where name >= ?1 and name < ?2 and (?3 = 2 or s.visibility = 'team' or s.owner = ?4 or s.runner = ?4 or s.project = ?5
                or ?3 = 1 and coalesce(s.owner, s.project) is not null)
            order by name limit ?6";
            prefix, beyond, reader.level(), reader.owner(), reader.project(), limit))
    }
}

fn producer_ids(events: &[NewEvent]) -> HashSet<&str> {
    events.iter().filter_map(|event| event.producer_id.as_deref()).collect()
}

/// Streams that a feed reads one by one, for a page.
const FEW_STREAMS: i64 = 32;

/// An event of a stream whose name is known.
struct StreamRow {
    position: i64,
    seq: Seq,
    kind: String,
    data: String,
    at: Timestamp,
}

direct_row!(StreamRow { position, seq, kind, data, at });

impl StreamRow {
    fn event(self, stream: StreamName) -> Event {
        let Self { position, seq, kind, data, at } = self;
        Event { position, stream, seq, kind: kind.into(), data: data.into(), at }
    }
}

impl DirectRow for Event {
    fn read(columns: &mut Columns<'_>) -> Result<Self, Fault> {
        Ok(Self {
            position: columns.next("position")?,
            stream: Arc::<str>::from(columns.next::<String>("name")?).into(),
            seq: columns.next("seq")?,
            kind: columns.next::<String>("kind")?.into(),
            data: columns.next::<String>("data")?.into(),
            at: columns.next("at")?,
        })
    }
}

#[boxed_methods]
impl EventReads<'_> {
    /// The last position whose event is older than `before`; `None` if there is none.
    pub async fn position_before(&self, before: Timestamp) -> Result<Option<i64>> {
        // Positions follow time, except after a clock was set back. A scan from the oldest event
        // suffices: it stops at the first event that is not older, and retention keeps it short.
        let first_young = find_value!(self.store.pool(),
            r#"select position as "position!" from event where at >= ? order by position limit 1"#;
            before);
        let (_, head) = self.bounds().await?;
        let last_old = first_young.map_or(head, |young| young - 1);
        Ok((last_old > 0).then_some(last_old))
    }

    /// When the oldest event was appended; `None` without events.
    pub async fn first_at(&self) -> Result<Option<Timestamp>> {
        Ok(find_value!(
            self.store.pool(),
            r#"select at as "at: Timestamp" from event order by position limit 1"#
        ))
    }

    /// The highest position that retention removed, and the highest position of the log.
    pub async fn bounds(&self) -> Result<(i64, i64)> {
        let row = fields!(row(), self.store.pool(), { trimmed: Option<i64>, head: Option<i64> },
            r#"select
                (select value from meta where name = 'trimmed') as "trimmed: i64",
                (select max(position) from event) as "head: i64""#);
        Ok((row.trimmed.unwrap_or(0), row.head.unwrap_or(0)))
    }

    /// Events of one stream after `after`, in order. `kind` filters.
    pub async fn of_stream(
        &self,
        stream: i64,
        name: &StreamName,
        after: Seq,
        kind: Option<&str>,
        take: PageSize,
    ) -> Result<RowPage<Event>> {
        let limit = take.limit();
        let page = query!(page(take, |row: &StreamRow| row.data.len()), self.store.pool(),
            r#"select position as "position!", seq, kind, data, at as "at: Timestamp" from event
            where stream_id = ?1 and seq > ?2 and (?3 is null or kind = ?3)
            order by seq limit ?4"#; stream, after, kind, limit);
        Ok(page.map(|row| row.event(name.clone())))
    }

    /// Events of one kind in a stream before the seq `before`, the latest first. The cost depends
    /// on the rows read, not on the length of the stream.
    pub async fn before(
        &self,
        stream: i64,
        name: &StreamName,
        before: Seq,
        kind: &str,
        take: PageSize,
    ) -> Result<RowPage<Event>> {
        let limit = take.limit();
        let page = query!(page(take, |row: &StreamRow| row.data.len()), self.store.pool(),
            r#"select position as "position!", seq, kind, data, at as "at: Timestamp" from event
            where stream_id = ? and seq < ? and kind = ?
            order by seq desc limit ?"#; stream, before, kind, limit);
        Ok(page.map(|row| row.event(name.clone())))
    }

    /// The number of entries of an agent's conversation before the seq `before`; calls of tools and
    /// their results count if `with_tools`. Reads no texts in that case.
    pub async fn count_chat_entries(
        &self,
        stream: i64,
        before: Seq,
        with_tools: bool,
    ) -> Result<u64> {
        Ok(value!(self.store.pool(),
            r#"select count(*) as "count!: i64" from event
            where stream_id = ?1 and seq < ?2 and kind = 'chat_entry'
                and (?3 or coalesce(data ->> '$.chat_entry' ->> '$.role', '') <> 'tool')"#;
            stream, before, with_tools)
        .cast_unsigned())
    }

    /// Events of several streams after the position `after` and up to `until`, in order. `kind`
    /// filters.
    pub async fn of_feed(
        &self,
        scope: &FeedScope,
        after: i64,
        until: i64,
        kind: Option<&str>,
        take: PageSize,
    ) -> Result<RowPage<Event>> {
        if kind.is_none() && self.is_of_few_streams(scope).await? {
            return self.of_few_streams(scope, after, until, take).await;
        }
        let (lowest, beyond, limit) = (scope.lowest(), scope.beyond(), take.limit());
        let reader = scope.reader();
        macro_rules! page {
            ($events:literal, $first:literal) => {
                query!(page(take, |event: &Event| event.data.len()),
                    r#"select e.position as "position!", s.name, e.seq, e.kind, e.data, e.at as "at: Timestamp"
            from "#, self.store.pool(),
                    $events + " cross join stream s on s.id = e.stream_id
            where " + $first + " and e.position > ?1 and s.name >= ?2 and s.name < ?3 and (?4 is null or e.kind = ?4)
                and e.position <= ?6
                and (?7 = 2 or s.visibility = 'team' or s.owner = ?8 or s.runner = ?8 or s.project = ?9
                    or ?7 = 1 and coalesce(s.owner, s.project) is not null)
            order by e.position limit ?5";
                    after, lowest, beyond, kind, limit, until, reader.level(), reader.owner(),
                    reader.project())
            };
        }
        // Frames are most of the log, so they have no index of their kind.
        Ok(match kind {
            None | Some("frame") => page!("event e", "true"),
            // Names the index, because statistics may make a range of positions look as cheap.
            Some(_) => {
                page!("event e indexed by event_kind", "e.kind = ?4 and e.kind <> 'frame'")
            }
        })
    }

    /// Whether a scope has so few streams that a page is read stream by stream.
    async fn is_of_few_streams(self, scope: &FeedScope) -> Result<bool> {
        let (lowest, beyond) = (scope.lowest(), scope.beyond());
        if lowest.is_empty() {
            return Ok(false);
        }
        let count = value!(self.store.pool(),
            r#"select count(*) as "count!: i64"
            from (select 1 from stream where name >= ?1 and name < ?2 limit ?3)"#;
            lowest, beyond, FEW_STREAMS + 1);
        Ok(count <= FEW_STREAMS)
    }

    /// Events of a few streams, at a cost that does not depend on events of other streams between
    /// them. A binary search finds the seq of the position `after` in each stream: seq and position
    /// grow together, and seqs have no gaps.
    async fn of_few_streams(
        self,
        scope: &FeedScope,
        after: i64,
        until: i64,
        take: PageSize,
    ) -> Result<RowPage<Event>> {
        let (lowest, beyond, limit) = (scope.lowest(), scope.beyond(), take.limit());
        let reader = scope.reader();
        Ok(query!(page(take, |event: &Event| event.data.len()), self.store.pool(),
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
            order by e.position limit ?5"#;
            after, lowest, beyond, until, limit, reader.level(), reader.owner(), reader.project()))
    }
}

#[cfg(test)]
mod tests {
    use svc_model::{Ownership, Principal};

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
            test.write(crate::job!(|tx| {
                // Opened for the operator only; then the visibility is set.
                tx.streams().open(&name, &StreamVisibility::Answers).await?;
                tx.streams().set_visibility(&name, &visibility).await?;
                tx.append(&name, vec![event("a", "{}")]).await?;
                Ok(())
            }))
            .await;
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
            let fed = page.rows.iter().map(|event| event.stream.as_str().to_owned());
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

    /// The feed of a few streams, which is read stream by stream, has the same events as the whole
    /// log has of these streams.
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
        let log = page(&all, 0, 1_000).await.rows;
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
                    found.rows.iter().collect::<Vec<_>>(),
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
            .rows;
        assert_eq!(page.len(), 3);
    }
}
