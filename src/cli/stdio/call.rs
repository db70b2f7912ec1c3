//! A line from the client: its kind, and the responses that the client waits for.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use svc_wire::json_rpc::{
    INTERNAL_ERROR, INVALID_REQUEST, JsonRpcEnvelope, JsonRpcWriter, PARSE_ERROR,
};

/// The first message of a subscription; a renewed subscription sends it again.
const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";

/// A message of the client: a call, or a message or batch that gets no response.
#[derive(Debug)]
pub(super) struct ClientCall {
    pub(super) line: Bytes,
    pub(super) kind: CallKind,
    /// The method of a single message; `None` for a response and for a batch.
    pub(super) method: Option<String>,
    /// The tools that the call uses; more than one only in a batch.
    pub(super) tools: Vec<String>,
    /// `params._meta` of a message of the revision without sessions.
    pub(super) meta: Option<Box<RawValue>>,
    /// The key of the request that the message cancels.
    pub(super) cancels: Option<String>,
    /// The responses that are still due.
    pending: Vec<PendingReply>,
    /// Whether the client got the acknowledgement of its subscription.
    acknowledged: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    Modern,
    /// A subscription of the revision without sessions. Its response lasts as long as the
    /// subscription.
    Listen,
    Initialize,
    Legacy,
}

#[derive(Debug)]
struct PendingReply {
    key: String,
    id: Box<RawValue>,
    is_tool: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Settlement {
    Pass,
    /// Drop the message: the client has it already.
    Swallow,
    Garbage,
}

/// Why a call gets no response from the daemon.
pub(super) enum CallFailure {
    /// The call was not carried out; a retry may succeed.
    Unavailable(String),
    /// The call may have been carried out.
    Unknown(String),
    Refused(String),
}

impl CallFailure {
    pub(super) fn problem(&self) -> &str {
        let (Self::Unavailable(problem) | Self::Unknown(problem) | Self::Refused(problem)) = self;
        problem
    }
}

impl ClientCall {
    /// Parses a line. The error is the response to a line that is not a valid message.
    pub(super) fn parse(line: &[u8]) -> Result<Self, String> {
        let line = Bytes::copy_from_slice(line.trim_ascii());
        let raw: &RawValue = serde_json::from_slice(&line)
            .map_err(|error| refusal(PARSE_ERROR, &format!("not JSON: {error}")))?;
        if !raw.get().starts_with('[') {
            return Self::single(&line);
        }
        let elements: Vec<&RawValue> =
            serde_json::from_slice(&line).map_err(|error| invalid(&error.to_string()))?;
        if elements.is_empty() {
            return Err(invalid("an empty batch"));
        }
        // The daemon itself refuses elements that are not messages.
        let messages: Vec<JsonRpcEnvelope<'_>> = elements
            .iter()
            .filter_map(|element| JsonRpcEnvelope::parse(element.get().as_bytes()).ok())
            .collect();
        let pending = messages.iter().filter_map(PendingReply::from_request).collect();
        let tools = messages.iter().filter_map(tool).collect();
        let call = Self::new(line.clone(), CallKind::Legacy, pending);
        Ok(Self { tools, ..call })
    }

    fn new(line: Bytes, kind: CallKind, pending: Vec<PendingReply>) -> Self {
        let (method, tools, meta, cancels) = (None, Vec::new(), None, None);
        Self { line, kind, method, tools, meta, cancels, pending, acknowledged: false }
    }

    fn single(line: &Bytes) -> Result<Self, String> {
        let message = JsonRpcEnvelope::parse(line).map_err(|error| invalid(&error.to_string()))?;
        let pending = Vec::from_iter(PendingReply::from_request(&message));
        if message.method.is_none() && message.result.is_none() && message.error.is_none() {
            return Err(invalid("neither a request, nor a notification, nor a response"));
        }
        let modern = message.revision().is_some();
        let kind = match message.method.as_deref().filter(|_| !pending.is_empty()) {
            Some("subscriptions/listen") if modern => CallKind::Listen,
            _ if modern => CallKind::Modern,
            Some("initialize") => CallKind::Initialize,
            _ => CallKind::Legacy,
        };
        let is_cancellation = message.method.as_deref() == Some("notifications/cancelled");
        Ok(Self {
            tools: tool(&message).into_iter().collect(),
            meta: message.param("_meta").filter(|_| modern).map(ToOwned::to_owned),
            cancels: message.param("requestId").filter(|_| is_cancellation).map(key),
            method: message.method,
            ..Self::new(line.clone(), kind, pending)
        })
    }

    /// The key of a single request; `None` for a batch.
    pub(super) fn only_key(&self) -> Option<&str> {
        match self.pending.as_slice() {
            [pending] => Some(&pending.key),
            _ => None,
        }
    }

