//! Messages of servers as raw JSON, and the check that the fuzzer runs on them.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde::Deserialize;
use serde_json::{
    Map, Value, json,
    value::{RawValue, to_raw_value},
};
use svc_core::tools::RequestTrace;
use svc_model::{OrderedMembers, limits::SOURCE_MESSAGES, quote};
use svc_wire::{
    json_rpc::{INTERNAL_ERROR, JsonRpcEnvelope, JsonRpcWriter},
    mcp::{Revision, TASKS_EXTENSION, meta},
};
use tokio::time::{Instant, sleep_until};

use super::{lock, run_blocking};

#[derive(Debug)]
pub(super) enum ServerMessage {
    /// The response to a request of this client, by its number.
    Answer {
        id: u64,
        reply: Reply,
    },
    Request {
        id: Box<RawValue>,
        method: String,
        params: Option<Box<RawValue>>,
    },
    Notification {
        method: String,
        params: Option<Box<RawValue>>,
    },
}

/// Removes imitations of the daemon's stamps and of the system's text. All else is unchanged.
pub(super) fn unimitated(given: Box<RawValue>) -> Box<RawValue> {
    let replaced = || match quote::unimitated_json(given.get()) {
        Cow::Borrowed(_) => None,
        Cow::Owned(text) => Some(text),
    };
    let replaced = if given.get().len() > LONG { run_blocking(replaced) } else { replaced() };
    // It cannot fail: only strings were replaced, by strings.
    replaced.map_or(given, |text| RawValue::from_string(text).unwrap_or_default())
}

/// Length in bytes above which a text is scanned as blocking work.
const LONG: usize = 64 * 1024;

/// Longest id of a server's request, in bytes. The answer repeats it, and waits in memory until the
/// server reads it.
const MAX_ID: usize = 1024;

pub(super) type Reply = Result<Box<RawValue>, ServerError>;

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct ServerError {
    #[serde(default)]
    pub(super) code: i64,
    #[serde(default)]
    pub(super) message: String,
    #[serde(default)]
    pub(super) data: Option<Value>,
}

impl ServerMessage {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let envelope = JsonRpcEnvelope::parse_with_nulls(text.as_bytes()).ok()?;
        let params = envelope.params.filter(|raw| raw.get() != "null").map(ToOwned::to_owned);
        match (envelope.method, envelope.id) {
            (Some(_), Some(id)) if id.get().len() > MAX_ID => None,
            (Some(method), Some(id)) if id.get() != "null" => {
                Some(Self::Request { id: id.to_owned(), method, params })
            }
            (Some(method), _) => Some(Self::Notification { method, params }),
            (None, Some(id)) => {
                let id = id.get().trim_matches('"').parse().ok()?;
                let reply = match (envelope.result, envelope.error) {
                    (_, Some(error)) => {
                        Err(serde_json::from_str(error.get()).unwrap_or_else(|_| ServerError {
                            code: INTERNAL_ERROR,
                            message: error.get().to_owned(),
                            data: None,
                        }))
                    }
                    (Some(result), None) => Ok(result.to_owned()),
                    (None, None) => return None,
                };
                Some(Self::Answer { id, reply })
            }
            (None, None) => None,
        }
    }
}

/// Members of an object in their order, each unchanged.
#[derive(Default)]
pub(super) struct RawMembers(pub(super) Vec<(String, Box<RawValue>)>);

impl RawMembers {
    pub(super) fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().map(|OrderedMembers(members)| Self(members))
    }

    pub(super) fn into_text(self) -> String {
        let members = self.0.into_iter().map(|(name, value)| format!("{}:{value}", json!(name)));
        format!("{{{}}}", members.collect::<Vec<_>>().join(","))
    }
}

pub(super) fn own_capabilities() -> Value {
    json!({ "roots": { "listChanged": false }, "sampling": {}, "elicitation": { "form": {}, "url": {} } })
}

pub(super) fn own_info() -> Value {
    json!({ "name": "svc", "title": "svc", "version": env!("CARGO_PKG_VERSION") })
}

