//! The client whose hook or server this process is.

use svc_sys::process_list;

/// The process that a request on the socket names as the client's: where nobody knows it, this one.
pub(super) fn client_or_own() -> u32 {
    client().unwrap_or_else(std::process::id)
}

/// The process that started this one, past the shell between them.
pub(super) fn client() -> Option<u32> {
    process_list::client_of_this().map(|process| process.pid)
}
