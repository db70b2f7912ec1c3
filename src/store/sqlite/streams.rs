//! Which streams there are, for a reader that may not read all of them.

use super::{db::Store, json::to_json};
use crate::{domain::StreamReader, store::StoreError};

impl Store {
    /// Which of these streams have something after the position `after`: their names, and the last position of each.
    pub async fn moved_streams(
        &self,
        reader: StreamReader,
        names: &[String],
        after: i64,
    ) -> Result<Vec<(String, i64)>, StoreError> {
        let (names, visibilities) = (to_json(names), to_json(&reader.readable()));
        let rows = sqlx::query!(
            r#"select name as "name!: String", head as "head!: i64" from (
                select s.name, (select position from event e where e.stream_id = s.id order by seq desc limit 1) as head
                from stream s
                where s.name in (select value from json_each(?1))
                    and s.visibility in (select value from json_each(?3))
            ) where head > ?2 order by head"#,
            names,
            after,
            visibilities
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(rows.into_iter().map(|row| (row.name, row.head)).collect())
    }

    /// Streams, the latest made first: those made before the stream with the row id `before`.
    pub async fn latest_streams(
        &self,
        reader: StreamReader,
        before: i64,
        limit: u32,
    ) -> Result<Vec<(i64, String)>, StoreError> {
        let visibilities = to_json(&reader.readable());
        let rows = sqlx::query!(
            r#"select id, name from stream
            where id < ?1 and visibility in (select value from json_each(?2))
            order by id desc limit ?3"#,
            before,
            visibilities,
            limit
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(rows.into_iter().map(|row| (row.id, row.name)).collect())
    }

    /// Names of streams that begin with `prefix`, in their order.
    pub async fn stream_names(
        &self,
        reader: StreamReader,
        prefix: &str,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        let (beyond, visibilities) = (format!("{prefix}\x7f"), to_json(&reader.readable()));
        let names = sqlx::query_scalar!(
            r#"select name from stream
            where name >= ?1 and name < ?2 and visibility in (select value from json_each(?3))
            order by name limit ?4"#,
            prefix,
            beyond,
            visibilities,
            limit
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(names)
    }
}
