//! What lists of the journal are filtered by, and what is summed up from its records.

use crate::domain::{
    Timestamp,
    journal::{Domain, GhapStatus, SessionSource, Strategy},
};

/// Which records a list shows.
#[derive(Debug, Clone, Default)]
pub struct GhapFilter {
    /// Only of this domain.
    pub domain: Option<Domain>,
    /// Only in this state; by default all that are over.
    pub status: Option<GhapStatus>,
    /// Only of this project.
    pub project: Option<String>,
    /// Only of this session.
    pub session_id: Option<String>,
    /// Only those that ended at this time or later.
    pub since: Option<Timestamp>,
}

/// Which sessions a list shows.
#[derive(Debug, Clone, Default)]
pub struct SessionFilter {
    /// Only of this project.
    pub project: Option<String>,
    /// Only of this client.
    pub client: Option<String>,
    /// Only those that are open, or only those that are over.
    pub open: Option<bool>,
}

/// What is to be known of a session that begins.
#[derive(Debug, Clone)]
pub struct SessionStart {
    /// The client's own id.
    pub session_id: String,
    /// Root of its project; `None` leaves it as it is.
    pub project: Option<String>,
    /// Which program it is; `None` leaves it as it is.
    pub client: Option<String>,
    /// How it begins.
    pub source: SessionSource,
    /// The caller that makes it known.
    pub created_by: String,
}

/// Which records have something to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LessonKind {
    /// What did not work.
    Falsified,
    /// What came otherwise than expected.
    Surprising,
}

/// How often a strategy came true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HitRate {
    /// Which.
    pub strategy: Strategy,
    /// Records with a verdict.
    pub records: i64,
    /// Those of them that were confirmed.
    pub confirmed: i64,
}

/// How well predictions came true.
#[derive(Debug, Clone, PartialEq)]
pub struct CalibrationRow {
    /// Whose.
    pub client: Option<String>,
    /// Of which domain.
    pub domain: Domain,
    /// How many records ended with a verdict.
    pub records: i64,
    /// The share of those that were confirmed.
    pub hit_rate: f64,
    /// How many of them stated a probability.
    pub with_probability: i64,
    /// Mean squared error of those.
    pub brier: Option<f64>,
}
