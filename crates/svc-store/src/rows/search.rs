//! Filters of a search, and its candidates.

use serde::{Deserialize, Serialize};
use svc_model::{
    Reader,
    journal::{Domain, GhapStatus, Tier},
    limits,
};

/// Which records a search may find.
#[derive(Debug, Clone, Default)]
pub struct SearchFilter {
    /// Only of this domain.
    pub domain: Option<Domain>,
    /// Only with this outcome.
    pub status: Option<GhapStatus>,
    /// Only those that say something of this.
    pub part: Option<GhapPart>,
}

/// A part of a record that not all have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GhapPart {
    /// What was not expected.
    Surprise,
    /// Why the prediction was wrong.
    RootCause,
}

impl SearchFilter {
    /// How many entries of the index a search may read: more with a filter, or for a reader of few
    /// records, which leave out most of them.
    pub fn postings(&self, reader: &Reader) -> i64 {
        match (self.domain, self.status, self.part) {
            (None, None, None) if reader.reads_all_rows() => limits::SEARCH_POSTINGS,
            _ => limits::SEARCH_POSTINGS_FILTERED,
        }
    }
}

/// A record that has some of the terms.
#[derive(Debug, Clone, Deserialize)]
pub struct SearchCandidate {
    /// Its row.
    pub id: i64,
    pub ghap_id: String,
    /// Its project; "" if it has none.
    pub project: String,
    /// Its verdict.
    pub status: GhapStatus,
    /// How far it can be trusted.
    pub tier: Option<Tier>,
    /// When it was resolved, in milliseconds since the unix epoch.
    pub at_ms: i64,
    /// Confirmed records of other sessions that it helped.
    pub confirmed_again: i64,
    /// Terms of goal and hypothesis.
    pub aim: String,
    /// Terms of surprise, root cause and lesson.
    pub lesson: String,
    /// Terms of action, prediction and result.
    pub rest: String,
}

/// How many records there are, and how many have each term.
pub type Frequencies = (i64, Vec<(String, i64)>);
