//! All that a process has started, also what left its process group or session.

use std::collections::HashMap;
use std::fs;

use rustix::process::{Pid, Signal};
use svc_sys::process_list::ProcessEntry;

/// A process below another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Descendant {
    pid: u32,
    /// When it started: by this it is told from a later one with its id.
    started: u64,
    is_running: bool,
}

/// Sends a signal to each process that `root` has started, directly or not, and returns how many of them still run.
///
/// A subreaper finds all of them: whoever loses its parent becomes the subreaper's child. Where the system has no list of
/// processes nobody is found.
pub(super) fn signal_descendants(root: u32, signal: Signal) -> usize {
    let running: Vec<_> = descendants(root).into_iter().filter(|it| it.is_running).collect();
    for descendant in &running {
        send(*descendant, signal);
    }
    running.len()
}

/// How many of those that `root` has started still run.
pub(super) fn count_descendants(root: u32) -> usize {
    descendants(root).iter().filter(|it| it.is_running).count()
}

fn descendants(root: u32) -> Vec<Descendant> {
    let mut children: HashMap<u32, Vec<Descendant>> = HashMap::new();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    for pid in entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        if let Some(ProcessEntry { parent, started, is_running, .. }) = ProcessEntry::read(pid) {
            children.entry(parent).or_default().push(Descendant { pid, started, is_running });
        }
    }
    let mut all = children.remove(&root).unwrap_or_default();
    let mut next = 0;
    while let Some(parent) = all.get(next) {
        let below = children.remove(&parent.pid).unwrap_or_default();
        all.extend(below);
        next += 1;
    }
    all
}

/// The process is held by a descriptor before it is looked at again, so a later one with its id gets nothing.
#[cfg(target_os = "linux")]
fn send(descendant: Descendant, signal: Signal) {
    use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

    let Some(pid) = Pid::from_raw(descendant.pid.cast_signed()) else { return };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let is_same =
        ProcessEntry::read(descendant.pid).is_some_and(|it| it.started == descendant.started);
    if is_same {
        let _ = pidfd_send_signal(&process, signal);
    }
}

#[cfg(not(target_os = "linux"))]
fn send(descendant: Descendant, signal: Signal) {
    if let Some(pid) = Pid::from_raw(descendant.pid.cast_signed()) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_grandchild_in_a_session_of_its_own_is_found() {
        let mut child = Command::new("sh")
            .args(["-c", "sh -c 'setsid sh -c \"echo started; sleep 600\"; :'; :"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh exists");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("reads");
        // The shells, and what the last of them starts after its word.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while descendants(child.id()).len() < 3 && std::time::Instant::now() < end {
            std::thread::yield_now();
        }
        let below = descendants(child.id());
        assert!(below.len() >= 3, "{below:?}");
        let me = descendants(std::process::id());
        assert!(me.iter().any(|it| it.pid == child.id()));
        assert!(below.iter().all(|it| me.contains(it)), "{below:?} {me:?}");
        let wrong_start = below.iter().map(|it| Descendant { started: it.started + 1, ..*it });
        wrong_start.for_each(|it| send(it, Signal::KILL));
        assert_eq!(descendants(child.id()).len(), below.len(), "a later process is not signalled");
        while signal_descendants(child.id(), Signal::KILL) > 0 {}
        child.kill().ok();
        child.wait().expect("is our child");
    }
}
