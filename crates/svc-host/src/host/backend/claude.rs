//! Claude Code: JSON lines on its standard input and output.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use svc_model::HARMLESS_TOOLS;
use svc_model::agent::{
    AgentMcpServer, AgentUsage, HistoryEntry, HistoryRole, HostSpec, PermissionMode, RequestKind,
    RequestOption, RequestOptionKind,
};

use super::protocol::{
    AgentProtocol, Decision, Effect, Effects, PromptInput, TurnResult, VendorRequest, call_title,
    option, readable, summary, text_of,
};

/// The id of the request whose response shows that the agent is ready.
const INITIALIZE: &str = "svc-initialize";
const ALLOW: &str = "allow";
const ALLOW_ALWAYS: &str = "allow_always";
const DENY: &str = "deny";
const REMEDY: &str = "; log in with `claude`, or give a key in `env` of the instance";
const QUESTION: &str = "AskUserQuestion";

#[derive(Debug, Default)]
pub(super) struct ClaudeProtocol {
    arguments: Vec<String>,
    /// Open requests, by the vendor's id.
    requests: HashMap<String, Value>,
    /// Names of tools that were called and have no result yet, by the id of the call.
    calls: HashMap<String, String>,
    interrupts: u64,
    interrupted: bool,
    limited: bool,
    last_text: Option<String>,
    /// Total cost of all turns so far, as the vendor reports it.
    cost: f64,
}

impl ClaudeProtocol {
    pub(super) fn new(spec: &HostSpec) -> Self {
        let words = "-p --input-format stream-json --output-format stream-json --verbose \
            --include-partial-messages --permission-prompt-tool stdio";
        let mut arguments: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let mut add = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        if let Some(model) = &spec.model {
            add("--model", model.clone());
        }
        if let Some(session) = &spec.resume {
            add("--resume", session.clone());
        }
        if let Some(text) = &spec.system_prompt {
            add("--append-system-prompt", text.clone());
        }
        if let Some(AgentMcpServer { command, args, env }) = &spec.mcp {
            let svc = json!({ "type": "stdio", "command": command, "args": args, "env": env });
            add("--mcp-config", json!({ "mcpServers": { "svc": svc } }).to_string());
            // Does not allow all of `mcp__svc`: `ToolCall` reaches every tool of every server, so
            // it needs permission.
            let allowed: Vec<String> =
                HARMLESS_TOOLS.iter().map(|tool| format!("mcp__svc__{tool}")).collect();
            add("--settings", json!({ "permissions": { "allow": allowed } }).to_string());
        }
        if spec.permission == PermissionMode::Bypass {
            add("--permission-mode", "bypassPermissions".to_owned());
        }
        Self { arguments, ..Self::default() }
    }

    fn user_line(input: &PromptInput<'_>) -> Effect {
        Effect::write_json(&json!({
            "type": "user",
            "message": { "role": "user", "content": input.text },
            "parent_tool_use_id": null,
            "uuid": uuid_of(input.message_id),
        }))
    }

    fn control_line(id: &str, subtype: &str) -> Effect {
        let request = json!({ "subtype": subtype });
        Effect::write_json(
            &json!({ "type": "control_request", "request_id": id, "request": request }),
        )
    }

    fn system(message: &Value, effects: &mut Effects) {
        match message["subtype"].as_str() {
            Some("init") => {
                if let Some(id) = message["session_id"].as_str() {
                    effects.push(Effect::Session(id.to_owned()));
                }
                // Older versions do not know `initialize`, so this message makes them ready too.
                effects.push(Effect::Ready);
                effects.push(Effect::Working);
            }
            Some("api_retry") => {
                let error = message["error"].as_str().unwrap_or("an error");
                let attempt = &message["attempt"];
                if message["error_status"] == 429 {
                    effects.push(Effect::Limited { until: None });
                }
                effects.push(Effect::Error(format!("attempt {attempt} failed: {error}")));
            }
            _ => {}
        }
    }

