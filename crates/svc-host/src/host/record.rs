//! The record of an agent: its state, the events of its stream, the end of its standard error, and
//! the text so far of an unfinished entry. That text is not in the spool; a late reader gets all of
//! it.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use anstream::adapter::strip_str;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Serialize;
use svc_model::agent::{
    AgentDelta, AgentEventBody, AgentInfo, AgentState, HistoryEntry, HistoryRole, HostSpec, TurnEnd,
};
use svc_model::{Clock, Timestamp, limits};
use svc_sys::lines::Line;
use tokio::sync::watch;
use tokio::time::sleep_until;

use super::agent_spool::AgentSpool;

/// Number of lines of standard error that are kept.
const STDERR_LINES: usize = 20;
/// Longest kept line of standard error, in characters.
const STDERR_WIDTH: usize = 500;

#[derive(Debug)]
pub(super) struct AgentRecord {
    pub(super) info: AgentInfo,
    pub(super) partial: PartialEntry,
    clock: Arc<dyn Clock>,
    spool: AgentSpool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AgentEnd {
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) state: AgentState,
    /// Whether the agent ended without a SIGKILL from the host.
    pub(super) graceful: bool,
}

/// Details of a change of state, for its event.
#[derive(Debug, Default)]
pub(super) struct StateDetails {
    /// When a limit ends, in Unix milliseconds.
    pub(super) until: Option<i64>,
    pub(super) reason: Option<String>,
    pub(super) turn: Option<TurnEnd>,
}

impl AgentRecord {
    /// Records that the agent starts.
    pub(super) fn new(
        spec: &HostSpec,
        clock: Arc<dyn Clock>,
        spool: AgentSpool,
        partial: PartialEntry,
        pid: u32,
    ) -> Self {
        let info = AgentInfo {
            id: spec.agent_id.clone(),
            project: spec.project.clone(),
            state: AgentState::Starting,
            pid,
            worktree: spec.cwd.display().to_string(),
            started_at: clock.now(),
            task: spec.task.clone(),
            description: spec.description.clone(),
            backend: spec.backend,
            instance: spec.instance.clone(),
            session_key: spec.session_key.clone(),
            session_id: None,
            exit_code: None,
            signal: None,
            error: None,
        };
        let record = Self { info, partial, clock, spool };
        record.append(&AgentEventBody::State {
            state: AgentState::Starting,
            task: spec.task.clone(),
            description: spec.description.clone(),
            until: None,
            session_id: None,
            reason: None,
            turn: None,
        });
        record
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) fn info(&self) -> AgentInfo {
        let mut info = self.info.clone();
        if info.error.is_none() {
            info.error = self.spool.error().map(|error| {
                format!("its events cannot be written: {error}; it waits until they can")
            });
        }
        info
    }

    pub(super) fn set_state(&mut self, state: AgentState) {
        self.set_state_with(state, StateDetails::default());
    }

    pub(super) fn set_state_with(&mut self, state: AgentState, details: StateDetails) {
        self.info.state = state;
        let StateDetails { until, reason, turn } = details;
        self.append(&AgentEventBody::State {
            state,
            task: None,
            description: None,
            until,
            session_id: self.info.session_id.clone(),
            reason,
            turn,
        });
    }

    /// Records the end of the agent, and of the turn that was interrupted by it.
    pub(super) fn end(&mut self, end: AgentEnd, turn: Option<TurnEnd>) {
        let AgentEnd { exit_code, signal, state: final_state, .. } = end;
        (self.info.pid, self.info.exit_code, self.info.signal) = (0, exit_code, signal);
        self.set_state_with(final_state, StateDetails { turn, ..StateDetails::default() });
        self.append(&AgentEventBody::Exit { exit_code, signal, final_state });
    }

