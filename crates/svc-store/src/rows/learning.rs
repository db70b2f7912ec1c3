//! Memories, clusters, and what sessions were given.

use serde::{Deserialize, Serialize};
use svc_model::{
    GhapId, Timestamp,
    journal::{Domain, Ghap, GhapStatus, Strategy, Tier},
    learning::{Memory, MemoryCategory},
};

/// Which memories a list shows, or a search may find.
#[derive(Debug, Clone, Default)]
pub struct MemoryFilter {
    /// Only of this category.
    pub category: Option<MemoryCategory>,
    /// Only of this project.
    pub project: Option<String>,
    /// Only those with one of these tags; empty for all.
    pub tags: Vec<String>,
    /// Only those of at least this importance.
    pub min_importance: f64,
}

/// A version of a record, value or memory, which a session sees once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SeenItem {
    /// `experience`, `value` or `memory`.
    pub kind: &'static str,
    pub id: String,
    /// When it was last changed.
    pub version: Timestamp,
}

impl From<&Ghap> for SeenItem {
    fn from(ghap: &Ghap) -> Self {
        let id = ghap.id.as_str().to_owned();
        Self { kind: "experience", id, version: ghap.updated_at }
    }
}

impl From<&Memory> for SeenItem {
    fn from(memory: &Memory) -> Self {
        let id = memory.id.as_str().to_owned();
        Self { kind: "memory", id, version: memory.created_at }
    }
}

/// A record or memory of another session, which a session was given.
#[derive(Debug, Clone)]
pub struct GivenItem {
    pub id: String,
    /// Whether it is a memory.
    pub is_memory: bool,
    /// Terms of goal and hypothesis; all of a memory.
    pub aim: String,
    /// Terms of surprise, root cause and lesson.
    pub lesson: String,
    /// Terms of action, prediction and result.
    pub rest: String,
}

/// The evidence that a record or memory helped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShownBy {
    /// The session's own record names it.
    Name,
    /// The session was given it before, and its record is about the same.
    Subject,
}

/// The last grouping of the records on an axis.
#[derive(Debug, Clone)]
pub struct Clustering {
    /// Fingerprint of the records that were grouped; another one means that they have changed.
    pub state: String,
    /// Records that were compared.
    pub records: i64,
    /// Those of them that are in no cluster.
    pub noise: i64,
}

/// A cluster that is to be stored.
#[derive(Debug, Clone)]
pub struct NewCluster {
    /// Mean weight of its records, 0 to 1: how far they can be trusted.
    pub avg_weight: f64,
    /// Its records, each with the cosine to the centroid.
    pub members: Vec<(GhapId, f64)>,
}

#[derive(Debug, Clone)]
pub struct ClusterRow {
    /// `<axis>_<label>`.
    pub cluster_id: String,
    /// Its number on its axis.
    pub label: i64,
    /// Records in it.
    pub size: i64,
    /// Mean weight of its records, 0 to 1: how far they can be trusted.
    pub avg_weight: f64,
    /// The goal of the record that is nearest to its centroid.
    pub goal: String,
}

/// A record of a cluster.
#[derive(Debug, Clone)]
pub struct MemberRow {
    /// The record.
    pub id: GhapId,
    pub domain: Domain,
    pub strategy: Strategy,
    /// Its verdict.
    pub status: GhapStatus,
    /// How far the record can be trusted.
    pub tier: Option<Tier>,
    /// The goal of the record.
    pub goal: String,
    /// Cosine to the centroid of the cluster.
    pub similarity: f64,
}
