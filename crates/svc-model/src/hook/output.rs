//! What a hook may print, whatever the answer says that it got: the shapes of
//! [`HookReply`](super::HookReply), and no other.
//!
//! A client obeys its hooks. A field that this version of the daemon never sends at an event, such
//! as `permissionDecision`, does not come from the daemon.

use serde::Deserialize;
use serde_json::Value;

use super::{
    HookClient, HookEvent, HookFormat, HookMoment,
    headline::{LINE_CHARS, LINES},
};
use crate::quote::is_invisible;

/// An answer that is not what the daemon sends at the event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the answer was dropped, as the daemon gives no such answer at this event: {0}")]
pub struct UnexpectedOutput(String);

/// What Claude Code takes at a prompt: a text for the model, and a line that it shows to the
/// person.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PromptOutput {
    #[serde(rename = "hookSpecificOutput")]
    specific: Option<SpecificOutput>,
    #[serde(rename = "systemMessage")]
    line: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InjectedContextOutput {
    #[serde(rename = "hookSpecificOutput")]
    specific: SpecificOutput,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct SpecificOutput {
    hook_event_name: String,
    #[expect(dead_code, reason = "a field that may be there, and its type")]
    additional_context: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the fields that may be there, and their types")]
struct PluginOutput {
    context: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StopOutput {
    decision: String,
    #[expect(dead_code, reason = "a field that may be there, and its type")]
    reason: String,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[expect(dead_code, reason = "the fields that may be there, and their types")]
enum ScriptOutput {
    SessionStarted { session_id: String },
    OrphanDetected { content: String },
    Reminder { content: String },
    Outcome { content: String, suggested_action: String },
    Suggestion { content: String },
    Rich { content: String, token_count: u64 },
    Degraded { reason: String },
}

/// What the hook prints of an answer; `None` if the answer is to print nothing.
///
/// `event` is called if there is something to print. It gives `None` if the payload does not say
/// which event it is: the daemon has nothing to say to that.
///
/// # Errors
/// [`UnexpectedOutput`] if the answer has another shape than the daemon gives at this event.
pub fn checked_output(
    event: impl FnOnce() -> Option<HookEvent>,
    format: HookFormat,
    answer: &Value,
) -> Result<Option<String>, UnexpectedOutput> {
    if answer.is_null() || answer.as_object().is_some_and(serde_json::Map::is_empty) {
        return Ok(None);
    }
    let unexpected = |problem: &str| UnexpectedOutput(problem.to_owned());
    let event = event().ok_or_else(|| unexpected("the payload names no event"))?;
    match format {
        HookFormat::Spec => drop(read::<ScriptOutput>(answer)?),
        HookFormat::Client if !event.takes_context() => {
            return Err(unexpected("the client takes nothing"));
        }
        HookFormat::Client => match (event.client, &event.moment) {
            (HookClient::Opencode, _) => drop(read::<PluginOutput>(answer)?),
            (HookClient::Codex, HookMoment::Stop { .. }) => check_stop(answer, "block")?,
            (HookClient::Gemini, HookMoment::Stop { .. }) => check_stop(answer, "deny")?,
            (HookClient::ClaudeCode, HookMoment::Prompt { .. }) => {
                let PromptOutput { specific, line } = read(answer)?;
                if specific.is_some_and(|specific| specific.hook_event_name != event.name) {
                    return Err(unexpected("it is for another event"));
                }
                let is_line = |line: &str| {
                    line.chars().count() <= LINE_CHARS && !line.chars().any(is_invisible)
                };
                let are_lines = |text: &String| {
                    text.split('\n').count() <= LINES && text.split('\n').all(is_line)
                };
                if !line.as_ref().is_none_or(are_lines) {
                    return Err(unexpected("its line is none"));
                }
            }
            _ => {
                let output: InjectedContextOutput = read(answer)?;
                if output.specific.hook_event_name != event.name {
                    return Err(unexpected("it is for another event"));
                }
            }
        },
    }
    Ok(Some(answer.to_string()))
}

fn check_stop(answer: &Value, decision: &str) -> Result<(), UnexpectedOutput> {
    let output: StopOutput = read(answer)?;
    if output.decision == decision {
        return Ok(());
    }
    Err(UnexpectedOutput("another decision".to_owned()))
}

fn read<'a, T: Deserialize<'a>>(answer: &'a Value) -> Result<T, UnexpectedOutput> {
    if !answer.is_object() {
        return Err(UnexpectedOutput("it is no object".to_owned()));
    }
    // The error may quote a name from the answer, and the log has no texts of answers.
    T::deserialize(answer)
        .map_err(|_| UnexpectedOutput("its fields are others, or of other types".to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::hook::read as read_event;

    fn event(client: HookClient, name: &str) -> HookEvent {
        let payload = match client {
            HookClient::Opencode => json!({
                "hook": name, "input": { "sessionID": "s", "tool": "bash", "callID": "c" },
                "output": { "parts": [] },
            }),
            _ => {
                json!({ "hook_event_name": name, "session_id": "s", "tool_name": "Bash", "prompt": "p" })
            }
        };
        read_event(client, None, &payload).unwrap()
    }

    #[test]
    fn a_hook_prints_what_its_client_takes_at_the_event_and_nothing_else() {
        use HookClient::{ClaudeCode, Codex, Gemini, Opencode};
        let context = |name: &str| json!({ "hookSpecificOutput": { "hookEventName": name, "additionalContext": "t" } });
        let specific = |field: &str, value: Value| {
            let mut answer = context("PreToolUse");
            answer["hookSpecificOutput"][field] = value;
            answer
        };
        let beside = |field: &str, value: Value| {
            let mut answer = context("PreToolUse");
            answer[field] = value;
            answer
        };
        for (client, name, answer, is_printed) in [
            (ClaudeCode, "PreToolUse", context("PreToolUse"), true),
            (ClaudeCode, "Stop", context("Stop"), true),
            (ClaudeCode, "UserPromptSubmit", context("UserPromptSubmit"), true),
            (ClaudeCode, "PreToolUse", context("SessionStart"), false),
            (ClaudeCode, "PreToolUse", specific("permissionDecision", json!("allow")), false),
            (ClaudeCode, "PreToolUse", specific("permissionDecisionReason", json!("x")), false),
            (ClaudeCode, "PreToolUse", specific("updatedInput", json!({})), false),
            (ClaudeCode, "PreToolUse", specific("additionalContext", json!(["t"])), false),
            (ClaudeCode, "PreToolUse", beside("decision", json!("approve")), false),
            (ClaudeCode, "PreToolUse", beside("continue", json!(false)), false),
            (ClaudeCode, "PreToolUse", beside("systemMessage", json!("x")), false),
            (ClaudeCode, "PreToolUse", beside("suppressOutput", json!(true)), false),
            (ClaudeCode, "Stop", json!({ "decision": "block", "reason": "t" }), false),
            (ClaudeCode, "SessionEnd", context("SessionEnd"), false),
            (ClaudeCode, "PreToolUse", json!({ "context": "t" }), false),
            (ClaudeCode, "PreToolUse", json!(["t"]), false),
            (ClaudeCode, "PreToolUse", json!("t"), false),
            (ClaudeCode, "UserPromptSubmit", json!({ "systemMessage": "svc: a asks: b" }), true),
            (ClaudeCode, "UserPromptSubmit", json!({ "systemMessage": "a\u{1b}[2J" }), false),
            (ClaudeCode, "UserPromptSubmit", json!({ "systemMessage": "a\nb" }), true),
            (
                ClaudeCode,
                "UserPromptSubmit",
                json!({ "systemMessage": "a\n".repeat(LINES) }),
                false,
            ),
            (ClaudeCode, "UserPromptSubmit", json!({ "systemMessage": "a".repeat(301) }), false),
            (ClaudeCode, "UserPromptSubmit", json!({ "systemMessage": ["a"] }), false),
            (ClaudeCode, "UserPromptSubmit", context("SessionStart"), false),
            (ClaudeCode, "UserPromptSubmit", json!({ "decision": "block", "reason": "t" }), false),
            (ClaudeCode, "Stop", json!({ "systemMessage": "svc: a asks: b" }), false),
            (Codex, "UserPromptSubmit", json!({ "systemMessage": "svc: a asks: b" }), false),
            (Codex, "Stop", json!({ "decision": "block", "reason": "t" }), true),
            (Codex, "Stop", json!({ "decision": "deny", "reason": "t" }), false),
            (
                Codex,
                "Stop",
                json!({ "decision": "block", "reason": "t", "continue": false }),
                false,
            ),
            (Codex, "PreToolUse", json!({ "decision": "block", "reason": "t" }), false),
            (Gemini, "AfterAgent", json!({ "decision": "deny", "reason": "t" }), true),
            (Gemini, "AfterAgent", json!({ "decision": "allow", "reason": "t" }), false),
            (Gemini, "BeforeTool", context("BeforeTool"), false),
            (Gemini, "BeforeTool", json!({ "decision": "allow" }), false),
            (Gemini, "AfterTool", context("AfterTool"), true),
            (Opencode, "chat.message", json!({ "context": "t" }), true),
            (Opencode, "chat.message", json!({ "context": 1 }), false),
            (Opencode, "chat.message", json!({ "context": "t", "status": "allow" }), false),
            (Opencode, "tool.execute.before", json!({ "context": "t" }), false),
        ] {
            let event = event(client, name);
            let printed = checked_output(|| Some(event.clone()), HookFormat::Client, &answer);
            let expected = is_printed.then(|| answer.to_string());
            assert_eq!(printed.unwrap_or_default(), expected, "{client:?} {name} {answer}");
            assert_eq!(
                checked_output(|| Some(event.clone()), HookFormat::Client, &json!({})),
                Ok(None)
            );
            checked_output(|| None, HookFormat::Client, &answer).expect_err("of no event");
        }
    }

    #[test]
    fn scripts_get_the_documented_shapes_alone() {
        let event = event(HookClient::ClaudeCode, "UserPromptSubmit");
        for (answer, is_printed) in [
            (json!({ "type": "session_started", "session_id": "s" }), true),
            (json!({ "type": "orphan_detected", "content": "t" }), true),
            (json!({ "type": "rich", "content": "t", "token_count": 1 }), true),
            (json!({ "type": "degraded", "reason": "no_context" }), true),
            (json!({ "type": "outcome", "content": "t", "suggested_action": "a" }), true),
            (json!({ "type": "outcome", "content": "t" }), false),
            (json!({ "type": "rich", "content": "t", "token_count": "1" }), false),
            (json!({ "type": "reminder", "content": "t", "decision": "block" }), false),
            (json!({ "type": "other" }), false),
            (json!({ "content": "t" }), false),
        ] {
            let printed = checked_output(|| Some(event.clone()), HookFormat::Spec, &answer);
            assert_eq!(printed.is_ok(), is_printed, "{answer}");
        }
    }
}