    /// Records an entry. Returns its text if the agent itself wrote it.
    pub(super) fn entry(&mut self, mut entry: HistoryEntry) -> Option<String> {
        entry.timestamp = self.clock.now();
        for text in [&mut entry.content, &mut entry.tool_result].into_iter().flatten() {
            entry.truncated |= shorten(text, limits::AGENT_TEXT_BYTES);
        }
        let is_own = entry.role == HistoryRole::Assistant;
        let text = entry.content.clone().filter(|_| is_own);
        if text.is_some() {
            self.partial.finish();
        }
        let (now, is_of_tool) = (entry.timestamp, entry.is_of_tool());
        self.spool.append(&AgentEventBody::ChatEntry { chat_entry: entry }, now, Some(is_of_tool));
        text
    }

    pub(super) fn append(&self, event: &impl Serialize) -> u64 {
        self.spool.append(event, self.clock.now(), None)
    }

    /// Adds text to the unfinished entry.
    pub(super) fn add_partial(&self, text: &str) {
        self.partial.add(text, || self.spool.appended());
    }
}

fn shorten(text: &mut String, most: usize) -> bool {
    if text.len() <= most {
        return false;
    }
    let dropped = text.len() - most;
    text.truncate(text.floor_char_boundary(most));
    write!(text, "\n[{dropped} bytes more are in the stream]")
        .expect("writing to a string does not fail");
    true
}

/// An event for one line of output, which borrows the line.
#[derive(Serialize)]
pub(super) struct TurnOutputLine<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    data: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<&'static str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    ends_turn: bool,
}

impl<'a> TurnOutputLine<'a> {
    /// `kind` is `output` or `stderr`. `ends_turn`: the line only ends the turn.
    pub(super) fn new(kind: &'static str, line: Line<'a>, ends_turn: bool) -> Self {
        let truncated = line.is_cut || line.bytes.len() > limits::AGENT_TEXT_BYTES;
        let mut bytes = &line.bytes[..line.bytes.len().min(limits::AGENT_TEXT_BYTES)];
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text),
            // The cut may be within a character.
            Err(error) if truncated && bytes.len() - error.valid_up_to() < 4 => {
                bytes = &bytes[..error.valid_up_to()];
                std::str::from_utf8(bytes)
            }
            Err(error) => Err(error),
        };
        let (data, encoding) = match text {
            Ok(text) => (text.into(), None),
            Err(_) => (STANDARD.encode(bytes).into(), Some("base64")),
        };
        Self { kind, data, encoding, truncated, ends_turn }
    }
}

/// The last lines of standard error, with colours removed.
#[derive(Debug, Default)]
pub(super) struct StderrTail {
    lines: VecDeque<String>,
}

impl StderrTail {
    pub(super) fn push(&mut self, line: &[u8]) {
        if self.lines.len() == STDERR_LINES {
            self.lines.pop_front();
        }
        let text = String::from_utf8_lossy(&line[..line.len().min(4 * STDERR_WIDTH)]);
        let plain = strip_str(&text).to_string();
        self.lines.push_back(plain.chars().take(STDERR_WIDTH).collect());
    }

    /// The error followed by the last lines of standard error, if there are any.
    pub(super) fn explain(&self, error: String) -> String {
        let lines: Vec<_> = self.lines.iter().map(String::as_str).collect();
        let text = lines.join("\n");
        let text = text.trim();
        if text.is_empty() { error } else { format!("{error}; it said:\n{text}") }
    }
}

/// Longest text of an unfinished entry, in bytes.
const MAX_TEXT: usize = 1024 * 1024;

/// The text so far of an unfinished entry: the agent's output adds to it, and each client follows
/// it.
#[derive(Debug, Clone)]
pub(super) struct PartialEntry(Arc<watch::Sender<PartialText>>);

#[derive(Debug, Default)]
struct PartialText {
    of: u64,
    /// Size of the spool in bytes before the entry.
    after: u64,
    text: String,
    is_finished: bool,
}

/// The position of one client in the text.
#[derive(Debug)]
pub(super) struct PartialEntryReader {
    words: watch::Receiver<PartialText>,
    of: u64,
    heard: usize,
}