    /// Whether no response is due, as for a message that gets none.
    pub(super) fn is_settled(&self) -> bool {
        self.pending.is_empty()
    }

    /// Removes the responses in this message from those that are due.
    pub(super) fn settle(&mut self, text: &str) -> Settlement {
        let Ok(raw) = serde_json::from_str::<&RawValue>(text) else {
            return Settlement::Garbage;
        };
        let elements: Vec<&RawValue> =
            serde_json::from_str(raw.get()).unwrap_or_else(|_| vec![raw]);
        for element in elements {
            let Ok(message) = JsonRpcEnvelope::parse(element.get().as_bytes()) else {
                return Settlement::Garbage;
            };
            match (message.id, message.method.as_deref()) {
                (Some(id), None) => {
                    let id = key(id);
                    self.pending.retain(|pending| pending.key != id);
                }
                (None, Some(ACKNOWLEDGED))
                    if self.kind == CallKind::Listen && self.acknowledged =>
                {
                    return Settlement::Swallow;
                }
                (None, Some(ACKNOWLEDGED)) => self.acknowledged = true,
                _ => {}
            }
        }
        Settlement::Pass
    }

    /// Error responses for the requests without a response.
    pub(super) fn failures(&self, failure: &CallFailure) -> Vec<String> {
        self.pending.iter().map(|pending| pending.failure(failure, self.is_modern())).collect()
    }

    /// Responses with an error of the daemon for the requests without a response.
    pub(super) fn errors(&self, error: &(impl Serialize + ?Sized)) -> Vec<String> {
        self.pending.iter().map(|pending| error_reply(Some(&pending.id), error)).collect()
    }

    pub(super) fn is_modern(&self) -> bool {
        matches!(self.kind, CallKind::Modern | CallKind::Listen)
    }
}

pub(super) fn too_long(limit: usize) -> String {
    invalid(&format!("a line is longer than {limit} bytes"))
}

impl PendingReply {
    fn from_request(message: &JsonRpcEnvelope<'_>) -> Option<Self> {
        let id = message.id.filter(|_| message.is_request())?;
        let is_tool = message.method.as_deref() == Some("tools/call");
        Some(Self { key: key(id), id: id.to_owned(), is_tool })
    }

