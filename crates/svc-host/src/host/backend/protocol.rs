//! The interface of every protocol, the texts that all protocols build, and JSON-RPC 2.0 over
//! lines.

use std::collections::HashMap;
use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;
use serde_json::{Value, json, value::RawValue};
use svc_model::agent::{
    AgentUsage, HistoryEntry, HistoryRole, RequestKind, RequestOption, RequestOptionKind,
    TurnOutcome,
};
use svc_model::json_with_storable_texts;
use svc_sys::lines::json_line;
use svc_wire::json_rpc::{JsonRpcEnvelope, JsonRpcWriter, METHOD_NOT_FOUND};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PromptInput<'a> {
    pub(crate) text: &'a str,
    pub(crate) message_id: &'a str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// One of the offered options.
    Option {
        option_id: String,
        text: Option<String>,
    },
    Text(String),
    Denied(String),
    Cancelled,
}

/// A protocol that an agent speaks on its standard input and output.
pub(crate) trait AgentProtocol: Debug + Send {
    /// Arguments that are added to the configured program and arguments.
    fn arguments(&self) -> Vec<String> {
        Vec::new()
    }

    fn environment(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn start(&mut self, effects: &mut Effects);

    /// Begins a turn. Only called when the agent is ready and no turn is under way.
    fn prompt(&mut self, input: &PromptInput<'_>, effects: &mut Effects);

    /// Adds input to the current turn; `false` if the agent cannot take input now.
    fn steer(&mut self, input: &PromptInput<'_>, effects: &mut Effects) -> bool;

    /// Handles a line of standard output, without its line end.
    fn line(&mut self, line: &[u8], now: Instant, effects: &mut Effects);

    /// Whether a line of standard output only ends the turn, and is no word of the agent.
    fn is_turn_end(&self, _line: &[u8]) -> bool {
        false
    }

    fn interrupt(&mut self, effects: &mut Effects);

    /// Answers the request with this key.
    fn answer(&mut self, _key: &str, _decision: &Decision, _effects: &mut Effects) {}

    /// Handles the end of standard output. There is no exit code if a signal ended the program.
    fn end(&mut self, _exit_code: Option<i32>, _effects: &mut Effects) {}

    /// When [`Self::tick`] is due.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn tick(&mut self, _effects: &mut Effects) {}
}

pub(crate) type Effects = Vec<Effect>;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Effect {
    /// Bytes for the agent's standard input.
    Write(Vec<u8>),
    CloseInput,
    /// Signal of this number to the agent's process group.
    Signal(i32),
    Ready,
    Working,
    TurnEnd(TurnResult),
    /// The vendor refuses requests because of a usage limit.
    Limited {
        /// When the limit ends, in Unix milliseconds, if the vendor reports it.
        until: Option<i64>,
    },
    /// The vendor's id of the conversation.
    Session(String),
    /// Text that will be part of the agent's next entry.
    Delta(String),
    /// An entry of the conversation; the recorder sets its time.
    Entry(HistoryEntry),
    Usage(AgentUsage),
    /// An error after which the agent continues.
    Error(String),
    Request(VendorRequest),
    /// The agent no longer waits for the request with this key.
    RequestGone(String),
    Fatal(String),
}

impl Effect {
    pub(crate) fn write_json(value: &impl Serialize) -> Self {
        Self::Write(json_line(value).unwrap_or_default())
    }

    pub(super) fn tool_call(
        name: Option<String>,
        summary: String,
        input: &Value,
        id: Option<&str>,
    ) -> Self {
        Self::Entry(HistoryEntry {
            tool_name: name,
            tool_summary: Some(summary),
            tool_input: Some(input.to_string()),
            tool_use_id: id.map(str::to_owned),
            ..HistoryEntry::empty(HistoryRole::Tool)
        })
    }

    pub(super) fn tool_result(
        name: Option<String>,
        result: String,
        id: &str,
        failed: bool,
    ) -> Self {
        Self::Entry(HistoryEntry {
            tool_name: name,
            tool_result: Some(result),
            tool_use_id: Some(id.to_owned()),
            is_error: Some(failed),
            ..HistoryEntry::empty(HistoryRole::Tool)
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TurnResult {
    pub(crate) outcome: TurnOutcome,
    /// The final text, if the vendor marks one as final.
    pub(crate) result: Option<String>,
    pub(crate) error: Option<String>,
}

impl TurnResult {
    pub(crate) const fn completed(result: Option<String>) -> Self {
        Self { outcome: TurnOutcome::Completed, result, error: None }
    }

    pub(crate) const fn interrupted() -> Self {
        Self { outcome: TurnOutcome::Interrupted, result: None, error: None }
    }

    pub(crate) const fn failed(error: String) -> Self {
        Self { outcome: TurnOutcome::Failed, result: None, error: Some(error) }
    }

    /// A refusal, such as a limit or a missing login, if `refused`; else a failure of the turn.
    pub(super) fn refused_if(refused: bool, error: String) -> Self {
        let outcome = if refused { TurnOutcome::Refused } else { TurnOutcome::Failed };
        Self { outcome, ..Self::failed(error) }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct VendorRequest {
    /// The protocol's own id of the request.
    pub(crate) key: String,
    pub(crate) kind: RequestKind,
    pub(crate) title: String,
    pub(crate) options: Vec<RequestOption>,
    pub(crate) tool: Option<Value>,
    /// Files that the request would edit; `None` if it would do anything else.
    pub(crate) edits: Option<Vec<PathBuf>>,
}

/// Longest summary in characters.
const WIDTH: usize = 160;
/// Members of a call's input that can summarise it, the best first.
const TELLING: [&str; 10] = [
    "command",
    "file_path",
    "notebook_path",
    "path",
    "pattern",
    "url",
    "query",
    "prompt",
    "description",
    "question",
];

pub(super) fn summary(input: &Value) -> String {
    let telling = TELLING.iter().find_map(|name| input.get(name));
    let text = match telling.unwrap_or(input) {
        Value::String(text) => text.clone(),
        Value::Array(parts) if parts.iter().all(Value::is_string) => {
            parts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
        }
        Value::Null => String::new(),
        other => other.to_string(),
    };
    one_line(&text)
}

pub(super) fn one_line(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.chars().count() <= WIDTH {
        return words;
    }
    words.chars().take(WIDTH - 1).chain(['…']).collect()
}

pub(super) fn call_title(name: &str, input: &Value) -> String {
    let summary = summary(input);
    if summary.is_empty() { name.to_owned() } else { format!("{name}: {summary}") }
}

/// The texts in a string, a part, or a list of parts; other content is skipped.
pub(super) fn text_of(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts: Vec<_> = parts.iter().filter_map(text_of).collect();
            (!texts.is_empty()).then(|| texts.join("\n"))
        }
        Value::Object(part) => match (part.get("text"), part.get("content")) {
            (Some(Value::String(text)), _) => Some(text.clone()),
            (_, Some(inner)) => text_of(inner),
            _ => None,
        },
        _ => None,
    }
}

/// A line of JSON whose texts can be read and stored: programs may cut a text within a character.
pub(super) fn readable(line: &[u8]) -> String {
    json_with_storable_texts(&String::from_utf8_lossy(line)).into_owned()
}

pub(super) fn option(id: &str, name: &str, kind: RequestOptionKind) -> RequestOption {
    RequestOption { option_id: id.to_owned(), name: name.to_owned(), kind, text: false }
}

/// One side of a JSON-RPC connection. `C` is the purpose of a call.
#[derive(Debug)]
pub(super) struct RpcPeer<C> {
    calls: HashMap<u64, C>,
    last: u64,
    /// Whether messages have the member `jsonrpc`; some servers omit it.
    says_version: bool,
}

#[derive(Debug)]
pub(super) enum RpcMessage<C> {
    Answer(C, RpcResult),
    /// A call by the other side: id, method, parameters.
    Call(Value, String, Value),
    Notice(String, Value),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct RpcFailure {
    pub(super) code: i64,
    pub(super) message: String,
    pub(super) data: Value,
}

pub(super) type RpcResult = Result<Value, RpcFailure>;

impl<C> Default for RpcPeer<C> {
    /// Messages do not have the member `jsonrpc`.
    fn default() -> Self {
        Self { calls: HashMap::new(), last: 0, says_version: false }
    }
}

impl<C> RpcPeer<C> {
    pub(super) fn with_version() -> Self {
        Self { says_version: true, ..Self::default() }
    }

    pub(super) fn call(&mut self, purpose: C, method: &str, params: &Value, effects: &mut Effects) {
        self.last += 1;
        self.call_as(self.last, purpose, method, params, effects);
    }

    /// Makes a call with a given id; generated ids begin at 1.
    pub(super) fn call_as(
        &mut self,
        id: u64,
        purpose: C,
        method: &str,
        params: &Value,
        effects: &mut Effects,
    ) {
        self.calls.insert(id, purpose);
        effects.push(write(self.message().id(&id).method(method).params(params)));
    }

    pub(super) fn notify(&self, method: &str, params: &Value, effects: &mut Effects) {
        effects.push(write(self.message().method(method).params(params)));
    }

    pub(super) fn answer(&self, id: &Value, result: &Value, effects: &mut Effects) {
        effects.push(write(self.message().id(id).result(result)));
    }

    /// Responds to a call of an unknown method.
    pub(super) fn refuse(&self, id: &Value, method: &str, effects: &mut Effects) {
        let message = format!("this host does not know {method}");
        let error = json!({ "code": METHOD_NOT_FOUND, "message": message });
        effects.push(write(self.message().id(id).error(&error)));
    }

    /// Parses a line; `None` if it is no message, or a response to an unknown call.
    pub(super) fn read(&mut self, line: &[u8]) -> Option<RpcMessage<C>> {
        let line = readable(line);
        let message = JsonRpcEnvelope::parse_with_nulls(line.as_bytes()).ok()?;
        let value = |raw: &RawValue| serde_json::from_str(raw.get()).unwrap_or(Value::Null);
        if let Some(method) = message.method {
            let params = message.params.map_or(Value::Null, value);
            return Some(match message.id.map(value) {
                Some(id) => RpcMessage::Call(id, method, params),
                None => RpcMessage::Notice(method, params),
            });
        }
        let purpose = self.calls.remove(&value(message.id?).as_u64()?)?;
        let error = message.error.map(value).filter(Value::is_object);
        let result = error.map_or_else(
            || Ok(message.result.map_or(Value::Null, value)),
            |mut error| {
                Err(RpcFailure {
                    code: error["code"].as_i64().unwrap_or_default(),
                    message: error["message"].as_str().unwrap_or("an error").to_owned(),
                    data: error["data"].take(),
                })
            },
        );
        Some(RpcMessage::Answer(purpose, result))
    }

    fn message(&self) -> JsonRpcWriter {
        if self.says_version { JsonRpcWriter::new() } else { JsonRpcWriter::without_version() }
    }
}

fn write(message: JsonRpcWriter) -> Effect {
    let mut line = message.into_bytes();
    line.push(b'\n');
    Effect::Write(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_a_call_is_one_line() {
        for (input, expected) in [
            (json!({"command": "ls\n -l", "description": "x"}), "ls -l"),
            (json!({"command": ["bash", "-c", "ls"]}), "bash -c ls"),
            (json!({"file_path": "/a"}), "/a"),
            (json!({"n": 1}), "{\"n\":1}"),
            (json!(null), ""),
        ] {
            assert_eq!(summary(&input), expected);
        }
        assert_eq!(one_line(&"é".repeat(500)).chars().count(), WIDTH);
    }

    #[test]
    fn texts_are_read_from_every_shape_of_content() {
        for (content, expected) in [
            (json!("a"), Some("a")),
            (
                json!([{"type": "text", "text": "a"}, {"type": "image"}, {"text": "b"}]),
                Some("a\nb"),
            ),
            (json!({"type": "content", "content": {"type": "text", "text": "a"}}), Some("a")),
            (json!([{"type": "image"}]), None),
            (json!(null), None),
        ] {
            assert_eq!(text_of(&content).as_deref(), expected);
        }
    }
}
