//! Coding agents' own records of their sessions. Hooks miss some states: none is called when a
//! person says No at a dialog, or presses Esc, or when a turn of Codex fails.

mod claude;
mod codex;
mod gemini;
mod record_file;

pub use claude::ClaudeSession;

use svc_model::{ClientRecord, ProcessIdentity};

/// Claude Code's record has every state.
pub const CLAUDE: &str = "claude-code";
/// Codex' record has only the end of a turn.
pub const CODEX: &str = "codex";
/// Gemini CLI's record has only the end of a turn by the person.
pub const GEMINI: &str = "gemini";

/// Whether a client has a person at its terminal, by its own record.
pub fn is_interactive(backend: &str, process: &ProcessIdentity, session_id: &str) -> bool {
    backend == CLAUDE
        && ClaudeSession::read(process, session_id).is_some_and(|entry| entry.is_interactive())
}

/// `None` if nothing on record counts.
pub fn read(backend: &str, process: &ProcessIdentity, session_id: &str) -> Option<ClientRecord> {
    match backend {
        CLAUDE => ClaudeSession::read(process, session_id)?.record(),
        CODEX => codex::read(process, session_id),
        GEMINI => gemini::read(process, session_id),
        _ => None,
    }
}
