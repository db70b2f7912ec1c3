//! The program of a run: its process and group, its end, the signals that are forwarded to it, and
//! the reports about it: events of its task for the daemon, notices for the caller.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use svc_model::{Clock as _, FrameKind, SystemClock};
use svc_sys::lines::json_line;
use svc_sys::process_list::{self, signal_group};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};

/// A program in its own process group. It has our standard input, and pipes for its outputs.
#[derive(Debug)]
pub struct RunnerChild {
    child: Child,
    pub(super) group: ProcessGroup,
}

/// A process group. It may outlive the program; a signal to a group without processes does nothing.
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

    /// Standard output and standard error; `None` once they were taken.
    pub(super) fn take_outputs(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        (self.child.stdout.take(), self.child.stderr.take())
    }

    /// Waits for the program itself, not for others in its group.
    pub(super) async fn wait(&mut self) -> io::Result<RunExit> {
        self.child.wait().await.map(RunExit::from_status)
    }
}

impl ProcessGroup {
    pub(super) fn signal(self, signal: Signal) {
        signal_group(self.0, signal);
    }

    /// Whether the program was stopped because it read from a terminal that its group does not own.
    pub(super) fn wants_terminal(self) -> bool {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let stopped = waitid(WaitId::Pid(self.0), options)
            .ok()
            .flatten()
            .and_then(|status| status.stopping_signal());
        stopped == Some(Signal::TTIN.as_raw())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunExit {
    Code(i32),
    Signal(i32),
}

impl RunExit {
    pub(crate) fn from_status(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Code(1),
        }
    }

    pub(super) fn from_signal_name(name: &str) -> Option<Self> {
        let (signal, _) = process_list::SIGNALS.iter().find(|(_, known)| *known == name)?;
        Some(Self::Signal(signal.as_raw()))
    }

    pub(crate) fn code_and_signal(self) -> (Option<i32>, Option<i32>) {
        match self {
            Self::Code(code) => (Some(code), None),
            Self::Signal(signal) => (None, Some(signal)),
        }
    }

    /// The exit code as a shell reports it: 128 + the signal's number after a signal.
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

/// A signal's name, such as `SIGTERM`.
pub(super) fn signal_name(number: i32) -> String {
    process_list::signal_name(number).map_or_else(|| format!("signal {number}"), str::to_owned)
}

/// SIGINT, SIGTERM and SIGHUP that this process receives.
#[derive(Debug)]
pub struct Signals {
    interrupt: SignalStream,
    terminate: SignalStream,
    hangup: SignalStream,
}

impl Signals {
    /// From now on these signals no longer have their default effect.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    pub(crate) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.hangup.recv() => Signal::HUP,
        }
    }
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct OutputFrame {
    pub(super) line: String,
    pub(super) kind: FrameKind,
    /// RFC 3339, UTC, with milliseconds.
    pub(super) ts: String,
}

/// Numbers the events of one run.
#[derive(Debug)]
pub(super) struct EventNumbering {
    run: String,
    next: u64,
}

impl EventNumbering {
    pub(super) fn new(run: String) -> Self {
        Self { run, next: 0 }
    }

    /// One event as a line of the spool. Its id is unique, so that the daemon recognises a repeat.
    pub(super) fn line<T: Serialize>(
        &mut self,
        kind: &str,
        data: &T,
    ) -> serde_json::Result<Vec<u8>> {
        #[derive(Serialize)]
        struct PostedEvent<'a, T> {
            kind: &'a str,
            data: &'a T,
            id: String,
        }
        let id = format!("{}-{}", self.run, self.next);
        self.next += 1;
        json_line(&PostedEvent { kind, data, id })
    }
}

/// The first event. It names this process, which continues to send after the program's end.
pub(super) fn active() -> Value {
    json!({ "status": "active", "runner": { "pid": std::process::id() } })
}

pub(super) fn terminal(exit: RunExit, cancelled: bool) -> Value {
    let status = match exit {
        _ if cancelled => "cancelled",
        RunExit::Code(0) => "done",
        _ => "failed",
    };
    match exit {
        RunExit::Code(code) => json!({ "status": status, "exit_code": code }),
        RunExit::Signal(signal) => json!({ "status": status, "signal": signal_name(signal) }),
    }
}

