//! Recordings of real agents replayed through the protocols.

use std::fs;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use svc_model::agent::{
    AgentBackend, AgentMcpServer, HistoryRole, HostSpec, RequestOptionKind, TurnOutcome,
};
use svc_model::{AgentId, limits};

use super::protocol::{AgentProtocol, Decision, Effect, Effects, PromptInput};
use super::protocol_of;
use crate::host::fuzz::spec;

/// The effects of one kind, as an iterator.
macro_rules! all {
    ($kind:ident, $effects:expr) => {
        $effects.iter().filter_map(|it| if let Effect::$kind(it) = it { Some(it) } else { None })
    };
}

/// The effects of a recording. Each request is answered by an option of kind `answer`.
fn replay(backend: AgentBackend, case: &str, answer: RequestOptionKind) -> Effects {
    let mut protocol = protocol_of(&spec(backend));
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
        for request in all!(Request, effects).cloned().collect::<Vec<_>>() {
            let chosen = request.options.iter().find(|option| option.kind == answer).unwrap();
            let decision = Decision::Option { option_id: chosen.option_id.clone(), text: None };
            protocol.answer(&request.key, &decision, &mut effects);
        }
        all.extend(effects);
    }
    settle(&mut *protocol, &mut all);
    all
}

/// Applies what the protocol has deferred until late updates.
fn settle(protocol: &mut dyn AgentProtocol, effects: &mut Effects) {
    if protocol.deadline().is_some() {
        protocol.tick(effects);
    }
}

fn written(effects: &Effects) -> Vec<String> {
    all!(Write, effects).map(|line| String::from_utf8_lossy(line).into_owned()).collect()
}

fn outcomes(effects: &Effects) -> Vec<TurnOutcome> {
    all!(TurnEnd, effects).map(|end| end.outcome).collect()
}

fn last_result(effects: &Effects) -> Option<String> {
    all!(TurnEnd, effects).last().and_then(|end| end.result.clone())
}

/// Ids of tool calls, and ids of tool results.
fn calls(effects: &Effects) -> (Vec<String>, Vec<String>) {
    let (mut calls, mut results) = (Vec::new(), Vec::new());
    for entry in all!(Entry, effects).filter(|entry| entry.role == HistoryRole::Tool) {
        let id = entry.tool_use_id.clone().expect("each has one");
        assert!(entry.tool_name.is_some(), "{entry:?}");
        if entry.tool_input.is_some() { calls.push(id) } else { results.push(id) }
    }
    (calls, results)
}

const VENDORS: [AgentBackend; 4] =
    [AgentBackend::Claude, AgentBackend::Codex, AgentBackend::Gemini, AgentBackend::OpenCode];

#[test]
fn allowed_call_runs_and_its_turn_completes() {
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
fn denied_call_does_not_end_the_turn() {
    for backend in VENDORS {
        let effects = replay(backend, "deny", RequestOptionKind::Deny);
        assert_eq!(outcomes(&effects), [TurnOutcome::Completed], "{backend}");
        let written = written(&effects);
        let no = ["\"deny\"", "\"decline\"", "\"cancel\"", "\"reject\""];
        assert!(
            written.iter().any(|line| no.iter().any(|no| line.contains(no))),
            "{backend}: {written:?}"
        );
        assert!(written.iter().all(|line| line.matches('\n').count() == 1 && line.ends_with('\n')));
    }
}

#[test]
fn backends_take_steers_as_the_model_says() {
    for backend in AgentBackend::ALL {
        let mut protocol = protocol_of(&spec(backend));
        let input = PromptInput { text: "x", message_id: "msg_1" };
        // Codex has none before the turn has an id.
        let takes = backend == AgentBackend::Codex || protocol.steer(&input, &mut Effects::new());
        assert_eq!(takes, backend.takes_steers(), "{backend}");
    }
}

#[test]
fn interrupted_turn_is_followed_by_another() {
    for backend in VENDORS {
        let effects = replay(backend, "interrupt", RequestOptionKind::AllowOnce);
        let expected = [TurnOutcome::Interrupted, TurnOutcome::Completed];
        assert_eq!(outcomes(&effects), expected, "{backend}");
    }
}

#[test]
fn usage_limit_is_reported_with_its_end_if_known() {
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
        let mut entries = all!(Entry, effects);
        let has_words = entries.any(|entry| entry.role == HistoryRole::Assistant);
        assert!(!has_words, "{backend}: another instance may take the prompt: {effects:?}");
    }
}

