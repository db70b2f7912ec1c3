//! Memories, clusters, and what sessions were given.

use serde::{Deserialize, Serialize};

use crate::domain::{
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
    /// Only those that are filed under one of these; empty for all.
    pub tags: Vec<String>,
    /// Only those of at least this importance.
    pub min_importance: f64,
}

/// A version of something that a session may be given.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SeenItem {
    /// `experience`, `value` or `memory`.
    pub kind: &'static str,
    /// Its id.
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

/// A record or a memory that a session was given, of another session's.
#[derive(Debug, Clone)]
pub struct GivenItem {
    /// Its id.
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

/// How it shows that something helped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShownBy {
    /// It is named.
    Name,
    /// It was given to the session before, and is about the same.
    Subject,
}

/// How the records were grouped last.
#[derive(Debug, Clone)]
pub struct Clustering {
    /// What the records were like then.
    pub state: String,
    /// How many were looked at.
    pub records: i64,
    /// How many of them are like no others.
    pub noise: i64,
}

/// Records that are alike, about to be stored.
#[derive(Debug, Clone)]
pub struct NewCluster {
    /// How far they can be trusted on average.
    pub avg_weight: f64,
    /// Each with its cosine to the middle.
    pub members: Vec<(GhapId, f64)>,
}

/// A cluster.
#[derive(Debug, Clone)]
pub struct ClusterRow {
    /// `<axis>_<label>`.
    pub cluster_id: String,
    /// Its number on its axis.
    pub label: i64,
    /// How many records it has.
    pub size: i64,
    /// How far they can be trusted on average.
    pub avg_weight: f64,
    /// The goal of the record that is nearest to its middle.
    pub goal: String,
}

/// A record of a cluster.
#[derive(Debug, Clone)]
pub struct MemberRow {
    /// The record.
    pub id: GhapId,
    /// What it is about.
    pub domain: Domain,
    /// How it goes about it.
    pub strategy: Strategy,
    /// What became of it.
    pub status: GhapStatus,
    /// How far it can be trusted.
    pub tier: Option<Tier>,
    /// What was to be reached.
    pub goal: String,
    /// Cosine to the middle of the cluster.
    pub similarity: f64,
}
