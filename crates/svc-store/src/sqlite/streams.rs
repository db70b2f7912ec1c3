//! Streams: lists of them, their visibility, and how one begins and ends.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use svc_model::{NewEvent, Reader, Seq, StreamName, StreamVisibility, Timestamp};

use super::{
    errors::changed,
    families::{StreamReads, StreamWrites},
    json::to_json,
    page::read_page,
    statement::{change, query_fields, query_value, select_fields, select_value},
    tx::Undo,
    visibility::{VisibilityColumns, visibility_of},
};
use crate::{PageSize, RowPage, StoreError, StreamState, StreamView};

impl StreamWrites<'_> {
    pub async fn state(&mut self, name: &StreamName) -> Result<Option<StreamState>, StoreError> {
        if let Some(state) = self.tx.streams.get(name.as_str()) {
            return Ok(Some(state.clone()));
        }
        let text = name.as_str();
        let row = select_fields!(
            select_one,
            self.tx,
            {
                id: i64,
                closed_at: Option<i64>,
                visibility: String,
                owner: Option<String>,
                runner: Option<String>,
                project: Option<String>,
                head: i64
            },
            r#"select id, closed_at, visibility, owner, runner, project,
                (select coalesce(max(seq), 0) from event where stream_id = stream.id) as "head!: i64"
            from stream where name = ?"#,
            text
        );
        let state = row.map(|row| StreamState {
            id: row.id,
            head: row.head,
            closed: row.closed_at.is_some(),
            visibility: Arc::new(visibility_of(
                &row.visibility,
                row.owner,
                row.runner,
                row.project,
            )),
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
    ) -> Result<StreamState, StoreError> {
        if let Some(state) = self.state(name).await? {
            return Ok(state);
        }
        let (text, columns) = (name.as_str(), VisibilityColumns::from(visibility));
        let id = select_value!(
            self.tx,
            r#"insert into stream (name, created_at, visibility, owner, runner, project) values (?, ?, ?, ?, ?, ?)
            returning id as "id!: i64""#,
            text,
            self.tx.now,
            columns.visibility,
            columns.owner,
            columns.runner,
            columns.project
        );
        let visibility = Arc::new(visibility.clone());
        let state = StreamState { id, head: 0, closed: false, visibility };
        self.tx.undo.push(Undo::Forget(name.shared()));
        self.tx.streams.insert(name.shared(), state.clone());
        Ok(state)
    }

    /// Closes the stream: no event may follow.
    pub async fn close(&mut self, name: &StreamName) -> Result<(), StoreError> {
        let text = name.as_str();
        let before = self.state(name).await?.ok_or(StoreError::NoStream)?;
        let done = change!(
            self.tx,
            "update stream set closed_at = ? where id = ?",
            self.tx.now,
            before.id
        );
        changed(done, "stream", text)?;
        let after = StreamState { closed: true, ..before.clone() };
        self.tx.put_state(name.shared(), before, after);
        self.tx.closing.push(name.shared());
        Ok(())
    }

    /// Seqs of those events whose producer ids the stream already has, in the table or in the
    /// current commit.
    pub async fn known_producer_ids(
        &mut self,
        name: &StreamName,
        events: &[NewEvent],
    ) -> Result<HashMap<Arc<str>, Seq>, StoreError> {
        let ids = producer_ids(events);
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let mut known = self.uncommitted_producer_ids(name, &ids);
        let Some(state) = self.state(name).await? else {
            return Ok(known);
        };
        let ids = to_json(&ids);
        let rows = select_fields!(
            select_all,
            self.tx,
            { producer_id: String, seq: Seq },
            r#"select producer_id as "producer_id!", seq from event
            where stream_id = ? and producer_id in (select value from json_each(?))"#,
            state.id,
            ids
        );
        known.extend(rows.into_iter().map(|row| (row.producer_id.into(), row.seq)));
        Ok(known)
    }

    /// The same, for the events of the current commit only.
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
    ) -> Result<(), StoreError> {
        let Some(before) = self.state(name).await? else { return Ok(()) };
        if *before.visibility == *visibility {
            return Ok(());
        }
        let columns = VisibilityColumns::from(visibility);
        let done = change!(
            self.tx,
            "update stream set visibility = ?, owner = ?, runner = ?, project = ? where id = ?",
            columns.visibility,
            columns.owner,
            columns.runner,
            columns.project,
            before.id
        );
        changed(done, "stream", name.as_str())?;
        let after = StreamState { visibility: Arc::new(visibility.clone()), ..before.clone() };
        self.tx.undo.push(Undo::Restore(name.shared(), before));
        self.tx.streams.insert(name.shared(), after);
        self.tx.visibility_changed.push(name.shared());
        Ok(())
    }
}

