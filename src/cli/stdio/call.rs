//! What a line asks for, and what the bridge owes the client for it.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::client::mcp::Message;

const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const INTERNAL_ERROR: i32 = -32603;
/// The first message of a subscription, and of every one that takes its place.
const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";

/// A line that can be sent.
#[derive(Debug)]
pub(super) enum Incoming {
    /// It wants an answer.
    Call(Call),
    /// It wants none: a notification or a response, or a batch of them.
    Note(Note),
}

/// A request, or a batch with at least one.
#[derive(Debug)]
pub(super) struct Call {
    /// What was written, as it was written.
    pub(super) line: Bytes,
    pub(super) kind: Kind,
    /// The tools it calls; several only in a batch.
    pub(super) tools: Vec<String>,
    /// What a call that stands for itself says about itself.
    pub(super) meta: Option<Box<RawValue>>,
    owed: Vec<Owed>,
    acknowledged: bool,
}

/// How a call relates to sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It stands for itself.
    Modern,
    /// The same, and its answer ends only with the subscription.
    Listen,
    /// It begins a session.
    Initialize,
    /// It belongs to the session, if there is one.
    Legacy,
}

#[derive(Debug)]
struct Owed {
    key: String,
    id: Box<RawValue>,
    is_tool: bool,
}

/// What nobody waits for.
#[derive(Debug)]
pub(super) struct Note {
    /// What was written, as it was written.
    pub(super) line: Bytes,
    /// The method, of a single notification.
    pub(super) method: Option<String>,
    /// Whether it stands for itself, without a session.
    pub(super) modern: bool,
    /// The key of the request that it takes back.
    pub(super) cancels: Option<String>,
}

/// What is to be done with a message from the daemon.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// The client gets it.
    Pass,
    /// The client has it already.
    Swallow,
    /// It is no message.
    Garbage,
}

/// Why a call gets no answer from the daemon.
#[derive(Debug)]
pub(super) enum Failure {
    /// It was not carried out; it may work later.
    Unavailable(String),
    /// It may have been carried out.
    Unknown(String),
    /// The daemon does not want it.
    Refused(String),
}

impl Incoming {
    /// Reads a line; the error is what to answer to one that cannot be sent.
    pub(super) fn parse(line: Vec<u8>) -> Result<Self, String> {
        let line = Bytes::from(line);
        let line = line.slice_ref(line.trim_ascii());
        let raw: &RawValue = serde_json::from_slice(&line)
            .map_err(|error| refusal(PARSE_ERROR, &format!("not JSON: {error}")))?;
        if !raw.get().starts_with('[') {
            return single(&line);
        }
        let elements: Vec<&RawValue> =
            serde_json::from_slice(&line).map_err(|error| invalid(&error.to_string()))?;
        if elements.is_empty() {
            return Err(invalid("an empty batch"));
        }
        // What is no message among them is the daemon's to refuse.
        let messages: Vec<Message<'_>> = elements
            .iter()
            .filter_map(|element| Message::parse(element.get().as_bytes()).ok())
            .collect();
        let owed: Vec<Owed> = messages.iter().filter_map(Owed::of).collect();
        if owed.is_empty() {
            return Ok(Self::Note(Note { line, method: None, modern: false, cancels: None }));
        }
        let tools = messages.iter().filter_map(tool).collect();
        let kind = Kind::Legacy;
        Ok(Self::Call(Call { line, kind, tools, meta: None, owed, acknowledged: false }))
    }
}

