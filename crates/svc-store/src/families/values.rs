//! What is derived from records: rates of confirmed predictions, causes of wrong ones, clusters,
//! and the values that are drawn from clusters.
//!
//! `ghap_sum` keeps the sums with the records, of all records and of each project. A session also
//! counts its own records of other projects, which are few and which no other session reads.

use std::collections::HashMap;

use svc_model::{
    GhapId, Reader, Timestamp, backend_names,
    journal::{Domain, GhapStatus, RootCauseCategory, Strategy, Tier},
    learning::{Axis, Value},
};

use super::{CalibrationReads, ValueReads, ValueWrites};
use crate::{
    CalibrationRow, ClusterRow, Clustering, HitRate, MemberRow, NewCluster, ProbabilityBin, Result,
    VerdictWeek, boxed_methods,
    columns::{Columns, DirectRow, Fault, from_json, to_json},
    readers::Rows as _,
    statement::{change, direct_row, fields, find_value, query, value},
};

direct_row!(HitRate { strategy, records, confirmed });
direct_row!(CalibrationRow { client, domain, records, hit_rate, with_probability, brier });
direct_row!(ProbabilityBin { tenth, records, confirmed, mean });
direct_row!(VerdictWeek { week, records, confirmed });

/// The scope in `ghap_sum` of the rows that a reader may read: `*` for all, else the reader's
/// project.
pub(super) fn sum_scope(reader: &Reader) -> Option<&str> {
    if reader.reads_all_rows() { Some("*") } else { reader.project() }
}

/// As [`sum_scope`]; with `project`, only that project, if the reader may read it.
fn scope_of<'a>(reader: &'a Reader, project: Option<&'a str>) -> Option<&'a str> {
    match project {
        None => sum_scope(reader),
        Some(project) => Some(project)
            .filter(|project| reader.reads_all_rows() || reader.project() == Some(*project)),
    }
}

#[boxed_methods]
impl CalibrationReads<'_> {
    /// Rates of confirmed predictions by strategy in a domain: the requested strategy first, then
    /// the most used.
    pub async fn hit_rates(
        &self,
        reader: &Reader,
        domain: Domain,
        strategy: Option<Strategy>,
    ) -> Result<Vec<HitRate>> {
        Ok(query!(all(), self.store.pool(),
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
            group by strategy order by coalesce(strategy = ?2, false) desc, sum(records) desc, strategy"#;
            domain, strategy, sum_scope(reader), reader.key(), reader.project()))
    }

    /// Root causes of wrong predictions of a domain, the most frequent first.
    pub async fn root_causes(
        &self,
        reader: &Reader,
        domain: Domain,
        strategy: Option<Strategy>,
    ) -> Result<Vec<(RootCauseCategory, i64)>> {
        Ok(query!(all(), self.store.pool(),
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
            group by category order by sum(records) desc, category"#;
            domain, strategy, sum_scope(reader), reader.key(), reader.project()))
    }

    pub async fn rows(
        &self,
        reader: &Reader,
        project: Option<&str>,
        client: Option<&str>,
        domain: Option<Domain>,
    ) -> Result<Vec<CalibrationRow>> {
        // A client has either of its names.
        let (client, other) = client.map(backend_names).unzip();
        Ok(query!(all(), self.store.pool(),
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
            where (?2 is null or client in (?2, ?7)) and (?3 is null or domain = ?3)
            group by client, domain order by client, domain"#;
            project, client, domain, scope_of(reader, project), reader.key(), reader.project(),
            other))
    }

    pub async fn probability_bins(
        &self,
        reader: &Reader,
        project: Option<&str>,
        domain: Option<Domain>,
    ) -> Result<Vec<ProbabilityBin>> {
        Ok(query!(all(), self.store.pool(),
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
            group by tenth order by tenth"#;
            project, domain, scope_of(reader, project), reader.key(), reader.project()))
    }

    /// Records that ended in each week, and how many of these were confirmed; the latest `limit`
    /// weeks, in order.
    pub async fn verdict_weeks(
        &self,
        reader: &Reader,
        project: Option<&str>,
        domain: Option<Domain>,
        limit: u32,
    ) -> Result<Vec<VerdictWeek>> {
        // 1970-01-01 was a Thursday; the first Monday is four days later.
        let mut rows = query!(all(), self.store.pool(),
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
            group by week order by week desc limit ?6"#;
            project, domain, scope_of(reader, project), reader.key(), reader.project(), limit);
        rows.reverse();
        Ok(rows)
    }
}

