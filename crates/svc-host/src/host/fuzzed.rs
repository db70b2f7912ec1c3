//! What the fuzzer feeds of this room: bytes of agents and of clients.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::Value;
use svc_model::AgentId;
use svc_model::agent::{AgentBackend, AnswerKey, HostSpec, PermissionMode};

use super::backend::{AgentProtocol, Decision, Effect, Effects, PromptInput, protocol_of};
use super::{connection::request_of, decode::ValueReader, stderr_tail::StderrTail};

/// Reads lines as the output of an agent of each kind, which is prompted, asked and interrupted in between.
pub fn read_output(bytes: &[u8]) {
    for backend in [
        AgentBackend::Claude,
        AgentBackend::Codex,
        AgentBackend::Gemini,
        AgentBackend::OpenCode,
        AgentBackend::Acp,
        AgentBackend::Exec,
    ] {
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

/// What follows from a line. Each message to the agent is one line, and requests are answered.
fn check(protocol: &mut dyn AgentProtocol, effects: &mut Effects) {
    // An answer may lead to further requests; an agent that is asked nothing asks nothing.
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

/// Reads requests of a client, in one piece and in small ones.
pub fn read_socket(bytes: &[u8]) {
    let whole = values(bytes, bytes.len().max(1));
    for piece in [1, 7] {
        assert_eq!(values(bytes, piece), whole, "in pieces of {piece}");
    }
    for value in whole.into_iter().flatten() {
        request_of(value).ok();
    }
}

/// The values in what comes in such pieces, and `None` for each that is none.
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

fn spec(backend: AgentBackend) -> HostSpec {
    HostSpec {
        agent_id: AgentId::from("ag_1".to_owned()),
        folder: "/".into(),
        project: String::new(),
        instance: "worker".to_owned(),
        session_key: "agent:worker:main".to_owned(),
        backend,
        command: vec!["program".to_owned()],
        cwd: "/".into(),
        env: BTreeMap::new(),
        task: None,
        description: None,
        prompt: None,
        one_shot: false,
        permission: PermissionMode::Ask,
        turn_end: Some("done".to_owned()),
        model: None,
        resume: None,
        system_prompt: None,
        mcp: None,
        answer_key: AnswerKey::default(),
        start_timeout_ms: 60_000,
        request_timeout_ms: 600_000,
        idle_timeout_ms: 0,
        linger_ms: 1_000,
    }
}
