//! The bridge's cache of the daemon's tools: which are idempotent, and which arguments are repeated
//! in headers.
//!
//! The list is fetched only after a call was cut off, or refused for its headers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use serde_json::Value;

/// The tools of the last list.
#[derive(Debug, Default)]
pub(super) struct ToolCache(Mutex<HashMap<String, Arc<CachedTool>>>);

/// The members of a tool's description that the bridge needs.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CachedTool {
    pub(super) name: String,
    /// Says which arguments are repeated in headers.
    #[serde(default)]
    pub(super) input_schema: Value,
    #[serde(default)]
    annotations: ToolHints,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ToolHints {
    read_only_hint: bool,
    idempotent_hint: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ToolPage {
    pub(super) tools: Vec<CachedTool>,
    pub(super) next_cursor: Option<String>,
}

impl ToolCache {
    /// A tool; `None` before the list was fetched.
    pub(super) fn get(&self, name: &str) -> Option<Arc<CachedTool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    pub(super) fn replace(&self, tools: HashMap<String, Arc<CachedTool>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = tools;
    }
}

impl CachedTool {
    /// Whether the tool is idempotent.
    pub(super) fn is_repeatable(&self) -> bool {
        self.annotations.read_only_hint || self.annotations.idempotent_hint
    }
}
