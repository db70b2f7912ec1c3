//! The reaper: a small process between a host and its agent that ends all processes that the agent
//! has started.
//!
//! A signal to a process group does not reach processes that left the group, and a host that is
//! killed signals nobody. So the agent is the child of the reaper, which is a subreaper: orphans
//! below it become its children. It ends them all when the agent has ended, or when the host has,
//! which it notices by the end of the control socket.
//!
//! The reaper has no async runtime: one thread waits for children, the other reads the socket.
//! [`AgentProcess`] is the host's end of the socket.

use std::collections::HashMap;
use std::io::{self, BufRead as _, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, wait, waitid};
use serde::{Deserialize, Serialize};
use svc_sys::lines::json_line;
use svc_sys::process_list::{self, ProcessEntry, pids, signal_held};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf, pipe};

use crate::runner::RunExit;

/// How long leftover processes may take to end after SIGTERM.
const LEFTOVER_GRACE: Duration = Duration::from_millis(500);
/// How long killed processes may take to end: a process that waits for a disk cannot end earlier.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
const KILL_POLL: Duration = Duration::from_millis(5);
const MAX_ORDER: usize = 64 * 1024 * 1024;

/// The program to start. Its standard streams are passed beside the order, as descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ReaperOrder {
    pub(super) command: Vec<String>,
    pub(super) cwd: PathBuf,
    pub(super) env: Vec<(String, String)>,
}

/// Commands from the host, one JSON line each.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ReaperCommand {
    /// A signal of this number to the agent's process group.
    Signal(i32),
    /// SIGKILL to the agent and all its descendants.
    Kill,
}

/// Reports to the host, one JSON line each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ReaperReport {
    Started {
        /// The agent's pid; it leads a process group of this id.
        pid: u32,
    },
    /// The agent could not be started, with the text of the error.
    Failed(String),
    /// The agent and all its descendants have ended.
    Exited(RunExit),
}

/// The agent's process until it is reaped. Until then no other process gets its pid.
type Agent = Arc<Mutex<Option<Pid>>>;

/// Carries out the order from standard input; returns when no process of the agent is left.
pub(super) fn run_reaper() -> ExitCode {
    // If this fails, the host sees the socket end.
    supervise().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

fn supervise() -> io::Result<()> {
    let mut control = StdUnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (order, pipes) = receive_order(&mut control)?;
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let pid = match start(&order, pipes) {
        Ok(pid) => pid,
        Err(error) => return report(&mut control, &ReaperReport::Failed(error.to_string())),
    };
    let agent_pid = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::NotFound)?;
    let agent: Agent = Arc::new(Mutex::new(Some(agent_pid)));
    let commands = io::BufReader::new(control.try_clone()?);
    let shared = Arc::clone(&agent);
    thread::spawn(move || execute(commands, &shared));
    report(&mut control, &ReaperReport::Started { pid })?;
    let exit = wait_for(agent_pid, &agent)?;
    end_leftovers();
    report(&mut control, &ReaperReport::Exited(exit))
}

/// Reads the order's length, whose message carries the descriptors, and then the order.
fn receive_order(control: &mut StdUnixStream) -> io::Result<(ReaperOrder, [OwnedFd; 3])> {
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

fn report(control: &mut StdUnixStream, report: &ReaperReport) -> io::Result<()> {
    control.write_all(&json_line(report)?)
}

/// Obeys the host until the socket ends, then kills all processes and ends this one.
fn execute(commands: io::BufReader<StdUnixStream>, agent: &Agent) {
    for line in commands.lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(ReaperCommand::Signal(number)) => signal_group(agent, number),
            Ok(ReaperCommand::Kill) => {
                signal_descendants(std::process::id(), Signal::KILL);
            }
            Err(_) => {}
        }
    }
    let end = Instant::now() + KILL_TIMEOUT;
    while signal_descendants(std::process::id(), Signal::KILL) > 0 && Instant::now() < end {
        thread::sleep(KILL_POLL);
    }
    std::process::exit(1);
}

