//! The search index: the terms of records, and the records of each term.

use svc_model::{
    Reader,
    journal::{Ghap, GhapStatus},
    limits, text,
};

use super::{SearchReads, SearchWrites, journal::ghaps_at};
use crate::{
    Frequencies, Result, SearchCandidate, SearchFilter, boxed, boxed_methods,
    columns::{from_json, to_json},
    readers::Rows as _,
    statement::{change, changed, column, query, value},
};

/// The number of records, and for each term the number of records that have it. The largest id
/// approximates the count, which would be a table scan.
macro_rules! frequencies {
    ($run:ident($($bound:expr),*), $($rest:tt)*) => {
        query!($run($($bound),*),
            r#"select (select coalesce(max(id), 0) from ghap_text) as "all!: i64",
            json_group_array(json_array(t.term, t.records)) as "each!: String"
        from json_each(?) j cross join term t on t.term = j.value where t.records > 0"#,
            $($rest)*
        )
    };
}

impl SearchWrites<'_> {
    #[boxed]
    pub async fn frequencies(&mut self, terms: &[&str]) -> Result<Frequencies> {
        let terms = to_json(terms);
        let (all, each): (i64, String) = frequencies!(row(), self.tx.direct; terms);
        Ok((all, from_json(&each)?))
    }

    /// Writes the terms of a resolved record. Active records are not in the index.
    pub(super) async fn index_ghap(&mut self, ghap: &Ghap) -> Result<()> {
        if ghap.status == GhapStatus::Active {
            return Ok(());
        }
        let [aim, lesson, rest] = ghap.terms();
        let id = ghap.id.as_str();
        // After an update that changed none of the texts, the former index row still exists.
        change!(self.tx,
            "delete from ghap_text where id = (select id from ghap where ghap_id = ?)"; id);
        let done = change!(self.tx,
            "insert into ghap_text (id, aim, lesson, rest) select id, ?, ?, ? from ghap where ghap_id = ?";
            aim, lesson, rest, id);
        changed(done, "ghap_text", id)
    }
}

