//! An agent's program below its reaper, as the host sees it.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf, pipe};

use super::program::RunExit;
use super::reaper::{ReaperCommand, ReaperOrder, ReaperReport};
use super::reaper::{reap_all, signal_descendants};

/// Our ends.
#[derive(Debug)]
pub(crate) struct AgentPipes {
    pub(crate) stdin: pipe::Sender,
    pub(crate) stdout: pipe::Receiver,
    pub(crate) stderr: pipe::Receiver,
}

/// Dropping it ends the program and all its descendants.
#[derive(Debug)]
pub(crate) struct AgentProcess {
    pid: u32,
    control: OwnedWriteHalf,
}

#[derive(Debug)]
pub(crate) struct AgentExit {
    reports: BufReader<OwnedReadHalf>,
    reaper: Child,
}

impl AgentProcess {
    /// Starts a program below a reaper, which `reaper` runs. The error is for people: it names the
    /// program or the folder.
    pub(crate) async fn start(
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

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// To the program's process group, unless it has ended.
    pub(crate) async fn signal(&mut self, signal: Signal) {
        self.command(ReaperCommand::Signal(signal.as_raw())).await;
    }

    /// Kills the program and all its descendants.
    pub(crate) async fn kill(&mut self) {
        self.command(ReaperCommand::Kill).await;
    }

    async fn command(&mut self, command: ReaperCommand) {
        let Ok(mut line) = serde_json::to_vec(&command) else { return };
        line.push(b'\n');
        // A reaper that has ended has no process left to signal.
        self.control.write_all(&line).await.ok();
    }
}

impl AgentExit {
    /// Waits until the program and all its descendants have ended.
    ///
    /// If the reaper is killed, they become children of this process, which has to be a subreaper,
    /// and are killed here.
    pub(crate) async fn wait(mut self) -> RunExit {
        let exit = match self.next().await {
            Ok(Some(ReaperReport::Exited { code: Some(code), .. })) => RunExit::Code(code),
            Ok(Some(ReaperReport::Exited { signal: Some(signal), .. })) => RunExit::Signal(signal),
            _ => {
                while signal_descendants(std::process::id(), Signal::KILL) > 0 {
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
                RunExit::Signal(Signal::KILL.as_raw())
            }
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

/// Sends the order with the other ends of the pipes.
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
    let mut writer = control;
    io::Write::write_all(&mut writer, &length[sent..])?;
    io::Write::write_all(&mut writer, &order)?;
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
}