    fn failure(&self, failure: &CallFailure, modern: bool) -> String {
        let (kind, message) = match failure {
            CallFailure::Unavailable(problem) => {
                ("unavailable", format!("the request was not carried out: {problem}"))
            }
            CallFailure::Unknown(problem) if self.is_tool => (
                "unavailable",
                format!(
                    "the outcome is unknown: {problem}; the tool may have done its work, so look before calling it again"
                ),
            ),
            CallFailure::Unknown(problem) => ("unavailable", problem.clone()),
            CallFailure::Refused(problem) => {
                let error = json!({ "code": INTERNAL_ERROR, "message": problem });
                return error_reply(Some(&self.id), &error);
            }
        };
        if !self.is_tool {
            let error =
                json!({ "code": INTERNAL_ERROR, "message": message, "data": { "type": kind } });
            return error_reply(Some(&self.id), &error);
        }
        let is_known = !matches!(failure, CallFailure::Unknown(_));
        let mut error = json!({ "type": kind, "message": message, "retryable": is_known });
        if !is_known {
            error["allowed"] = json!({ "outcome": "unknown" });
        }
        let content = json!({ "error": error });
        let mut result = json!({
            "content": [{ "type": "text", "text": content.to_string() }],
            "structuredContent": content,
            "isError": true,
        });
        if modern {
            result["resultType"] = json!("complete");
        }
        JsonRpcWriter::new().id(&self.id).result(&result).into_text()
    }
}

/// The tool that a message calls, directly or through the tool `ToolCall`.
fn tool(message: &JsonRpcEnvelope<'_>) -> Option<String> {
    if !message.is_request() || message.method.as_deref() != Some("tools/call") {
        return None;
    }
    // A call without a name is still a tool call.
    let name = message.text_param("name").unwrap_or_default();
    if name != "ToolCall" {
        return Some(name);
    }
    let arguments: Value = serde_json::from_str(message.param("arguments")?.get()).ok()?;
    Some(arguments["name"].as_str().unwrap_or_default().to_owned())
}

/// A canonical spelling of an id: JSON can write one string in several ways.
fn key(id: &RawValue) -> String {
    serde_json::from_str::<Value>(id.get())
        .map_or_else(|_| id.get().to_owned(), |id| id.to_string())
}

fn invalid(problem: &str) -> String {
    refusal(INVALID_REQUEST, problem)
}

fn refusal(code: i64, message: &str) -> String {
    error_reply(None, &json!({ "code": code, "message": message }))
}

fn error_reply(id: Option<&RawValue>, error: &(impl Serialize + ?Sized)) -> String {
    JsonRpcWriter::new().id(&id).error(error).into_text()
}

pub(super) fn own_request(id: &str, method: &str, params: &impl Serialize) -> Bytes {
    JsonRpcWriter::new().id(id).method(method).params(params).into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(line: &str) -> ClientCall {
        ClientCall::parse(line.as_bytes()).expect(line)
    }

    fn note(line: &str) -> ClientCall {
        let note = call(line);
        assert!(note.is_settled(), "{line}: {note:?}");
        note
    }

    const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;

    #[test]
    fn lines_parse_by_kind() {
        let modern = |method: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{META}}}}}"#)
        };
        let cases = [
            (r#"{"id":1,"method":"initialize","params":{}}"#.to_owned(), CallKind::Initialize),
            (r#"{"id":1,"method":"tools/list"}"#.to_owned(), CallKind::Legacy),
            (r#"[{"id":1,"method":"ping"},{"method":"x"},7]"#.to_owned(), CallKind::Legacy),
            (modern("tools/list"), CallKind::Modern),
            (modern("initialize"), CallKind::Modern),
            (modern("subscriptions/listen"), CallKind::Listen),
        ];
        for (line, kind) in cases {
            assert_eq!(call(&line).kind, kind, "{line}");
        }
        let called = call(r#" {"id":"a","method":"tools/call","params":{"name":"echo"}} "#);
        assert_eq!((called.tools, called.pending.len()), (vec!["echo".to_owned()], 1));
        assert_eq!(called.line.first(), Some(&b'{'));
        let cancelled =
            note(r#"{"method":"notifications/cancelled","params":{"requestId":"\u0061"}}"#);
        assert_eq!(cancelled.cancels.as_deref(), Some("\"a\""));
        assert!(!cancelled.is_modern());
        assert!(note(&format!(r#"{{"method":"x","params":{{{META}}}}}"#)).is_modern());
        assert_eq!(note(r#"{"id":1,"result":{}}"#).method, None);
        assert_eq!(note(r#"[{"id":1,"result":{}}]"#).method, None);
    }

    #[test]
    fn invalid_line_gets_an_error_response() {
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
            let reply = ClientCall::parse(line.as_bytes()).expect_err(line);
            let reply: Value = serde_json::from_str(&reply).expect("is JSON");
            assert_eq!(reply["error"]["code"], code, "{line}");
            assert!(reply["id"].is_null() && reply.get("id").is_some(), "{line}");
        }
    }

    #[test]
    fn responses_settle_calls_by_id() {
        let mut batch = call(r#"[{"id":1,"method":"a"},{"id":"1","method":"b"}]"#);
        for (message, left) in [
            (r#"{"method":"notifications/progress"}"#, 2),
            (r#"{"id":1,"method":"roots/list"}"#, 2),
            (r#"[{"id":"1","error":{}},{"id":9,"result":{}}]"#, 1),
            (r#"{"id":1,"result":{}}"#, 0),
        ] {
            assert_eq!(batch.settle(message), Settlement::Pass, "{message}");
            assert_eq!(batch.pending.len(), left, "{message}");
        }
        assert_eq!(batch.settle("oops"), Settlement::Garbage);
    }

    #[test]
    fn subscription_is_acknowledged_once() {
        let line = format!(r#"{{"id":1,"method":"subscriptions/listen","params":{{{META}}}}}"#);
        let mut listen = call(&line);
        let ack = r#"{"method":"notifications/subscriptions/acknowledged","params":{}}"#;
        let change = r#"{"method":"notifications/tools/list_changed"}"#;
        let seen = [ack, change, ack, change].map(|message| listen.settle(message));
        assert_eq!(
            seen,
            [Settlement::Pass, Settlement::Pass, Settlement::Swallow, Settlement::Pass]
        );
    }

    #[test]
    fn failures_have_the_form_that_the_request_expects() {
        let tool = call(r#"{"id":7,"method":"tools/call","params":{"name":"x"}}"#);
        let reply = tool.failures(&CallFailure::Unknown("it was cut".to_owned())).remove(0);
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
        let reply = list.failures(&CallFailure::Unavailable("away".to_owned())).remove(0);
        let reply: Value = serde_json::from_str(&reply).expect("is JSON");
        assert_eq!(reply["error"]["code"], INTERNAL_ERROR);

        let line = format!(r#"{{"id":7,"method":"tools/call","params":{{"name":"x",{META}}}}}"#);
        let reply = call(&line).failures(&CallFailure::Unknown(String::new())).remove(0);
        assert!(reply.contains(r#""resultType":"complete""#), "{reply}");
    }
}
