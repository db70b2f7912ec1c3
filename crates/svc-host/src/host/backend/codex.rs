//! Codex through its app-server: JSON-RPC over lines.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};
use svc_model::agent::{
    AgentMcpServer, AgentUsage, HistoryEntry, HistoryRole, HostSpec, PermissionMode, RequestKind,
    RequestOptionKind,
};

use super::protocol::{
    AgentProtocol, Decision, Effect, Effects, PromptInput, RpcMessage, RpcPeer, RpcResult,
    TurnResult, VendorRequest, call_title, option, summary, text_of,
};

const ACCEPT: &str = "accept";
const ACCEPT_ALWAYS: &str = "acceptForSession";
const DECLINE: &str = "decline";
const REMEDY: &str = "; log in with `codex login`, with a key by `codex login --with-api-key`";
/// Kinds of items that are not tool calls.
const NO_CALLS: [&str; 6] =
    ["userMessage", "agentMessage", "reasoning", "plan", "contextCompaction", "hookPrompt"];
/// Members of an item that are not part of its call's input.
const BOOKKEEPING: [&str; 9] = [
    "id",
    "type",
    "status",
    "startedAtMs",
    "completedAtMs",
    "durationMs",
    "aggregatedOutput",
    "exitCode",
    "processId",
];

/// The purpose of a call that this host made.
#[derive(Debug)]
enum CodexPurpose {
    Initialize,
    Account,
    Thread,
    Turn,
    Other,
}

#[derive(Debug, Default)]
pub(super) struct CodexProtocol {
    rpc: RpcPeer<CodexPurpose>,
    /// Parameters of `thread/start`; `thread/resume` takes them plus the thread.
    settings: Value,
    resume: Option<String>,
    thread: Option<String>,
    /// Codex has reported a login, or cannot report one.
    is_account_known: bool,
    turn: Option<String>,
    /// Interrupt the turn once its id is known.
    interrupt_pending: bool,
    /// Items that have begun, by id.
    items: HashMap<String, Value>,
    /// Requests by Codex that are open, by key.
    requests: HashMap<String, CodexWaitingCall>,
    usage: Option<AgentUsage>,
    limited: bool,
    /// When the limit ends, in Unix milliseconds, if the vendor reports it.
    limit_ends: Option<i64>,
    last_text: Option<String>,
}

#[derive(Debug)]
struct CodexWaitingCall {
    id: Value,
    /// Whether the answer has the form of an MCP elicitation.
    is_elicitation: bool,
}

impl CodexProtocol {
    pub(super) fn new(spec: &HostSpec) -> Self {
        let bypass = spec.permission == PermissionMode::Bypass;
        let (policy, sandbox) =
            if bypass { ("never", "danger-full-access") } else { ("untrusted", "workspace-write") };
        let mut settings = json!({
            "cwd": spec.cwd.display().to_string(),
            "approvalPolicy": policy,
            "sandbox": sandbox,
        });
        if let Some(model) = &spec.model {
            settings["model"] = json!(model);
        }
        if let Some(text) = &spec.system_prompt {
            settings["developerInstructions"] = json!(text);
        }
        if let Some(AgentMcpServer { command, args, env }) = &spec.mcp {
            // Codex merges this with the person's own entry `svc`, if that is a program too.
            let svc = json!({ "command": command, "args": args, "env": env, "enabled": true,
                "default_tools_approval_mode": "approve" });
            settings["config"] = json!({ "mcp_servers": { "svc": svc } });
        }
        Self { settings, resume: spec.resume.clone(), ..Self::default() }
    }

    fn begin_thread(&mut self, effects: &mut Effects) {
        let mut settings = self.settings.clone();
        let method = match &self.resume {
            Some(thread) => {
                settings["threadId"] = json!(thread);
                "thread/resume"
            }
            None => "thread/start",
        };
        self.rpc.call(CodexPurpose::Thread, method, &settings, effects);
    }