fn single(line: &Bytes) -> Result<Incoming, String> {
    let message = Message::parse(line).map_err(|error| invalid(&error.to_string()))?;
    let modern = message.revision().is_some();
    if let Some(owed) = Owed::of(&message) {
        let kind = match message.method.as_deref() {
            Some("subscriptions/listen") if modern => Kind::Listen,
            _ if modern => Kind::Modern,
            Some("initialize") => Kind::Initialize,
            _ => Kind::Legacy,
        };
        let tools = tool(&message).into_iter().collect();
        let (line, owed) = (line.clone(), vec![owed]);
        let meta = message.param("_meta").filter(|_| modern).map(ToOwned::to_owned);
        return Ok(Incoming::Call(Call { line, kind, tools, meta, owed, acknowledged: false }));
    }
    if message.method.is_none() && message.result.is_none() && message.error.is_none() {
        return Err(invalid("neither a request, nor a notification, nor a response"));
    }
    let cancels = (message.method.as_deref() == Some("notifications/cancelled"))
        .then(|| message.param("requestId").map(key))
        .flatten();
    Ok(Incoming::Note(Note { method: message.method, line: line.clone(), modern, cancels }))
}

/// What to answer to a line beyond the limit.
pub(super) fn too_long(limit: usize) -> String {
    invalid(&format!("a line is longer than {limit} bytes"))
}

impl Owed {
    fn of(message: &Message<'_>) -> Option<Self> {
        let id = message.id.filter(|_| message.is_request())?;
        let is_tool = message.method.as_deref() == Some("tools/call");
        Some(Self { key: key(id), id: id.to_owned(), is_tool })
    }
}

impl Call {
    /// What the request is known by, if it is one alone.
    pub(super) fn only_key(&self) -> Option<&str> {
        match self.owed.as_slice() {
            [owed] => Some(&owed.key),
            _ => None,
        }
    }

    /// Whether everything is answered.
    pub(super) fn is_settled(&self) -> bool {
        self.owed.is_empty()
    }

    /// Crosses off what this message answers.
    pub(super) fn settle(&mut self, text: &str) -> Settled {
        let Ok(raw) = serde_json::from_str::<&RawValue>(text) else {
            return Settled::Garbage;
        };
        let elements: Vec<&RawValue> =
            serde_json::from_str(raw.get()).unwrap_or_else(|_| vec![raw]);
        for element in elements {
            let Ok(message) = Message::parse(element.get().as_bytes()) else {
                return Settled::Garbage;
            };
            match (message.id, message.method.as_deref()) {
                (Some(id), None) => {
                    let id = key(id);
                    self.owed.retain(|owed| owed.key != id);
                }
                (None, Some(ACKNOWLEDGED)) if self.kind == Kind::Listen && self.acknowledged => {
                    return Settled::Swallow;
                }
                (None, Some(ACKNOWLEDGED)) => self.acknowledged = true,
                _ => {}
            }
        }
        Settled::Pass
    }

    /// What to tell the client instead of the answers that are still owed.
    pub(super) fn failures(&self, failure: &Failure) -> Vec<String> {
        self.owed.iter().map(|owed| owed.failure(failure, self.is_modern())).collect()
    }

    /// The same, with an error that the daemon worded.
    pub(super) fn errors(&self, error: &RawValue) -> Vec<String> {
        self.owed.iter().map(|owed| reply(Some(&owed.id), None, Some(error))).collect()
    }

    /// Whether it stands for itself, without a session.
    pub(super) fn is_modern(&self) -> bool {
        matches!(self.kind, Kind::Modern | Kind::Listen)
    }
}

impl Owed {
    fn failure(&self, failure: &Failure, modern: bool) -> String {
        let (kind, message) = match failure {
            Failure::Unavailable(problem) => {
                ("unavailable", format!("the request was not carried out: {problem}"))
            }
            Failure::Unknown(problem) if self.is_tool => (
                "unavailable",
                format!(
                    "the outcome is unknown: {problem}; the tool may have done its work, so look before calling it again"
                ),
            ),
            Failure::Unknown(problem) => ("unavailable", problem.clone()),
            Failure::Refused(problem) => {
                let error = json!({ "code": INTERNAL_ERROR, "message": problem });
                return reply(Some(&self.id), None, Some(&error));
            }
        };
        if !self.is_tool {
            let error =
                json!({ "code": INTERNAL_ERROR, "message": message, "data": { "type": kind } });
            return reply(Some(&self.id), None, Some(&error));
        }
        let content = json!({ "error": { "type": kind, "message": message } });
        let mut result = json!({
            "content": [{ "type": "text", "text": content.to_string() }],
            "structuredContent": content,
            "isError": true,
        });
        if modern {
            result["resultType"] = json!("complete");
        }
        reply::<Value>(Some(&self.id), Some(&result), None)
    }
}

