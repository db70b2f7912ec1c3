//! The reaper: a small process between a host and its agent that ends all that the agent has
//! started.
//!
//! Signals to a process group do not reach what left it, and a host that is killed signals nobody.
//! So the agent is the child of this process, which is a subreaper: whoever loses its parent below
//! becomes its child. It ends them all when the agent has ended, and when its host has, which it
//! sees by the end of the control socket.
//!
//! It has no runtime: one thread waits for children, the other for the host.

use std::collections::HashMap;
use std::io::{self, BufRead as _, BufReader, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, wait, waitid,
};
use serde::{Deserialize, Serialize};
use svc_sys::process_list::ProcessEntry;

use super::program::RunExit;

/// How long leftover processes may take to end after SIGTERM.
const LEFTOVER_GRACE: Duration = Duration::from_millis(500);
/// How long killed processes may take to end; one that waits for a disk cannot end before.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
const KILL_POLL: Duration = Duration::from_millis(5);
const MAX_ORDER: usize = 64 * 1024 * 1024;

/// The program to start. Its input and outputs come beside it, as descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ReaperOrder {
    pub(crate) command: Vec<String>,
    pub(crate) cwd: std::path::PathBuf,
    pub(crate) env: Vec<(String, String)>,
}

/// From the host, one JSON line each.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReaperCommand {
    /// A signal of this number to the agent's process group.
    Signal(i32),
    /// SIGKILL to the agent and all its descendants.
    Kill,
}

/// To the host, one JSON line each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReaperReport {
    Started {
        /// It leads a process group.
        pid: u32,
    },
    /// The agent could not be started, with the text of the error.
    Failed(String),
    /// The agent and all its descendants have ended.
    Exited { code: Option<i32>, signal: Option<i32> },
}

/// The agent's process until it is reaped: until then no other process gets its id.
type Agent = Arc<Mutex<Option<Pid>>>;

/// Runs the order that comes on standard input; returns when nothing of the agent is left.
pub(crate) fn run_reaper() -> ExitCode {
    match supervise() {
        Ok(()) => ExitCode::SUCCESS,
        // The host sees the end of the socket.
        Err(_) => ExitCode::FAILURE,
    }
}

fn supervise() -> io::Result<()> {
    let mut control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (order, pipes) = receive_order(&mut control)?;
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let pid = match start(&order, pipes) {
        Ok(pid) => pid,
        Err(error) => return report(&mut control, &ReaperReport::Failed(error.to_string())),
    };
    let agent_pid = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::NotFound)?;
    let agent: Agent = Arc::new(Mutex::new(Some(agent_pid)));
    let commands = BufReader::new(control.try_clone()?);
    let shared = Arc::clone(&agent);
    thread::spawn(move || obey(commands, &shared));
    report(&mut control, &ReaperReport::Started { pid })?;
    let exit = wait_for(agent_pid, &agent)?;
    end_leftovers();
    let (code, signal) = exit.code_and_signal();
    report(&mut control, &ReaperReport::Exited { code, signal })
}

/// Reads the length, which carries the descriptors, and then the order.
fn receive_order(control: &mut UnixStream) -> io::Result<(ReaperOrder, [OwnedFd; 3])> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut length = [0; 4];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let received =
        recvmsg(&*control, &mut [IoSliceMut::new(&mut length)], &mut ancillary, flags)?.bytes;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    control.read_exact(&mut length[received..])?;
    let length = u32::from_le_bytes(length) as usize;
    let pipes = descriptors.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
    if length > MAX_ORDER {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut order = vec![0; length];
    control.read_exact(&mut order)?;
    Ok((serde_json::from_slice(&order)?, pipes))
}

fn start(order: &ReaperOrder, [stdin, stdout, stderr]: [OwnedFd; 3]) -> io::Result<u32> {
    let (program, arguments) = order.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let child = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(order.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&order.cwd)
        .process_group(0)
        .stdin(Stdio::from(stdin))
        .stdout(Stdio::from(stdout))
        .stderr(Stdio::from(stderr))
        .spawn()?;
    Ok(child.id())
}

fn report(control: &mut UnixStream, report: &ReaperReport) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    control.write_all(&line)
}

/// Obeys the host until the socket ends; then kills everything and ends this process.
fn obey(commands: BufReader<UnixStream>, agent: &Agent) {
    for line in commands.lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(ReaperCommand::Signal(number)) => signal_group(agent, number),
            Ok(ReaperCommand::Kill) => {
                signal_descendants(std::process::id(), Signal::KILL);
            }
            Err(_) => {}
        }
    }
    let end = Instant::now() + KILL_PATIENCE;
    while signal_descendants(std::process::id(), Signal::KILL) > 0 && Instant::now() < end {
        thread::sleep(KILL_POLL);
    }
    std::process::exit(1);
}

fn signal_group(agent: &Agent, number: i32) {
    let agent = agent.lock().unwrap_or_else(PoisonError::into_inner);
    if let (Some(pid), Some(signal)) = (*agent, Signal::from_named_raw(number)) {
        let _ = kill_process_group(pid, signal);
        let _ = kill_process_group(pid, Signal::CONT);
    }
}

/// Reaps children until the agent itself has ended.
fn wait_for(pid: Pid, agent: &Agent) -> io::Result<RunExit> {
    use std::os::unix::process::ExitStatusExt as _;

    loop {
        match waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        // A sender of signals holds the lock, so the process id is not reused meanwhile.
        let mut agent = agent.lock().unwrap_or_else(PoisonError::into_inner);
        let reaped = wait(WaitOptions::NOHANG)?;
        if let Some((ended, status)) = reaped
            && ended == pid
        {
            *agent = None;
            return Ok(RunExit::from_status(ExitStatus::from_raw(status.as_raw())));
        }
    }
}

/// Ends leftover processes: SIGTERM first, SIGKILL after [`LEFTOVER_GRACE`].
fn end_leftovers() {
    let me = std::process::id();
    let began = Instant::now();
    let mut remaining = signal_descendants(me, Signal::TERM);
    while remaining > 0 && began.elapsed() < KILL_PATIENCE {
        reap_all();
        thread::sleep(KILL_POLL);
        remaining = if began.elapsed() < LEFTOVER_GRACE {
            count_descendants(me)
        } else {
            signal_descendants(me, Signal::KILL)
        };
    }
    reap_all();
}

/// Reaps the children that have ended.
pub(super) fn reap_all() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Descendant {
    pid: u32,
    /// Start time: tells it from a later process of the same id.
    started: u64,
    is_running: bool,
}

/// Signals each descendant of `root` that runs, and returns their number.
///
/// Below a subreaper all are found: orphans become its children. Without `/proc` none is
/// found.
pub(super) fn signal_descendants(root: u32, signal: Signal) -> usize {
    let running: Vec<_> = descendants(root).into_iter().filter(|it| it.is_running).collect();
    for descendant in &running {
        send(*descendant, signal);
    }
    running.len()
}

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

/// The descriptor is opened before the start time is compared: a later process of the id gets no
/// signal.
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
    use super::*;

    #[test]
    fn grandchild_in_a_session_of_its_own_is_a_descendant() {
        let mut child = Command::new("sh")
            .args(["-c", "sh -c 'setsid sh -c \"echo started; sleep 600\"; :'; :"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh exists");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("reads");
        // The shells, and the `sleep` that the last one starts.
        let end = Instant::now() + Duration::from_secs(10);
        while descendants(child.id()).len() < 3 && Instant::now() < end {
            thread::yield_now();
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
