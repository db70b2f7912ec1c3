//! What coding agents have on record of their own sessions. Their hooks do not tell of everything: none is called when a person
//! says No at a dialog, or presses Esc, or when a turn of Codex fails.

mod claude;
mod codex;
mod environment;
mod gemini;
mod tail;

use svc_model::{ClientRecord, ProcessIdentity};

/// Claude Code's backend. Its record tells of every state.
pub const CLAUDE: &str = "claude-code";
/// Codex' backend. Its record tells only that a turn is over.
pub const CODEX: &str = "codex";
/// Gemini CLI's backend. Its record tells only that a turn was ended.
pub const GEMINI: &str = "gemini";

/// What the client of a backend has on record of a session in a process; `None` if there is nothing that counts.
pub fn read(backend: &str, process: &ProcessIdentity, session_id: &str) -> Option<ClientRecord> {
    match backend {
        CLAUDE => claude::read(process, session_id),
        CODEX => codex::read(process, session_id),
        GEMINI => gemini::read(process, session_id),
        _ => None,
    }
}
