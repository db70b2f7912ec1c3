//! The reply to an event, in each client's own shape.

use serde_json::{Map, Value, json};

use super::{HookClient, HookEvent, HookFormat, HookMoment};
use crate::{
    AgentRequestId,
    quote::{self, ModelText},
};

/// Claude Code writes a longer text into a file that its model may not read. The other clients get
/// no more either.
const TEXT_CHARS: usize = 10_000;

/// One part of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookNote {
    /// The session is known.
    Started,
    /// A record was left open in this project, or is open in this session.
    Record(ModelText),
    /// Records and memories that fit the prompt.
    Context(ModelText),
    /// It is time to look at the active record.
    Reminder(ModelText),
    /// A test, a build or a check ran.
    Outcome {
        text: ModelText,
        /// The way to resolve the active record by it.
        action: &'static str,
    },
    /// An advice without a record.
    Suggestion(ModelText),
    /// Messages from others.
    Messages(ModelText),
    /// Lines for the person, of messages that woke the session. The model has them already.
    Headline(ModelText),
    /// The hook is to hold the prompt that it told of: this request.
    Held(AgentRequestId),
}

/// The field of a reply that names the request which the hook is to hold. No client is shown it.
pub const HELD_REQUEST: &str = "svc_held";

/// The reply to one event. The order of its notes is their order for the client.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HookReply(pub Vec<HookNote>);

/// The parts of a reply to the session itself, in their order.
#[derive(Debug, Default)]
pub struct ReplyParts {
    /// Whether the session begins with this event.
    pub is_start: bool,
    /// An open record that the session should know of.
    pub record: Option<HookNote>,
    /// The reminder that is due.
    pub reminder: Option<HookNote>,
    /// What the run that is over says about the active record.
    pub run: Option<HookNote>,
    /// Messages that this reply hands over.
    pub mail: Option<ModelText>,
    /// What a person is shown of the messages that woke the session.
    pub headline: Option<ModelText>,
    /// What the team knows about the prompt, as Markdown.
    pub context: Option<ModelText>,
}

impl From<ReplyParts> for HookReply {
    fn from(parts: ReplyParts) -> Self {
        let started = parts.is_start.then_some(HookNote::Started);
        let mail = parts.mail.map(HookNote::Messages);
        let context = parts.context.map(HookNote::Context);
        let headline = parts.headline.map(HookNote::Headline);
        let notes = [started, parts.record, parts.reminder, parts.run, mail, context, headline];
        Self(notes.into_iter().flatten().collect())
    }
}

impl HookNote {
    pub(super) fn text(&self) -> Option<&ModelText> {
        match self {
            Self::Started | Self::Headline(_) | Self::Held(_) => None,
            Self::Record(text)
            | Self::Context(text)
            | Self::Reminder(text)
            | Self::Outcome { text, .. }
            | Self::Suggestion(text)
            | Self::Messages(text) => Some(text),
        }
    }
}

impl HookReply {
    /// What the hook prints; empty if it is to print nothing.
    pub fn render(&self, event: &HookEvent, format: HookFormat) -> Map<String, Value> {
        let object = match format {
            HookFormat::Client => self.for_client(event),
            HookFormat::Spec => self.for_scripts(event),
        };
        match object {
            Value::Object(object) => object,
            _ => Map::new(),
        }
    }

    fn text(&self) -> Option<String> {
        // Messages count as handed over, so they stand first, and the cut falls on the rest.
        let is_mail = |note: &&HookNote| matches!(note, HookNote::Messages(_));
        let mail = self.0.iter().filter(is_mail);
        let rest = self.0.iter().filter(|note| !is_mail(note));
        let mut text = ModelText::paragraphs(mail.chain(rest).filter_map(HookNote::text));
        text.truncate_chars(TEXT_CHARS);
        (!text.is_empty()).then(|| text.into_string())
    }

    fn for_client(&self, event: &HookEvent) -> Value {
        if let Some(HookNote::Held(request)) = self.0.first() {
            return json!({ HELD_REQUEST: request });
        }
        let mut answer = self.for_model(event);
        let headline = self.0.iter().find_map(|note| match note {
            HookNote::Headline(line) => Some(line),
            _ => None,
        });
        // Of the others nobody is woken.
        if let (Some(line), HookClient::ClaudeCode) = (headline, event.client) {
            answer["systemMessage"] = json!(line);
        }
        answer
    }