pub(super) fn start_failed(error: &io::Error, exit_code: u8) -> Value {
    let error = format!("cannot start the command: {error}");
    json!({ "status": "failed", "exit_code": exit_code, "error": error })
}

pub(super) fn timestamp() -> String {
    SystemClock.now().to_string()
}

/// The daemon's document of a task, including unknown fields.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskDocument(pub Value);

impl TaskDocument {
    /// Empty if the document has none.
    pub fn id(&self) -> &str {
        self.0["task_id"].as_str().unwrap_or_default()
    }

    /// The state, such as `pending`.
    pub fn status(&self) -> &str {
        self.0["status"].as_str().unwrap_or_default()
    }

    /// The exit code of the recorded run; 0 while it runs.
    pub fn exit_code(&self) -> u8 {
        let code = self.0["exit_code"].as_i64().and_then(|code| i32::try_from(code).ok());
        let signal = || self.0["signal"].as_str().and_then(RunExit::from_signal_name);
        match (self.status(), code.map(RunExit::Code).or_else(signal)) {
            ("pending" | "active" | "done", _) => 0,
            (_, Some(exit)) => exit.shell_code(),
            (_, None) => 1,
        }
    }
}

/// A notice for the person. No event of the task contains it.
#[derive(Debug)]
pub enum RunNotice {
    /// The daemon takes no events for now; they stay in the spool.
    DaemonAway {
        /// The daemon's own error, if it responds.
        problem: Option<String>,
    },
    /// The program has ended, and the run waits for the daemon, for up to `max_wait`. A signal ends
    /// the wait and leaves the rest in the spool.
    WaitsAtEnd { exit: RunExit, max_wait: Duration },
    /// The daemon takes events again, after [`RunNotice::DaemonAway`].
    DaemonBack,
    /// The daemon will never take the rest of this task's events. The program continues.
    TaskRefused { problem: String },
    /// The spool cannot be written, so the task's output is missing from here on. The program
    /// continues.
    SpoolFailed { problem: String },
    /// The spool cannot be written, so the task's end is missing.
    EndNotRecorded { problem: String },
    /// The program was stopped: it read from a terminal that its process group does not own.
    NeedsTerminal,
}

/// Observes one run. Methods may be called concurrently.
pub trait RunObserver: Send + Sync + 'static {
    /// Bytes as the program printed them. The program's pipe is not read while this is pending.
    fn output(&self, pipe: FrameKind, bytes: &[u8]) -> impl Future<Output = ()> + Send;

    /// The daemon has created the task. Must not block.
    fn task_made(&self, task: &TaskDocument);

    /// Stops showing output: after a second signal, a stalled reader must not delay the end.
    fn mute(&self);

    /// Must not block.
    fn notice(&self, notice: RunNotice);
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
        child.group.signal(Signal::TERM);
        assert_eq!(child.wait().await.expect("is our child"), RunExit::Signal(15));
    }

    #[test]
    fn terminal_event_tells_code_or_signal() {
        let cases = [
            (RunExit::Code(0), false, r#"{"exit_code":0,"status":"done"}"#),
            (RunExit::Code(3), false, r#"{"exit_code":3,"status":"failed"}"#),
            (RunExit::Signal(9), false, r#"{"signal":"SIGKILL","status":"failed"}"#),
            (RunExit::Signal(15), true, r#"{"signal":"SIGTERM","status":"cancelled"}"#),
            (RunExit::Code(0), true, r#"{"exit_code":0,"status":"cancelled"}"#),
        ];
        for (exit, cancelled, expected) in cases {
            assert_eq!(terminal(exit, cancelled).to_string(), expected);
        }
    }

    #[test]
    fn event_ids_count_up_and_times_have_milliseconds() {
        let mut numbering = EventNumbering::new("run_a".to_owned());
        let first = numbering.line("task", &json!({})).expect("serialises");
        assert_eq!(first, b"{\"kind\":\"task\",\"data\":{},\"id\":\"run_a-0\"}\n");
        let second = numbering.line("frame", &1).expect("serialises");
        assert!(String::from_utf8_lossy(&second).contains("run_a-1"));
        assert_eq!(timestamp().len(), "2025-01-01T00:00:00.000Z".len());
    }

    #[test]
    fn exit_code_of_a_task_is_that_of_its_run() {
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
            assert_eq!(TaskDocument(task.clone()).exit_code(), code, "{task}");
        }
    }
}
