//! Records of attempts, with their former versions and notes.

use svc_model::{
    GhapFilter, GhapId, OutcomeId, Reader, Timestamp,
    journal::{
        Domain, Ghap, GhapEnd, GhapStatus, Iteration, Lesson, RootCause, RootCauseCategory,
        Strategy, Tier,
    },
    json_bytes,
};

use super::{GhapReads, GhapWrites};
use crate::{
    LessonKind, PageSize, Result, RowPage, boxed_methods,
    columns::{Columns, DirectRow, Fault},
    readers::Rows as _,
    statement::{change, changed, column, direct_row, query},
};

direct_row!(Iteration { iteration, hypothesis, action, prediction, at });

impl DirectRow for Ghap {
    fn read(columns: &mut Columns<'_>) -> Result<Self, Fault> {
        let id = columns.next("ghap_id")?;
        let session_id = columns.next("session_id")?;
        let project = columns.non_empty("project")?;
        let (domain, strategy) = (columns.next("domain")?, columns.next("strategy")?);
        let (goal, hypothesis) = (columns.next("goal")?, columns.next("hypothesis")?);
        let (action, prediction) = (columns.next("action")?, columns.next("prediction")?);
        let probability = columns.next("probability")?;
        let iteration_count = columns.next("iteration_count")?;
        let status = columns.next("status")?;
        let (result, surprise) = (columns.next("result")?, columns.next("surprise")?);
        let category: Option<RootCauseCategory> = columns.next("root_cause_category")?;
        let cause: Option<String> = columns.next("root_cause")?;
        let what_worked: Option<String> = columns.next("what_worked")?;
        let takeaway = columns.next("takeaway")?;
        let tier: Option<Tier> = columns.next("tier")?;
        let outcome_id = columns.next("outcome_id")?;
        let confirmed_again = columns.next("confirmed_again")?;
        let (created_at, updated_at) = (columns.next("created_at")?, columns.next("updated_at")?);
        let resolved_at: Option<Timestamp> = columns.next("resolved_at")?;
        let root_cause = category.zip(cause);
        let end = |(tier, at)| GhapEnd {
            result,
            surprise,
            root_cause: root_cause
                .map(|(category, description)| RootCause { category, description }),
            lesson: what_worked.map(|what_worked| Lesson { what_worked, takeaway }),
            tier,
            outcome_id,
            at,
        };
        // A resolved record must have a tier and a time; an active one must have neither.
        let end = match (status, tier.zip(resolved_at)) {
            (GhapStatus::Active, None) if tier.is_none() && resolved_at.is_none() => None,
            (GhapStatus::Active, _) => return Err("it is active and has ended".into()),
            (_, None) => return Err("it has ended, without a tier or a time".into()),
            (_, ended) => ended.map(end).map(Box::new),
        };
        Ok(Self {
            id,
            session_id,
            project,
            domain,
            strategy,
            goal,
            hypothesis,
            action,
            prediction,
            probability,
            iteration_count,
            status,
            end,
            confirmed_again,
            created_at,
            updated_at,
        })
    }
}

struct EndColumns<'a> {
    result: Option<&'a str>,
    surprise: Option<&'a str>,
    category: Option<RootCauseCategory>,
    cause: Option<&'a str>,
    worked: Option<&'a str>,
    takeaway: Option<&'a str>,
    tier: Option<Tier>,
    outcome: Option<&'a str>,
    resolved_at: Option<Timestamp>,
}

impl<'a> From<&'a Ghap> for EndColumns<'a> {
    fn from(ghap: &'a Ghap) -> Self {
        let (cause, lesson) = (ghap.root_cause(), ghap.lesson());
        let outcome = ghap.end.as_ref().and_then(|end| end.outcome_id.as_ref());
        Self {
            result: ghap.result(),
            surprise: ghap.surprise(),
            category: cause.map(|cause| cause.category),
            cause: cause.map(|cause| cause.description.as_str()),
            worked: lesson.map(|lesson| lesson.what_worked.as_str()),
            takeaway: lesson.and_then(|lesson| lesson.takeaway.as_deref()),
            tier: ghap.tier(),
            outcome: outcome.map(OutcomeId::as_str),
            resolved_at: ghap.resolved_at(),
        }
    }
}

macro_rules! ghaps {
    ($run:ident($($bound:expr),*), $($rest:tt)*) => {
        query!($run($($bound),*),
            r#"select g.ghap_id as "ghap_id!", g.session_id, g.project, g.domain as "domain: Domain",
                g.strategy as "strategy: Strategy", g.goal, g.hypothesis, g.action, g.prediction, g.probability,
                g.iteration_count, g.status as "status: GhapStatus", g.result, g.surprise,
                g.root_cause_category as "root_cause_category: RootCauseCategory", g.root_cause, g.what_worked,
                g.takeaway, g.tier as "tier: Tier", g.outcome_id, g.confirmed_again,
                g.created_at as "created_at: Timestamp", g.updated_at as "updated_at: Timestamp", g.resolved_at as "resolved_at: Timestamp"
            from ghap g "#,
            $($rest)*
        )
    };
}