    fn for_model(&self, event: &HookEvent) -> Value {
        let Some(text) = self.text().filter(|_| event.takes_context()) else { return Value::Null };
        let context = || json!({ "hookSpecificOutput": { "hookEventName": event.name, "additionalContext": text } });
        match (event.client, &event.moment) {
            (HookClient::Opencode, _) => json!({ "context": text }),
            // These two clients go on only if the stop is refused; Claude Code goes on by context
            // alone.
            (HookClient::Codex, HookMoment::Stop { .. }) => {
                json!({ "decision": "block", "reason": text })
            }
            (HookClient::Gemini, HookMoment::Stop { .. }) => {
                json!({ "decision": "deny", "reason": text })
            }
            _ => context(),
        }
    }

    /// One object for scripts: the weightiest note.
    fn for_scripts(&self, event: &HookEvent) -> Value {
        let tokens = |text: &str| text.len().div_ceil(4);
        let first = self.0.iter().find(|note| {
            !matches!(note, HookNote::Started | HookNote::Headline(_) | HookNote::Held(_))
        });
        match (first, &event.moment) {
            (Some(HookNote::Record(text)), _) => {
                json!({ "type": "orphan_detected", "content": text })
            }
            (_, HookMoment::Start { .. }) => {
                json!({ "type": "session_started", "session_id": quote::plain(&event.session_id) })
            }
            (Some(HookNote::Reminder(text)), _) => json!({ "type": "reminder", "content": text }),
            (Some(HookNote::Outcome { text, action }), _) => {
                json!({ "type": "outcome", "content": text, "suggested_action": action })
            }
            (Some(HookNote::Suggestion(text)), _) => {
                json!({ "type": "suggestion", "content": text })
            }
            (Some(HookNote::Messages(_) | HookNote::Context(_)), _) => {
                let text = self.text().unwrap_or_default();
                json!({ "type": "rich", "token_count": tokens(&text), "content": text })
            }
            (_, HookMoment::Prompt { .. }) => json!({ "type": "degraded", "reason": "no_context" }),
            (Some(HookNote::Started | HookNote::Headline(_) | HookNote::Held(_)) | None, _) => {
                Value::Null
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{hook::HookToolUse, quote::model_text};

    fn hook(client: HookClient, event: &str, moment: HookMoment) -> HookEvent {
        HookEvent {
            client,
            name: event.to_owned(),
            session_id: "s".to_owned(),
            agent_id: String::new(),
            cwd: None,
            permission_mode: None,
            moment,
        }
    }

    fn prompt() -> HookMoment {
        HookMoment::Prompt { text: "p".to_owned() }
    }

    fn long(text: &'static str, count: usize) -> ModelText {
        let mut long = ModelText::default();
        (0..count).for_each(|_| long.push(&text));
        long
    }

    fn used() -> HookToolUse {
        HookToolUse { tool: "Bash".to_owned(), use_id: None, arguments: Value::Null, run: None }
    }

    #[test]
    fn each_client_gets_its_own_shape_where_it_takes_one() {
        use HookClient::{ClaudeCode, Codex, Gemini, Opencode};
        let reply = HookReply(vec![
            HookNote::Started,
            HookNote::Reminder(model_text!("a")),
            HookNote::Messages(model_text!("b")),
        ]);
        let context = |event: &str| json!({ "hookSpecificOutput": { "hookEventName": event, "additionalContext": "b\n\na" } });
        let start = HookMoment::Start { source: crate::journal::SessionSource::Startup };
        let (stop, again) = (
            HookMoment::Stop { again: false, words: None },
            HookMoment::Stop { again: true, words: None },
        );
        for (client, event, moment, shape) in [
            (ClaudeCode, "SessionStart", start.clone(), context("SessionStart")),
            (ClaudeCode, "PreToolUse", HookMoment::ToolStart(used()), context("PreToolUse")),
            (
                ClaudeCode,
                "PostToolUseFailure",
                HookMoment::ToolEnd(used()),
                context("PostToolUseFailure"),
            ),
            (ClaudeCode, "Stop", stop.clone(), context("Stop")),
            (ClaudeCode, "Stop", again.clone(), json!({})),
            (ClaudeCode, "SessionEnd", HookMoment::End { reason: None }, json!({})),
            (ClaudeCode, "Notification", HookMoment::TurnOver { failure: None }, json!({})),
            (Codex, "UserPromptSubmit", prompt(), context("UserPromptSubmit")),
            (Codex, "Stop", stop.clone(), json!({ "decision": "block", "reason": "b\n\na" })),
            (Codex, "Stop", again, json!({ "decision": "block", "reason": "b\n\na" })),
            (Gemini, "BeforeAgent", prompt(), context("BeforeAgent")),
            (Gemini, "BeforeTool", HookMoment::ToolStart(used()), json!({})),
            (Gemini, "AfterTool", HookMoment::ToolEnd(used()), context("AfterTool")),
            (Gemini, "AfterAgent", stop.clone(), json!({ "decision": "deny", "reason": "b\n\na" })),
            (Opencode, "session.created", start, json!({})),
            (Opencode, "chat.message", prompt(), json!({ "context": "b\n\na" })),
            (Opencode, "tool.execute.before", HookMoment::ToolStart(used()), json!({})),
            (
                Opencode,
                "tool.execute.after",
                HookMoment::ToolEnd(used()),
                json!({ "context": "b\n\na" }),
            ),
            (Opencode, "session.idle", stop, json!({})),
        ] {
            let hook = hook(client, event, moment);
            let answer = Value::Object(reply.render(&hook, HookFormat::Client));
            assert_eq!(answer, shape, "{client:?} {event}");
            assert_eq!(HookReply::default().render(&hook, HookFormat::Client), Map::new());
        }
    }

    #[test]
    fn a_person_is_shown_what_woke_the_session() {
        let line = || HookNote::Headline(model_text!("svc: a asks: b"));
        let render = |client, notes| {
            let event = hook(client, "UserPromptSubmit", prompt());
            Value::Object(HookReply(notes).render(&event, HookFormat::Client))
        };
        let shown = render(HookClient::ClaudeCode, vec![line()]);
        assert_eq!(shown, json!({ "systemMessage": "svc: a asks: b" }));
        let both =
            render(HookClient::ClaudeCode, vec![HookNote::Context(model_text!("c")), line()]);
        assert_eq!(both["systemMessage"], "svc: a asks: b");
        assert_eq!(both["hookSpecificOutput"]["additionalContext"], "c");
        assert_eq!(render(HookClient::Codex, vec![line()]), json!({}));
    }

    #[test]
    fn no_more_than_a_client_takes() {
        let reply = HookReply(vec![HookNote::Messages(long("ü", 20_000))]);
        let answer = reply.render(
            &hook(HookClient::ClaudeCode, "UserPromptSubmit", prompt()),
            HookFormat::Client,
        );
        let text = answer["hookSpecificOutput"]["additionalContext"].as_str().unwrap();
        assert_eq!(text.chars().count(), 10_000);
    }

    #[test]
    fn what_is_cut_off_is_no_message() {
        let reply = HookReply(vec![
            HookNote::Reminder(long("r", 9_000)),
            HookNote::Messages(long("m", 8_000)),
        ]);
        let text = reply.text().unwrap();
        assert_eq!(text.matches('m').count(), 8_000);
        assert_eq!(text.chars().count(), 10_000);
    }

    #[test]
    fn shapes_for_scripts() {
        let start = hook(
            HookClient::ClaudeCode,
            "SessionStart",
            HookMoment::Start { source: crate::journal::SessionSource::Startup },
        );
        let asked = hook(HookClient::ClaudeCode, "UserPromptSubmit", prompt());
        let ran = hook(HookClient::ClaudeCode, "PostToolUse", HookMoment::ToolEnd(used()));
        let text = || model_text!("t");
        for (hook, notes, shape) in [
            (
                &start,
                vec![HookNote::Started],
                json!({ "type": "session_started", "session_id": "s" }),
            ),
            (
                &start,
                vec![HookNote::Started, HookNote::Record(text())],
                json!({ "type": "orphan_detected", "content": "t" }),
            ),
            (&asked, vec![], json!({ "type": "degraded", "reason": "no_context" })),
            (
                &asked,
                vec![HookNote::Context(model_text!("12345"))],
                json!({ "type": "rich", "content": "12345", "token_count": 2 }),
            ),
            (&ran, vec![HookNote::Reminder(text())], json!({ "type": "reminder", "content": "t" })),
            (
                &ran,
                vec![HookNote::Outcome { text: text(), action: "resolve_confirmed" }],
                json!({ "type": "outcome", "content": "t", "suggested_action": "resolve_confirmed" }),
            ),
            (
                &ran,
                vec![HookNote::Suggestion(text())],
                json!({ "type": "suggestion", "content": "t" }),
            ),
            (&ran, vec![], json!({})),
        ] {
            assert_eq!(Value::Object(HookReply(notes).render(hook, HookFormat::Spec)), shape);
        }
    }
}