impl PartialEntry {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::default()))
    }

    /// Adds text. If a new entry begins, `after` returns the size of the spool before it.
    pub(super) fn add(&self, words: &str, after: impl FnOnce() -> u64) {
        self.0.send_modify(|said| {
            if said.is_finished || said.of == 0 {
                let of = said.of + 1;
                *said = PartialText { of, after: after(), text: String::new(), is_finished: false };
            }
            let room = words.floor_char_boundary(MAX_TEXT.saturating_sub(said.text.len()));
            said.text.push_str(&words[..room]);
        });
    }

    /// Ends the text: its entry is recorded next, or never will be. Readers get no more of it.
    pub(super) fn finish(&self) {
        self.0.send_if_modified(|said| {
            said.text = String::new();
            !std::mem::replace(&mut said.is_finished, true)
        });
    }

    pub(super) fn reader(&self) -> PartialEntryReader {
        PartialEntryReader { words: self.0.subscribe(), of: 0, heard: 0 }
    }
}

impl PartialEntryReader {
    /// Waits for more text, but at least until `not_before`.
    pub(super) async fn changed(&mut self, not_before: Instant) {
        sleep_until(not_before.into()).await;
        if self.words.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// The text that is new for a client that has the first `has` bytes of the spool.
    pub(super) fn next(&mut self, has: u64) -> Option<AgentDelta> {
        let words = self.words.borrow_and_update();
        if self.of != words.of {
            (self.of, self.heard) = (words.of, 0);
        }
        let text = words.text.get(self.heard..).filter(|text| !text.is_empty())?;
        if words.is_finished || has < words.after {
            return None;
        }
        let (role, of) = (HistoryRole::Assistant, words.of.to_string());
        let delta = AgentDelta { role, text: text.to_owned(), of };
        self.heard = words.text.len();
        Some(delta)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stderr_tail_has_no_escape_sequences() {
        for (text, is) in [
            ("\u{1b}[2m2026-03-31\u{1b}[0m \u{1b}[31mERROR\u{1b}[0m lost", "2026-03-31 ERROR lost"),
            ("\u{1b}]0;title\u{7}words", "words"),
            ("\u{1b}]0;title\u{1b}\\words", "words"),
            ("\u{1b}7words", "words"),
            ("[31m is no sequence", "[31m is no sequence"),
            ("cut \u{1b}[3", "cut "),
            ("größer \u{9b}", "größer \u{9b}"),
            ("", ""),
        ] {
            let mut tail = StderrTail::default();
            tail.push(text.as_bytes());
            assert_eq!(tail.lines, [is], "{text:?}");
        }
    }

    fn next(reader: &mut PartialEntryReader, has: u64) -> Option<(String, String)> {
        reader.next(has).map(|delta| (delta.of, delta.text))
    }

    #[test]
    fn each_reader_gets_partial_text_once_and_from_its_beginning() {
        let partial = PartialEntry::new();
        let mut early = partial.reader();
        assert_eq!(next(&mut early, 0), None);
        partial.add("one ", || 7);
        assert_eq!(next(&mut early, 6), None, "what was before comes before");
        assert_eq!(next(&mut early, 7), Some(("1".to_owned(), "one ".to_owned())));
        partial.add("two", || 9);
        assert_eq!(next(&mut early, 7), Some(("1".to_owned(), "two".to_owned())));
        assert_eq!(next(&mut early, 7), None);
        let mut late = partial.reader();
        assert_eq!(next(&mut late, 7), Some(("1".to_owned(), "one two".to_owned())));
        partial.add(" three", || 9);
        partial.finish();
        assert_eq!(next(&mut early, 7), None, "the entry has it");
        partial.add("more", || 20);
        assert_eq!(next(&mut late, 19), None);
        assert_eq!(next(&mut late, 20), Some(("2".to_owned(), "more".to_owned())));
    }

    #[test]
    fn partial_text_has_a_bound() {
        let partial = PartialEntry::new();
        partial.add(&"é".repeat(MAX_TEXT), || 0);
        partial.add("x", || 0);
        let (_, text) = next(&mut partial.reader(), 0).unwrap();
        assert_eq!(text.len(), MAX_TEXT);
    }
}