    fn answered(&mut self, purpose: &CodexPurpose, answer: RpcResult, effects: &mut Effects) {
        match (purpose, answer) {
            (CodexPurpose::Initialize, Ok(_)) => {
                self.rpc.notify("initialized", &json!({}), effects);
                self.begin_thread(effects);
                let cached = json!({ "refreshToken": false });
                self.rpc.call_as(0, CodexPurpose::Account, "account/read", &cached, effects);
            }
            (CodexPurpose::Account, Ok(result)) if is_logged_out(&result) => {
                effects.push(Effect::Fatal(format!("Codex is not logged in{REMEDY}")));
            }
            // Versions that do not know `account/read` become ready too.
            (CodexPurpose::Account, _) => {
                self.is_account_known = true;
                self.become_ready(effects);
            }
            (CodexPurpose::Thread, Ok(result)) => {
                let id = result["thread"]["id"].as_str().map(str::to_owned);
                effects.extend(id.clone().map(Effect::Session));
                self.thread = id;
                self.become_ready(effects);
            }
            (CodexPurpose::Initialize | CodexPurpose::Thread, Err(failure)) => {
                effects.push(Effect::Fatal(format!("Codex refused to begin: {}", failure.message)));
            }
            (CodexPurpose::Turn, Ok(result)) => {
                self.turn = result["turn"]["id"].as_str().map(str::to_owned);
                if std::mem::take(&mut self.interrupt_pending) {
                    self.interrupt(effects);
                }
            }
            (CodexPurpose::Turn, Err(failure)) => {
                Self::fail(failure.message, false, effects);
            }
            (CodexPurpose::Other, _) => {}
        }
    }

    /// Reports that the agent is ready once the thread and the account are known.
    fn become_ready(&self, effects: &mut Effects) {
        if self.thread.is_some() && self.is_account_known {
            effects.push(Effect::Ready);
        }
    }

    fn notice(&mut self, method: &str, params: &Value, effects: &mut Effects) {
        match method {
            "turn/started" => {
                self.turn = params["turn"]["id"].as_str().map(str::to_owned);
                self.usage = None;
                effects.push(Effect::Working);
            }
            "item/started" => {
                effects.push(Effect::Working);
                self.item_started(&params["item"], effects);
            }
            "item/agentMessage/delta" => {
                effects.extend(params["delta"].as_str().map(|it| Effect::Delta(it.to_owned())));
            }
            "item/completed" => self.item_completed(&params["item"], effects),
            "thread/tokenUsage/updated" if params["turnId"].as_str() == self.turn.as_deref() => {
                let last = &params["tokenUsage"]["last"];
                let usage = self.usage.get_or_insert_default();
                let add = |sum: &mut Option<u64>, more: &Value| {
                    *sum = more.as_u64().map(|more| sum.unwrap_or(0) + more).or(*sum);
                };
                add(&mut usage.input_tokens, &last["inputTokens"]);
                add(&mut usage.output_tokens, &last["outputTokens"]);
            }
            "account/rateLimits/updated" => {
                let limits = &params["rateLimits"];
                let reached = !limits["rateLimitReachedType"].is_null();
                let ends = [&limits["primary"], &limits["secondary"]]
                    .into_iter()
                    .filter_map(|limit| limit["resetsAt"].as_i64())
                    .max();
                self.limit_ends = ends.filter(|_| reached).map(|seconds| seconds * 1000);
            }
            "error" => {
                let message = params["error"]["message"].as_str().unwrap_or("an error");
                let info = &params["error"]["codexErrorInfo"];
                if is_limit(info) {
                    self.limited = true;
                    effects.push(Effect::Limited { until: self.limit_ends });
                }
                effects.push(Effect::Error(message.to_owned()));
            }
            "serverRequest/resolved" => {
                let key = params["requestId"].to_string();
                if self.requests.remove(&key).is_some() {
                    effects.push(Effect::RequestGone(key));
                }
            }
            "turn/completed" => self.turn_completed(&params["turn"], effects),
            _ => {}
        }
    }

    fn item_started(&mut self, item: &Value, effects: &mut Effects) {
        let (Some(id), Some(kind)) = (item["id"].as_str(), item["type"].as_str()) else { return };
        if NO_CALLS.contains(&kind) {
            return;
        }
        self.items.insert(id.to_owned(), item.clone());
        let (name, input) = call_of(item);
        effects.push(Effect::tool_call(Some(name), summary(&input), &input, Some(id)));
    }

