//! Recordings of real agents, led through the protocols.

use std::fs;
use std::path::Path;
use std::time::Instant;

use svc_model::agent::{AgentBackend, HistoryRole, HostSpec, RequestOptionKind, TurnOutcome};

use super::effect::{Effect, Effects};
use super::protocol::{AgentProtocol, Decision, PromptInput};
use super::protocol_of;

/// All that follows from a recording, in which each request is answered by an option of this kind.
fn replay(backend: AgentBackend, case: &str, answer: RequestOptionKind) -> Effects {
    let spec = HostSpec { backend, ..super::super::testing::spec(&["program"]) };
    let mut protocol = protocol_of(&spec);
    let mut all = Effects::new();
    protocol.start(&mut all);
    let file = format!("fixtures/agents/{backend}/{case}.txt");
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)).unwrap();
    let mut prompts = 0;
    for line in text.lines() {
        let mut effects = Effects::new();
        let is_prompt = ["\"type\":\"user\"", "turn/start\"", "session/prompt"];
        let is_interrupt = ["\"interrupt\"", "turn/interrupt", "session/cancel"];
        if let Some(line) = line.strip_prefix("< ") {
            protocol.line(line.as_bytes(), Instant::now(), &mut effects);
        } else if is_prompt.iter().any(|mark| line.contains(mark)) {
            settle(&mut *protocol, &mut effects);
            prompts += 1;
            let message_id = format!("msg_{prompts}");
            let input = PromptInput { text: "go", message_id: &message_id };
            protocol.prompt(&input, &mut effects);
        } else if is_interrupt.iter().any(|mark| line.contains(mark)) {
            protocol.interrupt(&mut effects);
        }
        let requests: Vec<_> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Request(request) => Some(request.clone()),
                _ => None,
            })
            .collect();
        for request in requests {
            let chosen = request.options.iter().find(|option| option.kind == answer).unwrap();
            let decision = Decision::Option { option_id: chosen.option_id.clone(), text: None };
            protocol.answer(&request.key, &decision, &mut effects);
        }
        all.extend(effects);
    }
    settle(&mut *protocol, &mut all);
    all
}

/// What was put off until later updates is told.
fn settle(protocol: &mut dyn AgentProtocol, effects: &mut Effects) {
    if protocol.deadline().is_some() {
        protocol.tick(effects);
    }
}

fn outcomes(effects: &Effects) -> Vec<TurnOutcome> {
    let outcome = |effect: &Effect| match effect {
        Effect::TurnEnd(end) => Some(end.outcome),
        _ => None,
    };
    effects.iter().filter_map(outcome).collect()
}

fn last_result(effects: &Effects) -> Option<String> {
    let result = |effect: &Effect| match effect {
        Effect::TurnEnd(end) => Some(end.result.clone()),
        _ => None,
    };
    effects.iter().rev().find_map(result).flatten()
}

/// Ids of calls, and of results.
fn calls(effects: &Effects) -> (Vec<String>, Vec<String>) {
    let (mut calls, mut results) = (Vec::new(), Vec::new());
    for effect in effects {
        if let Effect::Entry(entry) = effect
            && entry.role == HistoryRole::Tool
        {
            let id = entry.tool_use_id.clone().expect("each has one");
            assert!(entry.tool_name.is_some(), "{entry:?}");
            if entry.tool_input.is_some() { calls.push(id) } else { results.push(id) }
        }
    }
    (calls, results)
}

const VENDORS: [AgentBackend; 4] =
    [AgentBackend::Claude, AgentBackend::Codex, AgentBackend::Gemini, AgentBackend::OpenCode];

#[test]
fn a_call_that_is_allowed_runs_and_its_turn_ends_with_words() {
    for backend in VENDORS {
        let effects = replay(backend, "allow", RequestOptionKind::AllowOnce);
        assert_eq!(outcomes(&effects), [TurnOutcome::Completed], "{backend}");
        assert_eq!(last_result(&effects).as_deref(), Some("all done"), "{backend}");
        let (calls, results) = calls(&effects);
        assert!(!calls.is_empty() && calls == results, "{backend}: {calls:?} {results:?}");
        let has = |test: fn(&Effect) -> bool| effects.iter().any(test);
        assert!(has(|it| matches!(it, Effect::Ready | Effect::Working)), "{backend}");
        assert!(has(|it| matches!(it, Effect::Session(_))), "{backend}");
        assert!(
            has(|it| matches!(it, Effect::Usage(usage) if usage.input_tokens > Some(0))),
            "{backend}"
        );
    }
}

