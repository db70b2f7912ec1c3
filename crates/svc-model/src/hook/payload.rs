//! Reads the payloads of clients.

use serde_json::Value;

use super::{
    CheckedRun, ClaudePrompt, ClientPrompt, HookClient, HookEvent, HookMoment, HookPrompt,
    HookToolUse, OpencodePrompt, PromptReply, UsageLimit,
    prompt::{self, QUESTIONS, one_line, title_of_tool},
    run_payload,
};
use crate::{Timestamp, WaitingKind, journal::SessionSource};

/// A field that a payload does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingField {
    /// The tool argument that can take the place of the field.
    pub field: &'static str,
    /// Its names in the payloads of the clients.
    pub names: &'static str,
}

const EVENT: MissingField =
    MissingField { field: "event", names: "hook_event_name, or for opencode hook" };
const SESSION: MissingField =
    MissingField { field: "session_id", names: "session_id, or for opencode sessionID" };
const TOOL: MissingField =
    MissingField { field: "tool_name", names: "tool_name, or for opencode tool" };

/// Reads the input of a client's hook. `event` is the name of the event if the payload has none.
/// Fails if event, session or tool have no name.
pub fn read(
    client: HookClient,
    event: Option<&str>,
    payload: &Value,
) -> Result<HookEvent, MissingField> {
    match client {
        HookClient::Opencode => opencode(event, payload),
        _ => common(client, event, payload),
    }
}

/// The client's own id of the session, as [`read`] finds it.
pub fn session_of(client: HookClient, payload: &Value) -> Option<String> {
    match client {
        HookClient::Opencode => {
            let properties =
                payload.get("event").map_or(&payload["input"], |event| &event["properties"]);
            opencode_session(properties, payload)
        }
        _ => text(payload, "session_id"),
    }
}

fn opencode_session(properties: &Value, payload: &Value) -> Option<String> {
    text(properties, "sessionID")
        .or_else(|| text(&properties["info"], "id"))
        .or_else(|| text(payload, "session_id"))
}

/// Claude Code, Codex and Gemini: one object, with the event's name in it.
fn common(
    client: HookClient,
    event: Option<&str>,
    payload: &Value,
) -> Result<HookEvent, MissingField> {
    let event = text(payload, "hook_event_name").or_else(|| event.map(str::to_owned));
    let event = event.ok_or(EVENT)?;
    let session_id = text(payload, "session_id").ok_or(SESSION)?;
    let moment = match event.as_str() {
        "SessionStart" => HookMoment::Start { source: source(payload) },
        "UserPromptSubmit" | "BeforeAgent" => {
            HookMoment::Prompt { text: text(payload, "prompt").unwrap_or_default() }
        }
        "PreToolUse" | "BeforeTool" => HookMoment::ToolStart(tool_use(payload)?),
        "PostToolUse" | "PostToolUseFailure" | "AfterTool" => HookMoment::ToolEnd(HookToolUse {
            run: checked_run(client, &event, payload),
            ..tool_use(payload)?
        }),
        "PostToolBatch" => HookMoment::BatchEnd,
        "Stop" | "AfterAgent" => HookMoment::Stop {
            again: run_payload::flag(payload, "/stop_hook_active"),
            words: last_words(payload),
        },
        "StopFailure" => {
            let error = text(payload, "error");
            let is_limit = error.as_deref() == Some("rate_limit");
            let said = failure(text(payload, "last_assistant_message").or(error));
            if is_limit {
                // The payload does not say when the limit ends.
                HookMoment::Refused(UsageLimit { said, until: None })
            } else {
                HookMoment::TurnOver { failure: Some(said) }
            }
        }
        "Interrupt" => HookMoment::TurnOver { failure: None },
        "PermissionRequest" => {
            let asks = (client == HookClient::ClaudeCode).then(|| ClaudePrompt::read(payload));
            let prompt = prompt_of_tool(&tool_use(payload)?);
            let asks = asks.flatten().map(|asks| Box::new(ClientPrompt::Claude(asks)));
            HookMoment::Waiting(HookPrompt { asks, ..prompt })
        }
        "Notification" => match text(payload, "notification_type").as_deref() {
            Some("idle_prompt") => HookMoment::TurnOver { failure: None },
            Some("elicitation_response") => HookMoment::Answered(None),
            Some(kind) => {
                prompt_of_notification(kind, payload).map_or(HookMoment::Other, HookMoment::Waiting)
            }
            None => HookMoment::Other,
        },
        "PostCompact" => HookMoment::Compacted,
        "SessionEnd" => HookMoment::End { reason: text(payload, "reason") },
        _ => HookMoment::Other,
    };
    Ok(HookEvent {
        client,
        name: event,
        session_id,
        agent_id: text(payload, "agent_id").unwrap_or_default(),
        cwd: text(payload, "cwd"),
        permission_mode: text(payload, "permission_mode"),
        moment,
    })
}

