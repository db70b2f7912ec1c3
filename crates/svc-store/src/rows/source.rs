//! Child MCP servers.

use svc_model::Timestamp;

/// What a server listed when it last worked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceListRow {
    pub name: String,
    /// The project whose file configures the server; empty for none.
    pub project: String,
    /// Fingerprint of its configuration entry.
    pub fingerprint: String,
    /// JSON: the tools, as the server listed them.
    pub tools: String,
    /// JSON.
    pub resources: String,
    /// JSON: the resource templates.
    pub templates: String,
    /// JSON.
    pub prompts: String,
}

/// The definitions of a server that a person has approved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourcePinRow {
    /// The approved lists. The fingerprint covers the approval and the configuration entry.
    pub list: SourceListRow,
    /// JSON: the changes that an event has reported.
    pub told: String,
}

/// State of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceStateRow {
    pub name: String,
    /// The project whose file configures the server; empty for none.
    pub project: String,
    /// Text form of `SourceState`.
    pub state: String,
    /// Why the server does not work.
    pub reason: Option<String>,
    /// What a person can do about it.
    pub next_action: Option<String>,
    /// Number of consecutive failed starts.
    pub attempt: Option<u32>,
    /// Time of the next start.
    pub next_at: Option<Timestamp>,
}

/// A process of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceProcessRow {
    /// Value in the environment of the process and of all its descendants.
    pub mark: String,
    pub pid: u32,
    /// Start time in the system's unit, with the boot id.
    pub started: String,
    pub name: String,
    /// The project whose file configures the server; empty for none.
    pub project: String,
    pub instance: String,
}
