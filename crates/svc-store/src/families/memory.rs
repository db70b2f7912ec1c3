//! Rows of memories, and the index of their terms.

use std::collections::HashMap;

use svc_model::{
    Reader, Timestamp, json_bytes,
    learning::{Memory, MemoryCategory, MemoryId},
    limits,
};

use super::{MemoryReads, MemoryWrites};
use crate::{
    MemoryFilter, PageSize, Result, SoughtTerm, boxed, boxed_methods,
    columns::{Columns, DirectRow, Fault, from_json, to_json},
    readers::Rows as _,
    statement::{change, column, query, value},
};

/// Maximum number of memories with some of the terms to which a filter is applied.
const FILTERED: usize = 1_000;

impl DirectRow for Memory {
    fn read(columns: &mut Columns<'_>) -> Result<Self, Fault> {
        Ok(Self {
            id: columns.next::<String>("memory_id")?.into(),
            project: columns.non_empty("project")?,
            category: columns.next("category")?,
            content: columns.next("content")?,
            importance: columns.next("importance")?,
            // The table accepts any JSON; a person may have written a value that is not a list of
            // texts.
            tags: serde_json::from_str(&columns.next::<String>("tags")?).unwrap_or_default(),
            confirmed_again: columns.next("confirmed_again")?,
            created_at: columns.next("created_at")?,
        })
    }
}

/// A memory, and its terms.
struct MemoryWithTerms(Memory, String);

impl DirectRow for MemoryWithTerms {
    fn read(columns: &mut Columns<'_>) -> Result<Self, Fault> {
        Ok(Self(Memory::read(columns)?, columns.next("terms")?))
    }
}

macro_rules! memories {
    ($run:ident($($bound:expr),*), $($rest:tt)*) => {
        query!($run($($bound),*),
            r#"select m.memory_id as "memory_id!", m.project, m.category as "category: MemoryCategory", m.content,
                m.importance, m.tags, m.confirmed_again, m.created_at as "created_at: Timestamp", m.terms
            from memory m "#,
            $($rest)*
        )
    };
}

#[boxed_methods]
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
    ) -> Result<Option<Memory>> {
        let project = memory.project.as_deref().unwrap_or_default();
        let known: Option<Memory> = memories!(one(), self.tx.direct,
            "where m.project = ?1 and m.category = ?2 and m.digest = ?3
                and (m.project <> '' or m.shared = ?4 and (m.shared = 1 or m.session_id = ?5))";
            project, memory.category, digest, shared, session_id);
        if let Some(known) = known {
            return Ok(Some(known));
        }
        let id = memory.id.as_str();
        let tags = serde_json::to_string(&memory.tags).unwrap_or_default();
        change!(self.tx,
            "insert into memory (memory_id, project, category, content, digest, terms, importance, tags, session_id,
                created_at, shared)
            values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
            id, project, memory.category, memory.content, digest, terms, memory.importance, tags,
            session_id, memory.created_at, shared);
        Ok(None)
    }

    /// The session that stored a memory, and whether the reader may read it; `None` if the memory
    /// does not exist.
    pub async fn maker(
        &mut self,
        reader: &Reader,
        id: &MemoryId,
    ) -> Result<Option<(String, bool)>> {
        Ok(query!(one(), self.tx.direct,
            r#"select m.session_id, coalesce((?2 is null or m.shared = 1 or m.project = ?3 or m.session_id in (select session_id from session where reader_key = ?2)), false) as "is_readable!: bool"
            from memory m where m.memory_id = ?1"#;
            id.as_str(), reader.key(), reader.project()))
    }

    pub async fn delete(&mut self, id: &MemoryId) -> Result<bool> {
        let done = change!(self.tx, "delete from memory where memory_id = ?"; id.as_str());
        Ok(done > 0)
    }
}

