//! Sessions and their tool calls, sums over records, memories and clusters, and what a search may
//! find.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{
    GhapId, Reader, Timestamp, TokenHash,
    journal::{Domain, Ghap, GhapStatus, SessionSource, Strategy, Tier},
    learning::{Memory, MemoryCategory},
    limits,
};

#[derive(Debug, Clone)]
pub struct SessionStart {
    /// The client's own id.
    pub session_id: String,
    /// Root of its project; `None` leaves the stored one unchanged.
    pub project: Option<String>,
    /// Name of the client program; `None` leaves the stored one unchanged.
    pub client: Option<String>,
    /// The client's reason for the start.
    pub source: SessionSource,
    pub created_by: String,
}

/// Restrictions on who may use a session, besides its owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SessionRestrictions {
    /// SHA-256 of the secret with which another process of the same client resumes the session.
    pub secret: Option<TokenHash>,
    pub ended_at: Option<Timestamp>,
}

/// Which records hold a lesson for another attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LessonKind {
    /// Their prediction was wrong.
    Falsified,
    /// They record a surprise.
    Surprising,
}

/// How often the predictions of a strategy were confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HitRate {
    pub strategy: Strategy,
    /// Records with a verdict.
    pub records: i64,
    /// Of these, those that were confirmed.
    pub confirmed: i64,
}

/// Records whose stated probability falls into one tenth.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbabilityBin {
    /// Lower bound of the bin in tenths, 0 to 9.
    pub tenth: i64,
    /// Records with a verdict.
    pub records: i64,
    /// Of these, those that were confirmed.
    pub confirmed: i64,
    pub mean: f64,
}

/// Records that ended in one week.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct VerdictWeek {
    /// When the week began: on Monday, in UTC.
    pub week: Timestamp,
    /// Records with a verdict.
    pub records: i64,
    /// Those of them that were confirmed.
    pub confirmed: i64,
}

/// How well the predictions of a client came true in a domain.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CalibrationRow {
    /// The client.
    pub client: Option<String>,
    /// The domain.
    pub domain: Domain,
    /// Records with a verdict.
    pub records: i64,
    /// The share of those that were confirmed.
    pub hit_rate: f64,
    /// Those of them that stated a probability.
    pub with_probability: i64,
    /// Mean squared error of those.
    pub brier: Option<f64>,
}

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

#[derive(Debug, Clone)]
pub struct NewCluster {
    /// Mean weight of its records, 0 to 1. The weight states how far a record can be trusted.
    pub avg_weight: f64,
    /// Its records, each with its cosine to the centroid.
    pub members: Vec<(GhapId, f64)>,
}

/// A cluster.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ClusterRow {
    /// `<axis>_<label>`; stays the same as long as most of its records do.
    pub cluster_id: String,
    pub label: i64,
    /// How many records it has.
    pub size: i64,
    /// How far its records can be trusted on average, 0 to 1.
    pub avg_weight: f64,
    /// The goal of the record in its middle.
    #[serde(rename = "about")]
    pub goal: String,
}

/// A record of a cluster.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct MemberRow {
    pub id: GhapId,
    pub domain: Domain,
    pub strategy: Strategy,
    #[serde(rename = "outcome_status")]
    pub status: GhapStatus,
    #[serde(rename = "confidence_tier")]
    pub tier: Option<Tier>,
    pub goal: String,
    /// How near it is to the middle, 0 to 1.
    pub similarity: f64,
}

/// Which records a search may find.
#[derive(Debug, Clone, Default)]
pub struct SearchFilter {
    pub domain: Option<Domain>,
    /// Only records with this verdict.
    pub status: Option<GhapStatus>,
    /// Only records that have this part.
    pub part: Option<GhapPart>,
}

/// An optional part of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GhapPart {
    /// What came unexpectedly, beside the verdict.
    Surprise,
    /// Why the prediction was wrong.
    RootCause,
}

impl SearchFilter {
    /// How many index entries a search may read. The bound is higher with a filter, since that
    /// leaves out most entries. Of a session's search each term has its own bound.
    pub fn postings(&self, reader: &Reader) -> i64 {
        match (self.domain, self.status, self.part) {
            _ if !reader.reads_all_rows() => i64::MAX,
            (None, None, None) => limits::SEARCH_POSTINGS,
            _ => limits::SEARCH_POSTINGS_FILTERED,
        }
    }
}

/// A record that has some of the terms.
#[derive(Debug, Clone, Deserialize)]
pub struct SearchCandidate {
    pub id: i64,
    pub ghap_id: String,
    /// Its project; empty if it has none.
    pub project: String,
    pub status: GhapStatus,
    /// How far the record can be trusted.
    pub tier: Option<Tier>,
    /// When it was resolved, in milliseconds since the unix epoch.
    pub at_ms: i64,
    /// How many confirmed records of other sessions it helped.
    pub confirmed_again: i64,
    /// Terms of goal and hypothesis.
    pub aim: String,
    /// Terms of surprise, root cause and lesson.
    pub lesson: String,
    /// Terms of action, prediction and result.
    pub rest: String,
}

/// The number of records, and for each term the number of records that have it.
pub type Frequencies = (i64, Vec<(String, i64)>);

#[derive(Debug, Clone)]
pub struct ToolCall {
    /// The client's own id of the session.
    pub session_id: String,
    /// The sub-agent; empty for the session itself.
    pub agent_id: String,
    /// The tool, if it has its own counter.
    pub tool_name: Option<String>,
    /// Number of calls after which a check-in is due and the count restarts at zero.
    pub frequency: Option<i64>,
}

/// The count after a tool call.
#[derive(Debug, Clone)]
pub struct ToolCallCount {
    /// Calls since the last reset, including this one.
    pub since: i64,
    pub due: bool,
    /// The session's active record if a check-in is due; `None` for a sub-agent.
    pub active: Option<Box<Ghap>>,
}
