//! What the fuzzer feeds: an agent's output and a client's requests. `spec` is for other tests,
//! too.

use std::time::Instant;

use serde_json::{Value, json};
use svc_model::agent::{AgentBackend, HostSpec};

use crate::host::backend::{AgentProtocol, Decision, Effect, Effects, PromptInput, protocol_of};
use crate::host::decode::{ValueReader, request_of};
use crate::host::record::StderrTail;

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

/// For the fuzzer: reads a client's requests in one piece and in small pieces.
pub fn read_socket(bytes: &[u8]) {
    let whole = values(bytes, bytes.len().max(1));
    for piece in [1, 7] {
        assert_eq!(values(bytes, piece), whole, "in pieces of {piece}");
    }
    for value in whole.into_iter().flatten() {
        request_of(value).ok();
    }
}

/// The values in bytes that arrive in pieces; `None` for each value that does not parse.
fn values(bytes: &[u8], piece: usize) -> Vec<Option<Value>> {
    let mut reader = ValueReader::default();
    let mut all = Vec::new();
    for piece in bytes.chunks(piece) {
        reader.push(piece);
        while let Some(value) = reader.next_value() {
            all.push(value.ok());
        }
    }
    all
}
