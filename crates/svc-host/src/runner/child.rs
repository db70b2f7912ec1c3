//! The program as a process: its own process group, its pipes, its end.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};

use super::exit::RunExit;

/// A program that runs in a process group of its own, with our input and with pipes for its outputs.
#[derive(Debug)]
pub struct RunnerChild {
    child: Child,
    group: ProcessGroup,
}

/// The process group of a program. It may outlive the program; a signal to a group that is gone does nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProcessGroup(Pid);

impl RunnerChild {
    /// Starts a program with its arguments.
    pub fn spawn(command: &[OsString]) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = std::process::Command::new(program);
        command.args(arguments).process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = Command::from(command).spawn()?;
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let group = ProcessGroup(pid.ok_or(io::ErrorKind::NotFound)?);
        Ok(Self { child, group })
    }

    /// The group that the program leads.
    pub(super) fn group(&self) -> ProcessGroup {
        self.group
    }

    /// The reading ends of standard output and standard error; `None` once taken.
    pub(super) fn take_outputs(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        (self.child.stdout.take(), self.child.stderr.take())
    }

    /// Waits for the program itself, not for others in its group.
    pub(super) async fn wait(&mut self) -> io::Result<RunExit> {
        self.child.wait().await.map(RunExit::of)
    }
}

impl ProcessGroup {
    /// Sends a signal to every process of the group, and SIGCONT, so that a stopped process takes it too.
    pub(super) fn signal(self, signal: Signal) {
        if kill_process_group(self.0, signal).is_ok() {
            let _ = kill_process_group(self.0, Signal::CONT);
        }
    }

    /// Whether the program was stopped because it read from the terminal, which belongs to another group.
    pub(super) fn wants_terminal(self) -> bool {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let stopped = waitid(WaitId::Pid(self.0), options)
            .ok()
            .flatten()
            .and_then(|status| status.stopping_signal());
        stopped == Some(Signal::TTIN.as_raw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn exit_of(script: &str) -> RunExit {
        let command = ["sh", "-c", script].map(OsString::from);
        let mut child = RunnerChild::spawn(&command).expect("sh exists");
        child.wait().await.expect("is our child")
    }

    #[tokio::test]
    async fn the_end_is_a_code_or_a_signal() {
        let cases = [
            ("exit 7", RunExit::Code(7), 7),
            ("kill -9 $$", RunExit::Signal(9), 137),
            ("true", RunExit::Code(0), 0),
        ];
        for (script, expected, code) in cases {
            let exit = exit_of(script).await;
            assert_eq!((exit, exit.shell_code()), (expected, code), "{script}");
        }
    }

    #[tokio::test]
    async fn what_does_not_exist_does_not_start() {
        RunnerChild::spawn(&[OsString::from("/does/not/exist")])
            .expect_err("there is no such file");
        RunnerChild::spawn(&[]).expect_err("there is no command");
    }

    #[tokio::test]
    async fn a_signal_reaches_the_whole_group() {
        let command = ["sh", "-c", "sleep 600 & wait"].map(OsString::from);
        let mut child = RunnerChild::spawn(&command).expect("sh exists");
        child.group().signal(Signal::TERM);
        assert_eq!(child.wait().await.expect("is our child"), RunExit::Signal(15));
    }
}
