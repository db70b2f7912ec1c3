//! Protocols of agents: each is a state machine from lines of text to effects, without I/O. The
//! simplest one is here: for any program, whose lines are its text.

mod acp;
mod claude;
mod codex;
mod protocol;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use svc_model::{
    agent::{AgentBackend, HistoryEntry, HistoryRole, HostSpec},
    limits,
};

pub(super) use protocol::{
    AgentProtocol, Decision, Effect, Effects, PromptInput, TurnResult, VendorRequest,
};

pub(super) fn protocol_of(spec: &HostSpec) -> Box<dyn AgentProtocol> {
    match spec.backend {
        AgentBackend::Claude => Box::new(claude::ClaudeProtocol::new(spec)),
        AgentBackend::Exec => Box::new(ExecProtocol::new(spec)),
        AgentBackend::Codex => Box::new(codex::CodexProtocol::new(spec)),
        AgentBackend::Gemini | AgentBackend::OpenCode | AgentBackend::Acp => {
            Box::new(acp::AcpProtocol::new(spec))
        }
    }
}

/// Silence after a line that ends a turn.
const SILENCE: Duration = Duration::from_millis(500);
/// Bytes kept at the end of a turn's text; the text may grow to twice as many before it is cut. As
/// many as a result has: with the line that tells of the cut the text is longer than a result, so
/// that who waits for the answer gets it from the frames, which have all of it.
const MAX_TEXT: usize = limits::TASK_RESULT_BYTES;
const INTERRUPT: i32 = 2;

#[derive(Debug, Default)]
struct ExecProtocol {
    turn_end: Option<String>,
    one_shot: bool,
    text: Vec<u8>,
    /// Number of bytes that were cut from `text`.
    dropped: usize,
    in_turn: bool,
    interrupted: bool,
    last_line: Option<Instant>,
}

impl ExecProtocol {
    fn new(spec: &HostSpec) -> Self {
        let (turn_end, one_shot) = (spec.turn_end.clone(), spec.one_shot);
        Self { turn_end, one_shot, ..Self::default() }
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
            // Within a line, whose end may be the only one.
            let surplus = self.text.len() - MAX_TEXT;
            let continues = |byte: &&u8| (0x80_u8..0xc0).contains(*byte);
            let cut = surplus + self.text[surplus..].iter().take(3).take_while(continues).count();
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
        if self.is_turn_end(line) {
            self.end_turn(None, effects);
            return;
        }
        if self.turn_end.is_none() {
            self.last_line = Some(now);
        }
        self.keep(words_of(line));
    }

    fn is_turn_end(&self, line: &[u8]) -> bool {
        self.turn_end.as_deref().is_some_and(|end| words_of(line) == end.as_bytes())
    }

    fn interrupt(&mut self, effects: &mut Effects) {
        self.interrupted = true;
        effects.push(Effect::Signal(INTERRUPT));
    }

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

/// A line without its carriage return.
fn words_of(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}
