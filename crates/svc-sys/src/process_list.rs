//! The processes of this machine, from `/proc`. Without `/proc`, only whether a pid exists is
//! known.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::sync::OnceLock;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process};
use svc_model::{MachineId, MachineProcess, ProcessIdentity, ProcessState, SHELLS};

use crate::machine;

pub const SIGNALS: [(Signal, &str); 18] = [
    (Signal::HUP, "SIGHUP"),
    (Signal::INT, "SIGINT"),
    (Signal::QUIT, "SIGQUIT"),
    (Signal::ILL, "SIGILL"),
    (Signal::TRAP, "SIGTRAP"),
    (Signal::ABORT, "SIGABRT"),
    (Signal::BUS, "SIGBUS"),
    (Signal::FPE, "SIGFPE"),
    (Signal::KILL, "SIGKILL"),
    (Signal::USR1, "SIGUSR1"),
    (Signal::SEGV, "SIGSEGV"),
    (Signal::USR2, "SIGUSR2"),
    (Signal::PIPE, "SIGPIPE"),
    (Signal::ALARM, "SIGALRM"),
    (Signal::TERM, "SIGTERM"),
    (Signal::XCPU, "SIGXCPU"),
    (Signal::XFSZ, "SIGXFSZ"),
    (Signal::SYS, "SIGSYS"),
];

/// A signal's name, such as `SIGTERM`.
pub fn signal_name(number: i32) -> Option<&'static str> {
    let known = SIGNALS.iter().find(|(signal, _)| signal.as_raw() == number);
    known.map(|(_, name)| *name)
}

/// A line of `proc_pid_stat(5)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessEntry {
    /// Name of its program, at most 15 bytes, of any characters.
    pub name: String,
    pub is_running: bool,
    pub parent: u32,
    /// Start time in clock ticks since the boot.
    pub started: u64,
}

impl ProcessEntry {
    /// `None` if the process does not exist, or without `/proc`.
    pub fn read(pid: u32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        // The name is in parentheses, and may itself contain parentheses.
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

    /// Identifies this process among all processes with its pid, also those of earlier boots.
    pub fn identity(&self, pid: u32) -> ProcessIdentity {
        identity(pid, self.started)
    }
}

/// The identity of a process of this machine. `started` is in clock ticks since the boot; 0 if
/// unknown.
pub fn identity(pid: u32, started: u64) -> ProcessIdentity {
    let started = match started {
        0 => String::new(),
        ticks => format!("{ticks}@{}", machine::boot()),
    };
    ProcessIdentity { pid, started }
}

/// The path of the program; `None` if the system does not show it to this user.
pub fn executable(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// The arguments, including the program; `None` if the system does not show them.
pub fn command_line(pid: u32) -> Option<Vec<OsString>> {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = words.strip_suffix(b"\0").unwrap_or(&words);
    Some(words.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect())
}

/// An environment variable of a process; `None` if it is unset, empty or unknown.
pub fn variable(pid: u32, name: &str) -> Option<OsString> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = environment.split(|byte| *byte == 0).find_map(|variable| {
        variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=").filter(|it| !it.is_empty())
    })?;
    Some(OsString::from_vec(value.to_vec()))
}

/// Whether the process runs; a zombie does not.
pub fn is_running(pid: u32) -> bool {
    let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    match test_kill_process(process) {
        // Without `/proc` there is no entry, and zombies cannot be told apart.
        Ok(()) => ProcessEntry::read(pid).is_none_or(|entry| entry.is_running),
        // The process exists and belongs to another user.
        Err(error) => error == rustix::io::Errno::PERM,
    }
}

/// Whether the system has a `/proc` like Linux.
pub fn is_available() -> bool {
    static LISTS: OnceLock<bool> = OnceLock::new();
    *LISTS.get_or_init(|| ProcessEntry::read(std::process::id()).is_some())
}

/// Whether the process in a row runs, as the daemon of machine `here` sees it.
pub fn state(row: &MachineProcess, here: &MachineId) -> ProcessState {
    let MachineProcess { machine_id, process } = row;
    if machine_id != here {
        return ProcessState::Unknown;
    }
    // If the start time is unknown, the pid alone decides.
    let runs =
        if process.started.is_empty() { is_running(process.pid) } else { is_same_running(process) };
    if runs { ProcessState::Running } else { ProcessState::Gone }
}

/// Whether a process that was seen on this machine still runs. `false` without `/proc`, as the pid
/// may have been reused.
pub fn is_same_running(process: &ProcessIdentity) -> bool {
    ProcessEntry::read(process.pid)
        .is_some_and(|entry| entry.is_running && entry.identity(process.pid) == *process)
}

/// Most ancestors of a process that are looked up.
const MOST_ANCESTORS: usize = 4096;

/// Whether a process is `ancestor` or descends from it. False for a descendant whose parent has
/// ended, as it is adopted. A process with more than 4096 ancestors counts as a descendant.
pub fn is_below(pid: u32, ancestor: &ProcessIdentity) -> bool {
    let mut pid = pid;
    for _ in 0..MOST_ANCESTORS {
        let Some(entry) = ProcessEntry::read(pid) else { return false };
        if entry.identity(pid) == *ancestor {
            return true;
        }
        if entry.parent <= 1 {
            return false;
        }
        pid = entry.parent;
    }
    true
}

/// The child of this process that `pid` is, or descends from.
pub fn child_of_this_above(pid: u32) -> Option<ProcessIdentity> {
    let mut pid = pid;
    for _ in 0..MOST_ANCESTORS {
        let entry = ProcessEntry::read(pid)?;
        if entry.parent == std::process::id() {
            return Some(entry.identity(pid));
        }
        if entry.parent <= 1 {
            return None;
        }
        pid = entry.parent;
    }
    None
}

/// All processes of the system; empty without `/proc`.
pub fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The process of this user that has a socket open, by the socket's inode.
pub fn holder_of_socket(inode: u64) -> Option<u32> {
    pids().find(|pid| sockets_of(*pid).contains(&inode))
}

/// The inodes of the sockets that a process of this user has open.
pub fn sockets_of(pid: u32) -> HashSet<u64> {
    let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return HashSet::new() };
    let inode =
        |link: PathBuf| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok();
    let links = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
    links.filter_map(inode).collect()
}