    fn assistant(&mut self, message: &Value, effects: &mut Effects) {
        // Texts of the program itself, such as the one about a limit, are not part of a turn.
        if message["message"]["model"] != "<synthetic>" {
            effects.push(Effect::Working);
        }
        let content = &message["message"]["content"];
        if let Some(text) = content.as_str() {
            self.text(text, message, effects);
        }
        for block in content.as_array().into_iter().flatten() {
            match block["type"].as_str() {
                Some("text") => {
                    self.text(block["text"].as_str().unwrap_or_default(), message, effects);
                }
                Some("tool_use") => self.tool_use(block, effects),
                _ => {}
            }
        }
    }

    fn text(&mut self, text: &str, message: &Value, effects: &mut Effects) {
        if text.is_empty() {
            return;
        }
        // The text of a sub-agent is the result of the call that started it.
        if message["parent_tool_use_id"].is_null() {
            self.last_text = Some(text.to_owned());
            // What the program says of a call of the model that failed is no word of the agent:
            // another instance may still take the prompt.
            let entry = if message["error"].is_string() {
                HistoryEntry::error(text)
            } else {
                HistoryEntry::text(HistoryRole::Assistant, text)
            };
            effects.push(Effect::Entry(entry));
        }
    }

    fn tool_use(&mut self, block: &Value, effects: &mut Effects) {
        let name = block["name"].as_str().unwrap_or("tool");
        let id = block["id"].as_str();
        if let Some(id) = id {
            self.calls.insert(id.to_owned(), name.to_owned());
        }
        let (name, input) = (Some(name.to_owned()), &block["input"]);
        effects.push(Effect::tool_call(name, summary(input), input, id));
    }

    fn user(&mut self, message: &Value, effects: &mut Effects) {
        for block in message["message"]["content"].as_array().into_iter().flatten() {
            if block["type"] != "tool_result" {
                continue;
            }
            let id = block["tool_use_id"].as_str().unwrap_or_default();
            let result = text_of(&block["content"]).unwrap_or_default();
            let failed = block["is_error"].as_bool().unwrap_or(false);
            effects.push(Effect::tool_result(self.calls.remove(id), result, id, failed));
        }
    }

    fn control_request(&mut self, message: Value, effects: &mut Effects) {
        let Some(key) = message["request_id"].as_str().map(str::to_owned) else { return };
        let request = &message["request"];
        if request["subtype"] != "can_use_tool" {
            let error = format!("this host does not know {}", request["subtype"]);
            let response = json!({ "subtype": "error", "request_id": key, "error": error });
            let answer = json!({ "type": "control_response", "response": response });
            effects.push(Effect::write_json(&answer));
            return;
        }
        let name = request["tool_name"].as_str().unwrap_or("tool");
        let input = &request["input"];
        let tool = json!({ "name": name, "input": input, "tool_use_id": request["tool_use_id"] });
        let vendor = if name == QUESTION {
            question(key.clone(), input, tool)
        } else {
            let mut options = vec![option(ALLOW, "Allow", RequestOptionKind::AllowOnce)];
            if request["permission_suggestions"].as_array().is_some_and(|list| !list.is_empty()) {
                let name = "Allow, and do not ask again";
                options.push(option(ALLOW_ALWAYS, name, RequestOptionKind::AllowAlways));
            }
            let deny = option(DENY, "Deny", RequestOptionKind::Deny);
            options.push(RequestOption { text: true, ..deny });
            VendorRequest {
                key: key.clone(),
                kind: RequestKind::Permission,
                title: call_title(name, input),
                options,
                tool: Some(tool),
                edits: edits(name, input),
            }
        };
        self.requests.insert(key, message);
        effects.push(Effect::Request(vendor));
    }