direct_row!(Clustering { state, records, noise });
direct_row!(ClusterRow { cluster_id, label, size, avg_weight, goal });
direct_row!(MemberRow { id, domain, strategy, status, tier, goal, similarity });

/// A value, and its terms.
struct ValueWithTerms(Value, String);

impl DirectRow for ValueWithTerms {
    fn read(columns: &mut Columns<'_>) -> Result<Self, Fault> {
        let id = columns.next("value_id")?;
        let project = columns.non_empty("project")?;
        let (axis, cluster_id) = (columns.next("axis")?, columns.next("cluster_id")?);
        let (text, terms) = (columns.next("text")?, columns.next("terms")?);
        let (distance, validated_at) = (columns.next("distance")?, columns.next("validated_at")?);
        Ok(Self(Value { id, project, axis, cluster_id, text, distance, validated_at }, terms))
    }
}

macro_rules! learned_values {
    ($run:ident($($bound:expr),*), $($rest:tt)*) => {
        query!($run($($bound),*),
            r#"select v.value_id as "value_id!", v.project, v.axis as "axis: Axis", v.cluster_id, v.text, v.terms,
                v.distance, v.validated_at as "validated_at: Timestamp"
            from learned_value v "#,
            $($rest)*
        )
    };
}

#[boxed_methods]
impl ValueWrites<'_> {
    /// Replaces the clusters of an axis, in a fixed number of statements. Each cluster keeps the
    /// name of the former cluster that shares the most records with it.
    pub async fn put_clusters(
        &mut self,
        axis: Axis,
        clustering: &Clustering,
        groups: &[NewCluster],
    ) -> Result<()> {
        let former = value!(self.tx.direct,
            r#"select json_group_array(json_array(m.ghap_id, c.label)) as "former!: String"
            from cluster c join cluster_member m on m.cluster_id = c.cluster_id where c.axis = ?"#;
            axis);
        let former: Vec<(GhapId, i64)> = from_json(&former)?;
        let former: HashMap<GhapId, i64> = former.into_iter().collect();
        let next =
            find_value!(self.tx.direct, "select next_label from clustering where axis = ?"; axis);
        let (labels, next) = name(groups, &former, next.unwrap_or(0));

        change!(self.tx, "delete from cluster where axis = ?"; axis);
        change!(self.tx,
            "insert into clustering (axis, state, records, noise, next_label, at) values (?1, ?2, ?3, ?4, ?5, ?6)
            on conflict (axis) do update set state = ?2, records = ?3, noise = ?4, next_label = ?5, at = ?6";
            axis, clustering.state, clustering.records, clustering.noise, next, self.tx.now);
        let clusters: Vec<(String, i64, f64)> = groups
            .iter()
            .zip(labels)
            .map(|(group, label)| (format!("{axis}_{label}"), label, group.avg_weight))
            .collect();
        let members: Vec<(&str, &GhapId, f64)> = clusters
            .iter()
            .zip(groups)
            .flat_map(|((cluster_id, ..), group)| {
                group.members.iter().map(|(id, similarity)| (cluster_id.as_str(), id, *similarity))
            })
            .collect();
        let (clusters, members) = (to_json(&clusters), to_json(&members));
        change!(self.tx,
            "insert into cluster (cluster_id, axis, label, avg_weight)
            select value ->> 0, ?, cast(value ->> 1 as integer), cast(value ->> 2 as real) from json_each(?)";
            axis, clusters);
        // A record that has been removed meanwhile is left out.
        change!(self.tx,
            "insert into cluster_member (cluster_id, ghap_id, similarity)
            select j.value ->> 0, g.ghap_id, cast(j.value ->> 2 as real)
            from json_each(?) j cross join ghap g on g.ghap_id = j.value ->> 1"; members);
        Ok(())
    }

    /// Stores a value. If the same value of the same cluster exists for the project (without a
    /// project: for the session), returns that one instead.
    pub async fn insert(
        &mut self,
        value: &Value,
        terms: &str,
        session_id: &str,
    ) -> Result<Option<Value>> {
        let project = value.project.as_deref().unwrap_or_default();
        let known: Option<ValueWithTerms> = learned_values!(one(), self.tx.direct,
            "where v.cluster_id = ?1 and v.text = ?2 and v.project = ?3 and (?3 <> '' or v.session_id = ?4)";
            value.cluster_id, value.text, project, session_id);
        if let Some(ValueWithTerms(known, _)) = known {
            return Ok(Some(known));
        }
        change!(self.tx,
            "insert into learned_value (value_id, project, axis, cluster_id, text, terms, distance, session_id,
                validated_at)
            values (?, ?, ?, ?, ?, ?, ?, ?, ?)";
            value.id, project, value.axis, value.cluster_id, value.text, terms, value.distance,
            session_id, value.validated_at);
        Ok(None)
    }
}

