//! Coding agents' own records of their sessions. They complement hooks, which miss some states: no
//! hook runs when a person says No at a dialog or presses Esc, or when a turn of Codex fails.

pub mod claude;
mod turn_ends;

pub use claude::{ClaudeSession, RecordFault};
pub use turn_ends::codex_control_socket;

use std::net::SocketAddr;
use std::path::PathBuf;

use svc_model::{ClientRecord, ProcessIdentity, Timestamp, client_session_id};

use crate::connection_owner;
use crate::process_list::variable;

/// Its record has every state of a session.
pub const CLAUDE: &str = "claude-code";
/// Its record is read for the end of a turn only.
pub const CODEX: &str = "codex";
/// Has a plugin instead of a record, and a server if the person starts one.
pub const OPENCODE: &str = "opencode";
/// Its record is read only for turns that the person ended.
pub const GEMINI: &str = "gemini";

/// Address of an opencode server that has no password, so every user of this machine can connect.
pub fn open_server(backend: &str, pid: u32) -> Option<SocketAddr> {
    if backend != OPENCODE || variable(pid, "OPENCODE_SERVER_PASSWORD").is_some() {
        return None;
    }
    connection_owner::listening_address(pid)
}

/// End of the usage limit that a client has just reported; `None` if its record does not say.
pub fn limit_end(
    backend: &str,
    process: &ProcessIdentity,
    session_id: &str,
    now: Timestamp,
) -> Option<Timestamp> {
    let client_id = client_session_id(session_id);
    if backend == CLAUDE { claude::limit_end(process, client_id, now) } else { None }
}

/// Whether the client shows its prompts to a person, according to its record.
pub fn shows_dialogs(backend: &str, process: &ProcessIdentity, session_id: &str) -> bool {
    backend == CLAUDE
        && ClaudeSession::read(process, client_session_id(session_id))
            .is_some_and(|entry| entry.shows_dialogs())
}

/// Why the record of a session does not count; `None` if it counts or does not exist.
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

/// Socket on which a session's client takes messages: the inbox of Claude Code, or the app-server
/// of Codex.
pub fn socket(backend: &str, process: &ProcessIdentity, session_id: &str) -> Option<PathBuf> {
    match backend {
        CLAUDE => ClaudeSession::read(process, client_session_id(session_id))?.inbox,
        CODEX => codex_control_socket(process),
        _ => None,
    }
}

/// The state on record; `None` if there is no record that counts.
pub fn read(backend: &str, process: &ProcessIdentity, session_id: &str) -> Option<ClientRecord> {
    let client_id = client_session_id(session_id);
    match backend {
        CLAUDE => ClaudeSession::read(process, client_id)?.record(),
        CODEX => turn_ends::read_codex(process, client_id),
        GEMINI => turn_ends::read_gemini(process, client_id),
        _ => None,
    }
}
