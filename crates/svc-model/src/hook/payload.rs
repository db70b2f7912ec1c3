//! Reads the payloads of clients.

use serde_json::Value;

use super::{
    CheckedRun, ClaudePrompt, ClientPrompt, HookClient, HookEvent, HookMoment, HookPrompt,
    HookToolUse, OpencodePrompt, PromptReply, UsageLimit, prompt, run_payload, title,
};
use crate::{Timestamp, journal::SessionSource};

/// A field that a payload does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingField {
    /// The argument of the tool that could stand for it.
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

/// Reads what a client's hook was given. `event` stands for the name in the payload where there is
/// none.
///
/// # Errors
/// [`MissingField`] if the payload does not name its event, its session or its tool.
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

/// The client's own id of the session, as [`read`] would find it.
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
            run: checked_run(client, payload),
            ..tool_use(payload)?
        }),
        "Stop" | "AfterAgent" => HookMoment::Stop {
            again: is_true(payload, "stop_hook_active"),
            words: last_words(payload),
        },
        "StopFailure" => {
            let error = text(payload, "error");
            let is_limit = error.as_deref() == Some("rate_limit");
            let said = failure(text(payload, "last_assistant_message").or(error));
            if is_limit {
                // It does not tell when the limit ends.
                HookMoment::Refused(UsageLimit { said, until: None })
            } else {
                HookMoment::TurnOver { failure: Some(said) }
            }
        }
        "Interrupt" => HookMoment::TurnOver { failure: None },
        "PermissionRequest" => {
            let asks = (client == HookClient::ClaudeCode).then(|| ClaudePrompt::read(payload));
            let prompt = prompt::of_tool(&tool_use(payload)?);
            let asks = asks.flatten().map(|asks| Box::new(ClientPrompt::Claude(asks)));
            HookMoment::Waiting(HookPrompt { asks, ..prompt })
        }
        "Notification" => match text(payload, "notification_type").as_deref() {
            Some("idle_prompt") => HookMoment::TurnOver { failure: None },
            Some(kind) => prompt::of_notification(kind, payload)
                .map_or(HookMoment::Other, HookMoment::Waiting),
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

fn tool_use(payload: &Value) -> Result<HookToolUse, MissingField> {
    Ok(HookToolUse {
        tool: text(payload, "tool_name").ok_or(TOOL)?,
        use_id: text(payload, "tool_use_id"),
        arguments: payload.get("tool_input").cloned().unwrap_or_default(),
        run: None,
    })
}

/// The run that is over, if the tool was a shell and the command a test, a build or a check.
fn checked_run(client: HookClient, payload: &Value) -> Option<CheckedRun> {
    let run = run_payload::run_of_tool(client, payload)?;
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
            run: checked_run(HookClient::Opencode, payload),
            ..tool_use(&properties["args"])?
        }),
        "session.idle" => HookMoment::Stop { again: false, words: last_words(payload) },
        "session.error" => HookMoment::TurnOver { failure: opencode_failure(&properties["error"]) },
        "permission.asked" => {
            let prompt = prompt::of_permission(properties);
            HookMoment::Waiting(HookPrompt { asks: opencode_prompt(properties), ..prompt })
        }
        "question.asked" => {
            let prompt = prompt::of_question(properties);
            HookMoment::Waiting(HookPrompt { asks: opencode_prompt(properties), ..prompt })
        }
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

/// Why a turn failed: what the client says, on one line, or a sentence of ours.
fn failure(said: Option<String>) -> String {
    said.map_or_else(|| "the turn failed".to_owned(), |said| title::one_line(&said))
}

/// Why a turn of opencode failed; `None` if its person ended it.
fn opencode_failure(error: &Value) -> Option<String> {
    let name = text(error, "name");
    if name.as_deref() == Some("MessageAbortedError") {
        return None;
    }
    Some(failure(text(&error["data"], "message").or(name)))
}

/// What the status of a session of opencode says of a usage limit: while one lasts, it waits to
/// ask again.
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
    let parts = parts.as_array().map_or(&[][..], Vec::as_slice);
    let texts = parts.iter().filter(|part| part["type"] == "text" && part["synthetic"] != true);
    texts.filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
}

fn source(payload: &Value) -> SessionSource {
    // A source that is not known yet begins a session all the same.
    payload
        .get("source")
        .and_then(|source| serde_json::from_value(source.clone()).ok())
        .unwrap_or(SessionSource::Startup)
}

/// What the model said last in the turn: empty if it ended without words.
fn last_words(payload: &Value) -> Option<String> {
    let named = ["last_assistant_message", "prompt_response"];
    named.iter().find_map(|key| payload.get(key)?.as_str()).map(str::to_owned)
}