/// Records by their row ids (a JSON array), in any order.
pub(super) async fn ghaps_at(store: &crate::Store, rows: &str) -> Result<Vec<Ghap>> {
    Ok(ghaps!(all(), store.pool(), "where g.id in (select value from json_each(?))"; rows))
}

#[boxed_methods]
impl GhapWrites<'_> {
    pub async fn insert(&mut self, ghap: &Ghap) -> Result<()> {
        let (id, project) = (ghap.id.as_str(), ghap.project.as_deref().unwrap_or_default());
        let (status, end) = (ghap.status, EndColumns::from(ghap));
        change!(self.tx,
            "insert into ghap (ghap_id, session_id, project, domain, strategy, goal, hypothesis, action, prediction,
                probability, iteration_count, status, result, surprise, root_cause_category, root_cause, what_worked,
                takeaway, tier, outcome_id, created_at, updated_at, resolved_at)
            values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
            id, ghap.session_id, project, ghap.domain, ghap.strategy, ghap.goal, ghap.hypothesis,
            ghap.action, ghap.prediction, ghap.probability, ghap.iteration_count, status,
            end.result, end.surprise, end.category, end.cause, end.worked, end.takeaway, end.tier,
            end.outcome, ghap.created_at, ghap.updated_at, end.resolved_at);
        self.tx.search().index_ghap(ghap).await
    }

    pub async fn update(&mut self, ghap: &Ghap) -> Result<()> {
        let id = ghap.id.as_str();
        let (status, end) = (ghap.status, EndColumns::from(ghap));
        let done = change!(self.tx,
            "update ghap set session_id = ?, domain = ?, strategy = ?, goal = ?, hypothesis = ?, action = ?,
                prediction = ?, probability = ?, iteration_count = ?, status = ?, result = ?, surprise = ?,
                root_cause_category = ?, root_cause = ?, what_worked = ?, takeaway = ?, tier = ?, outcome_id = ?,
                updated_at = ?, resolved_at = ?
            where ghap_id = ?";
            ghap.session_id, ghap.domain, ghap.strategy, ghap.goal, ghap.hypothesis, ghap.action,
            ghap.prediction, ghap.probability, ghap.iteration_count, status, end.result,
            end.surprise, end.category, end.cause, end.worked, end.takeaway, end.tier, end.outcome,
            ghap.updated_at, end.resolved_at, id);
        changed(done, "ghap", id)?;
        self.tx.search().index_ghap(ghap).await
    }

    /// Stores the texts that a record had before a change.
    pub async fn insert_iteration(&mut self, id: &GhapId, before: &Iteration) -> Result<()> {
        change!(self.tx,
            "insert into ghap_history (ghap_id, iteration, hypothesis, action, prediction, at)
            values (?, ?, ?, ?, ?, ?)";
            id, before.iteration, before.hypothesis, before.action, before.prediction, before.at);
        Ok(())
    }

    pub async fn insert_note(&mut self, id: &GhapId, note: &str, at: Timestamp) -> Result<()> {
        change!(self.tx,
            "insert into ghap_note (ghap_id, note, at) values (?, ?, ?)"; id, note, at);
        Ok(())
    }

    pub async fn notes(&mut self, id: &GhapId) -> Result<Vec<String>> {
        Ok(column!(self.tx.direct, "select note from ghap_note where ghap_id = ? order by id"; id))
    }

    pub async fn active(&mut self, session_id: &str) -> Result<Option<Ghap>> {
        Ok(ghaps!(one(), self.tx.direct,
            "where g.session_id = ? and g.status = 'active'"; session_id))
    }

    pub async fn get(&mut self, id: &GhapId) -> Result<Option<Ghap>> {
        Ok(ghaps!(one(), self.tx.direct, "where g.ghap_id = ?"; id))
    }
}