/// Params that introduce this client, which revisions without sessions require in each request.
pub(super) fn modern_params(params: &str) -> String {
    let own = [
        (meta::PROTOCOL_VERSION, json!(Revision::V2026_07_28.as_str())),
        (meta::CLIENT_INFO, own_info()),
        (
            meta::CLIENT_CAPABILITIES,
            json!({
                "roots": {}, "sampling": {}, "elicitation": { "form": {}, "url": {} },
                "extensions": { TASKS_EXTENSION: {} },
            }),
        ),
    ];
    let RawMembers(members) = RawMembers::parse(params).unwrap_or_default();
    let (written, mut members): (Vec<_>, Vec<_>) =
        members.into_iter().partition(|(name, _)| name == "_meta");
    let written = written.first().and_then(|(_, raw)| RawMembers::parse(raw.get()));
    let RawMembers(mut meta) = written.unwrap_or_default();
    // What the caller says of itself is not true of this client.
    meta.retain(|(known, _)| !own.iter().any(|(name, _)| known == name));
    meta.extend(own.into_iter().filter_map(|(name, value)| {
        to_raw_value(&value).ok().map(|value| (name.to_owned(), value))
    }));
    let meta = RawValue::from_string(RawMembers(meta).into_text()).ok();
    members.extend(meta.map(|meta| ("_meta".to_owned(), meta)));
    RawMembers(members).into_text()
}

/// Params with the trace of the caller's request, unless they have one.
pub(super) fn traced_params<'a>(params: &'a str, trace: &RequestTrace) -> Cow<'a, str> {
    let named = [("traceparent", &trace.parent), (REQUEST_ID, &trace.request_id)];
    let named = named.into_iter().filter_map(|(name, value)| Some((name, json!(value.as_ref()?))));
    if named.clone().next().is_none() {
        return Cow::Borrowed(params);
    }
    // `None` if `_meta` is no object.
    let traced = || {
        let RawMembers(mut members) = RawMembers::parse(params)?;
        let at = members.iter().position(|(name, _)| name == "_meta");
        let RawMembers(mut meta) = RawMembers::parse(at.map_or("{}", |at| members[at].1.get()))?;
        for (name, value) in named {
            if !meta.iter().any(|(known, _)| known == name) {
                meta.push((name.to_owned(), to_raw_value(&value).ok()?));
            }
        }
        let meta = RawValue::from_string(RawMembers(meta).into_text()).ok()?;
        match at {
            Some(at) => members[at].1 = meta,
            None => members.push(("_meta".to_owned(), meta)),
        }
        Some(RawMembers(members).into_text())
    };
    traced().map_or(Cow::Borrowed(params), Cow::Owned)
}

/// The member of `_meta` with the caller's `X-Request-Id`.
const REQUEST_ID: &str = "svc/request_id";

/// A request of this client. `params` is JSON.
pub(super) fn request_text(id: u64, method: &str, params: &str) -> String {
    JsonRpcWriter::new().id(&id).method(method).params_json(params).into_text()
}

pub(super) fn notification_text(method: &str, params: &str) -> String {
    JsonRpcWriter::new().method(method).params_json(params).into_text()
}

pub(super) fn answer_text(id: &RawValue, answer: Result<&Value, (i64, &str)>) -> String {
    let message = JsonRpcWriter::new().id(id);
    match answer {
        Ok(result) => message.result(result).into_text(),
        Err((code, text)) => message.error(&json!({ "code": code, "message": text })).into_text(),
    }
}

/// The members of params; empty if they are no object.
pub(super) fn members(params: Option<&RawValue>) -> Map<String, Value> {
    params.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default()
}

/// A request whose response a caller waits for.
#[derive(Debug)]
pub(super) struct ChildRequest {
    /// Its number on the connection.
    pub(super) id: u64,
    pub(super) text: String,
    /// Whether it opens the session.
    pub(super) is_first: bool,
    pub(super) traits: Option<Arc<ToolTraits>>,
    pub(super) trace: RequestTrace,
}