fn opencode_prompt(properties: &Value) -> Option<Box<ClientPrompt>> {
    let prompt = OpencodePrompt::read(properties)?;
    Some(Box::new(ClientPrompt::Opencode(prompt)))
}

/// A prompt about a tool that is to run, or that asks a question.
fn prompt_of_tool(tool: &HookToolUse) -> HookPrompt {
    let kind = if QUESTIONS.contains(&tool.tool.as_str()) {
        WaitingKind::Question
    } else {
        WaitingKind::Permission
    };
    let title = title_of_tool(&tool.tool, &tool.arguments);
    HookPrompt { kind, title: Some(title), tool: Some(tool.tool.clone()), asks: None }
}

/// A prompt that a notification reports. Claude Code's has no details, Gemini's has.
fn prompt_of_notification(kind: &str, payload: &Value) -> Option<HookPrompt> {
    let kind = match kind {
        "permission_prompt" | "agent_needs_input" | "ToolPermission" => WaitingKind::Permission,
        "elicitation_dialog" => WaitingKind::Question,
        _ => return None,
    };
    let details = &payload["details"];
    let told = prompt::text(&details["command"]).or_else(|| prompt::text(&details["filePath"]));
    let title = told
        .or_else(|| prompt::text(&details["title"]))
        .or_else(|| prompt::text(&payload["message"]));
    Some(HookPrompt { kind, title: title.map(one_line), tool: None, asks: None })
}

/// opencode's `permission.asked`.
fn prompt_of_permission(properties: &Value) -> HookPrompt {
    let title = prompt::text(&properties["metadata"]["command"])
        .or_else(|| prompt::text(&properties["patterns"][0]))
        .or_else(|| prompt::text(&properties["permission"]));
    let tool = prompt::text(&properties["permission"]).map(str::to_owned);
    let asks = opencode_prompt(properties);
    HookPrompt { kind: WaitingKind::Permission, title: title.map(one_line), tool, asks }
}

/// opencode's `question.asked`.
fn prompt_of_question(properties: &Value) -> HookPrompt {
    let title = prompt::text(&properties["questions"][0]["question"]).map(one_line);
    let asks = opencode_prompt(properties);
    HookPrompt { kind: WaitingKind::Question, title, tool: None, asks }
}

fn tool_use(payload: &Value) -> Result<HookToolUse, MissingField> {
    Ok(HookToolUse {
        tool: text(payload, "tool_name").ok_or(TOOL)?,
        use_id: text(payload, "tool_use_id"),
        arguments: payload.get("tool_input").cloned().unwrap_or_default(),
        run: None,
    })
}

/// The run that is over, if the tool was a shell and the command a test, a build or a check.
fn checked_run(client: HookClient, event: &str, payload: &Value) -> Option<CheckedRun> {
    let run = run_payload::run_of_tool(client, event, payload)?;
    Some(CheckedRun { verdict: svc_outcome::judge(&run)?, command: run.command })
}

