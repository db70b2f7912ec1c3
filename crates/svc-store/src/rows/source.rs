//! Child MCP servers.

use svc_model::Timestamp;

/// What a server listed when it last worked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceListRow {
    /// The server.
    pub name: String,
    /// The project whose file names it; empty for none.
    pub project: String,
    /// Fingerprint of its entry.
    pub fingerprint: String,
    /// JSON: the tools, as the server gave them.
    pub tools: String,
    /// JSON: the resources.
    pub resources: String,
    /// JSON: the templates of resources.
    pub templates: String,
    /// JSON: the prompts.
    pub prompts: String,
}

/// The definitions of a server that a person has approved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourcePinRow {
    /// The lists. The fingerprint names the approval and the entry that they belong to.
    pub list: SourceListRow,
    /// JSON: the changes that an event has told of.
    pub told: String,
}

/// What a server is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceStateRow {
    /// The server.
    pub name: String,
    /// The project whose file names it; empty for none.
    pub project: String,
    /// One of the words of `SourceState`.
    pub state: String,
    /// Why, if it does not work.
    pub reason: Option<String>,
    /// What would help.
    pub next_action: Option<String>,
    /// How many starts have failed in a row.
    pub attempt: Option<u32>,
    /// When the next start is.
    pub next_at: Option<Timestamp>,
}

/// A process of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceProcessRow {
    /// Stands in its environment and in that of all that it starts.
    pub mark: String,
    /// Its id.
    pub pid: u32,
    /// When it started, as the system counts, and in which run of the system.
    pub started: String,
    /// The server.
    pub name: String,
    /// The project whose file names it; empty for none.
    pub project: String,
    pub instance: String,
}