#[boxed_methods]
impl GhapReads<'_> {
    pub async fn active(&self, session_id: &str) -> Result<Option<Ghap>> {
        Ok(ghaps!(one(), self.store.pool(),
            "where g.session_id = ? and g.status = 'active'"; session_id))
    }

    pub async fn get(&self, reader: &Reader, id: &GhapId) -> Result<Option<Ghap>> {
        Ok(ghaps!(one(), self.store.pool(),
            "where g.ghap_id = ?1 and (?2 is null or g.project = ?3 or g.session_id in (select session_id from session where reader_key = ?2))";
            id, reader.key(), reader.project()))
    }

    /// Records that the reader may read and whose ids begin with `prefix`, active ones first, at
    /// most `limit`.
    pub async fn with_prefix(
        &self,
        reader: &Reader,
        prefix: &str,
        limit: u32,
    ) -> Result<Vec<Ghap>> {
        Ok(ghaps!(all(), self.store.pool(),
            "where g.ghap_id >= ?1 and g.ghap_id < ?1 || '~'
                and (?3 is null or g.project = ?4 or g.session_id in (select session_id from session where reader_key = ?3))
            order by g.status = 'active' desc, g.id desc limit ?2";
            prefix, limit, reader.key(), reader.project()))
    }

    pub async fn list(
        &self,
        reader: &Reader,
        filter: &GhapFilter,
        before: Option<&GhapId>,
        size: PageSize,
    ) -> Result<RowPage<Ghap>> {
        let limit = size.limit();
        let before = before.map(GhapId::as_str);
        // Each condition has an index in the order of the list.
        macro_rules! page {
            ($first:literal) => {
                ghaps!(page(size, json_bytes), self.store.pool(),
                    $first + "and (?1 is null or g.domain = ?1) and (?2 is null or g.status = ?2)
                and (?3 is null or g.project = ?3) and (?4 is null or g.session_id = ?4)
                and (?5 is null or g.resolved_at >= ?5)
                and g.id < coalesce((select id from ghap where ghap_id = ?6), 9223372036854775807)
                and (?8 is null or g.project = ?9 or g.session_id in (select session_id from session where reader_key = ?8))
            order by g.id desc limit ?7";
                    filter.domain, filter.status, filter.project, filter.session_id, filter.since,
                    before, limit, reader.key(), reader.project())
            };
        }
        Ok(if filter.session_id.is_some() {
            page!("where g.session_id = ?4 ")
        } else if filter.status == Some(GhapStatus::Active) {
            page!("where g.status = 'active' ")
        } else if filter.project.is_some() {
            page!("where g.project = ?3 ")
        } else {
            page!("where true ")
        })
    }

    /// Active records of a project whose session has ended or was last seen before `stale`, without
    /// those of `session_id`.
    pub async fn orphans(
        &self,
        project: &str,
        session_id: &str,
        stale: Timestamp,
    ) -> Result<Vec<Ghap>> {
        Ok(ghaps!(all(), self.store.pool(),
            "join session s on s.session_id = g.session_id
            where g.status = 'active' and g.project = ?1 and g.session_id <> ?2
                and (s.ended_at is not null or s.last_seen_at < ?3)
            order by g.updated_at desc"; project, session_id, stale))
    }

    /// The former versions of a record, in order.
    pub async fn iterations(&self, id: &GhapId) -> Result<Vec<Iteration>> {
        Ok(query!(all(), self.store.pool(),
            r#"select iteration, hypothesis, action, prediction, at as "at: Timestamp" from ghap_history
            where ghap_id = ? order by iteration"#; id))
    }

    pub async fn notes(&self, id: &GhapId) -> Result<Vec<String>> {
        Ok(
            column!(self.store.pool(), "select note from ghap_note where ghap_id = ? order by id"; id),
        )
    }

    pub async fn latest_resolved(&self, reader: &Reader, limit: u32) -> Result<Vec<Ghap>> {
        Ok(ghaps!(all(), self.store.pool(),
            "where g.status <> 'active'
                and (?2 is null or g.project = ?3 or g.session_id in (select session_id from session where reader_key = ?2))
            order by g.id desc limit ?1"; limit, reader.key(), reader.project()))
    }

    /// Records of a kind that hold a lesson and that the reader may read: those of `project` first,
    /// then those with a stated lesson, then the latest.
    pub async fn telling(
        &self,
        reader: &Reader,
        domain: Domain,
        strategy: Option<Strategy>,
        kind: LessonKind,
        project: &str,
        limit: u32,
    ) -> Result<Vec<Ghap>> {
        let failed = kind == LessonKind::Falsified;
        Ok(ghaps!(all(), self.store.pool(),
            "where g.domain = ?1 and (?2 is null or g.strategy = ?2) and g.status <> 'active'
                and ((?3 and g.status = 'falsified') or (not ?3 and g.surprise is not null))
                and (?6 is null or g.project = ?7 or g.session_id in (select session_id from session where reader_key = ?6))
            order by g.project = ?4 desc, g.what_worked is null, g.id desc limit ?5";
            domain, strategy, failed, project, limit, reader.key(), reader.project()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{
        TestStore,
        journal::{put, record},
    };

    #[tokio::test]
    async fn a_record_that_is_half_resolved_is_a_bad_row() {
        let at = TestStore::open().await;
        let ghap = record(&at, 1, "The tokenizer hangs").await;
        let (id, stored) = (ghap.id.clone(), ghap.clone());
        put(&at, ghap).await;
        assert_eq!(at.store.ghaps().get(&Reader::All, &id).await.unwrap(), Some(stored));
        for (half, whole) in [
            ("tier = null", "tier = 'silver'"),
            ("resolved_at = null", "resolved_at = 1000"),
            ("status = 'active'", "status = 'confirmed'"),
        ] {
            run(&at, &format!("update ghap set {half}")).await;
            let refused = at.store.ghaps().get(&Reader::All, &id).await;
            let is_refused =
                matches!(refused, Err(crate::StoreError::BadRow { table: "Ghap", .. }));
            assert!(is_refused, "{half}: {refused:?}");
            run(&at, &format!("update ghap set {whole}")).await;
            assert!(at.store.ghaps().get(&Reader::All, &id).await.unwrap().is_some(), "{whole}");
        }
    }

    async fn run(at: &TestStore, sql: &str) {
        let sql = sql.to_owned();
        at.write(crate::job!(|tx| tx.direct.execute(&sql))).await;
    }
}
