//! Rows of memories, and the index of their terms.

use svc_model::{
    Reader, Timestamp,
    learning::{Memory, MemoryCategory, MemoryId},
};

use super::{
    columns::non_empty,
    families::{MemoryReads, MemoryWrites},
    page::read_page,
    statement::{change, direct_row, pool_query, select_fields, select_one},
};
use crate::{MemoryFilter, PageSize, StoreError};

direct_row! {
    struct RawMemory {
        memory_id: String,
        project: String,
        category: MemoryCategory,
        content: String,
        importance: f64,
        tags: String,
        confirmed_again: i64,
        created_at: Timestamp,
        terms: String,
    }
}

impl From<RawMemory> for Memory {
    fn from(raw: RawMemory) -> Self {
        Self {
            id: raw.memory_id.into(),
            project: non_empty(raw.project),
            category: raw.category,
            content: raw.content,
            importance: raw.importance,
            // The table accepts any JSON; a person may have written a value that is not a list of
            // texts.
            tags: serde_json::from_str(&raw.tags).unwrap_or_default(),
            confirmed_again: raw.confirmed_again,
            created_at: raw.created_at,
        }
    }
}

macro_rules! memories {
    ($run:ident, $($rest:tt)*) => {
        $run!(
            r#"select m.memory_id as "memory_id!", m.project, m.category as "category: MemoryCategory", m.content,
                m.importance, m.tags, m.confirmed_again, m.created_at as "created_at: Timestamp", m.terms
            from memory m "#,
            RawMemory,
            $($rest)*
        )
    };
}

impl MemoryWrites<'_> {
    /// Stores a memory. If those who may read it have the same memory in the same category, returns
    /// that one instead. A memory without a project belongs to its session, or to all sessions if
    /// it is shared.
    pub async fn insert(
        &mut self,
        memory: &Memory,
        digest: &str,
        terms: &str,
        session_id: &str,
        shared: bool,
    ) -> Result<Option<Memory>, StoreError> {
        let project = memory.project.as_deref().unwrap_or_default();
        let known = memories!(
            select_one,
            self.tx,
            "where m.project = ?1 and m.category = ?2 and m.digest = ?3
                and (m.project <> '' or m.shared = ?4 and (m.shared = 1 or m.session_id = ?5))",
            project,
            memory.category,
            digest,
            shared,
            session_id
        );
        if let Some(known) = known {
            return Ok(Some(known.into()));
        }
        let id = memory.id.as_str();
        let tags = serde_json::to_string(&memory.tags).unwrap_or_default();
        change!(
            self.tx,
            "insert into memory (memory_id, project, category, content, digest, terms, importance, tags, session_id,
                created_at, shared)
            values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            id,
            project,
            memory.category,
            memory.content,
            digest,
            terms,
            memory.importance,
            tags,
            session_id,
            memory.created_at,
            shared
        );
        Ok(None)
    }

    /// The session that stored a memory, and whether the reader may read it; `None` if the memory
    /// does not exist.
    pub async fn maker(
        &mut self,
        reader: &Reader,
        id: &MemoryId,
    ) -> Result<Option<(String, bool)>, StoreError> {
        let (id, key, project) = (id.as_str(), reader.key(), reader.project());
        let row = select_fields!(
            select_one,
            self.tx,
            { session_id: String, is_readable: bool },
            r#"select m.session_id, coalesce((?2 is null or m.shared = 1 or m.project = ?3 or m.session_id in (select session_id from session where reader_key = ?2)), 0) as "is_readable!: bool"
            from memory m where m.memory_id = ?1"#,
            id,
            key,
            project
        );
        Ok(row.map(|row| (row.session_id, row.is_readable)))
    }

    /// Removes a memory; returns whether it existed.
    pub async fn delete(&mut self, id: &MemoryId) -> Result<bool, StoreError> {
        let id = id.as_str();
        let done = change!(self.tx, "delete from memory where memory_id = ?", id);
        Ok(done > 0)
    }
}

