//! Sums over records: how often predictions were confirmed, and causes of wrong ones.

use svc_model::{
    Reader, Timestamp,
    journal::{Domain, RootCauseCategory, Strategy},
};

use super::families::CalibrationReads;
use crate::{CalibrationRow, HitRate, ProbabilityBin, StoreError, VerdictWeek};

impl CalibrationReads<'_> {
    /// Rates of confirmed predictions by strategy in a domain: the requested strategy first, then
    /// the most used.
    pub async fn hit_rates(
        self,
        reader: &Reader,
        domain: Domain,
        strategy: Option<Strategy>,
    ) -> Result<Vec<HitRate>, StoreError> {
        let (key, project) = (reader.key(), reader.project());
        let rows = sqlx::query_as!(
            HitRate,
            r#"select strategy as "strategy!: Strategy", count(*) as "records!: i64",
                sum(status = 'confirmed') as "confirmed!: i64"
            from ghap g where domain = ?1 and status in ('confirmed', 'falsified')
                and (?3 is null or g.project = ?4 or g.session_id in (select session_id from session where reader_key = ?3))
            group by strategy order by coalesce(strategy = ?2, 0) desc, count(*) desc, strategy"#,
            domain,
            strategy,
            key,
            project
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
        let (key, project) = (reader.key(), reader.project());
        let rows = sqlx::query!(
            r#"select root_cause_category as "category!: RootCauseCategory", count(*) as "count!: i64"
            from ghap g
            where domain = ?1 and (?2 is null or strategy = ?2) and status = 'falsified'
                and root_cause_category is not null
                and (?3 is null or g.project = ?4 or g.session_id in (select session_id from session where reader_key = ?3))
            group by root_cause_category order by count(*) desc, root_cause_category"#,
            domain,
            strategy,
            key,
            project
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
        let (key, read_project) = (reader.key(), reader.project());
        let rows = sqlx::query_as!(
            CalibrationRow,
            r#"select s.client, g.domain as "domain!: Domain", count(*) as "records!: i64",
                avg(g.status = 'confirmed') as "hit_rate!: f64", count(g.probability) as "with_probability!: i64",
                avg((g.probability - (g.status = 'confirmed')) * (g.probability - (g.status = 'confirmed')))
                    as "brier: f64"
            from ghap g
            join session s on s.session_id = g.session_id
            where g.status in ('confirmed', 'falsified') and (?1 is null or g.project = ?1)
                and (?2 is null or s.client = ?2) and (?3 is null or g.domain = ?3)
                and (?4 is null or g.project = ?5 or g.session_id in (select session_id from session where reader_key = ?4))
            group by s.client, g.domain order by s.client, g.domain"#,
            project,
            client,
            domain,
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
        let (key, read_project) = (reader.key(), reader.project());
        let rows = sqlx::query_as!(
            ProbabilityBin,
            r#"select min(cast(g.probability * 10 as integer), 9) as "tenth!: i64", count(*) as "records!: i64",
                sum(g.status = 'confirmed') as "confirmed!: i64", avg(g.probability) as "mean!: f64"
            from ghap g
            where g.status in ('confirmed', 'falsified') and g.probability is not null
                and (?1 is null or g.project = ?1) and (?2 is null or g.domain = ?2)
                and (?3 is null or g.project = ?4 or g.session_id in (select session_id from session where reader_key = ?3))
            group by 1 order by 1"#,
            project,
            domain,
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
        let (key, read_project) = (reader.key(), reader.project());
        // 1970-01-01 was a Thursday; the first Monday is four days later.
        let mut rows = sqlx::query_as!(
            VerdictWeek,
            r#"select (g.resolved_at - 345600000) / 604800000 * 604800000 + 345600000 as "week!: Timestamp",
                count(*) as "records!: i64", sum(g.status = 'confirmed') as "confirmed!: i64"
            from ghap g
            where g.status in ('confirmed', 'falsified') and g.resolved_at is not null
                and (?1 is null or g.project = ?1) and (?2 is null or g.domain = ?2)
                and (?3 is null or g.project = ?4 or g.session_id in (select session_id from session where reader_key = ?3))
            group by 1 order by 1 desc limit ?5"#,
            project,
            domain,
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