/// The process that started this one, skipping shells; `None` without `/proc`.
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

/// Signals a process group, then sends SIGCONT, so that a stopped process also handles the signal.
/// A group without processes is not signalled.
pub fn signal_group(group: Pid, signal: Signal) {
    if kill_process_group(group, signal).is_ok() {
        let _ = kill_process_group(group, Signal::CONT);
    }
}

/// Signals every other process that was started with this environment variable; returns their
/// number.
pub fn signal_marked(variable: &str, value: &str, signal: Signal) -> usize {
    let wanted = format!("{variable}={value}");
    let others = pids().filter(|pid| *pid != std::process::id());
    let is_marked = |pid: u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    others.filter(|pid| is_marked(*pid) && signal_held(*pid, signal, || is_marked(*pid))).count()
}

/// Signals a process if `is_same` confirms that it is the intended one. Returns whether it was
/// signalled. The pidfd is opened before the check, so a later process with the same pid gets no
/// signal.
#[cfg(target_os = "linux")]
pub fn signal_held(pid: u32, signal: Signal, is_same: impl Fn() -> bool) -> bool {
    use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

    let Some(id) = Pid::from_raw(pid.cast_signed()) else { return false };
    let Ok(process) = pidfd_open(id, PidfdFlags::empty()) else { return false };
    is_same() && pidfd_send_signal(process, signal).is_ok()
}

#[cfg(not(target_os = "linux"))]
pub fn signal_held(pid: u32, signal: Signal, is_same: impl Fn() -> bool) -> bool {
    Pid::from_raw(pid.cast_signed())
        .is_some_and(|id| is_same() && rustix::process::kill_process(id, signal).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_and_command_line_are_read() {
        let own = std::process::id();
        if is_available() {
            assert_eq!(executable(own), std::env::current_exe().ok());
            assert_eq!(command_line(own), Some(std::env::args_os().collect()));
        }
        assert_eq!((executable(u32::MAX), command_line(u32::MAX)), (None, None));
    }

    #[test]
    fn nothing_is_known_of_processes_of_another_machine_and_earlier_boots_have_none() {
        let id = |id: &str| MachineId::from(id.to_owned());
        let here = id("mach_1");
        let row = |machine: &str, pid, started: &str| MachineProcess {
            machine_id: id(machine),
            process: ProcessIdentity { pid, started: started.to_owned() },
        };
        let own = std::process::id();
        assert_eq!(state(&row("mach_1", own, ""), &here), ProcessState::Running);
        assert_eq!(state(&row("mach_1", u32::MAX, ""), &here), ProcessState::Gone);
        for (pid, started) in [(own, ""), (u32::MAX, ""), (u32::MAX, "1@boot")] {
            assert_eq!(state(&row("mach_2", pid, started), &here), ProcessState::Unknown);
        }
        let Some(entry) = ProcessEntry::read(own) else { return };
        let identity = entry.identity(own);
        assert_eq!(state(&row("mach_1", own, &identity.started), &here), ProcessState::Running);
        assert_eq!(state(&row("mach_2", own, &identity.started), &here), ProcessState::Unknown);
        for another in ["another boot".to_owned(), format!("{}/1", machine::boot())] {
            let earlier = format!("{}@{another}", entry.started);
            assert_eq!(state(&row("mach_1", own, &earlier), &here), ProcessState::Gone);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn only_marked_processes_are_signalled() {
        use std::process::Command;

        let mark = format!("mark-{}", std::process::id());
        let start = |value: &str| {
            let mut command = Command::new("sleep");
            command.arg("600").env("MARK_OF_A_TEST", value).spawn().unwrap()
        };
        let (mut marked, mut other) = (start(&mark), start("another"));
        // The child has the mark only after it runs its own program.
        while signal_marked("MARK_OF_A_TEST", &mark, Signal::KILL) == 0 {}
        assert!(!marked.wait().unwrap().success());
        assert_eq!(signal_marked("MARK_OF_A_TEST", &mark, Signal::KILL), 0);
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn stat_line_is_parsed() {
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
