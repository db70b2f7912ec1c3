//! What a run reports to the daemon, as lines of the spool.

use serde::Serialize;
use serde_json::{Value, json};
use svc_model::{Clock as _, FrameKind, SystemClock};

use super::exit::{RunExit, signal_name};

/// One line of output.
#[derive(Debug, Clone, Serialize)]
pub struct OutputFrame {
    pub(crate) line: String,
    pub(crate) kind: FrameKind,
    /// RFC 3339 UTC with milliseconds.
    pub(crate) ts: String,
}

/// An event as it is posted.
#[derive(Debug, Serialize)]
struct PostedEvent<'a, T> {
    kind: &'a str,
    data: &'a T,
    /// Unique, so that the daemon knows a repeat as one.
    id: String,
}

/// Numbers the events of one run.
#[derive(Debug)]
pub(super) struct EventNumbering {
    run: String,
    next: u64,
}

impl EventNumbering {
    /// The first event of the run gets number 0.
    pub(super) fn new(run: String) -> Self {
        Self { run, next: 0 }
    }

    /// One event as one line of the spool, line feed included.
    pub(super) fn line<T: Serialize>(
        &mut self,
        kind: &str,
        data: &T,
    ) -> serde_json::Result<Vec<u8>> {
        let id = format!("{}-{}", self.run, self.next);
        self.next += 1;
        let mut line = serde_json::to_vec(&PostedEvent { kind, data, id })?;
        line.push(b'\n');
        Ok(line)
    }
}

/// The first event. It names this process and not the program: this process still sends when the program has ended.
pub(super) fn active() -> Value {
    json!({ "status": "active", "runner": { "pid": std::process::id() } })
}

/// The last event.
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

/// The last event of a program that could not be started.
pub(super) fn start_failed(error: &std::io::Error, exit_code: u8) -> Value {
    let error = format!("cannot start the command: {error}");
    json!({ "status": "failed", "exit_code": exit_code, "error": error })
}

/// The present time, RFC 3339 UTC with milliseconds.
pub(super) fn timestamp() -> String {
    SystemClock.now().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_says_how_it_came() {
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
    fn ids_count_up_and_times_have_milliseconds() {
        let mut numbering = EventNumbering::new("run_a".to_owned());
        let first = numbering.line("task", &json!({})).expect("serialises");
        assert_eq!(first, b"{\"kind\":\"task\",\"data\":{},\"id\":\"run_a-0\"}\n");
        assert!(
            String::from_utf8_lossy(&numbering.line("frame", &1).expect("serialises"))
                .contains("run_a-1")
        );
        assert_eq!(timestamp().len(), "2025-01-01T00:00:00.000Z".len());
    }
}
