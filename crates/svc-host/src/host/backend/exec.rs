//! Any program: its lines are its text.

use std::time::{Duration, Instant};

use svc_model::agent::{HistoryEntry, HistoryRole, HostSpec};

use super::protocol::{AgentProtocol, Decision, PromptInput};
use super::protocol::{Effect, Effects, TurnResult};

/// Silence after a line that ends a turn.
const SILENCE: Duration = Duration::from_millis(500);
/// Kept bytes at the end of the text of a turn; up to twice as many before they are cut.
const MAX_TEXT: usize = 256 * 1024;
const INTERRUPT: i32 = 2;

#[derive(Debug)]
pub(super) struct ExecProtocol {
    turn_end: Option<String>,
    one_shot: bool,
    text: Vec<u8>,
    /// Bytes that were cut from `text`.
    dropped: usize,
    in_turn: bool,
    interrupted: bool,
    last_line: Option<Instant>,
}

impl ExecProtocol {
    pub(super) fn new(spec: &HostSpec) -> Self {
        Self {
            turn_end: spec.turn_end.clone(),
            one_shot: spec.one_shot,
            text: Vec::new(),
            dropped: 0,
            in_turn: false,
            interrupted: false,
            last_line: None,
        }
    }

    fn write(input: &PromptInput<'_>) -> Effect {
        Effect::Write(format!("{}\n", input.text).into_bytes())
    }

    fn end_turn(&mut self, failure: Option<String>, effects: &mut Effects) {
        self.last_line = None;
        self.in_turn = false;
        let interrupted = std::mem::take(&mut self.interrupted);
        let dropped = std::mem::take(&mut self.dropped);
        let text = std::mem::take(&mut self.text);
        let mut text = String::from_utf8_lossy(&text).into_owned();
        if text.ends_with('\n') {
            text.pop();
        }
        if dropped > 0 {
            text = format!("[{dropped} bytes before this are in the stream alone]\n{text}");
        }
        let text = Some(text).filter(|text| !text.is_empty());
        if let Some(text) = &text {
            effects.push(Effect::Entry(HistoryEntry::text(HistoryRole::Assistant, text.clone())));
        }
        let result = match failure {
            _ if interrupted => TurnResult { result: text, ..TurnResult::interrupted() },
            Some(error) => TurnResult { result: text, ..TurnResult::failed(error) },
            None => TurnResult::completed(text),
        };
        effects.push(Effect::TurnEnd(result));
    }

    fn keep(&mut self, line: &[u8]) {
        self.text.extend_from_slice(line);
        self.text.push(b'\n');
        if self.text.len() > 2 * MAX_TEXT {
            let surplus = self.text.len() - MAX_TEXT;
            let cut = self.text[surplus..].iter().position(|byte| *byte == b'\n');
            let cut = surplus + cut.map_or(0, |end| end + 1);
            self.text.drain(..cut);
            self.dropped += cut;
        }
    }
}

impl AgentProtocol for ExecProtocol {
    fn start(&mut self, effects: &mut Effects) {
        effects.push(Effect::Ready);
    }

    fn prompt(&mut self, input: &PromptInput<'_>, effects: &mut Effects) {
        self.in_turn = true;
        effects.push(Self::write(input));
        if self.one_shot {
            effects.push(Effect::CloseInput);
        }
        effects.push(Effect::Working);
    }

    fn steer(&mut self, input: &PromptInput<'_>, effects: &mut Effects) -> bool {
        effects.push(Self::write(input));
        true
    }

    fn line(&mut self, line: &[u8], now: Instant, effects: &mut Effects) {
        if !self.in_turn {
            self.in_turn = true;
            effects.push(Effect::Working);
        }
        let words = line.strip_suffix(b"\r").unwrap_or(line);
        if let Some(end) = &self.turn_end {
            if words == end.as_bytes() {
                self.end_turn(None, effects);
                return;
            }
        } else {
            self.last_line = Some(now);
        }
        self.keep(words);
    }

    fn interrupt(&mut self, effects: &mut Effects) {
        self.interrupted = true;
        effects.push(Effect::Signal(INTERRUPT));
    }

    fn answer(&mut self, _key: &str, _decision: &Decision, _effects: &mut Effects) {}

    fn end(&mut self, exit_code: Option<i32>, effects: &mut Effects) {
        if self.in_turn {
            let failure = match exit_code {
                Some(0) => None,
                Some(code) => Some(format!("the program ended with exit code {code}")),
                None => Some("the program was ended by a signal".to_owned()),
            };
            self.end_turn(failure, effects);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.last_line.filter(|_| !self.one_shot).map(|at| at + SILENCE)
    }

    fn tick(&mut self, effects: &mut Effects) {
        if self.in_turn {
            self.end_turn(None, effects);
        }
    }
}
