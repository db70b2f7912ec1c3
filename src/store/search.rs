//! What records are found by: their terms, and where those stand.

use super::{Store, StoreError, WriteTx};
use crate::domain::{
    Timestamp,
    journal::{Domain, Ghap, GhapStatus, Tier},
    text,
};

/// Which records a search may find.
#[derive(Debug, Clone, Default)]
pub struct SearchFilter {
    /// Only of this domain.
    pub domain: Option<Domain>,
    /// Only with this outcome.
    pub status: Option<GhapStatus>,
}

/// A record that has some of the terms.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Its place in the table.
    pub id: i64,
    /// Its project; "" if it has none.
    pub project: String,
    /// What became of it.
    pub status: GhapStatus,
    /// How far it can be trusted.
    pub tier: Option<Tier>,
    /// When it was resolved.
    pub at: Timestamp,
    /// Terms of goal and hypothesis.
    pub aim: String,
    /// Terms of surprise, root cause and lesson.
    pub lesson: String,
    /// Terms of action, prediction and result.
    pub rest: String,
}

impl WriteTx {
    /// Writes what a resolved record is found by; an active one is not looked for.
    pub(super) async fn index_ghap(&mut self, ghap: &Ghap) -> Result<(), StoreError> {
        if ghap.status == GhapStatus::Active {
            return Ok(());
        }
        let terms = |texts: &[Option<&str>]| {
            let texts: Vec<&str> = texts.iter().copied().flatten().collect();
            text::terms(&texts.join("\n"))
        };
        let cause = ghap.root_cause.as_ref().map(|cause| cause.description.as_str());
        let worked = ghap.lesson.as_ref().map(|lesson| lesson.what_worked.as_str());
        let takeaway = ghap.lesson.as_ref().and_then(|lesson| lesson.takeaway.as_deref());
        let aim = terms(&[Some(&ghap.goal), Some(&ghap.hypothesis)]);
        let lesson = terms(&[ghap.surprise.as_deref(), cause, worked, takeaway]);
        let rest = terms(&[Some(&ghap.action), Some(&ghap.prediction), ghap.result.as_deref()]);
        let id = ghap.id.as_str();
        // An update that changes none of the texts has left the row where it was.
        sqlx::query!(
            "delete from ghap_text where id = (select id from ghap where ghap_id = ?)",
            id
        )
        .execute(&mut self.conn)
        .await?;
        sqlx::query!(
            "insert into ghap_text (id, aim, lesson, rest) select id, ?, ?, ? from ghap where ghap_id = ?",
            aim,
            lesson,
            rest,
            id
        )
        .execute(&mut self.conn)
        .await?;
        Ok(())
    }
}

