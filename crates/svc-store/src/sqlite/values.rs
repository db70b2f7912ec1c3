//! Rows of clusters and of the values that are drawn from them.

use std::collections::HashMap;

use svc_model::{
    GhapId, Reader, Timestamp,
    journal::{Domain, GhapStatus, Strategy, Tier},
    learning::{Axis, Value},
};

use super::{
    calibration::sum_scope,
    columns::non_empty,
    families::{ValueReads, ValueWrites},
    json::{from_json, to_json},
    statement::{
        change, direct_row, find_value, pool_query, query_fields, query_rows, query_value,
        select_one, select_value,
    },
};
use crate::{ClusterRow, Clustering, MemberRow, NewCluster, StoreError};

direct_row!(Clustering { state, records, noise });
direct_row!(ClusterRow { cluster_id, label, size, avg_weight, goal });
direct_row!(MemberRow { id, domain, strategy, status, tier, goal, similarity });

direct_row! {
    struct RawValue {
        value_id: String,
        project: String,
        axis: Axis,
        cluster_id: String,
        text: String,
        terms: String,
        distance: f64,
        validated_at: Timestamp,
    }
}

impl From<RawValue> for Value {
    fn from(raw: RawValue) -> Self {
        Self {
            id: raw.value_id.into(),
            project: non_empty(raw.project),
            axis: raw.axis,
            cluster_id: raw.cluster_id,
            text: raw.text,
            distance: raw.distance,
            validated_at: raw.validated_at,
        }
    }
}

macro_rules! values {
    ($run:ident, $($rest:tt)*) => {
        $run!(
            r#"select v.value_id as "value_id!", v.project, v.axis as "axis: Axis", v.cluster_id, v.text, v.terms,
                v.distance, v.validated_at as "validated_at: Timestamp"
            from learned_value v "#,
            RawValue,
            $($rest)*
        )
    };
}

impl ValueWrites<'_> {
    /// Replaces the clusters of an axis, in a fixed number of statements. Each cluster keeps the
    /// name of the former cluster that shares the most records with it.
    pub async fn put_clusters(
        &mut self,
        axis: Axis,
        clustering: &Clustering,
        groups: &[NewCluster],
    ) -> Result<(), StoreError> {
        let former = select_value!(
            self.tx,
            r#"select json_group_array(json_array(m.ghap_id, c.label)) as "former!: String"
            from cluster c join cluster_member m on m.cluster_id = c.cluster_id where c.axis = ?"#,
            axis
        );
        let former: Vec<(GhapId, i64)> = from_json(&former)?;
        let former: HashMap<GhapId, i64> = former.into_iter().collect();
        let next = find_value!(self.tx, "select next_label from clustering where axis = ?", axis);
        let (labels, next) = name(groups, &former, next.unwrap_or(0));

        change!(self.tx, "delete from cluster where axis = ?", axis);
        change!(
            self.tx,
            "insert into clustering (axis, state, records, noise, next_label, at) values (?1, ?2, ?3, ?4, ?5, ?6)
            on conflict (axis) do update set state = ?2, records = ?3, noise = ?4, next_label = ?5, at = ?6",
            axis,
            clustering.state,
            clustering.records,
            clustering.noise,
            next,
            self.tx.now
        );
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
        change!(
            self.tx,
            "insert into cluster (cluster_id, axis, label, avg_weight)
            select value ->> 0, ?, cast(value ->> 1 as integer), cast(value ->> 2 as real) from json_each(?)",
            axis,
            clusters
        );
        // A record that has been removed meanwhile is left out.
        change!(
            self.tx,
            "insert into cluster_member (cluster_id, ghap_id, similarity)
            select j.value ->> 0, g.ghap_id, cast(j.value ->> 2 as real)
            from json_each(?) j cross join ghap g on g.ghap_id = j.value ->> 1",
            members
        );
        Ok(())
    }

    /// Stores a value. If the same value of the same cluster exists for the project (without a
    /// project: for the session), returns that one instead.
    pub async fn insert(
        &mut self,
        value: &Value,
        terms: &str,
        session_id: &str,
    ) -> Result<Option<Value>, StoreError> {
        let project = value.project.as_deref().unwrap_or_default();
        let known = values!(
            select_one,
            self.tx,
            "where v.cluster_id = ?1 and v.text = ?2 and v.project = ?3 and (?3 <> '' or v.session_id = ?4)",
            value.cluster_id,
            value.text,
            project,
            session_id
        );
        if let Some(known) = known {
            return Ok(Some(known.into()));
        }
        let id = value.id.as_str();
        change!(
            self.tx,
            "insert into learned_value (value_id, project, axis, cluster_id, text, terms, distance, session_id,
                validated_at)
            values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            id,
            project,
            value.axis,
            value.cluster_id,
            value.text,
            terms,
            value.distance,
            session_id,
            value.validated_at
        );
        Ok(None)
    }
}

/// A label for each group: that of the former cluster that shares the most records, or the next new
/// label. Groups are in the order of weight, and earlier groups choose first. Also returns the next
/// new label.
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

