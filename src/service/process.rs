//! Processes on this machine: whether one that somebody named is still there, and who started it.

use std::sync::OnceLock;

use rustix::process::{Pid, test_kill_process};

use crate::domain::ClientProcess;

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
    ProcessEntry::read(pid).map(|entry| entry.started)
}

/// Whether the process that had this id and this start is still there.
pub fn is_same_alive(pid: u32, start: Option<&str>) -> bool {
    is_alive(pid) && (start.is_none() || started(pid).as_deref() == start)
}

/// A process as the system lists it (proc_pid_stat(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::service) struct ProcessEntry {
    /// Name of its program, cut to 15 bytes. It may hold anything.
    pub(in crate::service) name: String,
    /// Whether it runs, and does not only wait for its end to be noticed.
    pub(in crate::service) is_running: bool,
    /// The process that started it, or has taken it over.
    pub(in crate::service) parent: u32,
    /// When it started, in the system's own count.
    started: String,
}

impl ProcessEntry {
    /// `None` if there is no such process, or the system has no such list.
    pub(in crate::service) fn read(pid: u32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        // The name, in parentheses, may hold anything, parentheses too.
        let (head, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?;
        Some(Self {
            name: head.split_once('(')?.1.to_owned(),
            is_running: !matches!(state, "Z" | "X" | "x"),
            parent: fields.next()?.parse().ok()?,
            // `starttime` is the 20th field after the name.
            started: fields.nth(17)?.to_owned(),
        })
    }

    /// The process, told from all others that have or had its id, also from those before the system started anew.
    pub(in crate::service) fn identity(&self, pid: u32) -> ClientProcess {
        static BOOT: OnceLock<String> = OnceLock::new();
        let boot = BOOT.get_or_init(|| {
            let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
            boot.map(|boot| boot.trim().to_owned()).unwrap_or_default()
        });
        ClientProcess { pid, started: format!("{}@{boot}", self.started) }
    }
}

/// Whether the system lists its processes as Linux does.
pub(in crate::service) fn has_list() -> bool {
    static LISTS: OnceLock<bool> = OnceLock::new();
    *LISTS.get_or_init(|| ProcessEntry::read(std::process::id()).is_some())
}

/// Whether a client's process still runs.
pub(in crate::service) fn is_running(process: &ClientProcess) -> bool {
    if !has_list() {
        return is_alive(process.pid);
    }
    ProcessEntry::read(process.pid)
        .is_some_and(|entry| entry.is_running && entry.identity(process.pid) == *process)
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

    #[test]
    fn a_process_is_known_by_its_line() {
        let stat = "41 (a) b) c) S 7 41 41 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 8812 1 1 1\n";
        let entry = ProcessEntry::parse(stat).unwrap();
        assert_eq!((entry.name.as_str(), entry.parent), ("a) b) c", 7));
        assert!(entry.is_running);
        assert!(entry.identity(41).started.starts_with("8812@"), "{entry:?}");
        let gone = ProcessEntry::parse(&stat.replace(" S 7", " Z 7")).unwrap();
        assert!(!gone.is_running);
        assert_eq!(ProcessEntry::parse("41 (a) S 7"), None);
        let own = std::process::id();
        if let Some(entry) = ProcessEntry::read(own) {
            assert!(is_running(&entry.identity(own)));
            let earlier = ClientProcess { started: "1@".to_owned(), ..entry.identity(own) };
            assert!(!is_running(&earlier), "another process had this id");
        }
    }
}