/// Memories by the weights of their terms, the best and latest first.
fn ranked(terms: &[SoughtTerm<'_>], lists: Vec<(String, Vec<i64>)>) -> Vec<i64> {
    let weights: HashMap<&str, f64> = terms.iter().map(|term| (term.term, term.weight)).collect();
    let mut worth: HashMap<i64, f64> = HashMap::new();
    for (term, ids) in lists {
        let weight = weights.get(term.as_str()).copied().unwrap_or(0.0);
        for id in ids {
            *worth.entry(id).or_default() += weight;
        }
    }
    let mut ranked: Vec<(i64, f64)> = worth.into_iter().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)));
    ranked.into_iter().map(|(id, _)| id).collect()
}

impl MemoryReads<'_> {
    #[boxed]
    pub async fn count(&self) -> Result<i64> {
        Ok(value!(
            self.store.pool(),
            r#"select coalesce(sum(memories), 0) as "count!: i64" from search_scope where name = ''"#
        ))
    }

    /// For each term the number of memories that have it; unknown terms are left out. `terms` is a
    /// JSON array.
    #[boxed]
    pub async fn frequencies(&self, terms: &str) -> Result<Vec<(String, i64)>> {
        Ok(query!(all(), self.store.pool(),
            r#"select t.term as "term!: String", t.memories as "memories!: i64"
            from json_each(?) j cross join memory_term t on t.term = j.value where t.memories > 0"#;
            terms))
    }

    /// The readable memories with the highest sums of term weights, the best and latest first, each
    /// with its own terms. The number of rows read does not grow with the number of memories: only
    /// the latest memories of a frequent term are read.
    pub async fn candidates(
        self,
        reader: &Reader,
        terms: &[SoughtTerm<'_>],
        filter: &MemoryFilter,
        limit: u32,
    ) -> Result<Vec<(Memory, String)>> {
        let lists = match reader.key() {
            None => self.postings(terms, limit).await?,
            Some(key) => self.readable_postings(key, reader.project(), terms).await?,
        };
        let mut ids = ranked(terms, lists);
        let is_filtered = filter.category.is_some() || filter.min_importance > 0.0;
        ids.truncate(if is_filtered { FILTERED } else { limit as usize });
        let ids = to_json(&ids);
        let rows: Vec<MemoryWithTerms> = memories!(all(), self.store.pool(),
            "join json_each(?1) j on j.value = m.id
            where (?2 is null or m.category = ?2) and m.importance >= ?3
                and (?5 is null or m.shared = 1 or m.project = ?6 or m.session_id in (select session_id from session where reader_key = ?5))
            order by j.key limit ?4";
            ids, filter.category, filter.min_importance, limit, reader.key(), reader.project());
        Ok(rows.into_iter().map(|MemoryWithTerms(memory, terms)| (memory, terms)).collect())
    }

    /// Memories with each of the rarest terms, together at most [`limits::SEARCH_POSTINGS`]; if
    /// these are few, also the latest with the rarest of the other terms.
    async fn postings(
        self,
        terms: &[SoughtTerm<'_>],
        limit: u32,
    ) -> Result<Vec<(String, Vec<i64>)>> {
        let mut terms: Vec<&SoughtTerm<'_>> = terms.iter().collect();
        terms.sort_by(|a, b| a.memories.cmp(&b.memories).then(a.term.cmp(b.term)));
        let (mut left, mut chosen, mut frequent) = (limits::SEARCH_POSTINGS, Vec::new(), None);
        for term in terms {
            if term.memories <= left {
                left -= term.memories;
                chosen.push(term.term);
            } else {
                frequent = Some(term.term);
                break;
            }
        }
        let chosen = to_json(&chosen);
        let lists = value!(self.store.pool(),
            r#"select json_group_array(json_array(j.value, (
                select json_group_array(p.memory_id) from memory_posting p where p.term_id = t.id
            ))) as "lists!: String"
            from json_each(?) j cross join memory_term t on t.term = j.value"#; chosen);
        let mut lists: Vec<(String, Vec<i64>)> = from_json(&lists)?;
        let found: usize = lists.iter().map(|(_, ids)| ids.len()).sum();
        if let Some(term) = frequent.filter(|_| found < limit as usize) {
            let latest = column!(self.store.pool(),
                r#"select m.id as "id!" from (select id, scope from memory order by id desc limit ?2) m
                where exists (
                    select 1 from memory_posting p
                    where p.term_id = (select id from memory_term where term = ?1)
                        and p.scope_id = (select id from search_scope where name = m.scope) and p.memory_id = m.id
                )
                order by m.id desc limit ?3"#; term, limits::SEARCH_POSTINGS, limit);
            lists.push((term.to_owned(), latest));
        }
        Ok(lists)
    }

    /// The latest memories with each term among those that a session reads: those for all projects,
    /// those of its project, and its own.
    async fn readable_postings(
        self,
        key: &str,
        project: Option<&str>,
        terms: &[SoughtTerm<'_>],
    ) -> Result<Vec<(String, Vec<i64>)>> {
        let terms: Vec<&str> = terms.iter().map(|term| term.term).collect();
        let terms = to_json(&terms);
        let lists = value!(self.store.pool(),
            r#"select json_group_array(json_array(j.value, (
                select json_group_array(latest.memory_id) from (
                    select memory_id from memory_posting where term_id = t.id and scope_id = c.id
                    order by memory_id desc limit ?4
                ) latest
            ))) as "lists!: String"
            from json_each(?1) j
            cross join memory_term t on t.term = j.value
            cross join search_scope c
            where c.name in (
                select '*'
                union all select 'project:' || ?3
                union all select 'session:' || session_id from session where reader_key = ?2
            )"#; terms, key, project, limits::SEARCH_POSTINGS_OF_TERM);
        let mut lists: Vec<(String, Vec<i64>)> = from_json(&lists)?;
        // Memories that the session itself stored for another project.
        let own = value!(self.store.pool(),
            r#"select json_group_array(json_array(j.value, json_array(m.id))) as "lists!: String"
            from (
                select o.id, o.scope from session s cross join memory o on o.session_id = s.session_id
                where s.reader_key = ?2 and o.shared = 0 and o.project <> '' and o.project is not ?3
                order by o.id desc limit ?4
            ) m
            cross join json_each(?1) j
            cross join memory_term t on t.term = j.value
            where exists (
                select 1 from memory_posting p
                where p.term_id = t.id and p.scope_id = (select id from search_scope where name = m.scope)
                    and p.memory_id = m.id
            )"#; terms, key, project, limits::SEARCH_OWN);
        let own: Vec<(String, Vec<i64>)> = from_json(&own)?;
        lists.extend(own);
        Ok(lists)
    }

    /// Memories that the reader may read, the latest first, and their total number.
    #[boxed]
    pub async fn list(
        &self,
        reader: &Reader,
        filter: &MemoryFilter,
        offset: u32,
        size: PageSize,
    ) -> Result<(Vec<Memory>, i64)> {
        let limit = size.limit();
        let tags = serde_json::to_string(&filter.tags).unwrap_or_default();
        let total = if filter.is_all() {
            self.count_readable(reader).await?
        } else {
            self.count_of(reader, filter).await?
        };
        let page = memories!(page(size, json_bytes), self.store.pool(),
            "where (?1 is null or m.category = ?1) and (?2 is null or m.project = ?2) and m.importance >= ?3
                and (?4 = '[]' or exists (
                    select 1 from json_each(m.tags) t where t.value in (select value from json_each(?4))
                ))
                and (?7 is null or m.shared = 1 or m.project = ?8 or m.session_id in (select session_id from session where reader_key = ?7))
            order by m.id desc limit ?5 offset ?6";
            filter.category, filter.project, filter.min_importance, tags, limit, offset,
            reader.key(), reader.project());
        Ok((page.rows, total))
    }

    async fn count_readable(self, reader: &Reader) -> Result<i64> {
        let Some(key) = reader.key() else { return self.count().await };
        Ok(value!(self.store.pool(),
            r#"select (
                select coalesce(sum(memories), 0) from search_scope where name in (
                    select '*'
                    union all select 'project:' || ?2
                    union all select 'session:' || session_id from session where reader_key = ?1
                )
            ) + (
                select count(*) from session s cross join memory o on o.session_id = s.session_id
                where s.reader_key = ?1 and o.shared = 0 and o.project <> '' and o.project is not ?2
            ) as "count!: i64""#; key, reader.project()))
    }

    /// The number of memories that the reader may read and that pass the filter.
    async fn count_of(self, reader: &Reader, filter: &MemoryFilter) -> Result<i64> {
        let tags = serde_json::to_string(&filter.tags).unwrap_or_default();
        Ok(value!(self.store.pool(),
            r#"select count(*) as "count!: i64" from memory m
            where (?1 is null or m.category = ?1) and (?2 is null or m.project = ?2) and m.importance >= ?3
                and (?4 = '[]' or exists (
                    select 1 from json_each(m.tags) t where t.value in (select value from json_each(?4))
                ))
                and (?5 is null or m.shared = 1 or m.project = ?6 or m.session_id in (select session_id from session where reader_key = ?5))"#;
            filter.category, filter.project, filter.min_importance, tags, reader.key(),
            reader.project()))
    }

    /// The most important memories of a project, including those without a project, that the reader
    /// may read.
    #[boxed]
    pub async fn important(
        &self,
        reader: &Reader,
        project: &str,
        least: f64,
        limit: u32,
    ) -> Result<Vec<Memory>> {
        Ok(memories!(all(), self.store.pool(),
            "where m.id in (
                select id from (
                    select m.id from memory m where m.project = ?1 and m.importance >= ?2
                        and (?4 is null or m.shared = 1 or m.project = ?5 or m.session_id in (select session_id from session where reader_key = ?4))
                    order by m.importance desc, m.id desc limit ?3
                )
                union all
                select id from (
                    select m.id from memory m where m.project = '' and m.importance >= ?2
                        and (?4 is null or m.shared = 1 or m.project = ?5 or m.session_id in (select session_id from session where reader_key = ?4))
                    order by m.importance desc, m.id desc limit ?3
                )
            )
            order by m.importance desc, m.id desc limit ?3";
            project, least, limit, reader.key(), reader.project()))
    }
}

