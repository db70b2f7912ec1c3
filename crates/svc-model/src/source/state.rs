//! What a server is doing, as lists and events show it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{super::Timestamp, Sharing};

/// What a server is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SourceState {
    /// It is about to be started.
    Pending,
    /// It has been started and has not given its lists yet.
    Connecting,
    /// It works.
    Connected,
    /// Somebody has to log in.
    NeedsAuth,
    /// It never worked, and nothing more is tried by itself.
    Failed,
    /// Its entry cannot be used.
    Misconfigured,
    /// A person has turned it off.
    Disabled,
    /// Its file waits for a person's approval.
    PendingApproval,
    /// It ended, and is started again later.
    BackingOff,
    /// A stronger entry has its name.
    Hidden,
}

impl SourceState {
    /// Its text form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Connecting => "connecting",
            Self::Connected => "connected",
            Self::NeedsAuth => "needs_auth",
            Self::Failed => "failed",
            Self::Misconfigured => "misconfigured",
            Self::Disabled => "disabled",
            Self::PendingApproval => "pending_approval",
            Self::BackingOff => "backing_off",
            Self::Hidden => "hidden",
        }
    }

    /// Whether a call may wait for it.
    pub const fn is_starting(self) -> bool {
        matches!(self, Self::Pending | Self::Connecting)
    }
}

/// A server as lists show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SourceView {
    /// Its name.
    pub name: String,
    /// Root of the project whose file names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// What it is doing.
    pub state: SourceState,
    /// Why, if it does not work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What would help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_action: Option<String>,
    /// How many starts have failed in a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// When the next start is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
    /// `stdio`, `http`, `sse` or `builtin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Who shares one instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
    /// How many tools it shows.
    pub tools: usize,
    /// How many resources it has.
    pub resources: usize,
    /// How many prompts it has.
    pub prompts: usize,
    /// How many of its definitions (tools, resources, prompts) are not those that a person has
    /// approved. Of a project's server they wait; a person's own server shows them.
    #[serde(default, skip_serializing_if = "is_none_changed")]
    pub changed: usize,
    /// Its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Further instances: those of projects and sessions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<SourceInstance>,
    /// What it runs or calls and what it is given, while its file waits for approval (operator).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs: Option<String>,
    /// The file that names it.
    pub from: String,
    /// The file whose entry of this name is used instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_by: Option<String>,
    /// What is odd about it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Since when it is in this state.
    pub since: Timestamp,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_none_changed(changed: &usize) -> bool {
    *changed == 0
}

/// An instance of a server, of a project or a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SourceInstance {
    /// The project, or the session.
    pub key: String,
    /// Its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// What it is doing.
    pub state: SourceState,
}
