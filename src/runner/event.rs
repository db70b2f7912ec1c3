//! What a run tells the daemon, as lines of the spool.

use serde::Serialize;
use serde_json::{Value, json};

use super::child::Ended;
use crate::domain::{Clock as _, SystemClock};

/// Which output a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Pipe {
    Stdout,
    Stderr,
}

/// One line of output.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Frame {
    pub(crate) line: String,
    pub(crate) kind: Pipe,
    pub(crate) ts: String,
}

/// An event as it is posted. `id` is unique per run, so that a repeat is known as one.
#[derive(Debug, Serialize)]
struct Event<'a, T> {
    kind: &'a str,
    data: &'a T,
    id: String,
}

/// Numbers the events of one run.
#[derive(Debug)]
pub(crate) struct Numbering {
    run: String,
    next: u64,
}

impl Numbering {
    /// The first event of the run gets number 0.
    pub(crate) fn new(run: String) -> Self {
        Self { run, next: 0 }
    }

    /// One event as one line of the spool, line feed included.
    pub(crate) fn line<T: Serialize>(
        &mut self,
        kind: &str,
        data: &T,
    ) -> serde_json::Result<Vec<u8>> {
        let id = format!("{}-{}", self.run, self.next);
        self.next += 1;
        let mut line = serde_json::to_vec(&Event { kind, data, id })?;
        line.push(b'\n');
        Ok(line)
    }
}

/// The first event. The runner is this process and not the command: it is we who still send when that has ended.
pub(crate) fn active() -> Value {
    json!({ "status": "active", "runner": { "pid": std::process::id() } })
}

/// The last event.
pub(crate) fn terminal(ended: Ended, cancelled: bool) -> Value {
    let status = match ended {
        _ if cancelled => "cancelled",
        Ended::Code(0) => "done",
        _ => "failed",
    };
    match ended {
        Ended::Code(code) => json!({ "status": status, "exit_code": code }),
        Ended::Signal(signal) => {
            json!({ "status": status, "signal": super::child::signal_name(signal) })
        }
    }
}

/// The present time, RFC 3339 UTC with milliseconds.
pub(crate) fn timestamp() -> String {
    SystemClock.now().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_says_how_it_came() {
        let cases = [
            (Ended::Code(0), false, r#"{"exit_code":0,"status":"done"}"#),
            (Ended::Code(3), false, r#"{"exit_code":3,"status":"failed"}"#),
            (Ended::Signal(9), false, r#"{"signal":"SIGKILL","status":"failed"}"#),
            (Ended::Signal(15), true, r#"{"signal":"SIGTERM","status":"cancelled"}"#),
            (Ended::Code(0), true, r#"{"exit_code":0,"status":"cancelled"}"#),
        ];
        for (ended, cancelled, expected) in cases {
            assert_eq!(terminal(ended, cancelled).to_string(), expected);
        }
    }

    #[test]
    fn ids_count_up_and_times_have_milliseconds() {
        let mut numbering = Numbering::new("run_a".to_owned());
        let first = numbering.line("task", &json!({})).expect("serialises");
        assert_eq!(first, b"{\"kind\":\"task\",\"data\":{},\"id\":\"run_a-0\"}\n");
        assert!(
            String::from_utf8_lossy(&numbering.line("frame", &1).expect("serialises"))
                .contains("run_a-1")
        );
        assert_eq!(timestamp().len(), "2025-01-01T00:00:00.000Z".len());
    }
}
