//! Memories, clusters, and what sessions were given.

use serde::{Deserialize, Serialize};
use svc_model::{
    GhapId, Timestamp,
    journal::{Domain, Ghap, GhapStatus, Strategy, Tier},
    learning::{Memory, MemoryCategory},
};

#[derive(Debug, Clone, Default)]
pub struct MemoryFilter {
    pub category: Option<MemoryCategory>,
    pub project: Option<String>,
    /// Only memories with one of these tags; empty for all.
    pub tags: Vec<String>,
    /// Lower bound of the importance.
    pub min_importance: f64,
}

impl MemoryFilter {
    /// Whether no memory is left out.
    pub fn is_all(&self) -> bool {
        self.category.is_none()
            && self.project.is_none()
            && self.tags.is_empty()
            && self.min_importance <= 0.0
    }
}

/// A term that memories are looked for by.
#[derive(Debug, Clone, Copy)]
pub struct SoughtTerm<'a> {
    pub term: &'a str,
    pub weight: f64,
    /// Number of memories that have it.
    pub memories: i64,
}

/// A version of a record, value or memory. A session is given each version once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ItemVersion {
    /// `experience`, `value` or `memory`.
    pub kind: &'static str,
    pub id: String,
    /// When the item was last changed.
    pub version: Timestamp,
}

impl From<&Ghap> for ItemVersion {
    fn from(ghap: &Ghap) -> Self {
        let id = ghap.id.as_str().to_owned();
        Self { kind: "experience", id, version: ghap.updated_at }
    }
}

impl From<&Memory> for ItemVersion {
    fn from(memory: &Memory) -> Self {
        let id = memory.id.as_str().to_owned();
        Self { kind: "memory", id, version: memory.created_at }
    }
}

/// A record or memory of another session that a session was given.
#[derive(Debug, Clone)]
pub struct GivenItem {
    pub id: String,
    pub is_memory: bool,
    /// Terms of goal and hypothesis; for a memory, all its terms.
    pub aim: String,
    /// Terms of surprise, root cause and lesson.
    pub lesson: String,
    /// Terms of action, prediction and result.
    pub rest: String,
}

/// The evidence that a record or memory helped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HelpEvidence {
    /// The session's own record names it.
    Name,
    /// The session was given it earlier, and its record is about the same subject.
    Subject,
}

/// The last grouping of the records on an axis.
#[derive(Debug, Clone)]
pub struct Clustering {
    /// Fingerprint of the grouped records; a different one means that records have changed.
    pub state: String,
    /// Records that were compared.
    pub records: i64,
    /// Of these, those that are in no cluster.
    pub noise: i64,
}

/// A cluster to store.
#[derive(Debug, Clone)]
pub struct NewCluster {
    /// Mean weight of its records, 0 to 1. The weight states how far a record can be trusted.
    pub avg_weight: f64,
    /// Its records, each with its cosine to the centroid.
    pub members: Vec<(GhapId, f64)>,
}

#[derive(Debug, Clone)]
pub struct ClusterRow {
    /// `<axis>_<label>`.
    pub cluster_id: String,
    /// Its number on its axis.
    pub label: i64,
    /// Number of records.
    pub size: i64,
    /// Mean weight of its records, 0 to 1. The weight states how far a record can be trusted.
    pub avg_weight: f64,
    /// Goal of the record that is nearest to the centroid.
    pub goal: String,
}

#[derive(Debug, Clone)]
pub struct MemberRow {
    pub id: GhapId,
    pub domain: Domain,
    pub strategy: Strategy,
    pub status: GhapStatus,
    /// How far the record can be trusted.
    pub tier: Option<Tier>,
    pub goal: String,
    /// Cosine to the centroid of the cluster.
    pub similarity: f64,
}
