//! The processes of this machine: which exist, and, where the system lists them as Linux does, who started whom, and when.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::sync::OnceLock;

use rustix::process::{Pid, Signal, test_kill_process};
use svc_model::{ProcessIdentity, SHELLS};

/// A process as the system lists it (`proc_pid_stat(5)`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessEntry {
    /// Name of its program, cut to 15 bytes. It may hold anything.
    pub name: String,
    /// Whether it runs, and does not only wait for its end to be noticed.
    pub is_running: bool,
    /// The process that started it, or has taken it over.
    pub parent: u32,
    /// When it started, in clock ticks since the system did.
    pub started: u64,
}

impl ProcessEntry {
    /// `None` if there is no such process, or the system has no such list.
    pub fn read(pid: u32) -> Option<Self> {
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
            started: fields.nth(17)?.parse().ok()?,
        })
    }

    /// The process, told from all others that have or had its id, also from those before the system started anew.
    pub fn identity(&self, pid: u32) -> ProcessIdentity {
        static BOOT: OnceLock<String> = OnceLock::new();
        let boot = BOOT.get_or_init(|| {
            let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
            boot.map(|boot| boot.trim().to_owned()).unwrap_or_default()
        });
        ProcessIdentity { pid, started: format!("{}@{boot}", self.started) }
    }
}

/// The file that a process runs. `None` where the system does not say it, or not to this user.
pub fn executable(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// The words with which a process was started. `None` where the system does not say them.
pub fn command_line(pid: u32) -> Option<Vec<OsString>> {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = words.strip_suffix(b"\0").unwrap_or(&words);
    Some(words.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect())
}

/// Whether a process with this id exists and runs. One whose end nobody has noticed yet does not.
pub fn is_running(pid: u32) -> bool {
    let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    match test_kill_process(process) {
        // Elsewhere than on Linux there is no entry, and the system notices the end promptly.
        Ok(()) => ProcessEntry::read(pid).is_none_or(|entry| entry.is_running),
        // Another user's: it exists.
        Err(error) => error == rustix::io::Errno::PERM,
    }
}

/// Whether the system lists its processes as Linux does.
pub fn is_available() -> bool {
    static LISTS: OnceLock<bool> = OnceLock::new();
    *LISTS.get_or_init(|| ProcessEntry::read(std::process::id()).is_some())
}

/// Whether a client's process still runs. `false` where the system has no such list: its id alone may be another's by now.
pub fn is_same_running(process: &ProcessIdentity) -> bool {
    ProcessEntry::read(process.pid)
        .is_some_and(|entry| entry.is_running && entry.identity(process.pid) == *process)
}

/// The process that started this one, past the shell between them. Nobody knows where the system has no list.
pub fn client_of_this() -> Option<ProcessIdentity> {
    let mut pid = u32::try_from(rustix::process::getppid()?.as_raw_nonzero().get()).ok()?;
    for _ in 0..3 {
        let entry = ProcessEntry::read(pid)?;
        if !SHELLS.contains(&entry.name.as_str()) {
            return (pid > 1).then(|| entry.identity(pid));
        }
        pid = entry.parent;
    }
    None
}

/// Sends a signal to each process that was started with this variable, but this one, and says how many there are.
pub fn signal_marked(variable: &str, value: &str, signal: Signal) -> usize {
    let wanted = format!("{variable}={value}");
    let Ok(entries) = std::fs::read_dir("/proc") else { return 0 };
    let own = std::process::id();
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != own);
    let bears_it = |pid: u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    pids.filter(|pid| bears_it(*pid) && signal_held(*pid, signal, || bears_it(*pid))).count()
}

/// Signals a process that is held by a descriptor while it is looked at, so a later one with its id gets nothing.
#[cfg(target_os = "linux")]
fn signal_held(pid: u32, signal: Signal, is_same: impl Fn() -> bool) -> bool {
    use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

    let Some(id) = Pid::from_raw(pid.cast_signed()) else { return false };
    let Ok(process) = pidfd_open(id, PidfdFlags::empty()) else { return false };
    is_same() && pidfd_send_signal(process, signal).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn signal_held(pid: u32, signal: Signal, is_same: impl Fn() -> bool) -> bool {
    Pid::from_raw(pid.cast_signed())
        .is_some_and(|id| is_same() && rustix::process::kill_process(id, signal).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_says_what_it_runs() {
        let own = std::process::id();
        if is_available() {
            assert_eq!(executable(own), std::env::current_exe().ok());
            assert_eq!(command_line(own), Some(std::env::args_os().collect()));
        }
        assert_eq!((executable(u32::MAX), command_line(u32::MAX)), (None, None));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn only_who_bears_the_mark_is_signalled() {
        use std::process::Command;

        let mark = format!("mark-{}", std::process::id());
        let start = |value: &str| {
            let mut command = Command::new("sleep");
            command.arg("600").env("MARK_OF_A_TEST", value).spawn().unwrap()
        };
        let (mut marked, mut other) = (start(&mark), start("another"));
        // A child bears the mark once it runs its own program.
        while signal_marked("MARK_OF_A_TEST", &mark, Signal::KILL) == 0 {}
        assert!(!marked.wait().unwrap().success());
        assert_eq!(signal_marked("MARK_OF_A_TEST", &mark, Signal::KILL), 0);
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_process_is_known_by_its_line() {
        let stat = "41 (a) b) c) S 7 41 41 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 8812 1 1 1\n";
        let entry = ProcessEntry::parse(stat).unwrap();
        assert_eq!((entry.name.as_str(), entry.parent, entry.started), ("a) b) c", 7, 8812));
        assert!(entry.is_running);
        assert!(entry.identity(41).started.starts_with("8812@"), "{entry:?}");
        let gone = ProcessEntry::parse(&stat.replace(" S 7", " Z 7")).unwrap();
        assert!(!gone.is_running);
        assert_eq!(ProcessEntry::parse("41 (a) S 7"), None);
    }
}
