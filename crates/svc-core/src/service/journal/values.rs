//! Clusters of similar records, and values: sentences that an agent draws from a cluster, and that
//! are checked against the cluster.
//!
//! No model is used: records are similar if they share words ([`cluster`]). The clustering is
//! stored, so that the ids in a list stay valid. After records have changed, the next request
//! renews it.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use svc_model::{
    Caller, Reader, ValueId,
    cluster::{self, TermSpace},
    journal::{Ghap, Tier},
    learning::{Axis, Value},
    limits, text,
};
use svc_store::{ClusterRow, Clustering, MemberRow, NewCluster, job};

use super::Journal;
use crate::boxed;
use crate::service::{
    Error, ResourceKind, Result,
    projects::project_of_write,
    team::{ActingSession, tell, touch_session},
};

/// A sentence has only a few of the words of its records. At this similarity to their centroid it
/// is accepted, even if it is less similar than the records, which may be nearly equal to each
/// other.
const NEAR_ENOUGH: f64 = 0.25;
/// How many standard deviations beyond the mean distance of the records a sentence may be.
const DEVIATIONS: f64 = 0.5;

/// The clusters of an axis.
#[derive(Debug)]
pub struct ClusterList {
    /// Largest first.
    pub clusters: Vec<ClusterRow>,
    pub records: i64,
    pub noise: i64,
}

#[derive(Debug)]
pub struct ValueValidity {
    pub is_valid: bool,
    pub similarity: f64,
    /// Distances from the centroid: 1 minus the cosine.
    pub distances: ValueDistances,
}

/// Distances to the middle of the cluster: 0 for the same words, 1 for none in common.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub struct ValueDistances {
    /// Of the sentence.
    #[serde(rename = "candidate_distance")]
    pub candidate: f64,
    /// Of the records, on average.
    #[serde(rename = "mean_distance")]
    pub mean: f64,
    /// Their standard deviation.
    #[serde(rename = "std_distance")]
    pub std: f64,
    /// How far the sentence may be: the mean and half a deviation, and 0.75 at least, as a sentence
    /// has fewer words than a record.
    pub threshold: f64,
}

impl ValueDistances {
    #[must_use]
    pub fn map(self, change: fn(f64) -> f64) -> Self {
        let [candidate, mean, std, threshold] =
            [self.candidate, self.mean, self.std, self.threshold].map(change);
        Self { candidate, mean, std, threshold }
    }
}

#[derive(Debug)]
pub struct StoredValue {
    pub value: Value,
    /// Whether the value existed already; then it is unchanged.
    pub is_known: bool,
}

impl Journal {
    /// The clusters of an axis for the present records, restricted to what the caller may read.
    ///
    /// # Errors
    /// [`Error::InsufficientData`] if there are too few records.
    #[boxed]
    pub async fn clusters(&self, caller: &Caller, axis: Axis) -> Result<ClusterList> {
        let reader = Reader::from_caller(caller);
        let count = self.core.store.values().count_resolved_for(&reader).await?;
        enough(count)?;
        let clustering = if let Ok(known) = self.present_clustering(axis).await? {
            known
        } else {
            let _grouping = self.grouping.lock().await;
            // Another call may have finished the clustering meanwhile.
            match self.present_clustering(axis).await? {
                Ok(known) => known,
                Err(state) => self.group(axis, state).await?,
            }
        };
        let clusters = self.core.store.values().clusters(&reader, axis).await?;
        if reader.reads_all_rows() {
            let Clustering { records, noise, .. } = clustering;
            return Ok(ClusterList { clusters, records, noise });
        }
        let grouped: i64 = clusters.iter().map(|cluster| cluster.size).sum();
        Ok(ClusterList { clusters, records: count, noise: (count - grouped).max(0) })
    }

    /// The stored clustering if it was made of the present records; otherwise the present state of
    /// the records.
    async fn present_clustering(&self, axis: Axis) -> Result<Result<Clustering, String>> {
        let (_, state) = self.core.store.values().count_resolved().await?;
        let known = self.core.store.values().clustering(axis).await?;
        Ok(known.filter(|known| known.state == state).ok_or(state))
    }

    async fn group(&self, axis: Axis, state: String) -> Result<Clustering> {
        let ghaps = self.core.store.ghaps();
        let ghaps = ghaps.latest_resolved(&Reader::All, limits::CLUSTERED_RECORDS).await?;
        let work = tokio::task::spawn_blocking(move || group(axis, state, ghaps));
        let (clustering, groups) =
            work.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        let write = self.core.store.write(job!(|tx| {
            tx.values().put_clusters(axis, &clustering, &groups).await?;
            Ok(clustering)
        }));
        write.await
    }

