//! The variables with which a client's process was started.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

/// The folder that a variable of a process names. `None` if it is not set, empty, or the system does not say it.
pub(super) fn folder(pid: u32, name: &str) -> Option<PathBuf> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = environment.split(|byte| *byte == 0).find_map(|variable| {
        variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=").filter(|it| !it.is_empty())
    })?;
    Some(PathBuf::from(OsString::from_vec(value.to_vec())))
}
