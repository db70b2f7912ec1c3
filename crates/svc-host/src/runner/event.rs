//! What a run reports: events of its task to the daemon, and notices to its caller.

use serde::Serialize;
use serde_json::{Value, json};
use svc_model::{Clock as _, FrameKind, SystemClock};

use super::program::{RunExit, signal_name};

#[derive(Debug, Clone, Serialize)]
pub struct OutputFrame {
    pub(crate) line: String,
    pub(crate) kind: FrameKind,
    /// RFC 3339 UTC with milliseconds.
    pub(crate) ts: String,
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

    /// One event as a line of the spool. Its id is unique, so the daemon recognises a repeat.
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
        let mut line = serde_json::to_vec(&PostedEvent { kind, data, id })?;
        line.push(b'\n');
        Ok(line)
    }
}

/// The first event. It names this process, which still sends when the program has ended.
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

pub(super) fn start_failed(error: &std::io::Error, exit_code: u8) -> Value {
    let error = format!("cannot start the command: {error}");
    json!({ "status": "failed", "exit_code": exit_code, "error": error })
}

/// Current time, RFC 3339 UTC with milliseconds.
pub(super) fn timestamp() -> String {
    SystemClock.now().to_string()
}

/// The daemon's document of a task; unknown fields are kept.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskDocument(pub Value);

impl TaskDocument {
    /// Empty if the document has none.
    pub fn id(&self) -> &str {
        self.0["task_id"].as_str().unwrap_or_default()
    }

    /// Such as `pending`.
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

/// For the person; no event of the task shows it.
#[derive(Debug)]
pub enum RunNotice {
    /// The daemon takes no events for now; they wait in the spool.
    DaemonAway {
        /// The daemon's own words, if it responds.
        problem: Option<String>,
    },
    /// The daemon takes events again, after [`RunNotice::DaemonAway`].
    DaemonBack,
    /// The daemon will never take the rest of this task. The program goes on.
    TaskRefused { problem: String },
    /// The spool cannot be written, so the task lacks the output from here on. The program goes on.
    SpoolFailed { problem: String },
    /// The spool cannot be written, so the task lacks its end.
    EndNotRecorded { problem: String },
    /// The program was stopped: it read from a terminal that its process group does not own.
    NeedsTerminal,
}

/// Watches one run. Methods may be called from several tasks at once.
pub trait RunObserver: Send + Sync + 'static {
    /// Bytes as the program printed them. The program waits while this is pending.
    fn output(&self, pipe: FrameKind, bytes: &[u8]) -> impl Future<Output = ()> + Send;

    /// The daemon has made the task.
    fn task_made(&self, task: &TaskDocument) -> impl Future<Output = ()> + Send;

    /// A line of output is in the spool.
    fn frame_recorded(&self, frame: &OutputFrame) -> impl Future<Output = ()> + Send;

    /// The program has ended, and nothing more is sent. `end` is the task's last event.
    fn ended(&self, end: &Value) -> impl Future<Output = ()> + Send;

    /// Shows no more output: a second signal asks for an end, and a stalled reader would delay it.
    fn mute(&self);

    /// Must not block.
    fn notice(&self, notice: RunNotice);
}

#[cfg(test)]
mod tests {
    use super::*;

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
