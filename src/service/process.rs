//! Processes on this machine: whether one that somebody named is still there.

use rustix::process::{Pid, test_kill_process};

/// Whether a process with this id exists.
pub fn is_alive(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    match test_kill_process(pid) {
        Ok(()) => true,
        // It is there, and somebody else's.
        Err(error) => error == rustix::io::Errno::PERM,
    }
}

/// When a process started, in the system's own count, to tell it from a later one with the same id. `None` where
/// the system does not say.
pub fn started(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // proc_pid_stat(5): the name, in parentheses, may hold anything; `starttime` is the 20th field after it.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(19).map(str::to_owned)
}

/// Whether the process that had this id and this start is still there.
pub fn is_same_alive(pid: u32, start: Option<&str>) -> bool {
    is_alive(pid) && (start.is_none() || started(pid).as_deref() == start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_the_living_from_the_dead() {
        let own = std::process::id();
        assert!(is_alive(own) && is_same_alive(own, started(own).as_deref()));
        assert!(!is_same_alive(own, Some("another start")) || started(own).is_none());
        assert!(!is_alive(0) && !is_alive(u32::MAX));
    }
}
