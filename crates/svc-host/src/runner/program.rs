//! The program of a run as a process: its group, its pipes, its end, and the signals that we pass
//! on.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};

/// A program in a process group of its own, with our standard input and pipes for its outputs.
#[derive(Debug)]
pub struct RunnerChild {
    child: Child,
    group: ProcessGroup,
}

/// It may outlive the program; a signal to a group that is gone does nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProcessGroup(Pid);

impl RunnerChild {
    pub fn spawn(command: &[OsString]) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = std::process::Command::new(program);
        command.args(arguments).process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = Command::from(command).spawn()?;
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let group = ProcessGroup(pid.ok_or(io::ErrorKind::NotFound)?);
        Ok(Self { child, group })
    }

    pub(super) fn group(&self) -> ProcessGroup {
        self.group
    }

    /// Standard output and standard error; `None` once taken.
    pub(super) fn take_outputs(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        (self.child.stdout.take(), self.child.stderr.take())
    }

    /// Waits for the program itself, not for others in its group.
    pub(super) async fn wait(&mut self) -> io::Result<RunExit> {
        self.child.wait().await.map(RunExit::from_status)
    }
}

impl ProcessGroup {
    /// With SIGCONT after it, so that a stopped process takes the signal too.
    pub(super) fn signal(self, signal: Signal) {
        if kill_process_group(self.0, signal).is_ok() {
            let _ = kill_process_group(self.0, Signal::CONT);
        }
    }

    /// Whether the program was stopped because it read from a terminal of another group.
    pub(super) fn wants_terminal(self) -> bool {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let stopped = waitid(WaitId::Pid(self.0), options)
            .ok()
            .flatten()
            .and_then(|status| status.stopping_signal());
        stopped == Some(Signal::TTIN.as_raw())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunExit {
    Code(i32),
    /// By its number.
    Signal(i32),
}

impl RunExit {
    pub(super) fn from_status(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Code(1),
        }
    }

    pub(super) fn from_signal_name(name: &str) -> Option<Self> {
        let (signal, _) = SIGNALS.iter().find(|(_, known)| *known == name)?;
        Some(Self::Signal(signal.as_raw()))
    }

    /// The exit code, or else the number of the signal.
    pub(crate) fn code_and_signal(self) -> (Option<i32>, Option<i32>) {
        match self {
            Self::Code(code) => (Some(code), None),
            Self::Signal(signal) => (None, Some(signal)),
        }
    }

    /// The exit code that a shell would give: 128 + the number of the signal.
    pub fn shell_code(self) -> u8 {
        let code = match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        };
        u8::try_from(code).unwrap_or(1)
    }
}

impl fmt::Display for RunExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "ended with exit code {code}"),
            Self::Signal(signal) => write!(f, "was ended by signal {signal}"),
        }
    }
}

const SIGNALS: [(Signal, &str); 18] = [
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

/// Such as `SIGTERM`.
pub(super) fn signal_name(number: i32) -> String {
    let known = SIGNALS.iter().find(|(signal, _)| signal.as_raw() == number);
    known.map_or_else(|| format!("signal {number}"), |(_, name)| (*name).to_owned())
}

/// SIGINT, SIGTERM and SIGHUP to this process.
#[derive(Debug)]
pub struct Signals {
    interrupt: SignalStream,
    terminate: SignalStream,
    hangup: SignalStream,
}

impl Signals {
    /// From now on the signals no longer do what they do by default.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.hangup.recv() => Signal::HUP,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> RunnerChild {
        RunnerChild::spawn(&["sh", "-c", script].map(OsString::from)).expect("sh exists")
    }

    #[tokio::test]
    async fn exit_is_a_code_or_a_signal() {
        let cases = [
            ("exit 7", RunExit::Code(7), 7),
            ("kill -9 $$", RunExit::Signal(9), 137),
            ("true", RunExit::Code(0), 0),
        ];
        for (script, expected, code) in cases {
            let exit = sh(script).wait().await.expect("is our child");
            assert_eq!((exit, exit.shell_code()), (expected, code), "{script}");
        }
    }

    #[tokio::test]
    async fn missing_program_does_not_start() {
        RunnerChild::spawn(&[OsString::from("/does/not/exist")])
            .expect_err("there is no such file");
        RunnerChild::spawn(&[]).expect_err("there is no command");
    }

    #[tokio::test]
    async fn signal_reaches_the_whole_group() {
        let mut child = sh("sleep 600 & wait");
        child.group().signal(Signal::TERM);
        assert_eq!(child.wait().await.expect("is our child"), RunExit::Signal(15));
    }
}