impl Store {
    /// How many records can be found.
    pub async fn searchable(&self) -> Result<i64, StoreError> {
        // The largest id stands for the count, which would be a walk over the table.
        let last = sqlx::query_scalar!(r#"select max(id) as "last: i64" from ghap_text"#)
            .fetch_one(&self.readers)
            .await?;
        Ok(last.unwrap_or(0))
    }

    /// In how many records each term stands; those that stand in none are left out. `terms` is an array in JSON.
    pub async fn frequencies(&self, terms: &str) -> Result<Vec<(String, i64)>, StoreError> {
        let rows = sqlx::query!(
            r#"select t.term as "term!", t.records as "records!: i64"
            from json_each(?) j cross join term t on t.term = j.value
            where t.records > 0"#,
            terms
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(rows.into_iter().map(|row| (row.term, row.records)).collect())
    }

    /// The terms that look most like what a query of the trigram table asks for.
    pub async fn terms_like(&self, query: &str, limit: u32) -> Result<Vec<String>, StoreError> {
        let rows = sqlx::query_scalar!(
            r#"select t.term as "term!" from (
                select rowid as id from term_trigram where term_trigram match ? order by rank limit ?
            ) f
            join term t on t.id = f.id"#,
            query,
            limit
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(rows)
    }

    /// The records that have the most of some terms, which are an object in JSON: each with what it counts.
    pub async fn candidates(
        &self,
        terms: &str,
        filter: &SearchFilter,
        limit: u32,
    ) -> Result<Vec<Candidate>, StoreError> {
        let rows = sqlx::query_as!(
            Candidate,
            r#"select g.id as "id!", g.project, g.status as "status: GhapStatus", g.tier as "tier: Tier",
                coalesce(g.resolved_at, g.updated_at) as "at!: Timestamp", t.aim, t.lesson, t.rest
            from (
                select p.doc as id from json_each(?1) j cross join ghap_place p on p.term = j.key
                group by p.doc order by sum(j.value) desc, p.doc desc limit ?2
            ) f
            join ghap g on g.id = f.id
            join ghap_text t on t.id = f.id
            where (?3 is null or g.domain = ?3) and (?4 is null or g.status = ?4)"#,
            terms,
            limit,
            filter.domain,
            filter.status
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(rows)
    }

    /// The latest records that fit a query of the index, however many do.
    pub async fn latest_candidates(
        &self,
        query: &str,
        filter: &SearchFilter,
        limit: u32,
    ) -> Result<Vec<Candidate>, StoreError> {
        let rows = sqlx::query_as!(
            Candidate,
            r#"select g.id as "id!", g.project, g.status as "status: GhapStatus", g.tier as "tier: Tier",
                coalesce(g.resolved_at, g.updated_at) as "at!: Timestamp", t.aim, t.lesson, t.rest
            from (
                select rowid as id from ghap_fts where ghap_fts match ?1 order by rowid desc limit ?2
            ) f
            join ghap g on g.id = f.id
            join ghap_text t on t.id = f.id
            where (?3 is null or g.domain = ?3) and (?4 is null or g.status = ?4)"#,
            query,
            limit,
            filter.domain,
            filter.status
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{
        super::testing::{TestStore, journal::record},
        *,
    };

    async fn found(at: &TestStore, term: &str) -> usize {
        let terms = serde_json::to_string(&HashMap::from([(term, 1.0)])).unwrap();
        at.store.candidates(&terms, &SearchFilter::default(), 10).await.unwrap().len()
    }

    async fn frequency(at: &TestStore, term: &str) -> i64 {
        let terms = serde_json::to_string(&[term]).unwrap();
        at.store.frequencies(&terms).await.unwrap().first().map_or(0, |it| it.1)
    }

    async fn put(at: &TestStore, ghaps: Vec<Ghap>, is_new: bool) {
        let done: Result<(), StoreError> = at
            .store
            .write(move |tx| {
                Box::pin(async move {
                    for ghap in ghaps {
                        if is_new {
                            tx.insert_ghap(&ghap, None).await?;
                        } else {
                            tx.update_ghap(&ghap).await?;
                        }
                    }
                    Ok(())
                })
            })
            .await;
        done.unwrap();
    }

    #[tokio::test]
    async fn a_record_is_found_by_what_it_says_now() {
        let at = TestStore::open().await;
        let mut ghap = record(&at, 1, "The tokenizer hangs on computeCartTotal").await;
        put(&at, vec![ghap.clone()], true).await;
        for term in ["token", "hang", "cart", "computecarttot"] {
            assert_eq!((found(&at, term).await, frequency(&at, term).await), (1, 1), "{term}");
        }
        ghap.goal = "Another parser".to_owned();
        put(&at, vec![ghap.clone()], false).await;
        assert_eq!((found(&at, "hang").await, frequency(&at, "hang").await), (0, 0));
        assert_eq!((found(&at, "parser").await, frequency(&at, "parser").await), (1, 1));
        put(&at, vec![ghap], false).await;
        assert_eq!(
            (found(&at, "parser").await, frequency(&at, "parser").await),
            (1, 1),
            "no change"
        );
        let query = text::any_of(["oth", "the"]);
        assert!(!at.store.terms_like(&query, 5).await.unwrap().is_empty());
        assert_eq!(at.store.searchable().await.unwrap(), 1);
    }

    #[tokio::test]
    async fn an_active_record_is_not_looked_for() {
        let at = TestStore::open().await;
        let mut ghap = record(&at, 1, "The tokenizer hangs").await;
        ghap.status = GhapStatus::Active;
        put(&at, vec![ghap], true).await;
        assert_eq!(found(&at, "hang").await, 0);
    }

    #[tokio::test]
    async fn any_text_is_a_query() {
        let at = TestStore::open().await;
        let ghap = record(&at, 1, "foo-bar").await;
        put(&at, vec![ghap], true).await;
        for term in ["a\"b", "NEAR(", "foo-bar", "col:val", "*", "'", "^a", "AND", "🦀"] {
            found(&at, term).await;
            let query = text::any_of([term]);
            at.store.latest_candidates(&query, &SearchFilter::default(), 1).await.unwrap();
            at.store.terms_like(&text::any_of([term]), 1).await.unwrap();
        }
    }
}