#[cfg(test)]
mod tests {
    use svc_model::{Ids, text};

    use super::*;
    use crate::testing::TestStore;

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
            let done: Result<_> = at
                .store
                .write(job!(|tx| tx
                    .memories()
                    .insert(&memory, &memory.content, &terms, "s", false)
                    .await))
                .await;
            assert_eq!(done.unwrap(), None);
        }
        let found = async |term: &str| {
            let with = at.store.memories().frequencies(&format!(r#"["{term}"]"#)).await.unwrap();
            let memories = with.first().map_or(0, |(_, memories)| *memories);
            let terms = [SoughtTerm { term, weight: 1.0, memories }];
            let filter = MemoryFilter::default();
            let found =
                at.store.memories().candidates(&Reader::All, &terms, &filter, 10).await.unwrap();
            (found.len(), memories)
        };
        assert_eq!((found("cach").await, found("tenant").await), ((2, 2), (1, 1)));
        // Changed outside the program, for example with `sqlite3`.
        at.execute("update memory set terms = 'clock' where content = 'the tenant cache'").await;
        assert_eq!((found("cach").await, found("clock").await), ((1, 1), (1, 1)));
        let (all, total) = at
            .store
            .memories()
            .list(&Reader::All, &MemoryFilter::default(), 0, PageSize::rows(10))
            .await
            .unwrap();
        assert_eq!((all.len(), total, at.store.memories().count().await.unwrap()), (2, 2, 2));
        let id = all[1].id.clone();
        let gone: Result<bool> = at.store.write(job!(|tx| tx.memories().delete(&id).await)).await;
        assert!(gone.unwrap());
        assert_eq!((found("clock").await, found("cach").await), ((0, 0), (1, 1)));
    }
}