#[derive(Debug)]
pub(super) enum ChildMessage {
    Request(ChildRequest),
    /// A notification, an answer, or a request whose response nobody waits for.
    Note(String),
    Cancel {
        id: u64,
        text: String,
    },
}

impl ChildMessage {
    pub(super) fn into_text(self) -> String {
        match self {
            Self::Request(ChildRequest { text, .. })
            | Self::Note(text)
            | Self::Cancel { text, .. } => text,
        }
    }
}

/// What the transport needs to know of a called tool.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ToolTraits {
    /// The tool is read-only or idempotent.
    pub(super) is_repeatable: bool,
    /// The tool's schema, if arguments are repeated in headers.
    pub(super) header_schema: Option<Value>,
    /// Servers of revisions with sessions run the tool only as a task.
    pub(super) is_task: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ConnectionEnd {
    /// A retry may succeed.
    Fault(String),
    /// A person has to log in.
    NeedsAuth(String),
    /// The entry is refused, and a retry would not help.
    Refused(String),
    /// The entry has to be changed.
    Misconfigured(String),
}

impl ConnectionEnd {
    pub(super) fn reason(&self) -> &str {
        let (Self::Fault(reason)
        | Self::NeedsAuth(reason)
        | Self::Refused(reason)
        | Self::Misconfigured(reason)) = self;
        reason
    }

    pub(super) fn with_reason(&self, reason: String) -> Self {
        match self {
            Self::Fault(_) => Self::Fault(reason),
            Self::NeedsAuth(_) => Self::NeedsAuth(reason),
            Self::Refused(_) => Self::Refused(reason),
            Self::Misconfigured(_) => Self::Misconfigured(reason),
        }
    }
}

/// Why there is no response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestLoss {
    /// The connection has ended, and the outcome is unknown.
    Closed,
    /// The outcome is unknown, for this reason.
    Unanswered(String),
    /// The server did not carry it out, for this reason.
    NotTaken(String),
}

impl RequestLoss {
    pub(super) fn reason(&self) -> &str {
        match self {
            Self::Closed => "it ended",
            Self::Unanswered(reason) | Self::NotTaken(reason) => reason,
        }
    }
}

/// Unsolicited bytes of a server in one second: notifications, requests, and invalid messages.
/// Beyond that its output is not read before the second ends, so that the server blocks.
const BYTES: usize = 16 * 1024 * 1024;
const WINDOW: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct MessageThrottle(Mutex<Option<PaceWindow>>);

#[derive(Debug, Clone, Copy)]
struct PaceWindow {
    began: Instant,
    messages: u32,
    bytes: usize,
}

impl MessageThrottle {
    /// Counts a message, and waits for the next second if there were too many.
    pub(super) async fn spend(&self, bytes: usize) {
        if let Some(until) = self.count(bytes, Instant::now()) {
            sleep_until(until).await;
        }
    }