impl MemoryReads<'_> {
    pub async fn count(self) -> Result<i64, StoreError> {
        let count = sqlx::query_scalar!(r#"select count(*) as "count!: i64" from memory"#)
            .fetch_one(&self.store.readers)
            .await?;
        Ok(count)
    }

    /// For each term the number of memories that have it; unknown terms are left out. `terms` is a
    /// JSON array.
    pub async fn frequencies(self, terms: &str) -> Result<Vec<(String, i64)>, StoreError> {
        let rows = sqlx::query!(
            r#"select coalesce(j.value, '') as "term!: String", count(distinct p.doc) as "memories!: i64"
            from json_each(?) j cross join memory_place p on p.term = j.value
            group by j.value"#,
            terms
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(rows.into_iter().map(|row| (row.term, row.memories)).collect())
    }

    /// The readable memories with the highest sums of term weights, each with its own terms.
    /// `terms` is a JSON object: term to weight.
    pub async fn candidates(
        self,
        reader: &Reader,
        terms: &str,
        filter: &MemoryFilter,
        limit: u32,
    ) -> Result<Vec<(Memory, String)>, StoreError> {
        let (key, project) = (reader.key(), reader.project());
        let rows = memories!(pool_query, "join (
                select p.doc as id, sum(j.value) as value
                from json_each(?1) j cross join memory_place p on p.term = j.key
                group by p.doc
            ) f on f.id = m.id
            where (?2 is null or m.category = ?2) and m.importance >= ?3
                and (?5 is null or m.shared = 1 or m.project = ?6 or m.session_id in (select session_id from session where reader_key = ?5))
            order by f.value desc, m.id desc limit ?4",
            terms,
            filter.category,
            filter.min_importance,
            limit,
            key,
            project
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(rows
            .into_iter()
            .map(|mut raw| {
                let terms = std::mem::take(&mut raw.terms);
                (raw.into(), terms)
            })
            .collect())
    }

    /// Memories that the reader may read, the latest first, and their total number.
    pub async fn list(
        self,
        reader: &Reader,
        filter: &MemoryFilter,
        offset: u32,
        size: PageSize,
    ) -> Result<(Vec<Memory>, i64), StoreError> {
        let limit = size.limit();
        let tags = serde_json::to_string(&filter.tags).unwrap_or_default();
        let (key, read_project) = (reader.key(), reader.project());
        let total = sqlx::query_scalar!(
            r#"select count(*) as "count!: i64" from memory m
            where (?1 is null or m.category = ?1) and (?2 is null or m.project = ?2) and m.importance >= ?3
                and (?4 = '[]' or exists (
                    select 1 from json_each(m.tags) t where t.value in (select value from json_each(?4))
                ))
                and (?5 is null or m.shared = 1 or m.project = ?6 or m.session_id in (select session_id from session where reader_key = ?5))"#,
            filter.category,
            filter.project,
            filter.min_importance,
            tags,
            key,
            read_project
        )
        .fetch_one(&self.store.readers)
        .await?;
        let rows = memories!(pool_query, "where (?1 is null or m.category = ?1) and (?2 is null or m.project = ?2) and m.importance >= ?3
                and (?4 = '[]' or exists (
                    select 1 from json_each(m.tags) t where t.value in (select value from json_each(?4))
                ))
                and (?7 is null or m.shared = 1 or m.project = ?8 or m.session_id in (select session_id from session where reader_key = ?7))
            order by m.id desc limit ?5 offset ?6",
            filter.category,
            filter.project,
            filter.min_importance,
            tags,
            limit,
            offset,
            key,
            read_project
        )
        .fetch(&self.store.page_readers);
        let page = read_page(rows, size, |raw| Ok(Memory::from(raw)), |memory| memory).await?;
        Ok((page.rows, total))
    }

    /// The most important memories of a project, including those without a project, that the reader
    /// may read.
    pub async fn important(
        self,
        reader: &Reader,
        project: &str,
        least: f64,
        limit: u32,
    ) -> Result<Vec<Memory>, StoreError> {
        let (key, read_project) = (reader.key(), reader.project());
        let rows = memories!(pool_query, "where m.project in (?1, '') and m.importance >= ?2
                and (?4 is null or m.shared = 1 or m.project = ?5 or m.session_id in (select session_id from session where reader_key = ?4))
            order by m.importance desc, m.id desc limit ?3",
            project,
            least,
            limit,
            key,
            read_project
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(rows.into_iter().map(Memory::from).collect())
    }
}

#[cfg(test)]
mod tests {
    use svc_model::{Ids, text};

    use super::{super::testing::TestStore, *};

    #[tokio::test]
    async fn the_memory_index_agrees_with_the_table() {
        let at = TestStore::open().await;
        let ids = Ids::counting();
        for content in ["the tenant cache", "the cache of the page"] {
            let memory = Memory {
                id: MemoryId::new(&ids, Timestamp::from_millis(1)),
                project: None,
                category: MemoryCategory::Fact,
                content: content.to_owned(),
                importance: 0.5,
                tags: Vec::new(),
                confirmed_again: 0,
                created_at: Timestamp::from_millis(1),
            };
            let terms = text::terms(content);
            let done: Result<_, StoreError> = at
                .store
                .write(move |tx| {
                    Box::pin(async move {
                        tx.memories().insert(&memory, &memory.content, &terms, "s", false).await
                    })
                })
                .await;
            assert_eq!(done.unwrap(), None);
        }
        let found = async |term: &str| {
            let terms = format!(r#"{{"{term}":1.0}}"#);
            let filter = MemoryFilter::default();
            let found =
                at.store.memories().candidates(&Reader::All, &terms, &filter, 10).await.unwrap();
            let with = at.store.memories().frequencies(&format!(r#"["{term}"]"#)).await.unwrap();
            (found.len(), with.first().map_or(0, |(_, memories)| *memories))
        };
        assert_eq!((found("cach").await, found("tenant").await), ((2, 2), (1, 1)));
        // Changed outside the program, for example with `sqlite3`.
        at.execute("update memory set terms = 'clock' where content = 'the tenant cache'").await;
        at.execute("insert into memory_fts (memory_fts, rank) values ('integrity-check', 1)").await;
        assert_eq!((found("cach").await, found("clock").await), ((1, 1), (1, 1)));
        let (all, total) = at
            .store
            .memories()
            .list(&Reader::All, &MemoryFilter::default(), 0, PageSize::rows(10))
            .await
            .unwrap();
        assert_eq!((all.len(), total, at.store.memories().count().await.unwrap()), (2, 2, 2));
        let id = all[1].id.clone();
        let gone: Result<bool, StoreError> = at
            .store
            .write(move |tx| Box::pin(async move { tx.memories().delete(&id).await }))
            .await;
        assert!(gone.unwrap());
        assert_eq!((found("clock").await, found("cach").await), ((0, 0), (1, 1)));
    }
}
