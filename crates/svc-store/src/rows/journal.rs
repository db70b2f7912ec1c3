//! Filters for lists of the journal, and sums over its records.

use schemars::JsonSchema;
use serde::Serialize;
use svc_model::{
    Timestamp, TokenHash,
    journal::{Domain, SessionSource, Strategy},
};

/// A session that begins.
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
    /// The caller that reports it.
    pub created_by: String,
}

/// Restrictions on who may use a session, besides its owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SessionLock {
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
    /// Mean of the stated probabilities.
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
