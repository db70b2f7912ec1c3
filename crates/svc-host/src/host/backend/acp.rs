//! Agents that speak version 1 of the Agent Client Protocol: Gemini CLI, `OpenCode`, and any other
//! agent by its command.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use svc_model::agent::{
    AgentBackend, AgentMcpServer, AgentUsage, HistoryEntry, HistoryRole, HostSpec, PermissionMode,
    RequestKind, RequestOptionKind, TurnOutcome,
};

use super::protocol::{
    AgentProtocol, Decision, Effect, Effects, PromptInput, RpcFailure, RpcMessage, RpcPeer,
    RpcResult, TurnResult, VendorRequest, call_title, option, summary, text_of,
};

/// How long to wait for updates after the response that ends a turn.
const AFTERMATH: Duration = Duration::from_millis(150);
/// Error code that asks for a login.
const AUTH_REQUIRED: i64 = -32000;
/// Longest output of a call's terminal that is kept, in bytes.
const MAX_TERMINAL: usize = 1024 * 1024;

/// The purpose of a call that this host made.
#[derive(Debug)]
enum AcpPurpose {
    Initialize,
    New,
    Resume(String),
    Prompt,
}

#[derive(Debug)]
pub(super) struct AcpProtocol {
    rpc: RpcPeer<AcpPurpose>,
    backend: AgentBackend,
    arguments: Vec<String>,
    cwd: String,
    mcp: Option<AgentMcpServer>,
    resume: Option<String>,
    /// The system prompt. The protocol has no field for it, so it precedes the first prompt.
    preface: Option<String>,
    session: Option<String>,
    /// True from a prompt to the end of its turn. Updates at other times begin no turn: those of a
    /// loaded session repeat the past, and `codex-acp` reports servers that it did not start.
    has_turn: bool,
    text: String,
    last_text: Option<String>,
    calls: HashMap<String, AcpToolCall>,
    requests: HashMap<String, AcpWaitingCall>,
    cost: Option<f64>,
    reported_cost: f64,
    /// The end of the turn, which is applied after [`AFTERMATH`].
    ending: Option<(Vec<Effect>, TurnResult)>,
    end_at: Option<Instant>,
}

#[derive(Debug, Default)]
struct AcpToolCall {
    name: Option<String>,
    title: Option<String>,
    input: Value,
    content: Value,
    /// The output of the call's terminal, which some adapters send beside the content.
    terminal: String,
    is_recorded: bool,
}

#[derive(Debug)]
struct AcpWaitingCall {
    id: Value,
    reject: Option<String>,
}

impl AcpProtocol {
    pub(super) fn new(spec: &HostSpec) -> Self {
        let mut arguments = Vec::new();
        match spec.backend {
            AgentBackend::Gemini => {
                arguments.push("--acp".to_owned());
                if let Some(model) = &spec.model {
                    arguments.extend(["-m".to_owned(), model.clone()]);
                }
                if spec.permission == PermissionMode::Bypass {
                    arguments.extend(["--approval-mode", "yolo"].map(str::to_owned));
                }
            }
            AgentBackend::OpenCode => arguments.push("acp".to_owned()),
            _ => {}
        }
        Self {
            rpc: RpcPeer::with_version(),
            backend: spec.backend,
            arguments,
            cwd: spec.cwd.display().to_string(),
            mcp: spec.mcp.clone(),
            resume: spec.resume.clone(),
            preface: spec.system_prompt.clone().filter(|_| spec.resume.is_none()),
            session: None,
            has_turn: false,
            text: String::new(),
            last_text: None,
            calls: HashMap::new(),
            requests: HashMap::new(),
            cost: None,
            reported_cost: 0.0,
            ending: None,
            end_at: None,
        }
    }

    fn open(&mut self, abilities: &Value, effects: &mut Effects) {
        let mut servers = Vec::new();
        if let Some(AgentMcpServer { command, args, env }) = &self.mcp {
            let env: Vec<Value> =
                env.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
            servers.push(json!({ "name": "svc", "command": command, "args": args, "env": env }));
        }
        let mut params = json!({ "cwd": self.cwd, "mcpServers": servers });
        let Some(session) = self.resume.clone() else {
            self.rpc.call(AcpPurpose::New, "session/new", &params, effects);
            return;
        };
        params["sessionId"] = json!(session);
        let method = if abilities["sessionCapabilities"]["resume"].is_object() {
            "session/resume"
        } else if abilities["loadSession"] == true {
            "session/load"
        } else {
            let fault = "this agent cannot resume a conversation; start one without a session";
            effects.push(Effect::Fatal(fault.to_owned()));
            return;
        };
        self.rpc.call(AcpPurpose::Resume(session), method, &params, effects);
    }