    /// Counts a message. Returns the end of the window if there were too many in it.
    fn count(&self, bytes: usize, now: Instant) -> Option<Instant> {
        let mut window = lock(&self.0);
        let present = window.filter(|window| now < window.began + WINDOW);
        let mut present = present.unwrap_or(PaceWindow { began: now, messages: 0, bytes: 0 });
        present.messages += 1;
        present.bytes += bytes;
        *window = Some(present);
        let is_over = present.messages > SOURCE_MESSAGES || present.bytes > BYTES;
        is_over.then(|| present.began + WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_params_carry_the_callers_trace() {
        let text = |text: &str| Some(Arc::from(text));
        let (request_id, parent) = (text("r-1"), text("00-a-b-01"));
        let trace = RequestTrace { request_id, parent, ..RequestTrace::default() };
        let both = r#""traceparent":"00-a-b-01","svc/request_id":"r-1""#;
        for (params, expected) in [
            ("{}", format!(r#"{{"_meta":{{{both}}}}}"#)),
            (
                r#"{"x": 1.0,"_meta":{"own": 2.0}}"#,
                format!(r#"{{"x":1.0,"_meta":{{"own":2.0,{both}}}}}"#),
            ),
            // Params that have a trace keep it.
            (
                r#"{"_meta":{"traceparent":"own"}}"#,
                r#"{"_meta":{"traceparent":"own","svc/request_id":"r-1"}}"#.to_owned(),
            ),
            (r#"{"_meta":3}"#, r#"{"_meta":3}"#.to_owned()),
        ] {
            assert_eq!(traced_params(params, &trace), expected, "{params}");
        }
        let none = RequestTrace::default();
        assert!(matches!(traced_params(r#"{ "x": 1.0 }"#, &none), Cow::Borrowed(_)));
    }

    #[test]
    fn stateless_requests_introduce_this_client_and_no_other() {
        for (params, begins) in [
            ("{}", r#"{"_meta":{"#),
            (r#"{"x": 1.0,"_meta":{"own": 2.0}}"#, r#"{"x":1.0,"_meta":{"own":2.0,"#),
            (
                r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"1999-01-01"}}"#,
                r#"{"_meta":{"#,
            ),
            (r#"{"_meta":{"a":1},"_meta":{"a":2}}"#, r#"{"_meta":{"a":1,"#),
            // No text can have half a character.
            (r#"{"_meta":{"\ud83d":1}}"#, r#"{"_meta":{"#),
            (r#"{"_meta":3}"#, r#"{"_meta":{"#),
            ("[", r#"{"_meta":{"#),
        ] {
            let given = modern_params(params);
            let rest = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","#;
            assert!(given.starts_with(&format!("{begins}{rest}")), "{params}: {given}");
            assert!(serde_json::from_str::<Value>(&given).is_ok(), "{params}: {given}");
            assert_eq!(given.matches("_meta").count(), 1, "{params}: {given}");
        }
    }

    #[test]
    fn messages_by_table() {
        for (text, expected) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{"a": 1.0}}"#, "answer 7 {\"a\": 1.0}"),
            (r#"{"jsonrpc":"2.0","id":"7","result":null}"#, "answer 7 null"),
            (r#"{"id":7,"error":{"code":-1,"message":"no"}}"#, "error 7 -1 no"),
            (r#"{"id":7,"error":"odd"}"#, "error 7 -32603 \"odd\""),
            (r#"{"id":"x","method":"ping"}"#, "request \"x\" ping"),
            (r#"{"method":"notifications/a","params":{}}"#, "note notifications/a"),
            (&format!(r#"{{"id":"{}","method":"ping"}}"#, "x".repeat(MAX_ID)), "nothing"),
            (r#"{"id":7}"#, "nothing"),
            (r#"{"id":"x","result":{}}"#, "nothing"),
            ("hello", "nothing"),
            ("", "nothing"),
            ("[]", "nothing"),
        ] {
            let parsed = match ServerMessage::parse(text) {
                Some(ServerMessage::Answer { id, reply: Ok(result) }) => {
                    format!("answer {id} {}", result.get())
                }
                Some(ServerMessage::Answer { id, reply: Err(error) }) => {
                    format!("error {id} {} {}", error.code, error.message)
                }
                Some(ServerMessage::Request { id, method, .. }) => {
                    format!("request {} {method}", id.get())
                }
                Some(ServerMessage::Notification { method, .. }) => format!("note {method}"),
                None => "nothing".to_owned(),
            };
            assert_eq!(parsed, expected, "{text}");
        }
    }

    #[test]
    fn flood_of_messages_waits_for_the_next_second() {
        let (pace, start) = (MessageThrottle::default(), Instant::now());
        for _ in 0..SOURCE_MESSAGES {
            assert_eq!(pace.count(10, start), None);
        }
        assert_eq!(pace.count(10, start), Some(start + WINDOW));
        assert_eq!(pace.count(10, start + WINDOW), None);
        assert_eq!(pace.count(BYTES, start + WINDOW), Some(start + WINDOW * 2));
    }
}