    fn item_completed(&mut self, item: &Value, effects: &mut Effects) {
        let (Some(id), Some(kind)) = (item["id"].as_str(), item["type"].as_str()) else { return };
        if kind == "agentMessage" {
            if let Some(text) = item["text"].as_str().filter(|text| !text.is_empty()) {
                self.last_text = Some(text.to_owned());
                effects.push(Effect::Entry(HistoryEntry::text(HistoryRole::Assistant, text)));
            }
            return;
        }
        if NO_CALLS.contains(&kind) {
            return;
        }
        if self.items.remove(id).is_none() {
            self.item_started(item, effects);
            self.items.remove(id);
        }
        let failed = matches!(item["status"].as_str(), Some("failed" | "declined"))
            || item["exitCode"].as_i64().is_some_and(|code| code != 0);
        let texts =
            [&item["aggregatedOutput"], &item["result"]["content"], &item["error"]["message"]];
        let text = texts.into_iter().find_map(text_of);
        let status = || item["status"].as_str().unwrap_or_default().to_owned();
        let result = text.unwrap_or_else(status);
        effects.push(Effect::tool_result(Some(call_of(item).0), result, id, failed));
    }

    fn turn_completed(&mut self, turn: &Value, effects: &mut Effects) {
        self.turn = None;
        self.interrupt_pending = false;
        self.items.clear();
        if let Some(usage) = self.usage.take() {
            effects.push(Effect::Usage(usage));
        }
        let text = self.last_text.take();
        match turn["status"].as_str() {
            Some("interrupted") => {
                self.limited = false;
                effects.push(Effect::TurnEnd(TurnResult::interrupted()));
            }
            Some("failed") => {
                let error = &turn["error"];
                let message = error["message"].as_str().unwrap_or("the turn failed");
                let limited =
                    std::mem::take(&mut self.limited) || is_limit(&error["codexErrorInfo"]);
                let info = &error["codexErrorInfo"];
                let no_login = *info == "unauthorized"
                    || info["httpConnectionFailed"]["httpStatusCode"] == 401;
                let remedy = if no_login { REMEDY } else { "" };
                Self::fail(format!("{message}{remedy}"), limited || no_login, effects);
            }
            _ => {
                self.limited = false;
                effects.push(Effect::TurnEnd(TurnResult::completed(text)));
            }
        }
    }

    fn fail(error: String, refused: bool, effects: &mut Effects) {
        effects.push(Effect::Entry(HistoryEntry::error(error.clone())));
        effects.push(Effect::TurnEnd(TurnResult::refused_if(refused, error)));
    }

    fn asked(&mut self, id: &Value, method: &str, params: &Value, effects: &mut Effects) {
        let key = id.to_string();
        let item = params["itemId"].as_str().and_then(|id| self.items.get(id));
        let (mut edits, mut title) = (None, None);
        let (name, input) = match method {
            "item/commandExecution/requestApproval" => {
                let input = json!({ "command": params["command"], "cwd": params["cwd"] });
                ("command".to_owned(), input)
            }
            "item/fileChange/requestApproval" => {
                let changes = item.map_or(Value::Null, |item| item["changes"].clone());
                let files: Vec<PathBuf> = changes
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(|change| change["path"].as_str().map(PathBuf::from))
                    .collect();
                let names: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
                title = Some(format!("change {}", names.join(", ")));
                // A request for a writable root covers more than these files, so it is not an edit.
                edits = params["grantRoot"].is_null().then_some(files);
                ("change".to_owned(), json!({ "changes": changes }))
            }
            "mcpServer/elicitation/request"
                if params["_meta"]["codex_approval_kind"] == "mcp_tool_call" =>
            {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let (server, tool) =
                    (text(&params["serverName"]), text(&params["_meta"]["tool_name"]));
                (format!("mcp__{server}__{tool}"), params["_meta"]["tool_params"].clone())
            }
            _ => {
                self.rpc.refuse(id, method, effects);
                return;
            }
        };
        let title = title.unwrap_or_else(|| call_title(&name, &input));
        let tool = Some(json!({ "name": name, "input": input }));
        let is_elicitation = method == "mcpServer/elicitation/request";
        let mut options = vec![option(ACCEPT, "Allow", RequestOptionKind::AllowOnce)];
        if !is_elicitation {
            let name = "Allow, and do not ask again in this session";
            options.push(option(ACCEPT_ALWAYS, name, RequestOptionKind::AllowAlways));
        }
        options.push(option(DECLINE, "Deny", RequestOptionKind::Deny));
        self.requests.insert(key.clone(), CodexWaitingCall { id: id.clone(), is_elicitation });
        let kind = RequestKind::Permission;
        effects.push(Effect::Request(VendorRequest { key, kind, title, options, tool, edits }));
    }
}

