//! Which of its tools a caller is shown.

use std::str::FromStr;

use crate::words::words;

words! {
    /// Which tools `tools/list` has.
    pub enum ToolExposure {
        /// Those of [`SHORT_LIST`]. `ToolSearch` finds the others, which are called by their names.
        Search = "search",
        All = "all",
    }
}

/// Tools that an agent at work calls all the time, and that remove nothing and reach nothing beyond
/// the daemon: those that `svc install --allow-tools` lets a client call without asking its person.
#[rustfmt::skip]
pub const HARMLESS_TOOLS: &[&str] = &[
    "ToolSearch", "peer_list", "peer_send", "peer_inbox", "peer_ack", "sessions_list",
    "sessions_history", "sessions_send", "sessions_yield", "session_status", "agents_list",
    "TaskGet", "TaskList", "TaskWait", "start_ghap", "update_ghap", "resolve_ghap",
    "search_experiences", "assemble_context", "premortem",
];

/// Tools of a short list, the most needed first. There may be more than the list has room for.
#[rustfmt::skip]
pub const SHORT_LIST: &[&str] = &[
    "ToolSearch", "ToolCall", "peer_list", "peer_send", "peer_inbox", "sessions_send",
    "SendMessage", "start_ghap", "resolve_ghap", "search_experiences", "TaskWait",
];

impl FromStr for ToolExposure {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|it| it.as_str() == text.trim());
        known.ok_or_else(|| format!("`{text}` is neither search nor all"))
    }
}