/// opencode: the arguments of its plugin.
fn opencode(event: Option<&str>, payload: &Value) -> Result<HookEvent, MissingField> {
    let hook = text(payload, "hook").or_else(|| event.map(str::to_owned));
    let hook = hook.ok_or(EVENT)?;
    let (event, properties) = match payload.get("event") {
        Some(inner) if hook == "event" => (text(inner, "type").ok_or(EVENT)?, &inner["properties"]),
        _ => (hook, &payload["input"]),
    };
    let session_id = opencode_session(properties, payload).ok_or(SESSION)?;
    let tool_use = |arguments: &Value| -> Result<HookToolUse, MissingField> {
        Ok(HookToolUse {
            tool: text(properties, "tool").ok_or(TOOL)?,
            use_id: text(properties, "callID"),
            arguments: arguments.clone(),
            run: None,
        })
    };
    let moment = match event.as_str() {
        "session.created" => HookMoment::Start { source: source(payload) },
        "chat.message" => HookMoment::Prompt { text: parts(&payload["output"]["parts"]) },
        "tool.execute.before" => HookMoment::ToolStart(tool_use(&payload["output"]["args"])?),
        "tool.execute.after" => HookMoment::ToolEnd(HookToolUse {
            run: checked_run(HookClient::Opencode, &event, payload),
            ..tool_use(&properties["args"])?
        }),
        "session.idle" => HookMoment::Stop { again: false, words: last_words(payload) },
        "session.error" => HookMoment::TurnOver { failure: opencode_failure(&properties["error"]) },
        "permission.asked" => HookMoment::Waiting(prompt_of_permission(properties)),
        "question.asked" => HookMoment::Waiting(prompt_of_question(properties)),
        "permission.replied" | "question.replied" | "question.rejected" => {
            let reply = match event.as_str() {
                "permission.replied" => text(properties, "reply"),
                "question.rejected" => Some("reject".to_owned()),
                _ => None,
            };
            let prompt = text(properties, "requestID");
            HookMoment::Answered(prompt.map(|prompt| PromptReply { prompt, option_id: reply }))
        }
        "session.status" => opencode_retry(&properties["status"]),
        "session.compacted" => HookMoment::Compacted,
        "session.deleted" => HookMoment::End { reason: Some("deleted".to_owned()) },
        _ => HookMoment::Other,
    };
    Ok(HookEvent {
        client: HookClient::Opencode,
        name: event,
        session_id,
        agent_id: text(payload, "agent_id").unwrap_or_default(),
        cwd: text(payload, "cwd").or_else(|| text(&properties["info"], "directory")),
        permission_mode: None,
        moment,
    })
}

/// Why a turn failed: the client's words on one line, or a default.
fn failure(said: Option<String>) -> String {
    said.map_or_else(|| "the turn failed".to_owned(), |said| one_line(&said))
}

/// Why a turn of opencode failed; `None` if its person ended it.
fn opencode_failure(error: &Value) -> Option<String> {
    let name = text(error, "name");
    if name.as_deref() == Some("MessageAbortedError") {
        return None;
    }
    Some(failure(text(&error["data"], "message").or(name)))
}

/// What the status of opencode's session says about a usage limit: during one, opencode waits and
/// retries.
fn opencode_retry(status: &Value) -> HookMoment {
    match status["type"].as_str() {
        Some("retry") => HookMoment::Retry(Some(UsageLimit {
            said: failure(text(status, "message")),
            until: status["next"].as_i64().map(Timestamp::from_millis),
        })),
        Some("busy") => HookMoment::Retry(None),
        _ => HookMoment::Other,
    }
}

/// The texts that a person typed. Other parts are files, or made by the client.
fn parts(parts: &Value) -> String {
    let texts = prompt::list(parts)
        .iter()
        .filter(|part| part["type"] == "text" && part["synthetic"] != true);
    texts.filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
}

