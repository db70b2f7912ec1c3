//! Filters and candidates of a search.

use serde::{Deserialize, Serialize};
use svc_model::{
    Reader,
    journal::{Domain, GhapStatus, Tier},
    limits,
};

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
    /// What was unexpected.
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
    /// Id of its row.
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