/// A text that is not empty: a handler without a value for a field sends an empty text.
fn text(object: &Value, key: &str) -> Option<String> {
    object.get(key)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// Whether a member is true. A handler that can only send texts writes the word.
fn is_true(object: &Value, key: &str) -> bool {
    object.get(key).is_some_and(|value| *value == true || *value == "true")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        for (client, payload, named) in [
            (HookClient::ClaudeCode, json!({}), EVENT),
            (HookClient::ClaudeCode, json!([1]), EVENT),
            (HookClient::Codex, json!({ "hook_event_name": "Stop" }), SESSION),
            (HookClient::Codex, json!({ "hook_event_name": "Stop", "session_id": "" }), SESSION),
            (
                HookClient::Gemini,
                json!({ "hook_event_name": "AfterTool", "session_id": "s" }),
                TOOL,
            ),
            (HookClient::Opencode, json!({ "hook": "chat.message" }), SESSION),
            (HookClient::Opencode, json!({ "hook": "event", "event": {} }), EVENT),
        ] {
            assert_eq!(read(client, None, &payload), Err(named), "{payload}");
        }
    }

    #[test]
    fn the_last_words_of_a_turn() {
        // The plugin adds what opencode's event has not.
        let idle = |words: Option<&str>| {
            let event = json!({ "type": "session.idle", "properties": { "sessionID": "s" } });
            json!({ "hook": "event", "event": event, "last_assistant_message": words })
        };
        for (client, name, payload, words) in [
            (
                HookClient::ClaudeCode,
                "Stop",
                json!({ "last_assistant_message": "well" }),
                Some("well"),
            ),
            (HookClient::Codex, "Stop", json!({ "last_assistant_message": "" }), Some("")),
            (HookClient::Codex, "Stop", json!({ "last_assistant_message": null }), None),
            (HookClient::Gemini, "AfterAgent", json!({ "prompt_response": "well" }), Some("well")),
            (HookClient::Gemini, "AfterAgent", json!({}), None),
            (HookClient::Opencode, "session.idle", idle(Some("well")), Some("well")),
            (HookClient::Opencode, "session.idle", idle(None), None),
        ] {
            let mut payload = payload;
            payload["session_id"] = json!("s");
            let words = words.map(str::to_owned);
            let moment = read(client, Some(name), &payload).unwrap().moment;
            assert_eq!(moment, HookMoment::Stop { again: false, words }, "{payload}");
        }
    }

    #[test]
    fn a_turn_without_last_words_failed_or_was_ended_by_its_person() {
        let error = |error: Value| json!({ "event": { "type": "session.error", "properties": { "error": error } } });
        for (client, name, payload, failure) in [
            (
                HookClient::ClaudeCode,
                "StopFailure",
                json!({ "error": "overloaded", "last_assistant_message": "API\nError" }),
                Some("API Error"),
            ),
            (
                HookClient::ClaudeCode,
                "StopFailure",
                json!({ "error": "server_error" }),
                Some("server_error"),
            ),
            (HookClient::ClaudeCode, "StopFailure", json!({}), Some("the turn failed")),
            (HookClient::Codex, "Interrupt", json!({}), None),
            (
                HookClient::Opencode,
                "event",
                error(json!({ "name": "APIError", "data": { "message": "no credit" } })),
                Some("no credit"),
            ),
            (
                HookClient::Opencode,
                "event",
                error(json!({ "name": "MessageAbortedError", "data": { "message": "Aborted" } })),
                None,
            ),
            (HookClient::Opencode, "event", error(json!(null)), Some("the turn failed")),
        ] {
            let mut payload = payload;
            payload["session_id"] = json!("s");
            let failure = failure.map(str::to_owned);
            let moment = read(client, Some(name), &payload).unwrap().moment;
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
                HookClient::ClaudeCode,
                json!({
                    "hook_event_name": "StopFailure", "session_id": "s", "error": "rate_limit",
                    "last_assistant_message": "You've hit your\nlimit",
                }),
                HookMoment::Refused(limit("You've hit your limit", None)),
            ),
            (
                HookClient::Opencode,
                status(
                    json!({ "type": "retry", "attempt": 1, "message": "Rate limit reached", "next": 1_795_523_644_295_i64 }),
                ),
                HookMoment::Retry(Some(limit("Rate limit reached", Some(1_795_523_644_295)))),
            ),
            (HookClient::Opencode, status(json!({ "type": "busy" })), HookMoment::Retry(None)),
            (HookClient::Opencode, status(json!({ "type": "idle" })), HookMoment::Other),
        ] {
            assert_eq!(read(client, None, &payload).unwrap().moment, expected, "{payload}");
        }
    }

    #[test]
    fn texts_of_a_handler_that_has_only_texts() {
        let payload = json!({
            "session_id": "s", "agent_id": "", "cwd": "", "stop_hook_active": "true", "reason": "",
        });
        let hook = read(HookClient::ClaudeCode, Some("Stop"), &payload).unwrap();
        assert_eq!(hook.moment, HookMoment::Stop { again: true, words: None });
        assert_eq!((hook.cwd, hook.agent_id.as_str()), (None, ""));
        let hook = read(HookClient::ClaudeCode, Some("SessionEnd"), &payload).unwrap();
        assert_eq!(hook.moment, HookMoment::End { reason: None });
    }
}
