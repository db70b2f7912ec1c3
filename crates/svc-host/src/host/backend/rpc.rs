//! JSON-RPC 2.0 over lines: our calls with their purposes, and incoming messages.

use std::collections::HashMap;

use serde_json::{Value, json, value::RawValue};
use svc_wire::json_rpc::{JsonRpcEnvelope, JsonRpcWriter, METHOD_NOT_FOUND};

use super::protocol::{Effect, Effects};

/// One side of a connection. `C` is the purpose of a call.
#[derive(Debug)]
pub(super) struct RpcPeer<C> {
    calls: HashMap<u64, C>,
    last: u64,
    /// Whether messages carry `jsonrpc`; some servers omit it.
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

impl<C> RpcPeer<C> {
    pub(super) fn new(says_version: bool) -> Self {
        Self { calls: HashMap::new(), last: 0, says_version }
    }

    pub(super) fn call(&mut self, purpose: C, method: &str, params: &Value, effects: &mut Effects) {
        self.last += 1;
        self.call_as(self.last, purpose, method, params, effects);
    }

    /// With an id of its own; counted ids begin at 1.
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

    /// Answers a call of an unknown method.
    pub(super) fn refuse(&self, id: &Value, method: &str, effects: &mut Effects) {
        let message = format!("this host does not know {method}");
        let error = json!({ "code": METHOD_NOT_FOUND, "message": message });
        effects.push(write(self.message().id(id).error(&error)));
    }

    /// `None` for a line that is no message, or a response to no call.
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
