//! The command: its own process group, its end, its signals.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde_json::Value;
use tokio::process::{Child, Command};

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// By itself, with this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// The process group of a command. Copies outlive the command; a signal to a group that is gone does nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group(Pid);

/// Whether there is a program of this name that may be run, looked for in the folders of `path` as the system does.
///
/// It may fail to start all the same, as a script does whose interpreter is missing.
pub(crate) fn find(program: &OsStr, path: &OsStr) -> io::Result<()> {
    let may_run = |file: &Path| {
        if !file.is_file() {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        Ok(access(file, Access::EXEC_OK)?)
    };
    if program.as_encoded_bytes().contains(&b'/') {
        return may_run(Path::new(program));
    }
    let mut found = std::env::split_paths(path).map(|folder| may_run(&folder.join(program)));
    found.find(Result::is_ok).unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))
}

/// Starts a command in a process group of its own, with our input and with pipes for its outputs.
pub(crate) fn spawn(command: &[OsString]) -> io::Result<(Child, Group)> {
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
    pub(crate) fn signal(self, signal: Signal) {
        if kill_process_group(self.0, signal).is_ok() {
            let _ = kill_process_group(self.0, Signal::CONT);
        }
    }

    /// Whether the command was stopped because it read from the terminal, which belongs to another group.
    pub(crate) fn wants_terminal(self) -> bool {
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
    pub(crate) fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Code(1),
        }
    }

    /// The exit code that a shell would give.
    pub(crate) fn exit_code(self) -> u8 {
        let code = match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        };
        u8::try_from(code).unwrap_or(1)
    }
}

/// The exit code of the run that a task is the record of; 0 if it is not over.
pub(crate) fn exit_code_of(task: &Value) -> u8 {
    let signal = task["signal"].as_str().and_then(|name| {
        SIGNALS.iter().find(|(_, known)| *known == name).map(|(signal, _)| signal.as_raw())
    });
    let code = task["exit_code"].as_i64().and_then(|code| i32::try_from(code).ok());
    match (code.map(Ended::Code).or(signal.map(Ended::Signal)), task["status"].as_str()) {
        (_, Some("pending" | "active" | "done")) => 0,
        (Some(ended), _) => ended.exit_code(),
        (None, _) => 1,
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
pub(crate) fn signal_name(number: i32) -> String {
    let known = SIGNALS.iter().find(|(signal, _)| signal.as_raw() == number);
    known.map_or_else(|| format!("signal {number}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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

    #[test]
    fn a_program_is_found_as_the_system_finds_it() {
        let path = OsStr::new("/no/such/folder:/bin:/usr/bin");
        for (program, kind) in [
            ("sh", None),
            ("/bin/sh", None),
            ("no-such-program-anywhere", Some(io::ErrorKind::NotFound)),
            ("/no/such/program", Some(io::ErrorKind::NotFound)),
            ("/etc/passwd", Some(io::ErrorKind::PermissionDenied)),
            ("/etc", Some(io::ErrorKind::NotFound)),
        ] {
            let found = find(OsStr::new(program), path);
            assert_eq!(found.err().map(|error| error.kind()), kind, "{program}");
        }
    }

    #[test]
    fn a_task_tells_how_its_run_ended() {
        for (task, code) in [
            (json!({ "status": "pending" }), 0),
            (json!({ "status": "active" }), 0),
            (json!({ "status": "done", "exit_code": 0 }), 0),
            (json!({ "status": "failed", "exit_code": 3 }), 3),
            (json!({ "status": "failed", "signal": "SIGKILL" }), 137),
            (json!({ "status": "cancelled", "signal": "SIGTERM" }), 143),
            (json!({ "status": "cancelled", "exit_code": 0 }), 0),
            (json!({ "status": "expired" }), 1),
        ] {
            assert_eq!(exit_code_of(&task), code, "{task}");
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
