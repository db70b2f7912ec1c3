//! How a program ended.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use rustix::process::Signal;

/// The end of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunExit {
    /// It ended by itself with this exit code.
    Code(i32),
    /// A signal of this number ended it.
    Signal(i32),
}

impl RunExit {
    /// The end that a status reports.
    pub(super) fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Code(1),
        }
    }

    /// The end by a signal of this name, such as `SIGTERM`.
    pub(super) fn by_signal(name: &str) -> Option<Self> {
        let (signal, _) = SIGNALS.iter().find(|(_, known)| *known == name)?;
        Some(Self::Signal(signal.as_raw()))
    }

    /// The exit code that a shell would give: 128 + the signal's number after a signal.
    pub fn shell_code(self) -> u8 {
        let code = match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        };
        u8::try_from(code).unwrap_or(1)
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

/// The name of a signal, such as `SIGTERM`.
pub(super) fn signal_name(number: i32) -> String {
    let known = SIGNALS.iter().find(|(signal, _)| signal.as_raw() == number);
    known.map_or_else(|| format!("signal {number}"), |(_, name)| (*name).to_owned())
}