/// A label for each group: that of the former cluster with which it shares the most records, or the
/// next new label. Of several groups with the same former cluster, the one that shares more records
/// gets the label; of equal ones, the earlier. Also returns the next new label.
fn name(groups: &[NewCluster], former: &HashMap<GhapId, i64>, mut next: i64) -> (Vec<i64>, i64) {
    let mut shared: Vec<(usize, usize, i64)> = Vec::new();
    for (at, group) in groups.iter().enumerate() {
        let mut with: HashMap<i64, usize> = HashMap::new();
        for label in group.members.iter().filter_map(|(id, _)| former.get(id)) {
            *with.entry(*label).or_default() += 1;
        }
        shared.extend(with.into_iter().map(|(label, count)| (count, at, label)));
    }
    shared.sort_by(|a, b| b.0.cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let mut labels: Vec<Option<i64>> = vec![None; groups.len()];
    for (_, at, label) in shared {
        if labels[at].is_none() && !labels.contains(&Some(label)) {
            labels[at] = Some(label);
        }
    }
    let labels = labels.into_iter().map(|label| {
        label.unwrap_or_else(|| {
            next += 1;
            next - 1
        })
    });
    (labels.collect(), next)
}

#[boxed_methods]
impl ValueReads<'_> {
    /// The number of resolved records, and a fingerprint that differs after each change of them.
    pub async fn count_resolved(&self) -> Result<(i64, String)> {
        let row = fields!(row(), self.store.pool(), { count: i64, last: i64, at: i64 },
            r#"select
                (select coalesce(sum(records), 0) from ghap_sum where scope = '*' and subject = 'ended') as "count!: i64",
                coalesce((select id from ghap where status <> 'active' order by id desc limit 1), 0) as "last!: i64",
                coalesce((select updated_at from ghap where status <> 'active' order by updated_at desc limit 1), 0) as "at!: i64""#);
        Ok((row.count, format!("{} {} {}", row.count, row.last, row.at)))
    }

    pub async fn count_resolved_for(&self, reader: &Reader) -> Result<i64> {
        Ok(value!(self.store.pool(),
            r#"select (select coalesce(sum(records), 0) from ghap_sum where scope = ?1 and subject = 'ended') + (
                select count(*) from session s cross join ghap g on g.session_id = s.session_id
                where s.reader_key = ?2 and g.project is not ?3 and g.status <> 'active'
            ) as "count!: i64""#; sum_scope(reader), reader.key(), reader.project()))
    }

    pub async fn clustering(&self, axis: Axis) -> Result<Option<Clustering>> {
        Ok(query!(one(), self.store.pool(),
            "select state, records, noise from clustering where axis = ?"; axis))
    }

    /// The clusters of an axis, the largest first. Counts only records that the reader may read;
    /// clusters without any are left out.
    pub async fn clusters(&self, reader: &Reader, axis: Axis) -> Result<Vec<ClusterRow>> {
        Ok(query!(all(), self.store.pool(),
            r#"select c.cluster_id as "cluster_id!", c.label, count(*) as "size!: i64", c.avg_weight,
                (select n.goal from cluster_member o join ghap n on n.ghap_id = o.ghap_id
                    where o.cluster_id = c.cluster_id
                        and (?2 is null or n.project = ?3 or n.session_id in (select session_id from session where reader_key = ?2))
                    order by o.similarity desc, n.id limit 1) as "goal!: String"
            from cluster c
            join cluster_member m on m.cluster_id = c.cluster_id
            join ghap g on g.ghap_id = m.ghap_id
            where c.axis = ?1
                and (?2 is null or g.project = ?3 or g.session_id in (select session_id from session where reader_key = ?2))
            group by c.cluster_id order by count(*) desc, c.label"#; axis, reader.key(), reader.project()))
    }

    /// Records of a cluster that the reader may read, the nearest to its centroid first.
    pub async fn members(
        &self,
        reader: &Reader,
        cluster_id: &str,
        limit: u32,
    ) -> Result<Vec<MemberRow>> {
        Ok(query!(all(), self.store.pool(),
            r#"select g.ghap_id as "id!: GhapId", g.domain as "domain: Domain", g.strategy as "strategy: Strategy",
                g.status as "status: GhapStatus", g.tier as "tier: Tier", g.goal, m.similarity
            from cluster_member m
            join ghap g on g.ghap_id = m.ghap_id
            where m.cluster_id = ?1
                and (?3 is null or g.project = ?4 or g.session_id in (select session_id from session where reader_key = ?3))
            order by m.similarity desc, g.id limit ?2"#; cluster_id, limit, reader.key(), reader.project()))
    }

    /// Values that the reader may read, the latest first, each with its terms, and their total
    /// number.
    pub async fn list(
        &self,
        reader: &Reader,
        axis: Option<Axis>,
        limit: u32,
    ) -> Result<(Vec<(Value, String)>, i64)> {
        let (key, project) = (reader.key(), reader.project());
        let total = value!(self.store.pool(),
            r#"select count(*) as "count!: i64" from learned_value v
            where (?1 is null or axis = ?1)
                and (?2 is null or v.project = ?3 or v.session_id in (select session_id from session where reader_key = ?2))"#;
            axis, key, project);
        let rows: Vec<ValueWithTerms> = learned_values!(all(), self.store.pool(),
            "where (?1 is null or v.axis = ?1)
                and (?3 is null or v.project = ?4 or v.session_id in (select session_id from session where reader_key = ?3))
            order by v.id desc limit ?2"; axis, limit, key, project);
        Ok((rows.into_iter().map(|ValueWithTerms(value, terms)| (value, terms)).collect(), total))
    }

    /// Values that the reader may read and whose cluster has records of a domain, those with the
    /// most such records first.
    pub async fn of_domain(
        &self,
        reader: &Reader,
        domain: Domain,
        limit: u32,
    ) -> Result<Vec<Value>> {
        let rows: Vec<ValueWithTerms> = learned_values!(all(), self.store.pool(),
            "join (
                select m.cluster_id, count(*) as records from cluster_member m
                join ghap g on g.ghap_id = m.ghap_id
                where g.domain = ?1 group by m.cluster_id
            ) c on c.cluster_id = v.cluster_id
            where (?3 is null or v.project = ?4 or v.session_id in (select session_id from session where reader_key = ?3))
            order by c.records desc, v.id desc limit ?2";
            domain, limit, reader.key(), reader.project());
        Ok(rows.into_iter().map(|ValueWithTerms(value, _)| value).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use svc_model::journal::{Ghap, Verdict};

    use super::*;
    use crate::testing::{
        TestStore,
        journal::{ended, put, record, update},
    };

    async fn assert_sums(at: &TestStore, change: &str) {
        let sums = async |sql: &'static str| -> Vec<String> { at.column(sql) };
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

    async fn resolved(at: &TestStore, number: usize, project: &str, verdict: Verdict) -> Ghap {
        let mut ghap = record(at, number, "a goal").await;
        ghap.project = Some(project.to_owned());
        ghap.probability = Some(0.7);
        (ghap.status, ghap.end) = ended(verdict, Timestamp::from_millis(345_600_000));
        put(at, ghap.clone()).await;
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
        update(&at, ghap).await;
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

    #[tokio::test]
    async fn clusters_are_replaced_and_keep_their_labels() {
        let at = TestStore::open().await;
        for number in 0..60 {
            let ghap = record(&at, number, "a goal").await;
            put(&at, ghap).await;
        }
        let group = async |sizes: &[(usize, usize)]| -> Vec<(String, i64, f64)> {
            let member = |number| (GhapId::from(format!("ghap_{number}")), 0.5);
            let groups: Vec<NewCluster> = sizes
                .iter()
                .map(|(from, to)| NewCluster {
                    avg_weight: 0.8,
                    members: (*from..*to).map(member).collect(),
                })
                .collect();
            let clustering = Clustering { state: "state".to_owned(), records: 60, noise: 0 };
            at.write(crate::job!(|tx| tx
                .values()
                .put_clusters(Axis::Full, &clustering, &groups)
                .await))
                .await;
            let clusters = at.store.values().clusters(&Reader::All, Axis::Full).await.unwrap();
            clusters.into_iter().map(|row| (row.cluster_id, row.size, row.avg_weight)).collect()
        };
        let row = |id: &str, size| (id.to_owned(), size, 0.8);
        assert_eq!(group(&[(0, 40), (40, 60)]).await, [row("full_0", 40), row("full_1", 20)]);
        // The second group is now the larger one, and there is one more; record 60 does not exist.
        assert_eq!(
            group(&[(10, 20), (20, 30), (30, 61)]).await,
            [row("full_1", 30), row("full_0", 10), row("full_2", 10)]
        );
        let members = at.store.values().members(&Reader::All, "full_1", 100).await.unwrap();
        assert_eq!(members.len(), 30);
        assert!(members.iter().all(|member| (member.similarity - 0.5).abs() < 1e-9));
    }
}
