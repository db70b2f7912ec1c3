//! Which of its tools a caller is shown.

use std::str::FromStr;

/// Which tools `tools/list` has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolExposure {
    /// A few. `ToolSearch` finds the others, and each is called by its name.
    Search,
    All,
}

/// Tools that an agent at work calls all the time, and that remove nothing and reach nothing beyond
/// the daemon: those that `svc install --allow-tools` lets a client call without asking its person.
pub const HARMLESS_TOOLS: &[&str] = &[
    "ToolSearch",
    "peer_list",
    "peer_send",
    "peer_inbox",
    "peer_ack",
    "sessions_list",
    "sessions_history",
    "sessions_send",
    "sessions_yield",
    "session_status",
    "agents_list",
    "TaskGet",
    "TaskList",
    "TaskWait",
    "start_ghap",
    "update_ghap",
    "resolve_ghap",
    "search_experiences",
    "assemble_context",
    "premortem",
];

/// Tools that a short list has, those first that an agent at work can least do without. There may
/// be more of them than the list has room for.
pub const SHORT_LIST: &[&str] = &[
    "ToolSearch",
    "ToolCall",
    "peer_list",
    "peer_send",
    "peer_inbox",
    "sessions_send",
    "SendMessage",
    "start_ghap",
    "resolve_ghap",
    "search_experiences",
    "TaskWait",
];

impl ToolExposure {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Search => "search",
            Self::All => "all",
        }
    }
}

impl FromStr for ToolExposure {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim() {
            "search" => Ok(Self::Search),
            "all" => Ok(Self::All),
            _ => Err(format!("`{text}` is neither search nor all")),
        }
    }
}