    fn answered(
        &mut self,
        purpose: AcpPurpose,
        answer: RpcResult,
        now: Instant,
        effects: &mut Effects,
    ) {
        match (purpose, answer) {
            (AcpPurpose::Initialize, Ok(result)) => {
                if result["protocolVersion"] != 1 {
                    let version = &result["protocolVersion"];
                    effects.push(Effect::Fatal(format!(
                        "the agent speaks version {version} of the protocol, this host version 1"
                    )));
                    return;
                }
                self.open(&result["agentCapabilities"], effects);
            }
            (AcpPurpose::New, Ok(result)) => match result["sessionId"].as_str() {
                Some(session) => self.opened(session.to_owned(), effects),
                None => effects.push(Effect::Fatal("the agent gave no session".to_owned())),
            },
            (AcpPurpose::Resume(session), Ok(_)) => self.opened(session, effects),
            (AcpPurpose::Prompt, answer) => self.turn_answered(answer, now, effects),
            (_, Err(failure)) => {
                let fault = format!("the agent refused to begin: {}", failure.message);
                effects.push(Effect::Fatal(with_remedy(self.backend, &failure, fault)));
            }
        }
    }

    fn opened(&mut self, session: String, effects: &mut Effects) {
        effects.push(Effect::Session(session.clone()));
        self.session = Some(session);
        effects.push(Effect::Ready);
    }

    fn turn_answered(&mut self, answer: RpcResult, now: Instant, effects: &mut Effects) {
        let mut before = Vec::new();
        let end = match answer {
            Ok(result) => {
                before.extend(self.usage(&result).map(Effect::Usage));
                match result["stopReason"].as_str() {
                    Some("cancelled") => TurnResult::interrupted(),
                    Some("end_turn") | None => TurnResult::completed(None),
                    Some(reason) => TurnResult::failed(format!("the turn ended: {reason}")),
                }
            }
            Err(failure) => {
                let limited = is_limit(&failure);
                if limited {
                    before.push(Effect::Limited { until: None });
                }
                let no_login = failure.code == AUTH_REQUIRED || failure.code == 401;
                let error = with_remedy(self.backend, &failure, message_of(&failure));
                before.push(Effect::Error(error.clone()));
                before.push(Effect::Entry(HistoryEntry::error(error.clone())));
                TurnResult::refused_if(limited || no_login, error)
            }
        };
        // Reports the beginning of a turn that had no text.
        if !before.iter().any(|effect| matches!(effect, Effect::Limited { .. })) {
            effects.push(Effect::Working);
        }
        self.ending = Some((before, end));
        self.end_at = Some(now + AFTERMATH);
    }

    fn usage(&mut self, result: &Value) -> Option<AgentUsage> {
        let plain = &result["usage"];
        let quota = &result["_meta"]["quota"]["token_count"];
        let tokens = |name: &str, other: &str| plain[name].as_u64().or(quota[other].as_u64());
        let cost = self.cost.map(|cost| {
            let turn = (cost - self.reported_cost).max(0.0);
            (turn * 1e6).round() / 1e6
        });
        self.reported_cost = self.cost.unwrap_or(self.reported_cost);
        let usage = AgentUsage {
            input_tokens: tokens("inputTokens", "input_tokens"),
            output_tokens: tokens("outputTokens", "output_tokens"),
            cost_usd: cost,
        };
        (usage != AgentUsage::default()).then_some(usage)
    }

    fn update(&mut self, update: &Value, effects: &mut Effects) {
        match update["sessionUpdate"].as_str() {
            Some("usage_update") => {
                self.cost = update["cost"]["amount"].as_f64().or(self.cost);
            }
            _ if !self.has_turn => {}
            Some("agent_message_chunk") => {
                effects.push(Effect::Working);
                self.add_text(&text_of(&update["content"]).unwrap_or_default(), effects);
            }
            Some("agent_thought_chunk" | "plan") => effects.push(Effect::Working),
            Some("tool_call" | "tool_call_update") => {
                effects.push(Effect::Working);
                self.tool(update, effects);
            }
            _ => {}
        }
    }

    /// An update adds to a call. The call is recorded when it starts to run, and its result when it
    /// ends.
    fn tool(&mut self, update: &Value, effects: &mut Effects) {
        let Some(id) = update["toolCallId"].as_str() else { return };
        self.learn(id, update);
        let status = update["status"].as_str();
        let ended = matches!(status, Some("completed" | "failed"));
        if ended || status == Some("in_progress") {
            self.record_call(id, effects);
        }
        if !ended {
            return;
        }
        let Some(call) = self.calls.remove(id) else { return };
        let raw = &update["rawOutput"];
        let texts = [&update["content"], raw, &raw["output"], &call.content];
        let shown = Some(call.terminal).filter(|shown| !shown.is_empty());
        let text = shown.or_else(|| texts.into_iter().find_map(text_of));
        let other = || if raw.is_null() { String::new() } else { raw.to_string() };
        let (name, result) = (call.name.or(call.title), text.unwrap_or_else(other));
        effects.push(Effect::tool_result(name, result, id, status == Some("failed")));
    }

