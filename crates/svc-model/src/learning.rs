//! Memories, clusters of records, and values drawn from clusters.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Ids, Timestamp, ValueId, words::words};

words! {
    /// What a memory is.
    pub enum MemoryCategory {
        /// What somebody likes.
        Preference = "preference",
        /// What is so.
        Fact = "fact",
        /// What happened.
        Event = "event",
        /// How something is done.
        Workflow = "workflow",
        /// What something stands in.
        Context = "context",
        /// What went wrong.
        Error = "error",
        /// What was decided.
        Decision = "decision",
    }

    /// A way to look at records when they are grouped.
    pub enum Axis {
        Full = "full",
        /// How it was gone about, and what worked.
        Strategy = "strategy",
        /// What was not expected.
        Surprise = "surprise",
        /// Why the prediction was wrong.
        RootCause = "root_cause",
        /// What it is about.
        Domain = "domain",
    }
}

/// The id of a memory: a UUID, as clients of earlier systems expect.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct MemoryId(String);

impl MemoryId {
    pub fn new(ids: &Ids, now: Timestamp) -> Self {
        Self(ids.uuid(now).to_string())
    }

    /// Parses an id from a caller; `None` if it is no UUID.
    pub fn parse(text: &str) -> Option<Self> {
        uuid::Uuid::try_parse(text).ok().map(|id| Self(id.to_string()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for MemoryId {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// Something to remember.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Memory {
    /// Its id.
    pub id: MemoryId,
    /// The project that it belongs to; without one it holds everywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// What it is.
    pub category: MemoryCategory,
    /// What is to be remembered.
    pub content: String,
    /// How much it matters, 0 to 1.
    pub importance: f64,
    /// What it is filed under.
    pub tags: Vec<String>,
    /// Confirmed records of other sessions that it has helped to.
    pub confirmed_again: i64,
    /// When it was stored.
    pub created_at: Timestamp,
}

/// A sentence drawn from records that are alike.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Value {
    /// Its id.
    pub id: ValueId,
    /// The project that it was drawn in.
    #[serde(skip)]
    pub project: Option<String>,
    /// How the records were looked at.
    pub axis: Axis,
    /// Their cluster, when it was drawn.
    pub cluster_id: String,
    /// The sentence.
    pub text: String,
    /// 1 - cosine to the middle of the cluster.
    #[serde(rename = "distance_to_centroid")]
    pub distance: f64,
    /// When it was found to fit.
    pub validated_at: Timestamp,
}
