//! What there is to say, in each client's own shape.

use serde_json::{Map, Value, json};

use super::{Hook, HookClient, HookFormat, Moment};

/// The most that a client takes in one text, in characters (Claude Code spills more into a file; the others are given
/// no more either).
const MOST_CHARS: usize = 10_000;

/// One thing to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// The session is known.
    Started,
    /// A record was left open in this project, or is open in this session.
    Record(String),
    /// What is known that has to do with the prompt.
    Context(String),
    /// It is time to look at the active record.
    Reminder(String),
    /// A test, a build or a check ran.
    Outcome {
        /// The text.
        text: String,
        /// What may be done about it.
        action: &'static str,
    },
    /// Something that may help.
    Suggestion(String),
    /// Messages from others.
    Messages(String),
}

/// All there is to say to one event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Said(pub Vec<Note>);

impl Note {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Started => None,
            Self::Record(text)
            | Self::Context(text)
            | Self::Reminder(text)
            | Self::Outcome { text, .. }
            | Self::Suggestion(text)
            | Self::Messages(text) => Some(text),
        }
    }
}

impl Said {
    /// What the hook prints; empty if it is to print nothing.
    pub fn render(&self, hook: &Hook, format: HookFormat) -> Map<String, Value> {
        let object = match format {
            HookFormat::Client => self.for_client(hook),
            HookFormat::Spec => self.for_scripts(hook),
        };
        match object {
            Value::Object(object) => object,
            _ => Map::new(),
        }
    }

    fn text(&self) -> Option<String> {
        // Messages count as handed over, so what is cut off is not theirs.
        let is_mail = |note: &&Note| matches!(note, Note::Messages(_));
        let mail = self.0.iter().filter(is_mail);
        let rest = self.0.iter().filter(|note| !is_mail(note));
        let texts: Vec<&str> = mail.chain(rest).filter_map(Note::text).collect();
        let text = texts.join("\n\n");
        (!text.is_empty()).then(|| text.chars().take(MOST_CHARS).collect())
    }

    fn for_client(&self, hook: &Hook) -> Value {
        let Some(text) = self.text().filter(|_| hook.takes_context()) else { return Value::Null };
        let context = || json!({ "hookSpecificOutput": { "hookEventName": hook.event, "additionalContext": text } });
        match (hook.client, &hook.moment) {
            (HookClient::Opencode, _) => json!({ "context": text }),
            // These two go on only if they are held back; Claude Code goes on by context alone.
            (HookClient::Codex, Moment::Stop { .. }) => {
                json!({ "decision": "block", "reason": text })
            }
            (HookClient::Gemini, Moment::Stop { .. }) => {
                json!({ "decision": "deny", "reason": text })
            }
            _ => context(),
        }
    }