impl StreamReads<'_> {
    pub async fn view(self, name: &StreamName) -> Result<Option<StreamView>, StoreError> {
        let text = name.as_str();
        let row = query_fields!(
            { id: i64, closed_at: Option<i64>, visibility: String, owner: Option<String>, runner: Option<String>, project: Option<String>, floor: i64, head: i64 },
            r#"select id, closed_at, visibility, owner, runner, project,
                (select coalesce(min(seq), 1) - 1 from event where stream_id = stream.id) as "floor!: i64",
                (select coalesce(max(seq), 0) from event where stream_id = stream.id) as "head!: i64"
            from stream where name = ?"#,
            text
        )
        .fetch_optional(&self.store.readers)
        .await?;
        Ok(row.map(|row| StreamView {
            id: row.id,
            floor: row.floor,
            head: row.head,
            closed: row.closed_at.is_some(),
            visibility: visibility_of(&row.visibility, row.owner, row.runner, row.project),
        }))
    }

    pub async fn last_event_at(self, name: &StreamName) -> Result<Option<Timestamp>, StoreError> {
        let name = name.as_str();
        let at = query_value!(
            r#"select e.at as "at!: Timestamp" from event e
            where e.stream_id = (select id from stream where name = ?) order by e.seq desc limit 1"#,
            name
        )
        .fetch_optional(&self.store.readers)
        .await?;
        Ok(at)
    }

    /// Which of these streams have events after the position `after`: names, and the last position
    /// of each.
    pub async fn moved(
        self,
        reader: &Reader,
        names: &[String],
        after: i64,
    ) -> Result<Vec<(String, i64)>, StoreError> {
        let (names, level) = (to_json(names), reader.level());
        let (owner, project) = (reader.owner(), reader.project());
        let rows = query_fields!(
            { name: String, head: i64 },
            r#"select name as "name!: String", head as "head!: i64" from (
                select s.name, (select position from event e where e.stream_id = s.id order by seq desc limit 1) as head
                from stream s
                where s.name in (select value from json_each(?1))
                    and (?3 = 2 or s.visibility = 'team' or s.owner = ?4 or s.runner = ?4 or s.project = ?5
                        or ?3 = 1 and coalesce(s.owner, s.project) is not null)
            ) where head > ?2 order by head"#,
            names,
            after,
            level,
            owner,
            project
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(rows.into_iter().map(|row| (row.name, row.head)).collect())
    }

    /// Streams, the latest first: those created before the stream with the row id `before`.
    pub async fn latest(
        self,
        reader: &Reader,
        before: i64,
        size: PageSize,
    ) -> Result<RowPage<(i64, String)>, StoreError> {
        let limit = size.limit();
        let (level, owner, project) = (reader.level(), reader.owner(), reader.project());
        let rows = query_fields!(
            { id: i64, name: String },
            r#"select id, name from stream s
            where id < ?1 and (?3 = 2 or s.visibility = 'team' or s.owner = ?4 or s.runner = ?4 or s.project = ?5
                or ?3 = 1 and coalesce(s.owner, s.project) is not null)
            order by id desc limit ?2"#,
            before,
            limit,
            level,
            owner,
            project
        )
        .fetch(&self.store.page_readers);
        read_page(rows, size, |row| Ok((row.id, row.name)), |row| row).await
    }

    /// Names of streams that begin with `prefix`, sorted.
    pub async fn names(
        self,
        reader: &Reader,
        prefix: &str,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        let (level, owner, project) = (reader.level(), reader.owner(), reader.project());
        let beyond = format!("{prefix}\x7f");
        let names = query_value!(
            "select name from stream s
            where name >= ?1 and name < ?2 and (?3 = 2 or s.visibility = 'team' or s.owner = ?4 or s.runner = ?4 or s.project = ?5
                or ?3 = 1 and coalesce(s.owner, s.project) is not null)
            order by name limit ?6",
            prefix,
            beyond,
            level,
            owner,
            project,
            limit
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(names)
    }
}

fn producer_ids(events: &[NewEvent]) -> HashSet<&str> {
    events.iter().filter_map(|event| event.producer_id.as_deref()).collect()
}