    fn learn(&mut self, id: &str, update: &Value) {
        let call = self.calls.entry(id.to_owned()).or_default();
        let name = update["name"].as_str().or(update["kind"].as_str());
        call.name = call.name.take().or(name.map(str::to_owned));
        if let Some(title) = update["title"].as_str() {
            call.title = Some(title.to_owned());
        }
        if update["rawInput"].as_object().is_some_and(|input| !input.is_empty()) {
            call.input = update["rawInput"].clone();
        }
        // Before the call runs, the content is a preview.
        if update["status"] == "in_progress" && update["content"].is_array() {
            call.content = update["content"].clone();
        }
        for part in ["terminal_output", "terminal_output_delta"] {
            if let Some(shown) = update["_meta"][part]["data"].as_str() {
                let room = MAX_TERMINAL.saturating_sub(call.terminal.len());
                call.terminal.push_str(&shown[..shown.floor_char_boundary(room)]);
            }
        }
    }

    fn record_call(&mut self, id: &str, effects: &mut Effects) {
        self.flush(effects);
        let Some(call) = self.calls.get_mut(id).filter(|call| !call.is_recorded) else { return };
        call.is_recorded = true;
        let title = call.title.clone();
        let input =
            if call.input.is_null() { json!({ "title": title }) } else { call.input.clone() };
        let name = call.name.clone().or(title.clone());
        let summary = title.unwrap_or_else(|| summary(&input));
        effects.push(Effect::tool_call(name, summary, &input, Some(id)));
    }

    /// Adds to the text of the next entry. Leading whitespace waits for further text.
    fn add_text(&mut self, text: &str, effects: &mut Effects) {
        let was_blank = self.text.trim().is_empty();
        self.text.push_str(text);
        if !was_blank {
            effects.push(Effect::Delta(text.to_owned()));
        } else if !self.text.trim().is_empty() {
            effects.push(Effect::Delta(self.text.clone()));
        }
    }

    /// Records the text so far as an entry.
    fn flush(&mut self, effects: &mut Effects) {
        let text = std::mem::take(&mut self.text);
        if !text.trim().is_empty() {
            self.last_text = Some(text.clone());
            effects.push(Effect::Entry(HistoryEntry::text(HistoryRole::Assistant, text)));
        }
    }

    fn asked(&mut self, id: &Value, method: &str, params: &Value, effects: &mut Effects) {
        if method != "session/request_permission" {
            self.rpc.refuse(id, method, effects);
            return;
        }
        let key = id.to_string();
        let call = &params["toolCall"];
        let call_id = call["toolCallId"].as_str().unwrap_or_default();
        self.learn(call_id, call);
        self.record_call(call_id, effects);
        let known = self.calls.get(call_id);
        let name = known.and_then(|call| call.name.clone()).unwrap_or_else(|| "tool".to_owned());
        let input = known.map_or(Value::Null, |call| call.input.clone());
        let title = call["title"].as_str().map_or_else(|| call_title(&name, &input), str::to_owned);
        let options: Vec<_> = params["options"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|offered| {
                let id = offered["optionId"].as_str()?;
                let kind = match offered["kind"].as_str()? {
                    "allow_once" => RequestOptionKind::AllowOnce,
                    "allow_always" => RequestOptionKind::AllowAlways,
                    "reject_once" | "reject_always" => RequestOptionKind::Deny,
                    _ => RequestOptionKind::Choice,
                };
                Some(option(id, offered["name"].as_str().unwrap_or(id), kind))
            })
            .collect();
        let mut rejects = options.iter().filter(|it| it.kind == RequestOptionKind::Deny);
        let reject = rejects.next().map(|option| option.option_id.clone());
        self.requests.insert(key.clone(), AcpWaitingCall { id: id.clone(), reject });
        effects.push(Effect::Request(VendorRequest {
            key,
            kind: RequestKind::Permission,
            title,
            options,
            tool: Some(json!({ "name": name, "input": input, "tool_use_id": call_id })),
            edits: edits(call),
        }));
    }

    fn finish(&mut self, effects: &mut Effects) {
        self.end_at = None;
        let Some((before, mut end)) = self.ending.take() else { return };
        self.has_turn = false;
        self.flush(effects);
        self.calls.clear();
        effects.extend(before);
        if end.outcome == TurnOutcome::Completed {
            end.result = self.last_text.take();
        }
        effects.push(Effect::TurnEnd(end));
    }
}

