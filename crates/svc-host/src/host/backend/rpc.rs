//! JSON-RPC 2.0 over lines: calls of ours with what they were for, and what comes in.

use std::collections::HashMap;

use serde_json::{Value, json, value::RawValue};
use svc_wire::json_rpc::{JsonRpcEnvelope, JsonRpcWriter, METHOD_NOT_FOUND};

use super::effect::{Effect, Effects};

/// One side of a connection. `C` says what a call was for.
#[derive(Debug)]
pub(super) struct RpcPeer<C> {
    calls: HashMap<u64, C>,
    last: u64,
    /// Whether the messages say their version: some servers do without.
    says_version: bool,
}

/// What came in.
#[derive(Debug)]
pub(super) enum RpcMessage<C> {
    /// The answer to a call.
    Answer(C, Result<Value, RpcFailure>),
    /// A call by the other side, with its id.
    Call(Value, String, Value),
    /// News.
    Notice(String, Value),
}

/// An error that was answered.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RpcFailure {
    pub(super) code: i64,
    pub(super) message: String,
    pub(super) data: Value,
}

impl<C> RpcPeer<C> {
    /// A connection whose messages say their version or do without.
    pub(super) fn new(says_version: bool) -> Self {
        Self { calls: HashMap::new(), last: 0, says_version }
    }

    /// Calls a method.
    pub(super) fn call(&mut self, purpose: C, method: &str, params: &Value, effects: &mut Effects) {
        self.last += 1;
        self.call_as(self.last, purpose, method, params, effects);
    }

    /// Calls a method under an id that is no other call's. Numbered ones begin at 1.
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

    /// Tells something.
    pub(super) fn notify(&self, method: &str, params: &Value, effects: &mut Effects) {
        effects.push(write(self.message().method(method).params(params)));
    }

    /// Answers a call by the other side.
    pub(super) fn answer(&self, id: &Value, result: &Value, effects: &mut Effects) {
        effects.push(write(self.message().id(id).result(result)));
    }

    /// Answers a call that nobody here knows.
    pub(super) fn refuse(&self, id: &Value, method: &str, effects: &mut Effects) {
        let message = format!("this host does not know {method}");
        let error = json!({ "code": METHOD_NOT_FOUND, "message": message });
        effects.push(write(self.message().id(id).error(&error)));
    }

    /// Reads a line. What is no message, or an answer to nothing, is none.
    pub(super) fn read(&mut self, line: &[u8]) -> Option<RpcMessage<C>> {
        let message = JsonRpcEnvelope::parse_with_nulls(line).ok()?;
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
