//! Coding agents' own records of their sessions. Hooks miss some states: none is called when a
//! person says No at a dialog, or presses Esc, or when a turn of Codex fails.

pub mod claude;
mod turn_ends;

pub use claude::{ClaudeSession, RecordFault};

use std::net::SocketAddr;
use std::path::PathBuf;

use svc_model::{ClientRecord, ProcessIdentity, Timestamp, client_session_id};

use crate::connection_owner;
use crate::process_list::variable;

/// Its record has every state.
pub const CLAUDE: &str = "claude-code";
/// Its record has only the end of a turn.
pub const CODEX: &str = "codex";
/// It has a plugin, and a server if the person starts one.
pub const OPENCODE: &str = "opencode";
/// Its record has only the end of a turn by the person.
pub const GEMINI: &str = "gemini";

/// Address of an opencode that takes connections of everybody on this machine: it has no password.
pub fn open_server(backend: &str, pid: u32) -> Option<SocketAddr> {
    if backend != OPENCODE || variable(pid, "OPENCODE_SERVER_PASSWORD").is_some() {
        return None;
    }
    connection_owner::listening_address(pid)
}

/// End of the usage limit that a client has just reported; `None` if it is not on record.
pub fn limit_end(
    backend: &str,
    process: &ProcessIdentity,
    session_id: &str,
    now: Timestamp,
) -> Option<Timestamp> {
    let client_id = client_session_id(session_id);
    if backend == CLAUDE { claude::limit_end(process, client_id, now) } else { None }
}

/// Whether a client has a person at its terminal, by its own record.
pub fn is_interactive(backend: &str, process: &ProcessIdentity, session_id: &str) -> bool {
    backend == CLAUDE
        && ClaudeSession::read(process, client_session_id(session_id))
            .is_some_and(|entry| entry.is_interactive())
}

/// Why the record of a session does not count; `None` if it does, or there is none.
pub fn fault(backend: &str, process: &ProcessIdentity, session_id: &str) -> Option<RecordFault> {
    if backend != CLAUDE {
        return None;
    }
    match ClaudeSession::look(process, client_session_id(session_id)) {
        Ok(Some(entry)) if entry.record().is_none() => Some(RecordFault::Form),
        Ok(_) => None,
        Err(fault) => Some(fault),
    }
}

/// Socket of the app-server of a Codex process; `None` if unknown. The caller finds out whether
/// anybody listens there.
pub fn codex_control_socket(process: &ProcessIdentity) -> Option<PathBuf> {
    turn_ends::control_socket(process)
}

/// Socket on which a session's client takes messages: the inbox of Claude Code, the app-server of
/// Codex.
pub fn socket(backend: &str, process: &ProcessIdentity, session_id: &str) -> Option<PathBuf> {
    match backend {
        CLAUDE => ClaudeSession::read(process, client_session_id(session_id))?.inbox,
        CODEX => codex_control_socket(process),
        _ => None,
    }
}

/// `None` if nothing on record counts.
pub fn read(backend: &str, process: &ProcessIdentity, session_id: &str) -> Option<ClientRecord> {
    let client_id = client_session_id(session_id);
    match backend {
        CLAUDE => ClaudeSession::read(process, client_id)?.record(),
        CODEX => turn_ends::read_codex(process, client_id),
        GEMINI => turn_ends::read_gemini(process, client_id),
        _ => None,
    }
}
