//! Sums over records: how often predictions were confirmed, and causes of wrong ones.
//!
//! `ghap_sum` keeps them with the records, of all and of each project. Added are the records of a
//! session's own that are of another project, which are few and which no other session reads.

use svc_model::{
    Reader, Timestamp,
    journal::{Domain, RootCauseCategory, Strategy},
};

use super::{
    families::CalibrationReads,
    statement::{direct_row, query_fields, query_rows},
};
use crate::{CalibrationRow, HitRate, ProbabilityBin, StoreError, VerdictWeek};

direct_row!(HitRate { strategy, records, confirmed });
direct_row!(CalibrationRow { client, domain, records, hit_rate, with_probability, brier });
direct_row!(ProbabilityBin { tenth, records, confirmed, mean });
direct_row!(VerdictWeek { week, records, confirmed });

/// The scope in `ghap_sum` of what a reader reads by its project, or reads all of.
pub(super) fn sum_scope(reader: &Reader) -> Option<&str> {
    if reader.reads_all_rows() { Some("*") } else { reader.project() }
}

/// The same, for the records of one project.
fn scope_of<'a>(reader: &'a Reader, project: Option<&'a str>) -> Option<&'a str> {
    match project {
        None => sum_scope(reader),
        Some(project) => Some(project)
            .filter(|project| reader.reads_all_rows() || reader.project() == Some(*project)),
    }
}

