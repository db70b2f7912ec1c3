//! The reply to an event in each client's own shape, and what a hook may print of an answer.
//!
//! A client obeys its hooks. A hook therefore prints the shapes of [`HookReply`] and no other,
//! whatever answer it got: a field that this version of the daemon never sends at an event, such as
//! `permissionDecision`, does not come from the daemon.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    HookClient, HookEvent, HookFormat, HookMoment,
    mail::{LINE_CHARS, LINES},
};
use crate::{
    AgentRequestId,
    quote::{self, ModelText, is_invisible},
};

/// Maximum characters of a text, for all clients. Claude Code writes a longer text into a file that
/// its model may not read.
const TEXT_CHARS: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookNote {
    Started,
    /// A record that was left open in this project, or is open in this session.
    Record(ModelText),
    /// Records and memories that fit the prompt.
    Context(ModelText),
    /// A reminder of the active record.
    Reminder(ModelText),
    /// A test, a build or a check ran. `action` resolves the active record by it.
    Outcome {
        text: ModelText,
        action: &'static str,
    },
    /// Advice to a session without a record.
    Suggestion(ModelText),
    Messages(ModelText),
    /// Lines for the person, about messages that woke the session. The model has those messages
    /// already.
    Headline(ModelText),
    /// The hook holds the prompt that it reported, as this request.
    Held(AgentRequestId),
}

/// The field of a reply with the request that the hook holds. No client sees it.
pub const HELD_REQUEST: &str = "svc_held";

/// The reply to one event. The order of its notes is their order for the client.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HookReply(pub Vec<HookNote>);

/// The parts of a reply to the session itself, in their order.
#[derive(Debug, Default)]
pub struct ReplyParts {
    /// Whether the session begins with this event.
    pub is_start: bool,
    pub record: Option<HookNote>,
    pub reminder: Option<HookNote>,
    /// What the finished run says about the active record.
    pub run: Option<HookNote>,
    pub mail: Option<ModelText>,
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
    /// What the hook prints; empty for nothing.
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
        // Messages count as handed over, so they come first, and only the rest is cut.
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
        // Sessions of the other clients cannot be woken.
        if let (Some(line), HookClient::ClaudeCode) = (headline, event.client) {
            answer["systemMessage"] = json!(line);
        }
        answer
    }

    fn for_model(&self, event: &HookEvent) -> Value {
        let Some(text) = self.text().filter(|_| event.takes_context()) else { return Value::Null };
        match (event.client, &event.moment) {
            (HookClient::Opencode, _) => json!({ "context": text }),
            // These two clients continue only if the stop is refused; Claude Code continues after
            // context alone.
            (HookClient::Codex, HookMoment::Stop { .. }) => {
                json!({ "decision": "block", "reason": text })
            }
            (HookClient::Gemini, HookMoment::Stop { .. }) => {
                json!({ "decision": "deny", "reason": text })
            }
            _ => {
                json!({ "hookSpecificOutput": { "hookEventName": event.name, "additionalContext": text } })
            }
        }
    }

    /// One object for scripts: the most important note.
    fn for_scripts(&self, event: &HookEvent) -> Value {
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
                json!({ "type": "rich", "token_count": text.len().div_ceil(4), "content": text })
            }
            (_, HookMoment::Prompt { .. }) => json!({ "type": "degraded", "reason": "no_context" }),
            (Some(HookNote::Started | HookNote::Headline(_) | HookNote::Held(_)) | None, _) => {
                Value::Null
            }
        }
    }
}

/// An answer that the daemon does not give at the event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the answer was dropped, as the daemon gives no such answer at this event: {0}")]
pub struct UnexpectedOutput(String);

/// What Claude Code takes at a prompt: a text for the model, and lines for the person.
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
    #[expect(dead_code, reason = "only its type is checked")]
    additional_context: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only the types are checked")]