    fn result(&mut self, message: &Value, effects: &mut Effects) {
        let usage = &message["usage"];
        let tokens = |names: &[&str]| {
            let known: Vec<u64> = names.iter().filter_map(|name| usage[*name].as_u64()).collect();
            (!known.is_empty()).then(|| known.iter().sum())
        };
        let total = message["total_cost_usd"].as_f64();
        let read = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
        effects.push(Effect::Usage(AgentUsage {
            input_tokens: tokens(&read),
            output_tokens: tokens(&["output_tokens"]),
            // Rounded to micro-dollars.
            cost_usd: total.map(|total| ((total - self.cost).max(0.0) * 1e6).round() / 1e6),
        }));
        self.cost = total.unwrap_or(self.cost);
        let interrupted = std::mem::take(&mut self.interrupted);
        let limited = std::mem::take(&mut self.limited);
        let last = self.last_text.take();
        let text = message["result"].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let end = if message["is_error"] == true && interrupted {
            TurnResult::interrupted()
        } else if message["is_error"] == true {
            let errors = text.clone().or_else(|| text_of(&message["errors"]));
            let error = errors.unwrap_or_else(|| "the turn failed".to_owned());
            let no_login = message["api_error_status"] == 401 || error.contains("Not logged in");
            let error = if no_login { format!("{error}{REMEDY}") } else { error };
            effects.push(Effect::Error(error.clone()));
            if last.as_ref() != Some(&error) {
                effects.push(Effect::Entry(HistoryEntry::error(error.clone())));
            }
            let refused = limited || no_login || message["api_error_status"] == 429;
            TurnResult::refused_if(refused, error)
        } else {
            if let Some(text) = text.as_ref().filter(|text| last.as_ref() != Some(text)) {
                let entry = HistoryEntry::text(HistoryRole::Assistant, text.clone());
                effects.push(Effect::Entry(entry));
            }
            TurnResult::completed(text)
        };
        effects.push(Effect::TurnEnd(end));
    }
}

impl AgentProtocol for ClaudeProtocol {
    fn arguments(&self) -> Vec<String> {
        self.arguments.clone()
    }

    fn start(&mut self, effects: &mut Effects) {
        // The program prints nothing before its first prompt unless it gets a request.
        effects.push(Self::control_line(INITIALIZE, "initialize"));
    }

    fn prompt(&mut self, input: &PromptInput<'_>, effects: &mut Effects) {
        self.interrupted = false;
        effects.push(Self::user_line(input));
    }

    fn steer(&mut self, input: &PromptInput<'_>, effects: &mut Effects) -> bool {
        effects.push(Self::user_line(input));
        true
    }

    fn line(&mut self, line: &[u8], _now: Instant, effects: &mut Effects) {
        let Ok(message) = serde_json::from_str::<Value>(&readable(line)) else { return };
        match message["type"].as_str() {
            Some("system") => Self::system(&message, effects),
            Some("assistant") => self.assistant(&message, effects),
            Some("stream_event") if message["event"]["type"] == "message_start" => {
                effects.push(Effect::Working);
            }
            // The text of a sub-agent is the result of the call that started it.
            Some("stream_event") if message["parent_tool_use_id"].is_null() => {
                let delta = &message["event"]["delta"];
                if delta["type"] == "text_delta" {
                    effects.extend(delta["text"].as_str().map(|it| Effect::Delta(it.to_owned())));
                }
            }
            Some("user") => self.user(&message, effects),
            Some("rate_limit_event") => {
                let info = &message["rate_limit_info"];
                if info["status"] == "rejected" {
                    self.limited = true;
                    let until = info["resetsAt"].as_i64().map(|seconds| seconds * 1000);
                    effects.push(Effect::Limited { until });
                }
            }
            Some("control_request") => self.control_request(message, effects),
            Some("control_cancel_request") => {
                if let Some(key) = message["request_id"].as_str() {
                    self.requests.remove(key);
                    effects.push(Effect::RequestGone(key.to_owned()));
                }
            }
            Some("control_response") if message["response"]["request_id"] == INITIALIZE => {
                effects.push(if is_logged_out(&message["response"]["response"]["account"]) {
                    Effect::Fatal(format!("Claude Code is not logged in{REMEDY}"))
                } else {
                    Effect::Ready
                });
            }
            Some("result") => self.result(&message, effects),
            _ => {}
        }
    }