impl CalibrationReads<'_> {
    /// Rates of confirmed predictions by strategy in a domain: the requested strategy first, then
    /// the most used.
    pub async fn hit_rates(
        self,
        reader: &Reader,
        domain: Domain,
        strategy: Option<Strategy>,
    ) -> Result<Vec<HitRate>, StoreError> {
        let (scope, key, read_project) = (sum_scope(reader), reader.key(), reader.project());
        let rows = query_rows!(
            HitRate,
            r#"select strategy as "strategy!: Strategy", sum(records) as "records!: i64", sum(confirmed) as "confirmed!: i64"
            from (
                select item as strategy, records, confirmed from ghap_sum
                where scope = ?3 and subject = 'strategy' and domain = ?1 and records > 0
                union all
                select g.strategy, 1, iif(g.status = 'confirmed', 1, 0)
                from session s cross join ghap g on g.session_id = s.session_id
                where s.reader_key = ?4 and g.project is not ?5 and g.domain = ?1
                    and g.status in ('confirmed', 'falsified')
            )
            group by strategy order by coalesce(strategy = ?2, false) desc, sum(records) desc, strategy"#,
            domain,
            strategy,
            scope,
            key,
            read_project
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(rows)
    }

    /// Root causes of wrong predictions of a domain, the most frequent first.
    pub async fn root_causes(
        self,
        reader: &Reader,
        domain: Domain,
        strategy: Option<Strategy>,
    ) -> Result<Vec<(RootCauseCategory, i64)>, StoreError> {
        let (scope, key, read_project) = (sum_scope(reader), reader.key(), reader.project());
        let rows = query_fields!(
            { category: RootCauseCategory, count: i64 },
            r#"select category as "category!: RootCauseCategory", sum(records) as "count!: i64"
            from (
                select item as category, detail as strategy, records from ghap_sum
                where scope = ?3 and subject = 'cause' and domain = ?1 and records > 0
                union all
                select g.root_cause_category, g.strategy, 1
                from session s cross join ghap g on g.session_id = s.session_id
                where s.reader_key = ?4 and g.project is not ?5 and g.domain = ?1 and g.status = 'falsified'
                    and g.root_cause_category is not null
            )
            where ?2 is null or strategy = ?2
            group by category order by sum(records) desc, category"#,
            domain,
            strategy,
            scope,
            key,
            read_project
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(rows.into_iter().map(|row| (row.category, row.count)).collect())
    }

    /// Confirmed and wrong predictions by client and domain.
    pub async fn rows(
        self,
        reader: &Reader,
        project: Option<&str>,
        client: Option<&str>,
        domain: Option<Domain>,
    ) -> Result<Vec<CalibrationRow>, StoreError> {
        let (scope, key, read_project) =
            (scope_of(reader, project), reader.key(), reader.project());
        let rows = query_rows!(
            CalibrationRow,
            r#"select nullif(client, '') as "client: String", domain as "domain!: Domain", sum(records) as "records!: i64",
                sum(confirmed) * 1.0 / sum(records) as "hit_rate!: f64", sum(stated) as "with_probability!: i64",
                sum(error) / nullif(sum(stated), 0) as "brier: f64"
            from (
                select item as client, domain, records, confirmed, stated, error from ghap_sum
                where scope = ?4 and subject = 'client' and records > 0
                union all
                select coalesce(s.client, ''), g.domain, 1, iif(g.status = 'confirmed', 1, 0), iif(g.probability is null, 0, 1),
                    (g.probability - iif(g.status = 'confirmed', 1, 0)) * (g.probability - iif(g.status = 'confirmed', 1, 0))
                from session s cross join ghap g on g.session_id = s.session_id
                where s.reader_key = ?5 and g.project is not ?6 and (?1 is null or g.project = ?1)
                    and g.status in ('confirmed', 'falsified')
            )
            where (?2 is null or client = ?2) and (?3 is null or domain = ?3)
            group by client, domain order by client, domain"#,
            project,
            client,
            domain,
            scope,
            key,
            read_project
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(rows)
    }

    /// Confirmed predictions by tenths of their stated probability.
    pub async fn probability_bins(
        self,
        reader: &Reader,
        project: Option<&str>,
        domain: Option<Domain>,
    ) -> Result<Vec<ProbabilityBin>, StoreError> {
        let (scope, key, read_project) =
            (scope_of(reader, project), reader.key(), reader.project());
        let rows = query_rows!(
            ProbabilityBin,
            r#"select tenth as "tenth!: i64", sum(records) as "records!: i64", sum(confirmed) as "confirmed!: i64",
                sum(probability) / sum(records) as "mean!: f64"
            from (
                select cast(item as integer) as tenth, domain, records, confirmed, probability from ghap_sum
                where scope = ?3 and subject = 'tenth' and records > 0
                union all
                select min(cast(g.probability * 10 as integer), 9), g.domain, 1, iif(g.status = 'confirmed', 1, 0), g.probability
                from session s cross join ghap g on g.session_id = s.session_id
                where s.reader_key = ?4 and g.project is not ?5 and (?1 is null or g.project = ?1)
                    and g.status in ('confirmed', 'falsified') and g.probability is not null
            )
            where ?2 is null or domain = ?2
            group by tenth order by tenth"#,
            project,
            domain,
            scope,
            key,
            read_project
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(rows)
    }

    /// Records that ended in each week, and how many of these were confirmed; the latest `limit`
    /// weeks, in order.
    pub async fn verdict_weeks(
        self,
        reader: &Reader,
        project: Option<&str>,
        domain: Option<Domain>,
        limit: u32,
    ) -> Result<Vec<VerdictWeek>, StoreError> {
        let (scope, key, read_project) =
            (scope_of(reader, project), reader.key(), reader.project());
        // 1970-01-01 was a Thursday; the first Monday is four days later.
        let mut rows = query_rows!(
            VerdictWeek,
            r#"select week as "week!: Timestamp", sum(records) as "records!: i64", sum(confirmed) as "confirmed!: i64"
            from (
                select cast(item as integer) as week, domain, records, confirmed from ghap_sum
                where scope = ?3 and subject = 'week' and records > 0
                union all
                select (g.resolved_at - 345600000) / 604800000 * 604800000 + 345600000, g.domain, 1, iif(g.status = 'confirmed', 1, 0)
                from session s cross join ghap g on g.session_id = s.session_id
                where s.reader_key = ?4 and g.project is not ?5 and (?1 is null or g.project = ?1)
                    and g.status in ('confirmed', 'falsified') and g.resolved_at is not null
            )
            where ?2 is null or domain = ?2
            group by week order by week desc limit ?6"#,
            project,
            domain,
            scope,
            key,
            read_project,
            limit
        )
        .fetch_all(&self.store.readers)
        .await?;
        rows.reverse();
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use svc_model::journal::{Ghap, GhapStatus, Verdict};

    use super::{
        super::testing::{
            TestStore,
            journal::{ended, record},
        },
        *,
    };

    /// The sums that are kept, and those over the rows: equal after every change.
    async fn assert_sums(at: &TestStore, change: &str) {
        let sums = async |sql: &'static str| -> Vec<String> {
            sqlx::query_scalar(sql).fetch_all(at.store.readers.file().unwrap()).await.unwrap()
        };
        let kept = sums(
            "select json_array(scope, subject, item, domain, detail, records, confirmed, stated, round(probability, 9),
                round(error, 9)) from ghap_sum where records <> 0 order by 1",
        );
        let counted = sums(
            "select json_array(scope, subject, item, domain, detail, count(*), sum(confirmed), sum(stated),
                round(sum(probability), 9), round(sum(error), 9))
            from (select '*' as scope, * from ghap_share union all select project, * from ghap_share)
            group by scope, subject, item, domain, detail order by 1",
        );
        let (kept, counted) = (kept.await, counted.await);
        assert_eq!(kept, counted, "{change}");
    }

    async fn put(at: &TestStore, ghap: &Ghap, is_new: bool) {
        let ghap = ghap.clone();
        let done: Result<(), StoreError> = at
            .store
            .write(move |tx| {
                Box::pin(async move {
                    if is_new {
                        tx.ghaps().insert(&ghap).await
                    } else {
                        tx.ghaps().update(&ghap).await
                    }
                })
            })
            .await;
        done.unwrap();
    }

    async fn resolved(at: &TestStore, number: usize, project: &str, verdict: Verdict) -> Ghap {
        let mut ghap = record(at, number, "a goal").await;
        ghap.project = Some(project.to_owned());
        ghap.probability = Some(0.7);
        (ghap.status, ghap.end) = ended(verdict, Timestamp::from_millis(345_600_000));
        put(at, &ghap, true).await;
        ghap
    }

    #[tokio::test]
    async fn sums_follow_each_change_of_the_records() {
        let at = TestStore::open().await;
        let mut ghap = resolved(&at, 1, "/a", Verdict::Confirmed).await;
        resolved(&at, 2, "/b", Verdict::Falsified).await;
        assert_sums(&at, "two records").await;
        for change in [
            "update session set client = 'codex'",
            "update ghap set status = 'falsified', root_cause_category = 'wrong_assumption' where ghap_id = 'ghap_1'",
            "update ghap set probability = null where ghap_id = 'ghap_2'",
            "update ghap set project = '/a'",
            "update session set client = null",
        ] {
            at.execute(change).await;
            assert_sums(&at, change).await;
        }
        ghap.status = GhapStatus::Active;
        ghap.end = None;
        put(&at, &ghap, false).await;
        assert_sums(&at, "opened again").await;
        let left = at.store.calibration().hit_rates(&Reader::All, Domain::Debugging, None).await;
        assert_eq!(left.unwrap().len(), 1);
        at.execute("delete from ghap").await;
        assert_sums(&at, "removed").await;
        let none = at.store.calibration().rows(&Reader::All, None, None, None).await.unwrap();
        assert_eq!(none, []);
    }

    #[tokio::test]
    async fn a_session_reads_the_sums_of_its_project_and_its_own_records() {
        let at = TestStore::open().await;
        for (number, project) in ["/a", "/a", "/b", "/c"].into_iter().enumerate() {
            resolved(&at, number, project, Verdict::Confirmed).await;
        }
        let reader = |key: &str, project: &str| Reader::Session {
            key: key.into(),
            owner: format!("session:{key}").into(),
            project: Some(Arc::from(project)),
        };
        let count = async |reader: &Reader, project: Option<&str>| {
            let rows = at.store.calibration().rows(reader, project, None, None).await.unwrap();
            rows.iter().map(|row| row.records).sum::<i64>()
        };
        let other = reader("other", "/a");
        assert_eq!((count(&Reader::All, None).await, count(&other, None).await), (4, 2));
        assert_eq!((count(&other, Some("/a")).await, count(&other, Some("/b")).await), (2, 0));
        at.execute("update session set created_by = 'session:own'").await;
        let own = reader("own", "/b");
        assert_eq!((count(&own, None).await, count(&own, Some("/a")).await), (4, 2), "all its own");
        assert_eq!(count(&Reader::All, Some("/a")).await, 2);
        assert_eq!(at.store.values().count_resolved_for(&own).await.unwrap(), 4);
        assert_eq!(at.store.values().count_resolved_for(&other).await.unwrap(), 2);
        let weeks = at.store.calibration().verdict_weeks(&own, None, None, 5).await.unwrap();
        assert_eq!((weeks.len(), weeks[0].records), (1, 4));
        let bins = at.store.calibration().probability_bins(&other, None, None).await.unwrap();
        assert_eq!((bins[0].tenth, bins[0].records), (7, 2));
    }
}