impl AgentProtocol for AcpProtocol {
    fn arguments(&self) -> Vec<String> {
        self.arguments.clone()
    }

    fn environment(&self) -> Vec<(String, String)> {
        if self.backend != AgentBackend::OpenCode {
            return Vec::new();
        }
        // The server listens on a port and serves every user of the machine unless it has a
        // password.
        let password = svc_model::new_secret();
        vec![("OPENCODE_SERVER_PASSWORD".to_owned(), password)]
    }

    fn start(&mut self, effects: &mut Effects) {
        let files = json!({ "readTextFile": false, "writeTextFile": false });
        let params = json!({
            "protocolVersion": 1,
            "clientCapabilities": { "fs": files, "terminal": false },
            "clientInfo": { "name": "svc", "title": "svc", "version": env!("CARGO_PKG_VERSION") },
        });
        self.rpc.call(AcpPurpose::Initialize, "initialize", &params, effects);
    }

    fn prompt(&mut self, input: &PromptInput<'_>, effects: &mut Effects) {
        (self.last_text, self.has_turn) = (None, true);
        let text = match self.preface.take() {
            Some(preface) => format!("{preface}\n\n{}", input.text),
            None => input.text.to_owned(),
        };
        let prompt = json!([{ "type": "text", "text": text }]);
        let params = json!({ "sessionId": self.session, "prompt": prompt });
        self.rpc.call(AcpPurpose::Prompt, "session/prompt", &params, effects);
    }

    fn steer(&mut self, _input: &PromptInput<'_>, _effects: &mut Effects) -> bool {
        // In some agents a second prompt would cancel the first.
        false
    }

    fn line(&mut self, line: &[u8], now: Instant, effects: &mut Effects) {
        match self.rpc.read(line) {
            Some(RpcMessage::Answer(purpose, answer)) => {
                self.answered(purpose, answer, now, effects);
            }
            Some(RpcMessage::Notice(method, params)) if method == "session/update" => {
                self.update(&params["update"], effects);
            }
            Some(RpcMessage::Call(id, method, params)) => {
                self.asked(&id, &method, &params, effects);
            }
            Some(RpcMessage::Notice(..)) | None => {}
        }
    }

    fn interrupt(&mut self, effects: &mut Effects) {
        self.rpc.notify("session/cancel", &json!({ "sessionId": self.session }), effects);
    }

    fn answer(&mut self, key: &str, decision: &Decision, effects: &mut Effects) {
        let Some(AcpWaitingCall { id, reject }) = self.requests.remove(key) else { return };
        let chosen = match decision {
            Decision::Option { option_id, .. } => Some(option_id.clone()),
            Decision::Text(_) | Decision::Denied(_) => reject,
            Decision::Cancelled => None,
        };
        let outcome = match chosen {
            Some(option) => json!({ "outcome": "selected", "optionId": option }),
            None => json!({ "outcome": "cancelled" }),
        };
        self.rpc.answer(&id, &json!({ "outcome": outcome }), effects);
    }

    fn end(&mut self, _exit_code: Option<i32>, effects: &mut Effects) {
        self.finish(effects);
        self.flush(effects);
    }

    fn deadline(&self) -> Option<Instant> {
        self.end_at
    }

    fn tick(&mut self, effects: &mut Effects) {
        self.finish(effects);
    }
}

fn is_limit(failure: &RpcFailure) -> bool {
    let kind = failure.data["errorKind"].as_str().unwrap_or_default();
    let codex_limit = failure.data["codexErrorInfo"] == "usageLimitExceeded";
    failure.code == 429 || codex_limit || matches!(kind, "rate_limit" | "usage_limit")
}

/// The message of a failure; some agents put it only into the data.
fn message_of(failure: &RpcFailure) -> String {
    let said = failure.data["message"].as_str().filter(|_| failure.message == "Internal error");
    said.unwrap_or(&failure.message).to_owned()
}

fn with_remedy(backend: AgentBackend, failure: &RpcFailure, error: String) -> String {
    if failure.code != AUTH_REQUIRED && failure.code != 401 {
        return error;
    }
    let program = backend.program().unwrap_or("the agent's own program");
    format!("{error}; log in with {program}, or give a key in `env` of the instance")
}

/// The files that a call edits; `None` if it does anything else.
fn edits(call: &Value) -> Option<Vec<PathBuf>> {
    if call["kind"] != "edit" {
        return None;
    }
    let located = call["locations"].as_array().into_iter().flatten();
    let changed = call["content"].as_array().into_iter().flatten();
    let files = located.chain(changed).filter_map(|part| part["path"].as_str());
    Some(files.map(PathBuf::from).collect())
}