fn tool(message: &Message<'_>) -> Option<String> {
    // A call without a name is still a call of something.
    (message.is_request() && message.method.as_deref() == Some("tools/call"))
        .then(|| message.text_param("name").unwrap_or_default())
}

/// An id in one spelling: a string may be written in many.
fn key(id: &RawValue) -> String {
    serde_json::from_str::<Value>(id.get())
        .map_or_else(|_| id.get().to_owned(), |id| id.to_string())
}

fn invalid(problem: &str) -> String {
    refusal(INVALID_REQUEST, problem)
}

fn refusal(code: i32, message: &str) -> String {
    reply::<Value>(None, None, Some(&json!({ "code": code, "message": message })))
}

fn reply<E: Serialize + ?Sized>(
    id: Option<&RawValue>,
    result: Option<&Value>,
    error: Option<&E>,
) -> String {
    #[derive(Serialize)]
    struct Reply<'a, E: ?Sized> {
        jsonrpc: &'static str,
        id: Option<&'a RawValue>,
        #[serde(skip_serializing_if = "Option::is_none")]
        result: Option<&'a Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a E>,
    }
    serde_json::to_string(&Reply { jsonrpc: "2.0", id, result, error })
        .expect("a value of ours has a JSON form")
}

/// A request of the bridge's own.
pub(super) fn own_request(id: &str, method: &str, params: &impl Serialize) -> Bytes {
    #[derive(Serialize)]
    struct Request<'a, P> {
        jsonrpc: &'static str,
        id: &'a str,
        method: &'a str,
        params: &'a P,
    }
    serde_json::to_vec(&Request { jsonrpc: "2.0", id, method, params })
        .expect("a value of ours has a JSON form")
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(line: &str) -> Call {
        match Incoming::parse(line.as_bytes().to_vec()) {
            Ok(Incoming::Call(call)) => call,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn note(line: &str) -> Note {
        match Incoming::parse(line.as_bytes().to_vec()) {
            Ok(Incoming::Note(note)) => note,
            other => panic!("{line}: {other:?}"),
        }
    }

    const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;

    #[test]
    fn lines_by_kind() {
        let modern = |method: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{META}}}}}"#)
        };
        let cases = [
            (r#"{"id":1,"method":"initialize","params":{}}"#.to_owned(), Kind::Initialize),
            (r#"{"id":1,"method":"tools/list"}"#.to_owned(), Kind::Legacy),
            (r#"[{"id":1,"method":"ping"},{"method":"x"},7]"#.to_owned(), Kind::Legacy),
            (modern("tools/list"), Kind::Modern),
            (modern("initialize"), Kind::Modern),
            (modern("subscriptions/listen"), Kind::Listen),
        ];
        for (line, kind) in cases {
            assert_eq!(call(&line).kind, kind, "{line}");
        }
        let called = call(r#" {"id":"a","method":"tools/call","params":{"name":"echo"}} "#);
        assert_eq!((called.tools, called.owed.len()), (vec!["echo".to_owned()], 1));
        assert_eq!(called.line.first(), Some(&b'{'));
        let cancelled =
            note(r#"{"method":"notifications/cancelled","params":{"requestId":"\u0061"}}"#);
        assert_eq!(cancelled.cancels.as_deref(), Some("\"a\""));
        assert!(!cancelled.modern);
        assert!(note(&format!(r#"{{"method":"x","params":{{{META}}}}}"#)).modern);
        assert_eq!(note(r#"{"id":1,"result":{}}"#).method, None);
        assert_eq!(note(r#"[{"id":1,"result":{}}]"#).method, None);
    }

    #[test]
    fn what_cannot_be_sent_is_answered() {
        for (line, code) in [
            ("nonsense", PARSE_ERROR),
            ("{\"id\":1", PARSE_ERROR),
            ("\u{1}", PARSE_ERROR),
            ("42", INVALID_REQUEST),
            ("[]", INVALID_REQUEST),
            ("{}", INVALID_REQUEST),
            (r#"{"id":1}"#, INVALID_REQUEST),
            (r#"{"id":1,"method":7}"#, INVALID_REQUEST),
        ] {
            let reply = Incoming::parse(line.as_bytes().to_vec()).expect_err(line);
            let reply: Value = serde_json::from_str(&reply).expect("is JSON");
            assert_eq!(reply["error"]["code"], code, "{line}");
            assert!(reply["id"].is_null() && reply.get("id").is_some(), "{line}");
        }
    }

    #[test]
    fn answers_are_crossed_off_by_id() {
        let mut batch = call(r#"[{"id":1,"method":"a"},{"id":"1","method":"b"}]"#);
        for (message, left) in [
            (r#"{"method":"notifications/progress"}"#, 2),
            (r#"{"id":1,"method":"roots/list"}"#, 2),
            (r#"[{"id":"1","error":{}},{"id":9,"result":{}}]"#, 1),
            (r#"{"id":1,"result":{}}"#, 0),
        ] {
            assert_eq!(batch.settle(message), Settled::Pass, "{message}");
            assert_eq!(batch.owed.len(), left, "{message}");
        }
        assert_eq!(batch.settle("oops"), Settled::Garbage);
    }

    #[test]
    fn a_subscription_is_acknowledged_once() {
        let line = format!(r#"{{"id":1,"method":"subscriptions/listen","params":{{{META}}}}}"#);
        let mut listen = call(&line);
        let ack = r#"{"method":"notifications/subscriptions/acknowledged","params":{}}"#;
        let change = r#"{"method":"notifications/tools/list_changed"}"#;
        let seen = [ack, change, ack, change].map(|message| listen.settle(message));
        assert_eq!(seen, [Settled::Pass, Settled::Pass, Settled::Swallow, Settled::Pass]);
    }

    #[test]
    fn failures_have_the_form_that_the_request_expects() {
        let tool = call(r#"{"id":7,"method":"tools/call","params":{"name":"x"}}"#);
        let reply = tool.failures(&Failure::Unknown("it was cut".to_owned())).remove(0);
        let reply: Value = serde_json::from_str(&reply).expect("is JSON");
        let result = &reply["result"];
        assert_eq!((&reply["id"], &result["isError"]), (&json!(7), &json!(true)));
        assert_eq!(result["structuredContent"]["error"]["type"], "unavailable");
        let said = result["structuredContent"]["error"]["message"].as_str().expect("a text");
        assert!(said.contains("unknown") && said.contains("it was cut"), "{said}");
        let text = result["content"][0]["text"].as_str().expect("a text");
        let text: Value = serde_json::from_str(text).expect("is JSON");
        assert_eq!(text, result["structuredContent"]);
        assert!(result.get("resultType").is_none());

        let list = call(r#"{"id":7,"method":"tools/list"}"#);
        let reply = list.failures(&Failure::Unavailable("away".to_owned())).remove(0);
        let reply: Value = serde_json::from_str(&reply).expect("is JSON");
        assert_eq!(reply["error"]["code"], INTERNAL_ERROR);

        let line = format!(r#"{{"id":7,"method":"tools/call","params":{{"name":"x",{META}}}}}"#);
        let reply = call(&line).failures(&Failure::Unknown(String::new())).remove(0);
        assert!(reply.contains(r#""resultType":"complete""#), "{reply}");
    }
}
