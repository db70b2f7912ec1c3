//! Protocols of agents: each is a state machine from lines of text to effects, without I/O. The
//! simplest one is here: for any program, whose lines are its text.

mod acp;
mod claude;
mod codex;
mod protocol;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use serde_json::json;
use svc_model::{
    agent::{AgentBackend, HistoryEntry, HistoryRole, HostSpec},
    limits,
};

use super::record::StderrTail;

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

/// For the fuzzer: reads lines as the output of an agent of each backend, interleaved with prompts
/// and interrupts.
pub fn read_output(bytes: &[u8]) {
    for backend in AgentBackend::ALL {
        let mut protocol = protocol_of(&spec(backend));
        let mut effects = Effects::new();
        protocol.start(&mut effects);
        check(protocol.as_mut(), &mut effects);
        for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            match number % 8 {
                1 => {
                    let input = PromptInput { text: "go", message_id: "msg_1" };
                    protocol.prompt(&input, &mut effects);
                }
                5 => {
                    let input = PromptInput { text: "this way", message_id: "msg_2" };
                    protocol.steer(&input, &mut effects);
                }
                7 => protocol.interrupt(&mut effects),
                _ => {}
            }
            protocol.line(line, Instant::now(), &mut effects);
            if protocol.deadline().is_some() {
                protocol.tick(&mut effects);
            }
            check(protocol.as_mut(), &mut effects);
        }
        protocol.end(Some(0), &mut effects);
        check(protocol.as_mut(), &mut effects);
    }
    StderrTail::default().push(bytes);
}

/// Checks that each message to the agent is one line, and answers requests.
fn check(protocol: &mut dyn AgentProtocol, effects: &mut Effects) {
    // An answer may lead to further requests.
    for _ in 0..4 {
        let now = std::mem::take(effects);
        for effect in now {
            match effect {
                Effect::Write(line) => {
                    let end = line.iter().position(|byte| *byte == b'\n');
                    assert_eq!(end, line.len().checked_sub(1), "{}", line.escape_ascii());
                }
                Effect::Request(request) => {
                    let option = request.options.first().map(|option| option.option_id.clone());
                    let decision = match option {
                        Some(option_id) => Decision::Option { option_id, text: None },
                        None => Decision::Denied("no".to_owned()),
                    };
                    protocol.answer(&request.key, &decision, effects);
                }
                _ => {}
            }
        }
    }
    effects.clear();
}

/// A specification for tests, with defaults.
pub(super) fn spec(backend: AgentBackend) -> HostSpec {
    serde_json::from_value(json!({
        "agent_id": "ag_1",
        "folder": "/",
        "instance": "worker",
        "session_key": "agent:worker:main",
        "backend": backend,
        "command": ["program"],
        "cwd": "/",
        "turn_end": "done",
    }))
    .expect("the required fields are there")
}