    fn interrupt(&mut self, effects: &mut Effects) {
        self.interrupted = true;
        self.interrupts += 1;
        let id = format!("svc-interrupt-{}", self.interrupts);
        effects.push(Self::control_line(&id, "interrupt"));
    }

    fn answer(&mut self, key: &str, decision: &Decision, effects: &mut Effects) {
        let Some(message) = self.requests.remove(key) else { return };
        let request = &message["request"];
        let is_question = request["tool_name"] == QUESTION;
        let answer = match decision {
            Decision::Option { option_id, .. } if is_question && option_id != DENY => {
                answered(&request["input"], option_id)
            }
            Decision::Text(text) => answered(&request["input"], text),
            Decision::Option { option_id, .. } if option_id == ALLOW => {
                json!({ "behavior": "allow", "updatedInput": request["input"] })
            }
            Decision::Option { option_id, .. } if option_id == ALLOW_ALWAYS => {
                json!({ "behavior": "allow", "updatedInput": request["input"],
                    "updatedPermissions": request["permission_suggestions"] })
            }
            Decision::Option { text, .. } => {
                let usual = if is_question { "nobody wants to answer" } else { "denied" };
                json!({ "behavior": "deny", "message": text.as_deref().unwrap_or(usual) })
            }
            Decision::Denied(reason) => json!({ "behavior": "deny", "message": reason }),
            Decision::Cancelled => json!({ "behavior": "deny", "message": "the turn was ended" }),
        };
        let response = json!({ "subtype": "success", "request_id": key, "response": answer });
        let line = json!({ "type": "control_response", "response": response });
        effects.push(Effect::write_json(&line));
    }
}

/// Whether the program reports neither a login nor a key for the vendor's own service.
fn is_logged_out(account: &Value) -> bool {
    account["tokenSource"] == "none"
        && account["apiKeySource"].as_str().is_none_or(|source| source == "none")
        && account["apiProvider"] == "firstParty"
}

/// Deterministic UUID of the message id: Claude ignores a prompt whose UUID it has seen.
fn uuid_of(message_id: &str) -> String {
    let digest = Sha256::digest(message_id.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()
}

/// The files that a call edits; `None` if it does anything else.
fn edits(name: &str, input: &Value) -> Option<Vec<PathBuf>> {
    let member = match name {
        "Edit" | "Write" | "MultiEdit" => "file_path",
        "NotebookEdit" => "notebook_path",
        _ => return None,
    };
    Some(vec![PathBuf::from(input[member].as_str()?)])
}

/// A request for the model's questions. A single question offers its answers as options; several
/// questions have no options.
fn question(key: String, input: &Value, tool: Value) -> VendorRequest {
    let questions = input["questions"].as_array().cloned().unwrap_or_default();
    let texts: Vec<_> = questions.iter().filter_map(|it| it["question"].as_str()).collect();
    let mut options = Vec::new();
    if let [only] = &questions[..] {
        for offered in only["options"].as_array().into_iter().flatten() {
            if let Some(label) = offered["label"].as_str() {
                options.push(option(label, label, RequestOptionKind::Choice));
            }
        }
    }
    let deny = option(DENY, "Do not answer", RequestOptionKind::Deny);
    options.push(RequestOption { text: true, ..deny });
    VendorRequest {
        key,
        kind: RequestKind::Question,
        title: texts.join(" "),
        options,
        tool: Some(tool),
        edits: None,
    }
}

/// The response to the model's questions. If there are several, each gets the same answer.
fn answered(input: &Value, answer: &str) -> Value {
    let mut updated = input.clone();
    let questions = input["questions"].as_array().cloned().unwrap_or_default();
    let answers: serde_json::Map<String, Value> = questions
        .iter()
        .filter_map(|it| Some((it["question"].as_str()?.to_owned(), json!(answer))))
        .collect();
    updated["answers"] = Value::Object(answers);
    json!({ "behavior": "allow", "updatedInput": updated })
}