#[test]
fn a_call_that_is_denied_does_not_end_the_turn() {
    for backend in VENDORS {
        let effects = replay(backend, "deny", RequestOptionKind::RejectOnce);
        assert_eq!(outcomes(&effects), [TurnOutcome::Completed], "{backend}");
        let written: Vec<_> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Write(line) => Some(String::from_utf8_lossy(line).into_owned()),
                _ => None,
            })
            .collect();
        let no = ["\"deny\"", "\"decline\"", "\"cancel\"", "\"reject\""];
        assert!(
            written.iter().any(|line| no.iter().any(|no| line.contains(no))),
            "{backend}: {written:?}"
        );
        assert!(written.iter().all(|line| line.matches('\n').count() == 1 && line.ends_with('\n')));
    }
}

#[test]
fn a_turn_that_is_interrupted_is_followed_by_another() {
    for backend in VENDORS {
        let effects = replay(backend, "interrupt", RequestOptionKind::AllowOnce);
        let expected = [TurnOutcome::Interrupted, TurnOutcome::Completed];
        assert_eq!(outcomes(&effects), expected, "{backend}");
    }
}

#[test]
fn a_limit_is_told_as_one_with_its_end_where_the_vendor_says_it() {
    for backend in [AgentBackend::Claude, AgentBackend::Codex, AgentBackend::Gemini] {
        let effects = replay(backend, "usage-limit", RequestOptionKind::AllowOnce);
        assert_eq!(outcomes(&effects), [TurnOutcome::Refused], "{backend}");
        let limited = effects.iter().find_map(|effect| match effect {
            Effect::Limited { until } => Some(*until),
            _ => None,
        });
        let until = limited.unwrap_or_else(|| panic!("{backend} is not limited"));
        assert_eq!(until.is_some(), backend == AgentBackend::Claude, "{backend}");
        let last_state = effects
            .iter()
            .rev()
            .find(|effect| matches!(effect, Effect::Limited { .. } | Effect::Working));
        assert!(matches!(last_state, Some(Effect::Limited { .. })), "{backend}: {effects:?}");
    }
}

#[test]
fn a_question_offers_its_answers() {
    let effects = replay(AgentBackend::Claude, "question", RequestOptionKind::Answer);
    let written = effects.iter().any(|effect| {
        matches!(effect, Effect::Write(line) if String::from_utf8_lossy(line).contains(r#""answers":{"Which colour?":"Red"}"#))
    });
    assert!(written, "{effects:?}");
    assert_eq!(outcomes(&effects), [TurnOutcome::Completed]);
}

#[test]
fn what_a_sub_agent_says_is_not_the_agents_words() {
    let effects = replay(AgentBackend::Claude, "subagent", RequestOptionKind::AllowOnce);
    let texts: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Entry(entry) if entry.role == HistoryRole::Assistant => entry.content.clone(),
            _ => None,
        })
        .collect();
    assert_eq!(texts, ["all done"]);
}

#[test]
fn an_approval_of_an_mcp_tool_is_a_permission() {
    let effects = replay(AgentBackend::Codex, "mcp", RequestOptionKind::AllowOnce);
    let request = effects.iter().find_map(|effect| match effect {
        Effect::Request(request) => Some(request),
        _ => None,
    });
    assert_eq!(request.unwrap().title, "mcp__svc__echo: {\"text\":\"hi\"}");
    let (calls, results) = calls(&effects);
    assert!(calls.len() == 1 && calls == results);
}

/// The adapters of two vendors: any agent of the protocol, by its command.
#[test]
fn adapters_that_svc_knows_nothing_of_take_turns() {
    for adapter in ["claude", "codex"] {
        let effects =
            replay(AgentBackend::Acp, &format!("{adapter}-allow"), RequestOptionKind::AllowOnce);
        assert_eq!(outcomes(&effects), [TurnOutcome::Completed], "{adapter}");
        assert_eq!(last_result(&effects).as_deref(), Some("all done"), "{adapter}");
        let (calls, results) = calls(&effects);
        assert!(calls.len() == 2 && calls == results, "{adapter}: {calls:?} {results:?}");
        let effects = replay(
            AgentBackend::Acp,
            &format!("{adapter}-interrupt"),
            RequestOptionKind::AllowOnce,
        );
        let expected = [TurnOutcome::Interrupted, TurnOutcome::Completed];
        assert_eq!(outcomes(&effects), expected, "{adapter}");
        let effects =
            replay(AgentBackend::Acp, &format!("{adapter}-deny"), RequestOptionKind::RejectOnce);
        // A refusal ends the turn of one, and the model of the other goes on.
        let ends =
            if adapter == "codex" { TurnOutcome::Interrupted } else { TurnOutcome::Completed };
        assert_eq!(outcomes(&effects), [ends], "{adapter}");
        let effects = replay(
            AgentBackend::Acp,
            &format!("{adapter}-usage-limit"),
            RequestOptionKind::AllowOnce,
        );
        assert_eq!(outcomes(&effects), [TurnOutcome::Refused], "{adapter}");
        assert!(effects.iter().any(|it| matches!(it, Effect::Limited { .. })), "{adapter}");
    }
}