#[boxed_methods]
impl SearchReads<'_> {
    /// The number of searchable records, and for each term the number of records that have it;
    /// unknown terms are left out.
    pub async fn frequencies(&self, terms: &[&str]) -> Result<Frequencies> {
        let terms = to_json(terms);
        let (all, each): (i64, String) = frequencies!(row(), self.store.pool(); terms);
        Ok((all, from_json(&each)?))
    }

    /// [`frequencies`](Self::frequencies), and for words that no record has, a term that may be
    /// meant: each such word with its term. `parts` has a query of the trigram table for each word
    /// that may be misspelt; only the first few unknown words are queried.
    pub async fn known(
        &self,
        terms: &[&str],
        parts: &[(&str, String)],
    ) -> Result<(Frequencies, Vec<(String, String)>)> {
        let (terms, parts) = (to_json(terms), to_json(parts));
        // In one statement: a switch of threads costs as much as a look-up.
        let (all, each, like): (i64, String, String) = query!(row(), self.store.pool(),
            r#"select (select coalesce(max(id), 0) from ghap_text) as "all!: i64",
                (
                    select json_group_array(json_array(t.term, t.records))
                    from json_each(?1) j cross join term t on t.term = j.value
                    where t.records > 0
                ) as "each!: String",
                (
                    select json_group_array(json_array(like.word, like.term))
                    from (
                        select w.word, t.term
                        from (
                            select j.value ->> 0 as word, j.value ->> 1 as parts
                            from json_each(?2) j
                            where not exists (select 1 from term k where k.term = j.value ->> 0 and k.records > 0)
                            limit ?3
                        ) w
                        cross join term_trigram f
                        cross join term t on t.id = f.rowid
                        where f.term_trigram match w.parts and t.records > 0
                            and substr(t.term, 1, 1) = substr(w.word, 1, 1)
                            and (
                                abs(length(t.term) - length(w.word)) <= 2
                                or instr(t.term, w.word) = 1 or instr(w.word, t.term) = 1
                            )
                        limit ?4
                    ) like
                ) as "like!: String""#;
            terms, parts, limits::PROMPT_TYPOS, limits::SEARCH_TERMS_LIKE);
        Ok(((all, from_json(&each)?), from_json(&like)?))
    }

    /// Row ids of the records that have each term and that the reader may read; for a session, the
    /// latest of each term.
    pub async fn postings(
        &self,
        reader: &Reader,
        terms: &[&str],
        filter: &SearchFilter,
    ) -> Result<Vec<(String, Vec<i64>)>> {
        let terms = to_json(terms);
        if let Some(key) = reader.key() {
            return self.readable_postings(key, reader.project(), &terms, filter).await;
        }
        let postings = value!(self.store.pool(),
            r#"select json_group_array(json_array(j.value, (
                select json_group_array(f.rowid) from ghap_fts f
                where f.ghap_fts match '"' || replace(j.value, '"', '""') || '"'
                    and (coalesce(?2, ?3, ?4) is null or exists (
                        select 1 from ghap g
                        where g.id = f.rowid and (?2 is null or g.domain = ?2) and (?3 is null or g.status = ?3)
                            and (?4 is null or iif(?4 = 'surprise', g.surprise, g.root_cause_category) is not null)
                    ))
            ))) as "places!: String"
            from json_each(?1) j"#; terms, filter.domain, filter.status, filter.part);
        from_json(&postings)
    }

    /// [`postings`](Self::postings) of a session's project, and those of its own records of other
    /// projects. `terms` is a JSON array.
    async fn readable_postings(
        &self,
        key: &str,
        project: Option<&str>,
        terms: &str,
        filter: &SearchFilter,
    ) -> Result<Vec<(String, Vec<i64>)>> {
        let (of_project, own): (String, String) = query!(row(), self.store.pool(),
            r#"select (
                select json_group_array(json_array(j.value, (
                    select json_group_array(latest.ghap_id) from (
                        select p.ghap_id from ghap_posting p
                        where p.term_id = t.id and p.scope_id = c.id and (coalesce(?4, ?5, ?6) is null or exists (
                            select 1 from ghap g
                            where g.id = p.ghap_id and (?4 is null or g.domain = ?4) and (?5 is null or g.status = ?5)
                                and (?6 is null or iif(?6 = 'surprise', g.surprise, g.root_cause_category) is not null)
                        ))
                        order by p.ghap_id desc limit ?7
                    ) latest
                )))
                from json_each(?1) j
                cross join term t on t.term = j.value
                cross join search_scope c
                where c.name = 'project:' || ?3
            ) as "of_project!: String", (
                select json_group_array(json_array(j.value, json_array(o.id)))
                from (
                    select g.id, c.id as scope_id
                    from session s
                    cross join ghap g on g.session_id = s.session_id
                    cross join search_scope c on c.name = 'project:' || g.project
                    where s.reader_key = ?2 and g.project is not ?3 and (?4 is null or g.domain = ?4)
                        and (?5 is null or g.status = ?5)
                        and (?6 is null or iif(?6 = 'surprise', g.surprise, g.root_cause_category) is not null)
                    order by g.id desc limit ?8
                ) o
                cross join json_each(?1) j
                cross join term t on t.term = j.value
                where exists (
                    select 1 from ghap_posting p
                    where p.term_id = t.id and p.scope_id = o.scope_id and p.ghap_id = o.id
                )
            ) as "own!: String""#;
            terms, key, project, filter.domain, filter.status, filter.part,
            limits::SEARCH_POSTINGS_OF_TERM, limits::SEARCH_OWN);
        let mut lists: Vec<(String, Vec<i64>)> = from_json(&of_project)?;
        let own: Vec<(String, Vec<i64>)> = from_json(&own)?;
        lists.extend(own);
        Ok(lists)
    }

    /// The latest records that have a term and that the reader may read, however many have the
    /// term.
    pub async fn latest(
        &self,
        reader: &Reader,
        term: &str,
        filter: &SearchFilter,
        limit: usize,
    ) -> Result<Vec<i64>> {
        let (query, limit) = (text::any_of([term]), i64::try_from(limit).unwrap_or(i64::MAX));
        Ok(column!(self.store.pool(),
            r#"select g.id as "id!" from ghap_fts f cross join ghap g on g.id = f.rowid
            where f.ghap_fts match ?1 and (?2 is null or g.domain = ?2) and (?3 is null or g.status = ?3)
                and (?4 is null or iif(?4 = 'surprise', g.surprise, g.root_cause_category) is not null)
                and (?6 is null or g.project = ?7 or g.session_id in (select session_id from session where reader_key = ?6))
            order by f.rowid desc limit ?5"#;
            query, filter.domain, filter.status, filter.part, limit, reader.key(),
            reader.project()))
    }

    /// Records by their row ids, with their terms.
    pub async fn candidates(&self, ids: &[i64]) -> Result<Vec<SearchCandidate>> {
        let ids = to_json(ids);
        let candidates = value!(self.store.pool(),
            r#"select json_group_array(json_array(
                g.id, g.ghap_id, g.project, g.status, g.tier, coalesce(g.resolved_at, g.updated_at), g.confirmed_again,
                t.aim, t.lesson, t.rest
            )) as "candidates!: String"
            from json_each(?) j cross join ghap g on g.id = j.value cross join ghap_text t on t.id = g.id"#;
            ids);
        from_json(&candidates)
    }

    /// Complete records by their row ids, in any order.
    pub async fn ghaps(&self, ids: &[i64]) -> Result<Vec<Ghap>> {
        ghaps_at(self.store, &to_json(ids)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{
        TestStore,
        journal::{put, record, update},
    };

    async fn matches(at: &TestStore, term: &str) -> usize {
        let index = at.store.search();
        let postings =
            index.postings(&Reader::All, &[term], &SearchFilter::default()).await.unwrap();
        postings[0].1.len()
    }

    async fn frequency(at: &TestStore, term: &str) -> i64 {
        let index = at.store.search();
        index.frequencies(&[term]).await.unwrap().1.first().map_or(0, |(_, records)| *records)
    }

    #[tokio::test]
    async fn a_record_is_found_by_its_current_text_only() {
        let at = TestStore::open().await;
        let mut ghap = record(&at, 1, "The tokenizer hangs on computeCartTotal").await;
        put(&at, ghap.clone()).await;
        for term in ["token", "hang", "cart", "computecarttot"] {
            assert_eq!((matches(&at, term).await, frequency(&at, term).await), (1, 1), "{term}");
        }
        ghap.goal = "Another parser".to_owned();
        update(&at, ghap.clone()).await;
        assert_eq!((matches(&at, "hang").await, frequency(&at, "hang").await), (0, 0));
        assert_eq!((matches(&at, "parser").await, frequency(&at, "parser").await), (1, 1));
        update(&at, ghap).await;
        assert_eq!(
            (matches(&at, "parser").await, frequency(&at, "parser").await),
            (1, 1),
            "no change"
        );
        let index = at.store.search();
        let parts = ["parsre", "parser"].map(|word| (word, text::any_of(["par", "ser", "sre"])));
        let (known, like) = index.known(&["parser", "parsre"], &parts).await.unwrap();
        assert_eq!(known, (1, vec![("parser".to_owned(), 1)]));
        assert_eq!(
            like,
            [("parsre".to_owned(), "parser".to_owned())],
            "the other word resembles no term"
        );
        assert_eq!(index.frequencies(&[]).await.unwrap(), (1, vec![]));
    }

    #[tokio::test]
    async fn an_active_record_is_not_in_the_index() {
        let at = TestStore::open().await;
        let mut ghap = record(&at, 1, "The tokenizer hangs").await;
        (ghap.status, ghap.end) = (GhapStatus::Active, None);
        put(&at, ghap).await;
        assert_eq!(matches(&at, "hang").await, 0);
    }

    #[tokio::test]
    async fn any_text_is_a_valid_query() {
        let at = TestStore::open().await;
        let ghap = record(&at, 1, "foo-bar").await;
        put(&at, ghap).await;
        for term in ["a\"b", "NEAR(", "foo-bar", "col:val", "*", "'", "^a", "AND", "🦀"] {
            matches(&at, term).await;
            let index = at.store.search();
            index.latest(&Reader::All, term, &SearchFilter::default(), 1).await.unwrap();
            index.known(&[term], &[(term, text::any_of([term]))]).await.unwrap();
        }
    }
}