impl ValueReads<'_> {
    /// The number of resolved records, and a fingerprint that differs after each change of them.
    pub async fn count_resolved(self) -> Result<(i64, String), StoreError> {
        let row = query_fields!(
            { count: i64, last: i64, at: i64 },
            r#"select
                (select coalesce(sum(records), 0) from ghap_sum where scope = '*' and subject = 'ended') as "count!: i64",
                coalesce((select id from ghap where status <> 'active' order by id desc limit 1), 0) as "last!: i64",
                coalesce((select updated_at from ghap where status <> 'active' order by updated_at desc limit 1), 0) as "at!: i64""#
        )
        .fetch_one(&self.store.readers)
        .await?;
        Ok((row.count, format!("{} {} {}", row.count, row.last, row.at)))
    }

    /// The number of resolved records that the reader may read.
    pub async fn count_resolved_for(self, reader: &Reader) -> Result<i64, StoreError> {
        let (scope, key, project) = (sum_scope(reader), reader.key(), reader.project());
        let count = query_value!(
            r#"select (select coalesce(sum(records), 0) from ghap_sum where scope = ?1 and subject = 'ended') + (
                select count(*) from session s cross join ghap g on g.session_id = s.session_id
                where s.reader_key = ?2 and g.project is not ?3 and g.status <> 'active'
            ) as "count!: i64""#,
            scope,
            key,
            project
        )
        .fetch_one(&self.store.readers)
        .await?;
        Ok(count)
    }

    /// The last grouping of the records.
    pub async fn clustering(self, axis: Axis) -> Result<Option<Clustering>, StoreError> {
        let row = query_rows!(
            Clustering,
            "select state, records, noise from clustering where axis = ?",
            axis
        )
        .fetch_optional(&self.store.readers)
        .await?;
        Ok(row)
    }

    /// The clusters of an axis, the largest first. Counts only records that the reader may read;
    /// clusters without any are left out.
    pub async fn clusters(
        self,
        reader: &Reader,
        axis: Axis,
    ) -> Result<Vec<ClusterRow>, StoreError> {
        let (key, project) = (reader.key(), reader.project());
        let rows = query_rows!(
            ClusterRow,
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
            group by c.cluster_id order by count(*) desc, c.label"#,
            axis,
            key,
            project
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(rows)
    }

    /// Records of a cluster that the reader may read, the nearest to its centroid first.
    pub async fn members(
        self,
        reader: &Reader,
        cluster_id: &str,
        limit: u32,
    ) -> Result<Vec<MemberRow>, StoreError> {
        let (key, project) = (reader.key(), reader.project());
        let rows = query_rows!(
            MemberRow,
            r#"select g.ghap_id as "id!: GhapId", g.domain as "domain: Domain", g.strategy as "strategy: Strategy",
                g.status as "status: GhapStatus", g.tier as "tier: Tier", g.goal, m.similarity
            from cluster_member m
            join ghap g on g.ghap_id = m.ghap_id
            where m.cluster_id = ?1
                and (?3 is null or g.project = ?4 or g.session_id in (select session_id from session where reader_key = ?3))
            order by m.similarity desc, g.id limit ?2"#,
            cluster_id,
            limit,
            key,
            project
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(rows)
    }

    /// Values that the reader may read, the latest first, each with its terms, and their total
    /// number.
    pub async fn list(
        self,
        reader: &Reader,
        axis: Option<Axis>,
        limit: u32,
    ) -> Result<(Vec<(Value, String)>, i64), StoreError> {
        let (key, project) = (reader.key(), reader.project());
        let total = query_value!(
            r#"select count(*) as "count!: i64" from learned_value v
            where (?1 is null or axis = ?1)
                and (?2 is null or v.project = ?3 or v.session_id in (select session_id from session where reader_key = ?2))"#,
            axis,
            key,
            project
        )
        .fetch_one(&self.store.readers)
        .await?;
        let rows = values!(pool_query, "where (?1 is null or v.axis = ?1)
                and (?3 is null or v.project = ?4 or v.session_id in (select session_id from session where reader_key = ?3))
            order by v.id desc limit ?2",
            axis,
            limit,
            key,
            project
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok((rows.into_iter().map(with_terms).collect(), total))
    }

    /// Values that the reader may read and whose cluster has records of a domain, those with the
    /// most such records first.
    pub async fn of_domain(
        self,
        reader: &Reader,
        domain: Domain,
        limit: u32,
    ) -> Result<Vec<Value>, StoreError> {
        let (key, project) = (reader.key(), reader.project());
        let rows = values!(pool_query, "join (
                select m.cluster_id, count(*) as records from cluster_member m
                join ghap g on g.ghap_id = m.ghap_id
                where g.domain = ?1 group by m.cluster_id
            ) c on c.cluster_id = v.cluster_id
            where (?3 is null or v.project = ?4 or v.session_id in (select session_id from session where reader_key = ?3))
            order by c.records desc, v.id desc limit ?2",
            domain,
            limit,
            key,
            project
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(rows.into_iter().map(Value::from).collect())
    }
}

fn with_terms(mut raw: RawValue) -> (Value, String) {
    let terms = std::mem::take(&mut raw.terms);
    (raw.into(), terms)
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{TestStore, journal::record},
        *,
    };

    #[tokio::test]
    async fn clusters_are_replaced_and_keep_their_labels() {
        let at = TestStore::open().await;
        for number in 0..60 {
            let ghap = record(&at, number, "a goal").await;
            let done: Result<(), StoreError> = at
                .store
                .write(move |tx| Box::pin(async move { tx.ghaps().insert(&ghap).await }))
                .await;
            done.unwrap();
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
            let done: Result<(), StoreError> = at
                .store
                .write(move |tx| {
                    Box::pin(async move {
                        tx.values().put_clusters(Axis::Full, &clustering, &groups).await
                    })
                })
                .await;
            done.unwrap();
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