#[test]
fn text_that_is_cut_within_a_character_loses_no_event() {
    let mut claude = protocol_of(&spec(AgentBackend::Claude));
    let mut effects = Effects::new();
    let line = br#"{"type":"result","is_error":false,"result":"half \ud83d"}"#;
    claude.line(line, Instant::now(), &mut effects);
    assert_eq!(last_result(&effects).as_deref(), Some("half \u{fffd}"));
    let mut codex = protocol_of(&spec(AgentBackend::Codex));
    let line = br#"{"method":"item/agentMessage/delta","params":{"delta":"\ud83d half \u0000"}}"#;
    let mut effects = Effects::new();
    codex.line(line, Instant::now(), &mut effects);
    let deltas: Vec<_> = all!(Delta, effects).map(String::as_str).collect();
    assert_eq!(deltas, ["\u{fffd} half \u{fffd}"]);
}

#[test]
fn question_offers_its_answers() {
    let effects = replay(AgentBackend::Claude, "question", RequestOptionKind::Choice);
    let answers = r#""answers":{"Which colour?":"Red"}"#;
    assert!(written(&effects).iter().any(|line| line.contains(answers)), "{effects:?}");
    assert_eq!(outcomes(&effects), [TurnOutcome::Completed]);
}

#[test]
fn question_is_not_answered_by_the_words_of_a_denial() {
    let mut protocol = protocol_of(&spec(AgentBackend::Claude));
    let question = json!({ "question": "Which colour?", "options": [{ "label": "Red" }] });
    let asked = json!({ "type": "control_request", "request_id": "r1", "request": {
        "subtype": "can_use_tool", "tool_name": "AskUserQuestion",
        "input": { "questions": [question] } } });
    for (text, message) in [(Some("later"), "later"), (None, "nobody wants to answer")] {
        let mut effects = Effects::new();
        protocol.line(asked.to_string().as_bytes(), Instant::now(), &mut effects);
        let options = &all!(Request, effects).next().unwrap().options;
        let takes_words: Vec<_> = options.iter().map(|it| (it.kind, it.text)).collect();
        let expected = [(RequestOptionKind::Choice, false), (RequestOptionKind::Deny, true)];
        assert_eq!(takes_words, expected);
        let option_id = options[1].option_id.clone();
        let decision = Decision::Option { option_id, text: text.map(str::to_owned) };
        effects.clear();
        protocol.answer("r1", &decision, &mut effects);
        let answer: Value = serde_json::from_str(&written(&effects)[0]).unwrap();
        let expected = json!({ "behavior": "deny", "message": message });
        assert_eq!(answer["response"]["response"], expected);
    }
}

#[test]
fn text_of_a_sub_agent_is_not_text_of_the_agent() {
    let effects = replay(AgentBackend::Claude, "subagent", RequestOptionKind::AllowOnce);
    let own = all!(Entry, effects).filter(|entry| entry.role == HistoryRole::Assistant);
    let texts: Vec<_> = own.filter_map(|entry| entry.content.as_deref()).collect();
    assert_eq!(texts, ["all done"]);
}

#[test]
fn approval_of_an_mcp_tool_is_a_permission_request() {
    let effects = replay(AgentBackend::Codex, "mcp", RequestOptionKind::AllowOnce);
    assert_eq!(all!(Request, effects).next().unwrap().title, "mcp__svc__echo: {\"text\":\"hi\"}");
    let (calls, results) = calls(&effects);
    assert!(calls.len() == 1 && calls == results);
}

