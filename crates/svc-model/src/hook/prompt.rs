//! What a client asks its person, from the payloads of the events that tell of it.

use serde_json::Value;

use super::{
    HookPrompt, HookToolUse,
    title::{QUESTIONS, one_line, text, title_of_tool},
};
use crate::WaitingKind;

/// A prompt about a tool that is to run, or that asks a question.
pub(super) fn of_tool(tool: &HookToolUse) -> HookPrompt {
    let kind = if QUESTIONS.contains(&tool.tool.as_str()) {
        WaitingKind::Question
    } else {
        WaitingKind::Permission
    };
    let title = title_of_tool(&tool.tool, &tool.arguments);
    HookPrompt { kind, title: Some(title), tool: Some(tool.tool.clone()), asks: None }
}

/// A prompt that a notification tells of: Claude Code's says no more than that there is one,
/// Gemini's says what for.
pub(super) fn of_notification(kind: &str, payload: &Value) -> Option<HookPrompt> {
    let kind = match kind {
        "permission_prompt" | "agent_needs_input" | "ToolPermission" => WaitingKind::Permission,
        "elicitation_dialog" => WaitingKind::Question,
        _ => return None,
    };
    let details = &payload["details"];
    let told = text(&details["command"]).or_else(|| text(&details["filePath"]));
    let title = told.or_else(|| text(&details["title"])).or_else(|| text(&payload["message"]));
    Some(HookPrompt { kind, title: title.map(one_line), tool: None, asks: None })
}

/// opencode's `permission.asked`.
pub(super) fn of_permission(properties: &Value) -> HookPrompt {
    let title = text(&properties["metadata"]["command"])
        .or_else(|| text(&properties["patterns"][0]))
        .or_else(|| text(&properties["permission"]));
    let tool = text(&properties["permission"]).map(str::to_owned);
    HookPrompt { kind: WaitingKind::Permission, title: title.map(one_line), tool, asks: None }
}

/// opencode's `question.asked`.
pub(super) fn of_question(properties: &Value) -> HookPrompt {
    let title = text(&properties["questions"][0]["question"]).map(one_line);
    HookPrompt { kind: WaitingKind::Question, title, tool: None, asks: None }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        hook::{HookClient, HookMoment, read},
        limits,
    };

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
            (
                HookClient::ClaudeCode,
                "PermissionRequest",
                bash.clone(),
                permission("touch made", Some("Bash")),
            ),
            (HookClient::Codex, "PermissionRequest", bash, permission("touch made", Some("Bash"))),
            (
                HookClient::ClaudeCode,
                "PermissionRequest",
                json!({ "tool_name": "AskUserQuestion", "tool_input": { "questions": [{ "question": "Which colour?" }] } }),
                question("Which colour?", Some("AskUserQuestion")),
            ),
            (
                HookClient::ClaudeCode,
                "PermissionRequest",
                json!({ "tool_name": "mcp__bus__echo", "tool_input": {} }),
                permission("mcp__bus__echo", Some("mcp__bus__echo")),
            ),
            (
                HookClient::ClaudeCode,
                "Notification",
                json!({ "notification_type": "permission_prompt", "message": "Claude needs your permission" }),
                permission("Claude needs your permission", None),
            ),
            (
                HookClient::Gemini,
                "Notification",
                json!({ "notification_type": "ToolPermission", "message": "m",
                    "details": { "type": "exec", "title": "Confirm Shell Command", "command": "touch made" } }),
                permission("touch made", None),
            ),
            (
                HookClient::Opencode,
                "event",
                event(
                    "permission.asked",
                    json!({ "sessionID": "s", "permission": "bash",
                    "patterns": ["touch *"], "metadata": { "command": "touch made" } }),
                ),
                permission("touch made", Some("bash")),
            ),
            (
                HookClient::Opencode,
                "event",
                event(
                    "question.asked",
                    json!({ "sessionID": "s", "questions": [{ "question": "Which?" }] }),
                ),
                question("Which?", None),
            ),
        ] {
            let mut payload = payload;
            payload["session_id"] = json!("s");
            let moment = read(client, Some(name), &payload).unwrap().moment;
            let HookMoment::Waiting(prompt) = moment else { panic!("{payload}") };
            let is_answerable = client == HookClient::ClaudeCode && name == "PermissionRequest";
            // Without an id no answer could name the prompt.
            assert_eq!(prompt.asks.is_some(), is_answerable, "{payload}");
            assert_eq!(HookPrompt { asks: None, ..prompt }, expected, "{payload}");
        }
        let idle = json!({ "session_id": "s", "notification_type": "idle_prompt" });
        let moment = read(HookClient::ClaudeCode, Some("Notification"), &idle).unwrap().moment;
        assert_eq!(moment, HookMoment::TurnOver { failure: None });
        let replied = event("permission.replied", json!({ "sessionID": "s" }));
        let moment = read(HookClient::Opencode, None, &replied).unwrap().moment;
        assert!(matches!(moment, HookMoment::Answered(None)));
    }

    #[test]
    fn a_long_question_is_cut() {
        let line = one_line(&"é ".repeat(10_000));
        assert_eq!(line.chars().count(), limits::WAITING_TITLE_CHARS + 1);
    }
}
