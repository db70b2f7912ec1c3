//! The client whose hook or server this process is.

use crate::domain::SHELLS;

/// The process that a request on the socket names as the client's: where nobody knows it, this one.
pub(super) fn client_or_own() -> u32 {
    client().unwrap_or_else(std::process::id)
}

/// The process that started this one, past the shell between them.
pub(super) fn client() -> Option<u32> {
    let mut pid = rustix::process::getppid()?.as_raw_nonzero().get();
    for _ in 0..3 {
        // Elsewhere than on Linux there is no such file, and nobody knows.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (head, rest) = stat.rsplit_once(')')?;
        let name = head.split_once('(')?.1;
        if !SHELLS.contains(&name) {
            return u32::try_from(pid).ok().filter(|pid| *pid > 1);
        }
        pid = rest.split_whitespace().nth(1)?.parse().ok()?;
    }
    None
}