    /// Records of a stored cluster that the caller may read, nearest to the centroid first.
    #[boxed]
    pub async fn cluster_members(
        &self,
        caller: &Caller,
        cluster_id: &str,
        limit: u32,
    ) -> Result<(Axis, Vec<MemberRow>)> {
        let axis = axis_of(cluster_id)?;
        let reader = Reader::from_caller(caller);
        let members = self.core.store.values().members(&reader, cluster_id, limit).await?;
        if members.is_empty() {
            return Err(self.missing_cluster_error(&reader, cluster_id).await?);
        }
        Ok((axis, members))
    }

    /// Whether a sentence is about what the records of a cluster have in common: its distance to
    /// their centroid is at most the usual distance of the records, or small enough in itself.
    #[boxed]
    pub async fn validate_value(
        &self,
        caller: &Caller,
        text: &str,
        cluster_id: &str,
    ) -> Result<ValueValidity> {
        let axis = axis_of(cluster_id)?;
        let (store, reader) = (&self.core.store, Reader::from_caller(caller));
        let most = limits::CLUSTERED_RECORDS;
        let members = store.values().members(&reader, cluster_id, most).await?;
        let ghaps = store.ghaps().latest_resolved(&reader, most).await?;
        let weights: HashMap<String, f64> = members
            .into_iter()
            .map(|member| (member.id.as_str().to_owned(), weight(member.tier)))
            .collect();
        let text = text.to_owned();
        let work = tokio::task::spawn_blocking(move || validate(axis, &text, &ghaps, &weights));
        match work.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())) {
            Some(validity) => Ok(validity),
            None => Err(self.missing_cluster_error(&reader, cluster_id).await?),
        }
    }

    /// Stores a value if it belongs to its cluster. Idempotent: returns an equal value that exists.
    #[boxed]
    pub async fn store_value(
        &self,
        caller: &Caller,
        acting: ActingSession,
        text: String,
        cluster_id: String,
        axis: Option<Axis>,
    ) -> Result<StoredValue> {
        let own = axis_of(&cluster_id)?;
        if axis.is_some_and(|axis| axis != own) {
            return Err(Error::invalid("axis", format!("is not that of the cluster, {own}")));
        }
        let validity = self.validate_value(caller, &text, &cluster_id).await?;
        if !validity.is_valid {
            return Err(Error::invalid("text", distance_error(&validity.distances)));
        }
        let terms = text::terms(&text);
        let (caller, ids) = (caller.clone(), self.core.ids.clone());
        let budget = self.core.budget.clone();
        let write = self.core.store.on_behalf_of(&caller).write(job!(|tx| {
            let session_id = &acting.session_id;
            touch_session(tx, &budget, &caller, session_id).await?;
            let session = tx.sessions().get(session_id).await?;
            let value = Value {
                id: ValueId::new(&ids, tx.now()),
                project: project_of_write(&caller, session),
                axis: own,
                cluster_id,
                text,
                distance: validity.distances.candidate,
                validated_at: tx.now(),
            };
            if let Some(value) = tx.values().insert(&value, &terms, session_id).await? {
                return Ok(StoredValue { value, is_known: true });
            }
            let data = json!({ "id": value.id, "cluster_id": value.cluster_id });
            tell(tx, session_id, "value.stored", &data).await?;
            Ok(StoredValue { value, is_known: false })
        }));
        write.await
    }

    /// Values that the caller may read, latest first, and their total number.
    #[boxed]
    pub async fn values(
        &self,
        caller: &Caller,
        axis: Option<Axis>,
        limit: u32,
    ) -> Result<(Vec<Value>, i64)> {
        let reader = Reader::from_caller(caller);
        let (values, total) = self.core.store.values().list(&reader, axis, limit).await?;
        Ok((values.into_iter().map(|(value, _)| value).collect(), total))
    }

    /// The error for a request without a usable cluster: too few records, or no cluster of this id.
    async fn missing_cluster_error(&self, reader: &Reader, cluster_id: &str) -> Result<Error> {
        enough(self.core.store.values().count_resolved_for(reader).await?)?;
        Ok(Error::not_found(ResourceKind::Cluster, cluster_id))
    }
}

/// The error text for a sentence that does not belong to its cluster.
pub fn distance_error(distances: &ValueDistances) -> String {
    format!(
        "says something else than the records of the cluster: its distance is {:.3}, and at most {:.3} would do; use \
         the words that they have in common",
        distances.candidate, distances.threshold
    )
}

fn enough(count: i64) -> Result<()> {
    let have = u64::try_from(count).unwrap_or(0);
    if have < limits::CLUSTER_RECORDS {
        return Err(Error::InsufficientData { have, need: limits::CLUSTER_RECORDS });
    }
    Ok(())
}

