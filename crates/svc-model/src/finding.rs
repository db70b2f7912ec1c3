//! What a check of the installation found: `svc doctor` prints it, and the daemon passes it on.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What one check found.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// What was looked at.
    pub check: Cow<'static, str>,
    pub level: Level,
    /// What was found.
    pub detail: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    Warn,
    Fail,
}