    /// The shapes of the document that the daemon's hooks were first thought out in: one thing, by weight.
    fn for_scripts(&self, hook: &Hook) -> Value {
        let tokens = |text: &str| text.len().div_ceil(4);
        let first = self.0.iter().find(|note| !matches!(note, Note::Started));
        match (first, &hook.moment) {
            (Some(Note::Record(text)), _) => json!({ "type": "orphan_detected", "content": text }),
            (_, Moment::Start { .. }) => {
                json!({ "type": "session_started", "session_id": hook.session_id })
            }
            (Some(Note::Reminder(text)), _) => json!({ "type": "reminder", "content": text }),
            (Some(Note::Outcome { text, action }), _) => {
                json!({ "type": "outcome", "content": text, "suggested_action": action })
            }
            (Some(Note::Suggestion(text)), _) => json!({ "type": "suggestion", "content": text }),
            (Some(Note::Messages(_) | Note::Context(_)), _) => {
                let text = self.text().unwrap_or_default();
                json!({ "type": "rich", "token_count": tokens(&text), "content": text })
            }
            (_, Moment::Prompt { .. }) => json!({ "type": "degraded", "reason": "no_context" }),
            (Some(Note::Started) | None, _) => Value::Null,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::hook::ToolUse;

    fn hook(client: HookClient, event: &str, moment: Moment) -> Hook {
        Hook {
            client,
            event: event.to_owned(),
            session_id: "s".to_owned(),
            agent_id: String::new(),
            cwd: None,
            moment,
        }
    }

    fn prompt() -> Moment {
        Moment::Prompt { text: "p".to_owned() }
    }

    fn used() -> ToolUse {
        ToolUse { tool: "Bash".to_owned(), use_id: None, arguments: Value::Null, ran: None }
    }

    #[test]
    fn each_client_gets_its_own_shape_where_it_takes_one() {
        use HookClient::{ClaudeCode, Codex, Gemini, Opencode};
        let said = Said(vec![
            Note::Started,
            Note::Reminder("a".to_owned()),
            Note::Messages("b".to_owned()),
        ]);
        let context = |event: &str| json!({ "hookSpecificOutput": { "hookEventName": event, "additionalContext": "b\n\na" } });
        let start = Moment::Start { source: crate::domain::journal::SessionSource::Startup };
        let (stop, again) = (Moment::Stop { again: false }, Moment::Stop { again: true });
        for (client, event, moment, shape) in [
            (ClaudeCode, "SessionStart", start.clone(), context("SessionStart")),
            (ClaudeCode, "PreToolUse", Moment::ToolStart(used()), context("PreToolUse")),
            (
                ClaudeCode,
                "PostToolUseFailure",
                Moment::ToolEnd(used()),
                context("PostToolUseFailure"),
            ),
            (ClaudeCode, "Stop", stop.clone(), context("Stop")),
            (ClaudeCode, "Stop", again.clone(), json!({})),
            (ClaudeCode, "SessionEnd", Moment::End { reason: None }, json!({})),
            (ClaudeCode, "Notification", Moment::Waiting, json!({})),
            (Codex, "UserPromptSubmit", prompt(), context("UserPromptSubmit")),
            (Codex, "Stop", stop.clone(), json!({ "decision": "block", "reason": "b\n\na" })),
            (Codex, "Stop", again, json!({})),
            (Gemini, "BeforeAgent", prompt(), context("BeforeAgent")),
            (Gemini, "BeforeTool", Moment::ToolStart(used()), json!({})),
            (Gemini, "AfterTool", Moment::ToolEnd(used()), context("AfterTool")),
            (Gemini, "AfterAgent", stop.clone(), json!({ "decision": "deny", "reason": "b\n\na" })),
            (Opencode, "session.created", start, json!({})),
            (Opencode, "chat.message", prompt(), json!({ "context": "b\n\na" })),
            (Opencode, "tool.execute.before", Moment::ToolStart(used()), json!({})),
            (
                Opencode,
                "tool.execute.after",
                Moment::ToolEnd(used()),
                json!({ "context": "b\n\na" }),
            ),
            (Opencode, "session.idle", stop, json!({})),
        ] {
            let hook = hook(client, event, moment);
            let answer = Value::Object(said.render(&hook, HookFormat::Client));
            assert_eq!(answer, shape, "{client:?} {event}");
            assert_eq!(Said::default().render(&hook, HookFormat::Client), Map::new());
        }
    }

    #[test]
    fn no_more_than_a_client_takes() {
        let said = Said(vec![Note::Messages("ü".repeat(20_000))]);
        let answer = said.render(
            &hook(HookClient::ClaudeCode, "UserPromptSubmit", prompt()),
            HookFormat::Client,
        );
        let text = answer["hookSpecificOutput"]["additionalContext"].as_str().unwrap();
        assert_eq!(text.chars().count(), 10_000);
    }

    #[test]
    fn what_is_cut_off_is_no_message() {
        let said = Said(vec![Note::Reminder("r".repeat(9_000)), Note::Messages("m".repeat(8_000))]);
        let text = said.text().unwrap();
        assert_eq!(text.matches('m').count(), 8_000);
        assert_eq!(text.chars().count(), 10_000);
    }

    #[test]
    fn shapes_for_scripts() {
        let start = hook(
            HookClient::ClaudeCode,
            "SessionStart",
            Moment::Start { source: crate::domain::journal::SessionSource::Startup },
        );
        let asked = hook(HookClient::ClaudeCode, "UserPromptSubmit", prompt());
        let ran = hook(HookClient::ClaudeCode, "PostToolUse", Moment::ToolEnd(used()));
        let text = || "t".to_owned();
        for (hook, notes, shape) in [
            (&start, vec![Note::Started], json!({ "type": "session_started", "session_id": "s" })),
            (
                &start,
                vec![Note::Started, Note::Record(text())],
                json!({ "type": "orphan_detected", "content": "t" }),
            ),
            (&asked, vec![], json!({ "type": "degraded", "reason": "no_context" })),
            (
                &asked,
                vec![Note::Context("12345".to_owned())],
                json!({ "type": "rich", "content": "12345", "token_count": 2 }),
            ),
            (&ran, vec![Note::Reminder(text())], json!({ "type": "reminder", "content": "t" })),
            (
                &ran,
                vec![Note::Outcome { text: text(), action: "resolve_confirmed" }],
                json!({ "type": "outcome", "content": "t", "suggested_action": "resolve_confirmed" }),
            ),
            (&ran, vec![Note::Suggestion(text())], json!({ "type": "suggestion", "content": "t" })),
            (&ran, vec![], json!({})),
        ] {
            assert_eq!(Value::Object(Said(notes).render(hook, HookFormat::Spec)), shape);
        }
    }
}