fn signal_group(agent: &Agent, number: i32) {
    let agent = agent.lock().unwrap_or_else(PoisonError::into_inner);
    if let (Some(pid), Some(signal)) = (*agent, Signal::from_named_raw(number)) {
        process_list::signal_group(pid, signal);
    }
}

/// Reaps children until the agent itself has ended.
fn wait_for(pid: Pid, agent: &Agent) -> io::Result<RunExit> {
    loop {
        match waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        // Signals are sent under this lock, so none is sent between the reaping and the update.
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

/// Ends leftover processes: SIGTERM first, then SIGKILL after [`LEFTOVER_GRACE`].
fn end_leftovers() {
    let me = std::process::id();
    let began = Instant::now();
    let mut remaining = signal_descendants(me, Signal::TERM);
    while remaining > 0 && began.elapsed() < KILL_TIMEOUT {
        reap_all();
        thread::sleep(KILL_POLL);
        remaining = if began.elapsed() < LEFTOVER_GRACE {
            running_descendants(me).count()
        } else {
            signal_descendants(me, Signal::KILL)
        };
    }
    reap_all();
}

fn reap_all() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Descendant {
    pid: u32,
    /// Start time, which distinguishes it from a later process with the same pid.
    started: u64,
    is_running: bool,
}

/// Signals each running descendant of `root`, and returns their number.
///
/// Below a subreaper this finds all of them, as orphans become its children. Without `/proc` it
/// finds none.
fn signal_descendants(root: u32, signal: Signal) -> usize {
    running_descendants(root).inspect(|it| send(*it, signal)).count()
}

fn running_descendants(root: u32) -> impl Iterator<Item = Descendant> {
    descendants(root).into_iter().filter(|it| it.is_running)
}

fn descendants(root: u32) -> Vec<Descendant> {
    let mut children: HashMap<u32, Vec<Descendant>> = HashMap::new();
    for pid in pids() {
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

/// A later process with the same pid gets no signal.
fn send(Descendant { pid, started, .. }: Descendant, signal: Signal) {
    signal_held(pid, signal, || ProcessEntry::read(pid).is_some_and(|it| it.started == started));
}

/// The host's ends of the agent's pipes.
#[derive(Debug)]
pub(super) struct AgentPipes {
    pub(super) stdin: pipe::Sender,
    pub(super) stdout: pipe::Receiver,
    pub(super) stderr: pipe::Receiver,
}

/// The agent's program as the host sees it. Dropping it ends the program and all its descendants.
#[derive(Debug)]
pub(super) struct AgentProcess {
    pub(super) pid: u32,
    control: OwnedWriteHalf,
}

#[derive(Debug)]
pub(super) struct AgentExit {
    reports: BufReader<OwnedReadHalf>,
    reaper: Child,
}

impl AgentProcess {
    /// Starts a program below a reaper, which `reaper` runs. The error is a text for people that
    /// names the program or the folder.
    pub(super) async fn start(
        reaper: &mut Command,
        order: &ReaperOrder,
    ) -> Result<(Self, AgentPipes, AgentExit), String> {
        let program = order.command.first().cloned().unwrap_or_default();
        check_folder(&order.cwd)?;
        let failed = |error: io::Error| format!("cannot start {program}: {error}");
        let (ours, theirs) = StdUnixStream::pair().map_err(failed)?;
        let child = reaper
            .process_group(0)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .env_clear()
            .spawn()
            .map_err(failed)?;
        let pipes = give_order(&ours, order).map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let (reports, control) = UnixStream::from_std(ours).map_err(failed)?.into_split();
        let mut exit = AgentExit { reports: BufReader::new(reports), reaper: child };
        match exit.next().await.map_err(failed)? {
            Some(ReaperReport::Started { pid }) => Ok((Self { pid, control }, pipes, exit)),
            Some(ReaperReport::Failed(error)) => Err(explain(&program, &error)),
            _ => Err(format!("cannot start {program}: its reaper ended")),
        }
    }

    /// Signals the program's process group, unless the program has ended.
    pub(super) async fn signal(&mut self, signal: Signal) {
        self.command(ReaperCommand::Signal(signal.as_raw())).await;
    }

    pub(super) async fn kill(&mut self) {
        self.command(ReaperCommand::Kill).await;
    }

    async fn command(&mut self, command: ReaperCommand) {
        let Ok(line) = json_line(&command) else { return };
        // If the reaper has ended, no process is left to signal.
        self.control.write_all(&line).await.ok();
    }
}

impl AgentExit {
    /// Waits until the program and all its descendants have ended.
    ///
    /// If the reaper is killed, they become children of this process, which must be a subreaper,
    /// and are killed here.
    pub(super) async fn wait(mut self) -> RunExit {
        let exit = if let Ok(Some(ReaperReport::Exited(exit))) = self.next().await {
            exit
        } else {
            while signal_descendants(std::process::id(), Signal::KILL) > 0 {
                tokio::time::sleep(KILL_POLL).await;
            }
            RunExit::Signal(Signal::KILL.as_raw())
        };
        self.reaper.wait().ok();
        reap_all();
        exit
    }

    async fn next(&mut self) -> io::Result<Option<ReaperReport>> {
        let mut line = String::new();
        if self.reports.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        Ok(serde_json::from_str(&line).ok())
    }
}

fn check_folder(cwd: &Path) -> Result<(), String> {
    match std::fs::metadata(cwd) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(format!("the working folder {} is no folder", cwd.display())),
        Err(error) => Err(format!("the working folder {}: {error}", cwd.display())),
    }
}

fn explain(program: &str, error: &str) -> String {
    let remedy = if error.contains("(os error 2)") {
        "install it, or name its path in `command` of the instance"
    } else if error.contains("(os error 13)") {
        "`chmod +x` makes a file a program"
    } else {
        "try it in a shell"
    };
    format!("cannot start {program}: {error}; {remedy}")
}

/// Sends the order together with the other ends of the pipes.
fn give_order(control: &StdUnixStream, order: &ReaperOrder) -> io::Result<AgentPipes> {
    let (their_stdin, stdin) = io::pipe()?;
    let (stdout, their_stdout) = io::pipe()?;
    let (stderr, their_stderr) = io::pipe()?;
    let order = serde_json::to_vec(order)?;
    let length = u32::try_from(order.len()).map_err(io::Error::other)?.to_le_bytes();
    let descriptors = [their_stdin.as_fd(), their_stdout.as_fd(), their_stderr.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let sent = sendmsg(control, &[IoSlice::new(&length)], &mut ancillary, SendFlags::empty())?;
    io::Write::write_all(&mut &*control, &[&length[sent..], &order].concat())?;
    Ok(AgentPipes {
        stdin: pipe::Sender::from_owned_fd(stdin.into())?,
        stdout: pipe::Receiver::from_owned_fd(stdout.into())?,
        stderr: pipe::Receiver::from_owned_fd(stderr.into())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_fits_the_error() {
        let text = |code: i32| explain("x", &io::Error::from_raw_os_error(code).to_string());
        assert!(text(2).contains("install it"));
        assert!(text(13).contains("chmod"));
        assert!(text(26).contains("in a shell"), "a busy file is there: {}", text(26));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn grandchild_in_a_session_of_its_own_is_a_descendant() {
        let mut child = Command::new("sh")
            .args(["-c", "sh -c 'setsid sh -c \"echo started; sleep 600\"; :'; :"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh exists");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        io::BufReader::new(stdout).read_line(&mut line).expect("reads");
        // Waits for the shells, and for the `sleep` that the last one starts.
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