fn source(payload: &Value) -> SessionSource {
    // An unknown source also begins a session.
    payload
        .get("source")
        .and_then(|source| serde_json::from_value(source.clone()).ok())
        .unwrap_or(SessionSource::Startup)
}

/// The model's last words in the turn; empty if it ended without words.
fn last_words(payload: &Value) -> Option<String> {
    let named = ["last_assistant_message", "prompt_response"];
    named.iter().find_map(|key| payload.get(key)?.as_str()).map(str::to_owned)
}

/// A text that is not empty: a handler sends an empty text for a field without a value.
fn text(object: &Value, key: &str) -> Option<String> {
    object.get(key)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        HookClient::{ClaudeCode, Codex, Gemini, Opencode},
        *,
    };
    use crate::limits;

    /// What the payload of this event of the session `s` reports.
    fn moment_of(client: HookClient, name: &str, payload: &Value) -> HookMoment {
        let mut payload = payload.clone();
        payload["session_id"] = json!("s");
        read(client, Some(name), &payload).unwrap().moment
    }

    #[test]
    fn error_names_the_missing_field_of_a_payload() {
        for (client, payload, named) in [
            (ClaudeCode, json!({}), EVENT),
            (ClaudeCode, json!([1]), EVENT),
            (Codex, json!({ "hook_event_name": "Stop" }), SESSION),
            (Codex, json!({ "hook_event_name": "Stop", "session_id": "" }), SESSION),
            (Gemini, json!({ "hook_event_name": "AfterTool", "session_id": "s" }), TOOL),
            (Opencode, json!({ "hook": "chat.message" }), SESSION),
            (Opencode, json!({ "hook": "event", "event": {} }), EVENT),
        ] {
            assert_eq!(read(client, None, &payload), Err(named), "{payload}");
        }
    }

    #[test]
    fn last_assistant_message_is_read_from_each_client() {
        // The plugin adds the last words, which opencode's event does not have.
        let idle = |words: Option<&str>| {
            let event = json!({ "type": "session.idle", "properties": { "sessionID": "s" } });
            json!({ "hook": "event", "event": event, "last_assistant_message": words })
        };
        for (client, name, payload, words) in [
            (ClaudeCode, "Stop", json!({ "last_assistant_message": "well" }), Some("well")),
            (Codex, "Stop", json!({ "last_assistant_message": "" }), Some("")),
            (Codex, "Stop", json!({ "last_assistant_message": null }), None),
            (Gemini, "AfterAgent", json!({ "prompt_response": "well" }), Some("well")),
            (Gemini, "AfterAgent", json!({}), None),
            (Opencode, "session.idle", idle(Some("well")), Some("well")),
            (Opencode, "session.idle", idle(None), None),
        ] {
            let words = words.map(str::to_owned);
            let moment = moment_of(client, name, &payload);
            assert_eq!(moment, HookMoment::Stop { again: false, words }, "{payload}");
        }
    }

    #[test]
    fn a_turn_without_last_words_failed_or_was_ended_by_its_person() {
        let error = |error: Value| json!({ "event": { "type": "session.error", "properties": { "error": error } } });
        for (client, name, payload, failure) in [
            (
                ClaudeCode,
                "StopFailure",
                json!({ "error": "overloaded", "last_assistant_message": "API\nError" }),
                Some("API Error"),
            ),
            (ClaudeCode, "StopFailure", json!({ "error": "server_error" }), Some("server_error")),
            (ClaudeCode, "StopFailure", json!({}), Some("the turn failed")),
            (Codex, "Interrupt", json!({}), None),
            (
                Opencode,
                "event",
                error(json!({ "name": "APIError", "data": { "message": "no credit" } })),
                Some("no credit"),
            ),
            (
                Opencode,
                "event",
                error(json!({ "name": "MessageAbortedError", "data": { "message": "Aborted" } })),
                None,
            ),
            (Opencode, "event", error(json!(null)), Some("the turn failed")),
        ] {
            let failure = failure.map(str::to_owned);
            let moment = moment_of(client, name, &payload);
            assert_eq!(moment, HookMoment::TurnOver { failure }, "{payload}");
        }
    }

    #[test]
    fn a_usage_limit_is_told_by_the_end_of_a_turn_or_within_it() {
        let limit = |said: &str, until: Option<i64>| UsageLimit {
            said: said.to_owned(),
            until: until.map(Timestamp::from_millis),
        };
        let status = |status: Value| {
            let properties = json!({ "sessionID": "ses_1", "status": status });
            json!({ "hook": "event", "event": { "type": "session.status", "properties": properties } })
        };
        for (client, payload, expected) in [
            (
                ClaudeCode,
                json!({
                    "hook_event_name": "StopFailure", "session_id": "s", "error": "rate_limit",
                    "last_assistant_message": "You've hit your\nlimit",
                }),
                HookMoment::Refused(limit("You've hit your limit", None)),
            ),
            (
                Opencode,
                status(
                    json!({ "type": "retry", "attempt": 1, "message": "Rate limit reached", "next": 1_795_523_644_295_i64 }),
                ),
                HookMoment::Retry(Some(limit("Rate limit reached", Some(1_795_523_644_295)))),
            ),
            (Opencode, status(json!({ "type": "busy" })), HookMoment::Retry(None)),
            (Opencode, status(json!({ "type": "idle" })), HookMoment::Other),
        ] {
            assert_eq!(read(client, None, &payload).unwrap().moment, expected, "{payload}");
        }
    }

    #[test]
    fn the_end_of_a_batch_is_none_of_its_tools() {
        let call = json!({ "tool_name": "Bash", "tool_input": {}, "tool_use_id": "toolu_1" });
        let payload = json!({ "session_id": "s", "tool_calls": [call] });
        assert_eq!(moment_of(ClaudeCode, "PostToolBatch", &payload), HookMoment::BatchEnd);
    }

    /// `event` of the tool `hook_event` names the event of a payload that does not.
    #[test]
    fn a_run_is_seen_whoever_names_its_event() {
        let response = json!({ "stdout": "test result: ok. 1 passed; 0 failed", "stderr": "" });
        let input = json!({ "command": "cargo test" });
        for (client, name, payload) in [
            (
                ClaudeCode,
                "PostToolUse",
                json!({ "tool_name": "Bash", "tool_input": input, "tool_response": response }),
            ),
            (
                Codex,
                "PostToolUse",
                json!({ "tool_name": "Bash", "tool_input": input, "tool_response": response["stdout"] }),
            ),
            (
                Gemini,
                "AfterTool",
                json!({ "tool_name": "run_shell_command", "tool_input": input,
                "tool_response": { "llmContent": "Output: test result: ok. 1 passed; 0 failed" } }),
            ),
            (
                Opencode,
                "tool.execute.after",
                json!({ "input": { "tool": "bash", "args": input },
                "output": { "output": response["stdout"], "metadata": { "exit": 0 } } }),
            ),
        ] {
            let HookMoment::ToolEnd(used) = moment_of(client, name, &payload) else {
                panic!("{payload}")
            };
            assert!(used.run.is_some(), "{payload}");
        }
    }

    #[test]
    fn flat_text_fields_are_parsed_and_empty_ones_are_absent() {
        let payload = json!({
            "session_id": "s", "agent_id": "", "cwd": "", "stop_hook_active": "true", "reason": "",
        });
        let hook = read(ClaudeCode, Some("Stop"), &payload).unwrap();
        assert_eq!(hook.moment, HookMoment::Stop { again: true, words: None });
        assert_eq!((hook.cwd, hook.agent_id.as_str()), (None, ""));
        let hook = read(ClaudeCode, Some("SessionEnd"), &payload).unwrap();
        assert_eq!(hook.moment, HookMoment::End { reason: None });
    }

    #[test]
    fn what_is_asked_is_read_from_each_client() {
        let permission = |title: &str, tool: Option<&str>| HookPrompt {
            kind: WaitingKind::Permission,
            title: Some(title.to_owned()),
            tool: tool.map(str::to_owned),
            asks: None,
        };
        let question = |title: &str, tool: Option<&str>| HookPrompt {
            kind: WaitingKind::Question,
            ..permission(title, tool)
        };
        let bash = json!({ "tool_name": "Bash", "tool_input": { "command": "touch\n made", "description": "x" } });
        let event = |kind: &str, properties: Value| json!({ "hook": "event", "event": { "type": kind, "properties": properties } });
        for (client, name, payload, expected) in [
            (ClaudeCode, "PermissionRequest", bash.clone(), permission("touch made", Some("Bash"))),
            (Codex, "PermissionRequest", bash, permission("touch made", Some("Bash"))),
            (
                ClaudeCode,
                "PermissionRequest",
                json!({ "tool_name": "AskUserQuestion", "tool_input": { "questions": [{ "question": "Which colour?" }] } }),
                question("Which colour?", Some("AskUserQuestion")),
            ),
            (
                ClaudeCode,
                "PermissionRequest",
                json!({ "tool_name": "mcp__bus__echo", "tool_input": {} }),
                permission("mcp__bus__echo", Some("mcp__bus__echo")),
            ),
            (
                ClaudeCode,
                "Notification",
                json!({ "notification_type": "permission_prompt", "message": "Claude needs your permission" }),
                permission("Claude needs your permission", None),
            ),
            (
                Gemini,
                "Notification",
                json!({ "notification_type": "ToolPermission", "message": "m",
                    "details": { "type": "exec", "title": "Confirm Shell Command", "command": "touch made" } }),
                permission("touch made", None),
            ),
            (
                Opencode,
                "event",
                event(
                    "permission.asked",
                    json!({ "sessionID": "s", "permission": "bash",
                    "patterns": ["touch *"], "metadata": { "command": "touch made" } }),
                ),
                permission("touch made", Some("bash")),
            ),
            (
                Opencode,
                "event",
                event(
                    "question.asked",
                    json!({ "sessionID": "s", "questions": [{ "question": "Which?" }] }),
                ),
                question("Which?", None),
            ),
        ] {
            let moment = moment_of(client, name, &payload);
            let HookMoment::Waiting(prompt) = moment else { panic!("{payload}") };
            let is_answerable = client == ClaudeCode && name == "PermissionRequest";
            // Without an id no answer could name the prompt.
            assert_eq!(prompt.asks.is_some(), is_answerable, "{payload}");
            assert_eq!(HookPrompt { asks: None, ..prompt }, expected, "{payload}");
        }
        let idle = json!({ "session_id": "s", "notification_type": "idle_prompt" });
        let moment = read(ClaudeCode, Some("Notification"), &idle).unwrap().moment;
        assert_eq!(moment, HookMoment::TurnOver { failure: None });
        let replied = event("permission.replied", json!({ "sessionID": "s" }));
        // As captured of Claude Code 2.1.197.
        let answered = json!({ "session_id": "s", "hook_event_name": "Notification",
            "message": "Elicitation response for server \"bus\": cancel",
            "notification_type": "elicitation_response" });
        for (client, payload) in [(Opencode, replied), (ClaudeCode, answered)] {
            let moment = read(client, None, &payload).unwrap().moment;
            assert_eq!(moment, HookMoment::Answered(None), "{payload}");
        }
    }

    #[test]
    fn a_long_question_is_cut() {
        let line = one_line(&"é ".repeat(10_000));
        assert_eq!(line.chars().count(), limits::WAITING_TITLE_CHARS + 1);
    }
}
