//! The reaper: a small process between a host and its agent that ends all that the agent has started.
//!
//! Signals to a process group do not reach what left it, and a host that is killed signals nobody. So the agent is the
//! child of this process, which is a subreaper: whoever loses its parent below becomes its child. It ends them all when
//! the agent has ended, and when its host has, which it sees by the end of the control socket.
//!
//! It has no runtime: one thread waits for children, the other for the host.

use std::io::{self, BufRead as _, BufReader, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde::{Deserialize, Serialize};

use super::exit::RunExit;
use super::process_tree::{count_descendants, signal_descendants};

/// How long those whom the agent left behind may take before they are killed.
const LEFTOVER_GRACE: Duration = Duration::from_millis(500);
/// How long killed processes may take to end. One that waits for a disk takes as long as the disk.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks at processes that were killed.
const KILL_POLL: Duration = Duration::from_millis(5);
/// Most bytes of an order.
const MAX_ORDER: usize = 64 * 1024 * 1024;

/// What the host wants to be started. Its input and outputs come beside it, as descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ReaperOrder {
    pub(super) command: Vec<String>,
    pub(super) cwd: std::path::PathBuf,
    /// The whole environment.
    pub(super) env: Vec<(String, String)>,
}

/// What the host wants to be done, one JSON line each.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReaperCommand {
    /// A signal of this number for the agent's process group.
    Signal(i32),
    /// SIGKILL for the agent and all that it has started.
    Kill,
}

/// What the host is told, one JSON line each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReaperReport {
    /// The agent runs.
    Started {
        /// Its process, which leads a group.
        pid: u32,
    },
    /// The agent could not be started: the kind and the text of the error.
    Failed(String),
    /// The agent has ended, and all that it had started.
    Exited {
        /// Its exit code.
        code: Option<i32>,
        /// The number of the signal that ended it.
        signal: Option<i32>,
    },
}

/// The agent's process until it is reaped. Its id is nobody else's so long.
type Agent = Arc<Mutex<Option<Pid>>>;

/// Does what a host orders on standard input, and returns when nothing of the agent is left.
pub(crate) fn run_reaper() -> ExitCode {
    match supervise() {
        Ok(()) => ExitCode::SUCCESS,
        // The host sees that the socket has ended.
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
    let obedient = Arc::clone(&agent);
    thread::spawn(move || obey(commands, &obedient));
    report(&mut control, &ReaperReport::Started { pid })?;
    let exit = wait_for(agent_pid, &agent)?;
    end_leftovers();
    let (code, signal) = match exit {
        RunExit::Code(code) => (Some(code), None),
        RunExit::Signal(signal) => (None, Some(signal)),
    };
    report(&mut control, &ReaperReport::Exited { code, signal })
}

/// Reads the length, with which the descriptors come, and then the order.
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

/// Does what the host says until it says nothing more; then ends everything, and this process.
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
        let seen = waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        match seen {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        // Whoever signals the group holds the lock, so the id is not given away meanwhile.
        let mut agent = agent.lock().unwrap_or_else(PoisonError::into_inner);
        let reaped = rustix::process::wait(rustix::process::WaitOptions::NOHANG)?;
        if let Some((ended, status)) = reaped
            && ended == pid
        {
            *agent = None;
            return Ok(RunExit::of(ExitStatus::from_raw(status.as_raw())));
        }
    }
}

/// Ends what the agent has left behind: politely first.
fn end_leftovers() {
    let me = std::process::id();
    let began = Instant::now();
    let mut remaining = signal_descendants(me, Signal::TERM);
    while remaining > 0 && began.elapsed() < KILL_PATIENCE {
        while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
        thread::sleep(KILL_POLL);
        remaining = if began.elapsed() < LEFTOVER_GRACE {
            count_descendants(me)
        } else {
            signal_descendants(me, Signal::KILL)
        };
    }
    while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
}
