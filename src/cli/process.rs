//! The client that started this process for its hook or server.

use svc_sys::process_list;

/// The client's process for a request on the socket; this process if the client's is unknown.
pub(super) fn client_or_own() -> u32 {
    client().unwrap_or_else(std::process::id)
}

/// The process that started this one, past the shell between them.
pub(super) fn client() -> Option<u32> {
    process_list::client_of_this().map(|process| process.pid)
}