impl AgentProtocol for CodexProtocol {
    fn arguments(&self) -> Vec<String> {
        vec!["app-server".to_owned()]
    }

    fn start(&mut self, effects: &mut Effects) {
        let info = json!({ "name": "svc", "title": "svc", "version": env!("CARGO_PKG_VERSION") });
        let params = json!({ "clientInfo": info, "capabilities": { "experimentalApi": false } });
        self.rpc.call(CodexPurpose::Initialize, "initialize", &params, effects);
    }

    fn prompt(&mut self, input: &PromptInput<'_>, effects: &mut Effects) {
        self.last_text = None;
        let params = json!({
            "threadId": self.thread,
            "input": [{ "type": "text", "text": input.text }],
            "clientUserMessageId": input.message_id,
        });
        self.rpc.call(CodexPurpose::Turn, "turn/start", &params, effects);
    }

    fn steer(&mut self, input: &PromptInput<'_>, effects: &mut Effects) -> bool {
        let Some(turn) = &self.turn else { return false };
        let params = json!({
            "threadId": self.thread,
            "expectedTurnId": turn,
            "input": [{ "type": "text", "text": input.text }],
        });
        self.rpc.call(CodexPurpose::Other, "turn/steer", &params, effects);
        true
    }

    fn line(&mut self, line: &[u8], _now: Instant, effects: &mut Effects) {
        match self.rpc.read(line) {
            Some(RpcMessage::Answer(purpose, answer)) => self.answered(&purpose, answer, effects),
            Some(RpcMessage::Notice(method, params)) => self.notice(&method, &params, effects),
            Some(RpcMessage::Call(id, method, params)) => {
                self.asked(&id, &method, &params, effects);
            }
            None => {}
        }
    }

    fn interrupt(&mut self, effects: &mut Effects) {
        let Some(turn) = &self.turn else {
            self.interrupt_pending = true;
            return;
        };
        let params = json!({ "threadId": self.thread, "turnId": turn });
        self.rpc.call(CodexPurpose::Other, "turn/interrupt", &params, effects);
    }

    fn answer(&mut self, key: &str, decision: &Decision, effects: &mut Effects) {
        let Some(CodexWaitingCall { id, is_elicitation }) = self.requests.remove(key) else {
            return;
        };
        let chosen = match decision {
            Decision::Option { option_id, .. } => option_id.as_str(),
            Decision::Text(_) | Decision::Denied(_) => DECLINE,
            Decision::Cancelled => "cancel",
        };
        let result = match chosen {
            ACCEPT if is_elicitation => json!({ "action": "accept", "content": {} }),
            _ if is_elicitation => json!({ "action": chosen }),
            _ => json!({ "decision": chosen }),
        };
        self.rpc.answer(&id, &result, effects);
    }
}

/// Whether the model's service requires a login and there is none.
fn is_logged_out(result: &Value) -> bool {
    result["requiresOpenaiAuth"] == true && result["account"].is_null()
}

fn is_limit(info: &Value) -> bool {
    ["usageLimitExceeded", "sessionBudgetExceeded"].iter().any(|limit| info == *limit)
}

/// The name and the input of a call.
fn call_of(item: &Value) -> (String, Value) {
    let kind = item["type"].as_str().unwrap_or("tool");
    if kind == "mcpToolCall" {
        let part = |name: &str| item[name].as_str().unwrap_or_default().to_owned();
        return (format!("mcp__{}__{}", part("server"), part("tool")), item["arguments"].clone());
    }
    let mut input = item.clone();
    if let Some(members) = input.as_object_mut() {
        members.retain(|name, value| !BOOKKEEPING.contains(&name.as_str()) && !value.is_null());
    }
    (kind.to_owned(), input)
}