fn axis_of(cluster_id: &str) -> Result<Axis> {
    let is_number = |label: &str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_digit());
    cluster_id
        .rsplit_once('_')
        .filter(|(_, label)| is_number(label))
        .and_then(|(axis, _)| Axis::ALL.iter().find(|one| one.to_string() == axis))
        .copied()
        .ok_or_else(|| {
            Error::invalid("cluster_id", "must be one that get_clusters gives, such as full_0")
        })
}

fn weight(tier: Option<Tier>) -> f64 {
    match tier {
        Some(Tier::Gold) => 1.0,
        Some(Tier::Silver) | None => 0.8,
        Some(Tier::Bronze) => 0.5,
        Some(Tier::Abandoned) => 0.2,
    }
}

fn group(axis: Axis, state: String, ghaps: Vec<Ghap>) -> (Clustering, Vec<NewCluster>) {
    let (ghaps, texts) = on_axis(axis, ghaps);
    let space = TermSpace::new(&texts);
    let groups: Vec<NewCluster> = space
        .groups()
        .into_iter()
        .map(|group| {
            let weight_of = |at: &usize| weight(ghaps[*at].tier());
            let middle = space.middle(group.iter().map(|at| (*at, weight_of(at))));
            let near = |at: &usize| cluster::cosine(&space.vectors()[*at], &middle).clamp(0.0, 1.0);
            let weights: Vec<f64> = group.iter().map(weight_of).collect();
            NewCluster {
                avg_weight: cluster::spread(&weights).0,
                members: group.iter().map(|at| (ghaps[*at].id.clone(), near(at))).collect(),
            }
        })
        .collect();
    let grouped: usize = groups.iter().map(|group| group.members.len()).sum();
    let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let clustering =
        Clustering { state, records: count(ghaps.len()), noise: count(ghaps.len() - grouped) };
    (clustering, groups)
}

/// Compares a text with the records of `members`, which are weighted; `None` if none of them
/// exists.
fn validate(
    axis: Axis,
    text: &str,
    ghaps: &[Ghap],
    members: &HashMap<String, f64>,
) -> Option<ValueValidity> {
    let (ghaps, texts) = on_axis(axis, ghaps.to_vec());
    let space = TermSpace::new(&texts);
    let inside: Vec<(usize, f64)> = ghaps
        .iter()
        .enumerate()
        .filter_map(|(at, ghap)| Some((at, *members.get(ghap.id.as_str())?)))
        .collect();
    if inside.is_empty() {
        return None;
    }
    let middle = space.middle(inside.iter().copied());
    let far = |near: f64| 1.0 - near.clamp(0.0, 1.0);
    let member_distances: Vec<f64> =
        inside.iter().map(|(at, _)| far(cluster::cosine(&space.vectors()[*at], &middle))).collect();
    let (mean, std) = cluster::spread(&member_distances);
    let candidate = far(cluster::cosine(&space.vector(text), &middle));
    let threshold = (mean + DEVIATIONS * std).max(1.0 - NEAR_ENOUGH);
    Some(ValueValidity {
        is_valid: candidate <= threshold,
        similarity: 1.0 - candidate,
        distances: ValueDistances { candidate, mean, std, threshold },
    })
}

/// The records that have a text on an axis, and these texts.
fn on_axis(axis: Axis, ghaps: Vec<Ghap>) -> (Vec<Ghap>, Vec<String>) {
    ghaps.into_iter().filter_map(|ghap| text_on(axis, &ghap).map(|text| (ghap, text))).unzip()
}

fn text_on(axis: Axis, ghap: &Ghap) -> Option<String> {
    let status = ghap.status.to_string();
    let result = ghap.result().unwrap_or_default();
    let surprise = ghap.surprise();
    let cause = ghap.root_cause();
    let lesson = ghap.lesson();
    let worked = lesson.map(|lesson| lesson.what_worked.as_str()).unwrap_or_default();
    let takeaway = lesson.and_then(|lesson| lesson.takeaway.as_deref()).unwrap_or_default();
    let described = cause.map(|cause| cause.description.as_str()).unwrap_or_default();
    let (domain, strategy) = (ghap.domain.to_string(), ghap.strategy.to_string());
    let (goal, hypothesis) = (ghap.goal.as_str(), ghap.hypothesis.as_str());
    let parts: Vec<&str> = match axis {
        Axis::Full => vec![
            goal,
            hypothesis,
            &ghap.action,
            &ghap.prediction,
            &status,
            result,
            surprise.unwrap_or_default(),
            worked,
            takeaway,
        ],
        Axis::Strategy => vec![&strategy, goal, &status, worked],
        Axis::Surprise => vec![&ghap.prediction, result, surprise?, described],
        Axis::RootCause => {
            let category = cause?.category.to_string();
            return Some([&category, described, &domain, &strategy, hypothesis].join("\n"));
        }
        Axis::Domain => vec![&domain, goal, takeaway, described],
    };
    Some(parts.join("\n"))
}