/// The adapters of two vendors: any agent of the protocol, by its command.
#[test]
fn unknown_acp_adapters_take_turns() {
    for adapter in ["claude", "codex"] {
        let play = |case, kind| replay(AgentBackend::Acp, &format!("{adapter}-{case}"), kind);
        let effects = play("allow", RequestOptionKind::AllowOnce);
        assert_eq!(outcomes(&effects), [TurnOutcome::Completed], "{adapter}");
        assert_eq!(last_result(&effects).as_deref(), Some("all done"), "{adapter}");
        let (calls, results) = calls(&effects);
        assert!(calls.len() == 2 && calls == results, "{adapter}: {calls:?} {results:?}");
        let effects = play("interrupt", RequestOptionKind::AllowOnce);
        let expected = [TurnOutcome::Interrupted, TurnOutcome::Completed];
        assert_eq!(outcomes(&effects), expected, "{adapter}");
        let effects = play("deny", RequestOptionKind::Deny);
        // A denial ends the turn of `codex-acp`; the model of the other adapter continues.
        let ends =
            if adapter == "codex" { TurnOutcome::Interrupted } else { TurnOutcome::Completed };
        assert_eq!(outcomes(&effects), [ends], "{adapter}");
        let effects = play("usage-limit", RequestOptionKind::AllowOnce);
        assert_eq!(outcomes(&effects), [TurnOutcome::Refused], "{adapter}");
        assert!(effects.iter().any(|it| matches!(it, Effect::Limited { .. })), "{adapter}");
    }
}

#[test]
fn unknown_request_is_answered_with_an_error() {
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
        let mut protocol = protocol_of(&spec(backend));
        let mut effects = Effects::new();
        for line in [call, "no json", "[]", "7", "{}", "null"] {
            protocol.line(line.as_bytes(), Instant::now(), &mut effects);
        }
        let [Effect::Write(line)] = &effects[..] else { panic!("{backend}: {effects:?}") };
        assert!(String::from_utf8_lossy(line).contains("error"), "{backend}");
    }
}

