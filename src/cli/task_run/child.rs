//! The command: its own process group, its end, its signals.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::process::{Child, Command};

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// By itself, with this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// The process group of a command. Copies outlive the command; a signal to a group that is gone does nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group(Pid);

/// Starts a command in a process group of its own, with our input and with pipes for its outputs.
pub(super) fn spawn(command: &[OsString]) -> io::Result<(Child, Group)> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = std::process::Command::new(program);
    command.args(arguments).process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = Command::from(command).spawn()?;
    let pid =
        child.id().and_then(|id| Pid::from_raw(id.cast_signed())).ok_or(io::ErrorKind::NotFound)?;
    Ok((child, Group(pid)))
}

impl Group {
    /// Sends a signal to every process of the group. One that is stopped is woken, to take it.
    pub(super) fn signal(self, signal: Signal) {
        if kill_process_group(self.0, signal).is_ok() {
            let _ = kill_process_group(self.0, Signal::CONT);
        }
    }

    /// Whether the command was stopped because it read from the terminal, which belongs to another group.
    pub(super) fn wants_terminal(self) -> bool {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let stopped = waitid(WaitId::Pid(self.0), options)
            .ok()
            .flatten()
            .and_then(|status| status.stopping_signal());
        stopped == Some(Signal::TTIN.as_raw())
    }
}

impl Ended {
    /// The end that a status tells of.
    pub(super) fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Code(1),
        }
    }

    /// The exit code that a shell would give.
    pub(super) fn exit_code(self) -> u8 {
        let code = match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        };
        u8::try_from(code).unwrap_or(1)
    }
}

/// The name of a signal, such as `SIGTERM`.
pub(super) fn signal_name(number: i32) -> String {
    let names = [
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
    let known = names.iter().find(|(signal, _)| signal.as_raw() == number);
    known.map_or_else(|| format!("signal {number}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn end_of(script: &str) -> Ended {
        let command = ["sh", "-c", script].map(OsString::from);
        let (mut child, _) = spawn(&command).expect("sh exists");
        Ended::of(child.wait().await.expect("is our child"))
    }

    #[tokio::test]
    async fn the_end_is_a_code_or_a_signal() {
        let cases = [
            ("exit 7", Ended::Code(7), 7),
            ("kill -9 $$", Ended::Signal(9), 137),
            ("true", Ended::Code(0), 0),
        ];
        for (script, expected, code) in cases {
            let ended = end_of(script).await;
            assert_eq!((ended, ended.exit_code()), (expected, code), "{script}");
        }
    }

    #[tokio::test]
    async fn what_does_not_exist_does_not_start() {
        spawn(&[OsString::from("/does/not/exist")]).expect_err("there is no such file");
        spawn(&[]).expect_err("there is no command");
    }

    #[tokio::test]
    async fn a_signal_reaches_the_whole_group() {
        let command = ["sh", "-c", "sleep 600 & wait"].map(OsString::from);
        let (mut child, group) = spawn(&command).expect("sh exists");
        group.signal(Signal::TERM);
        assert_eq!(Ended::of(child.wait().await.expect("is our child")), Ended::Signal(15));
    }
}