struct PluginOutput {
    context: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StopOutput {
    decision: String,
    #[expect(dead_code, reason = "only its type is checked")]
    reason: String,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[expect(dead_code, reason = "only the types are checked")]
enum ScriptOutput {
    SessionStarted { session_id: String },
    OrphanDetected { content: String },
    Reminder { content: String },
    Outcome { content: String, suggested_action: String },
    Suggestion { content: String },
    Rich { content: String, token_count: u64 },
    Degraded { reason: String },
}

/// What the hook prints of an answer; `None` for nothing. Fails if the answer has another shape
/// than the daemon gives at this event.
///
/// `event` is called only if there is something to print. It returns `None` if the payload does not
/// name its event, to which the daemon gives no answer.
pub fn checked_output(
    event: impl FnOnce() -> Option<HookEvent>,
    format: HookFormat,
    answer: &Value,
) -> Result<Option<String>, UnexpectedOutput> {
    if answer.is_null() || answer.as_object().is_some_and(Map::is_empty) {
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
    // serde's error may quote the answer, whose texts must not reach the log.
    T::deserialize(answer)
        .map_err(|_| UnexpectedOutput("its fields are others, or of other types".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{hook::HookToolUse, journal::SessionSource, quote::model_text};

    fn prompt() -> HookMoment {
        HookMoment::Prompt { text: "p".to_owned() }
    }

    fn long(text: &'static str, count: usize) -> ModelText {
        let mut long = ModelText::default();
        (0..count).for_each(|_| long.push(&text));
        long
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
        let start = HookMoment::Start { source: SessionSource::Startup };
        let [stop, again] = [false, true].map(|again| HookMoment::Stop { again, words: None });
        let (begun, done) = (
            HookMoment::ToolStart(HookToolUse::example("Bash")),
            HookMoment::ToolEnd(HookToolUse::example("Bash")),
        );
        for (client, event, moment, shape) in [
            (ClaudeCode, "SessionStart", start.clone(), context("SessionStart")),
            (ClaudeCode, "PreToolUse", begun.clone(), context("PreToolUse")),
            (ClaudeCode, "PostToolUseFailure", done.clone(), context("PostToolUseFailure")),
            (ClaudeCode, "Stop", stop.clone(), context("Stop")),
            (ClaudeCode, "Stop", again.clone(), json!({})),
            (ClaudeCode, "SessionEnd", HookMoment::End { reason: None }, json!({})),
            (ClaudeCode, "Notification", HookMoment::TurnOver { failure: None }, json!({})),
            (Codex, "UserPromptSubmit", prompt(), context("UserPromptSubmit")),
            (Codex, "Stop", stop.clone(), json!({ "decision": "block", "reason": "b\n\na" })),
            (Codex, "Stop", again, json!({ "decision": "block", "reason": "b\n\na" })),
            (Gemini, "BeforeAgent", prompt(), context("BeforeAgent")),
            (Gemini, "BeforeTool", begun.clone(), json!({})),
            (Gemini, "AfterTool", done.clone(), context("AfterTool")),
            (Gemini, "AfterAgent", stop.clone(), json!({ "decision": "deny", "reason": "b\n\na" })),
            (Opencode, "session.created", start, json!({})),
            (Opencode, "chat.message", prompt(), json!({ "context": "b\n\na" })),
            (Opencode, "tool.execute.before", begun, json!({})),
            (Opencode, "tool.execute.after", done, json!({ "context": "b\n\na" })),
            (Opencode, "session.idle", stop, json!({})),
        ] {
            let hook = HookEvent::example(client, event, moment);
            let answer = Value::Object(reply.render(&hook, HookFormat::Client));
            assert_eq!(answer, shape, "{client:?} {event}");
            assert_eq!(HookReply::default().render(&hook, HookFormat::Client), Map::new());
        }
    }

    #[test]
    fn a_person_is_shown_what_woke_the_session() {
        let line = || HookNote::Headline(model_text!("svc: a asks: b"));
        let render = |client, notes| {
            let event = HookEvent::example(client, "UserPromptSubmit", prompt());
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
    fn reply_is_cut_at_the_limit_of_the_client() {
        let reply = HookReply(vec![HookNote::Messages(long("ü", 20_000))]);
        let answer = reply.render(
            &HookEvent::example(HookClient::ClaudeCode, "UserPromptSubmit", prompt()),
            HookFormat::Client,
        );
        let text = answer["hookSpecificOutput"]["additionalContext"].as_str().unwrap();
        assert_eq!(text.chars().count(), 10_000);
    }

    #[test]
    fn reminders_are_cut_before_messages() {
        let reply = HookReply(vec![
            HookNote::Reminder(long("r", 9_000)),
            HookNote::Messages(long("m", 8_000)),
        ]);
        let text = reply.text().unwrap();
        assert_eq!(text.matches('m').count(), 8_000);
        assert_eq!(text.chars().count(), 10_000);
    }

    #[test]
    fn format_for_scripts_has_the_documented_members() {
        let start = HookEvent::example(
            HookClient::ClaudeCode,
            "SessionStart",
            HookMoment::Start { source: SessionSource::Startup },
        );
        let asked = HookEvent::example(HookClient::ClaudeCode, "UserPromptSubmit", prompt());
        let ran = HookEvent::example(
            HookClient::ClaudeCode,
            "PostToolUse",
            HookMoment::ToolEnd(HookToolUse::example("Bash")),
        );
        let text = || model_text!("t");
        let of_type = |kind: &str| json!({ "type": kind, "content": "t" });
        let context = HookNote::Context(model_text!("12345"));
        let outcome = HookNote::Outcome { text: text(), action: "resolve_confirmed" };
        let started = || HookNote::Started;
        for (hook, notes, shape) in [
            (&start, vec![started()], json!({ "type": "session_started", "session_id": "s" })),
            (&start, vec![started(), HookNote::Record(text())], of_type("orphan_detected")),
            (&asked, vec![], json!({ "type": "degraded", "reason": "no_context" })),
            (
                &asked,
                vec![context],
                json!({ "type": "rich", "content": "12345", "token_count": 2 }),
            ),
            (&ran, vec![HookNote::Reminder(text())], of_type("reminder")),
            (
                &ran,
                vec![outcome],
                json!({ "type": "outcome", "content": "t", "suggested_action": "resolve_confirmed" }),
            ),
            (&ran, vec![HookNote::Suggestion(text())], of_type("suggestion")),
            (&ran, vec![], json!({})),
        ] {
            assert_eq!(Value::Object(HookReply(notes).render(hook, HookFormat::Spec)), shape);
        }
    }

    fn read_event(client: HookClient, name: &str) -> HookEvent {
        let payload = match client {
            HookClient::Opencode => json!({
                "hook": name, "input": { "sessionID": "s", "tool": "bash", "callID": "c" },
                "output": { "parts": [] },
            }),
            _ => {
                json!({ "hook_event_name": name, "session_id": "s", "tool_name": "Bash", "prompt": "p" })
            }
        };
        crate::hook::read(client, None, &payload).unwrap()
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
            let event = read_event(client, name);
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
        let event = read_event(HookClient::ClaudeCode, "UserPromptSubmit");
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