/// The responses of the recorded programs to the handshake, with and without a login.
#[test]
fn missing_login_is_reported_before_the_first_prompt() {
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
        // Claude says nothing about other services; earlier versions say nothing at all.
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
        let mut protocol = protocol_of(&spec(backend));
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

#[test]
fn long_text_of_a_program_keeps_its_end() {
    let line = |length: usize| "x".repeat(length);
    for (lines, kept) in [
        (vec![line(530_000)], "x"),
        (vec![line(300_000), line(300_000)], "x"),
        (vec!["é".repeat(265_000)], "é"),
        (vec!["€".repeat(180_000)], "€"),
        (vec![line(100_000); 6], "x"),
        (vec![line(530_000), "end".to_owned()], "end"),
    ] {
        let mut protocol = protocol_of(&spec(AgentBackend::Exec));
        let mut effects = Effects::new();
        protocol.start(&mut effects);
        protocol.prompt(&PromptInput { text: "go", message_id: "m1" }, &mut effects);
        for line in &lines {
            assert!(!protocol.is_turn_end(line.as_bytes()));
            protocol.line(line.as_bytes(), Instant::now(), &mut effects);
        }
        assert!(protocol.is_turn_end(b"done\r"));
        protocol.line(b"done\r", Instant::now(), &mut effects);
        let result = last_result(&effects).expect("a result");
        let (told, text) = result.split_once('\n').expect("a line that tells of the cut");
        assert!(told.ends_with("bytes before this are in the stream alone]"), "{told}");
        let said: usize = lines.iter().map(|line| line.len() + 1).sum();
        let dropped: usize = told[1..].split(' ').next().unwrap().parse().unwrap();
        // The last line's end is not part of the text.
        assert_eq!(dropped + text.len() + 1, said);
        assert!(text.ends_with(kept) && !text.contains('\u{fffd}'), "{told}");
        assert!(result.len() > limits::TASK_RESULT_BYTES, "or it would pass for the whole answer");
    }
}

/// `codex-acp` sends the output of a command beside the content of its call.
#[test]
fn terminal_output_of_an_adapter_is_the_result() {
    let effects = replay(AgentBackend::Acp, "codex-terminal", RequestOptionKind::AllowOnce);
    let results: Vec<_> =
        all!(Entry, effects).filter_map(|entry| entry.tool_result.as_deref()).collect();
    assert_eq!(results, ["TOOL-SAID-THIS\n"]);
    assert_eq!(last_result(&effects).as_deref(), Some("second answer"));
}

/// Arguments and written lines of a protocol, until its agent knows our server.
fn said_to_begin(backend: AgentBackend) -> String {
    let agent = AgentId::from("ag_7".to_owned());
    let server = AgentMcpServer::of_agent(Path::new("/bin/svc"), Path::new("/data"), &agent);
    let spec = HostSpec { mcp: Some(server), ..spec(backend) };
    let mut protocol = protocol_of(&spec);
    let mut effects = Effects::new();
    protocol.start(&mut effects);
    let hello = json!({ "id": 1, "jsonrpc": "2.0", "result": { "protocolVersion": 1 } });
    protocol.line(hello.to_string().as_bytes(), Instant::now(), &mut effects);
    [protocol.arguments(), written(&effects)].concat().join("\n")
}

fn first_of(value: &Value, name: &str) -> Option<Value> {
    match value {
        Value::Object(members) => members
            .get(name)
            .cloned()
            .or_else(|| members.values().find_map(|member| first_of(member, name))),
        Value::Array(items) => items.iter().find_map(|item| first_of(item, name)),
        _ => None,
    }
}

#[test]
fn own_server_is_a_program_without_a_secret() {
    for backend in AgentBackend::ALL {
        let said = said_to_begin(backend);
        if backend == AgentBackend::Exec {
            assert!(!said.contains("stdio"), "{said}");
            continue;
        }
        let lines = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut servers = lines
            .filter_map(|line| first_of(&line, "svc").or_else(|| first_of(&line, "mcpServers")));
        let server = servers.next().unwrap_or_else(|| panic!("{backend}: {said}"));
        let server = if server.is_array() { server[0].clone() } else { server };
        assert_eq!(server["command"], "/bin/svc", "{backend}: {said}");
        assert_eq!(server["args"], json!(["stdio"]), "{backend}: {said}");
        let env = match &server["env"] {
            Value::Array(list) => list.iter().map(|it| it["name"].clone()).collect::<Vec<_>>(),
            env => env.as_object().expect("one").keys().map(|name| json!(name)).collect(),
        };
        assert_eq!(env, [json!("SVC_AGENT_ID"), json!("SVC_HOME")], "{backend}: {said}");
        assert!(!said.contains("ToolCall"), "{backend}: {said}");
        assert!(!said.contains("\"mcp__svc\""), "{backend} allows every tool: {said}");
        // The names of tools look like session tokens, which begin with `svc_`.
        let said = said.replace("mcp__svc__", "");
        for word in ["Bearer", "Authorization", "svc_", "http:"] {
            assert!(!said.contains(word), "{backend}: {word}: {said}");
        }
    }
}

#[test]
fn acp_update_outside_of_a_turn_begins_none() {
    let mut protocol =
        protocol_of(&HostSpec { resume: Some("s1".to_owned()), ..spec(AgentBackend::Acp) });
    let say = |protocol: &mut dyn AgentProtocol, line: Value| {
        let mut effects = Effects::new();
        protocol.line(line.to_string().as_bytes(), Instant::now(), &mut effects);
        effects
    };
    let update = json!({ "jsonrpc": "2.0", "method": "session/update", "params": {
        "sessionId": "s1",
        "update": {
            "sessionUpdate": "tool_call", "toolCallId": "mcp_startup.svc.1", "kind": "other",
            "title": "mcp__svc__startup", "status": "failed",
        },
    }});
    let is_working =
        |effects: &Effects| effects.iter().any(|effect| matches!(effect, Effect::Working));
    let mut effects = Effects::new();
    protocol.start(&mut effects);
    let abilities = json!({ "sessionCapabilities": { "resume": {} } });
    let started = json!({ "protocolVersion": 1, "agentCapabilities": abilities });
    say(&mut *protocol, json!({ "jsonrpc": "2.0", "id": 1, "result": started }));
    assert!(!is_working(&say(&mut *protocol, update.clone())), "it is being resumed");
    let effects = say(&mut *protocol, json!({ "jsonrpc": "2.0", "id": 2, "result": {} }));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Ready)));
    assert!(!is_working(&say(&mut *protocol, update.clone())), "nothing was asked yet");
    let input = PromptInput { text: "hi", message_id: "m1" };
    protocol.prompt(&input, &mut Effects::new());
    assert!(is_working(&say(&mut *protocol, update)));
}
