//! Which streams there are, for a reader that may not read all of them; and who may read one.

use std::sync::Arc;

use svc_model::{Reader, StreamName, StreamVisibility};

use super::{
    db::Store,
    errors::changed,
    json::to_json,
    page::read_page,
    statement::change,
    tx::{Undo, WriteTx},
    visibility::VisibilityColumns,
};
use crate::{PageSize, RowPage, StoreError, StreamState};

impl WriteTx {
    /// Says who may read a stream from now on, if there is one of that name. Whoever reads it is asked again.
    pub async fn set_visibility(
        &mut self,
        name: &StreamName,
        visibility: &StreamVisibility,
    ) -> Result<(), StoreError> {
        let Some(before) = self.stream(name).await? else { return Ok(()) };
        if *before.visibility == *visibility {
            return Ok(());
        }
        let columns = VisibilityColumns::from(visibility);
        let done = change!(
            self,
            "update stream set visibility = ?, owner = ?, runner = ?, project = ? where id = ?",
            columns.visibility,
            columns.owner,
            columns.runner,
            columns.project,
            before.id
        );
        changed(done, "stream", name.as_str())?;
        let after = StreamState { visibility: Arc::new(visibility.clone()), ..before.clone() };
        self.undo.push(Undo::Restore(name.shared(), before));
        self.streams.insert(name.shared(), after);
        self.reseen.push(name.shared());
        Ok(())
    }
}

impl Store {
    /// Which of these streams have something after the position `after`: their names, and the last position of each.
    pub async fn moved_streams(
        &self,
        reader: &Reader,
        names: &[String],
        after: i64,
    ) -> Result<Vec<(String, i64)>, StoreError> {
        let (names, level) = (to_json(names), reader.level());
        let (owner, project) = (reader.owner(), reader.project());
        let rows = sqlx::query!(
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
        .fetch_all(&self.readers)
        .await?;
        Ok(rows.into_iter().map(|row| (row.name, row.head)).collect())
    }

    /// Streams, the latest made first: those made before the stream with the row id `before`.
    pub async fn latest_streams(
        &self,
        reader: &Reader,
        before: i64,
        size: PageSize,
    ) -> Result<RowPage<(i64, String)>, StoreError> {
        let limit = size.limit();
        let (level, owner, project) = (reader.level(), reader.owner(), reader.project());
        let rows = sqlx::query!(
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
        .fetch(&self.page_readers);
        read_page(rows, size, |row| Ok((row.id, row.name)), |row| row).await
    }

    /// Names of streams that begin with `prefix`, in their order.
    pub async fn stream_names(
        &self,
        reader: &Reader,
        prefix: &str,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        let (level, owner, project) = (reader.level(), reader.owner(), reader.project());
        let beyond = format!("{prefix}\x7f");
        let names = sqlx::query_scalar!(
            r#"select name from stream s
            where name >= ?1 and name < ?2 and (?3 = 2 or s.visibility = 'team' or s.owner = ?4 or s.runner = ?4 or s.project = ?5
                or ?3 = 1 and coalesce(s.owner, s.project) is not null)
            order by name limit ?6"#,
            prefix,
            beyond,
            level,
            owner,
            project,
            limit
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(names)
    }
}