#[test]
fn what_is_unknown_is_answered_with_an_error() {
    for (backend, call) in [
        (
            AgentBackend::Claude,
            r#"{"type":"control_request","request_id":"x","request":{"subtype":"new_thing"}}"#,
        ),
        (AgentBackend::Codex, r#"{"id":9,"method":"item/new/thing","params":{}}"#),
        (
            AgentBackend::Acp,
            r#"{"jsonrpc":"2.0","id":"9","method":"fs/read_text_file","params":{}}"#,
        ),
    ] {
        let spec = HostSpec { backend, ..super::super::testing::spec(&["program"]) };
        let mut protocol = protocol_of(&spec);
        let mut effects = Effects::new();
        for line in [call, "no json", "[]", "7", "{}", "null"] {
            protocol.line(line.as_bytes(), Instant::now(), &mut effects);
        }
        let [Effect::Write(line)] = &effects[..] else { panic!("{backend}: {effects:?}") };
        assert!(String::from_utf8_lossy(line).contains("error"), "{backend}");
    }
}

/// What the programs of the fixtures answer at the handshake, with a login and without one.
#[test]
fn a_login_that_is_missing_is_told_before_the_first_prompt() {
    let claude = |account: &str| {
        let response = format!(r#"{{"commands":[],"account":{account},"pid":7}}"#);
        let answer = format!(
            r#"{{"subtype":"success","request_id":"svc-initialize","response":{response}}}"#
        );
        vec![format!(r#"{{"type":"control_response","response":{answer}}}"#)]
    };
    let codex = |account: &str| {
        vec![
            r#"{"id":1,"result":{"userAgent":"svc/0.169.0"}}"#.to_owned(),
            format!(r#"{{"id":0,"result":{account}}}"#),
            r#"{"id":2,"result":{"thread":{"id":"01a20468"}}}"#.to_owned(),
        ]
    };
    for (backend, lines, is_ready) in [
        (
            AgentBackend::Claude,
            claude(r#"{"tokenSource":"none","apiProvider":"firstParty"}"#),
            false,
        ),
        (
            AgentBackend::Claude,
            claude(
                r#"{"tokenSource":"none","apiKeySource":"ANTHROPIC_API_KEY","apiProvider":"firstParty"}"#,
            ),
            true,
        ),
        (
            AgentBackend::Claude,
            claude(r#"{"tokenSource":"CLAUDE_CODE_OAUTH_TOKEN","apiProvider":"firstParty"}"#),
            true,
        ),
        // Of another service it says nothing, and an earlier version says nothing at all.
        (AgentBackend::Claude, claude(r#"{"tokenSource":"none","apiProvider":"bedrock"}"#), true),
        (AgentBackend::Claude, claude("null"), true),
        (AgentBackend::Codex, codex(r#"{"account":null,"requiresOpenaiAuth":true}"#), false),
        (AgentBackend::Codex, codex(r#"{"account":null,"requiresOpenaiAuth":false}"#), true),
        (
            AgentBackend::Codex,
            codex(r#"{"account":{"type":"chatgpt"},"requiresOpenaiAuth":true}"#),
            true,
        ),
    ] {
        let spec = HostSpec { backend, ..super::super::testing::spec(&["program"]) };
        let mut protocol = protocol_of(&spec);
        let mut effects = Effects::new();
        protocol.start(&mut effects);
        for line in &lines {
            protocol.line(line.as_bytes(), Instant::now(), &mut effects);
        }
        let ready = effects.iter().filter(|it| matches!(it, Effect::Ready)).count();
        assert_eq!(ready, usize::from(is_ready), "{backend}: {lines:?}");
        let told = effects.iter().any(
            |it| matches!(it, Effect::Fatal(why) if why.contains("not logged in; log in with")),
        );
        assert_eq!(told, !is_ready, "{backend}: {lines:?}");
    }
}

/// `codex-acp` tells what a command printed beside the content of its call.
#[test]
fn what_a_terminal_of_an_adapter_showed_is_the_result() {
    let effects = replay(AgentBackend::Acp, "codex-terminal", RequestOptionKind::AllowOnce);
    let results: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Entry(entry) => entry.tool_result.as_deref(),
            _ => None,
        })
        .collect();
    assert_eq!(results, ["TOOL-SAID-THIS\n"]);
    assert_eq!(last_result(&effects).as_deref(), Some("second answer"));
}
