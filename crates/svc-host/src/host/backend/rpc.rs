//! JSON-RPC 2.0 over lines: calls of ours with what they were for, and what comes in.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::effect::{Effect, Effects};

/// The code for a method that nobody here knows.
const METHOD_NOT_FOUND: i64 = -32601;

/// One side of a connection. `C` says what a call was for.
#[derive(Debug)]
pub(super) struct RpcPeer<C> {
    calls: HashMap<u64, C>,
    last: u64,
    /// The member that says the version, or nothing for servers that do without it.
    version: Option<&'static str>,
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
    /// A connection whose messages say their version, if there is one.
    pub(super) fn new(version: Option<&'static str>) -> Self {
        Self { calls: HashMap::new(), last: 0, version }
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
        self.write(json!({ "id": id, "method": method, "params": params }), effects);
    }

    /// Tells something.
    pub(super) fn notify(&self, method: &str, params: &Value, effects: &mut Effects) {
        self.write(json!({ "method": method, "params": params }), effects);
    }

    /// Answers a call by the other side.
    pub(super) fn answer(&self, id: &Value, result: &Value, effects: &mut Effects) {
        self.write(json!({ "id": id, "result": result }), effects);
    }

    /// Answers a call that nobody here knows.
    pub(super) fn refuse(&self, id: &Value, method: &str, effects: &mut Effects) {
        let message = format!("this host does not know {method}");
        let error = json!({ "code": METHOD_NOT_FOUND, "message": message });
        self.write(json!({ "id": id, "error": error }), effects);
    }

    /// Reads a line. What is no message, or an answer to nothing, is none.
    pub(super) fn read(&mut self, line: &[u8]) -> Option<RpcMessage<C>> {
        let mut message: Value = serde_json::from_slice(line).ok()?;
        let id = message.get("id").cloned();
        if let Some(method) = message["method"].as_str().map(str::to_owned) {
            let params = message["params"].take();
            return Some(match id {
                Some(id) => RpcMessage::Call(id, method, params),
                None => RpcMessage::Notice(method, params),
            });
        }
        let purpose = self.calls.remove(&id?.as_u64()?)?;
        let error = &message["error"];
        if error.is_object() {
            let failure = RpcFailure {
                code: error["code"].as_i64().unwrap_or_default(),
                message: error["message"].as_str().unwrap_or("an error").to_owned(),
                data: error["data"].clone(),
            };
            return Some(RpcMessage::Answer(purpose, Err(failure)));
        }
        Some(RpcMessage::Answer(purpose, Ok(message["result"].take())))
    }

    fn write(&self, mut message: Value, effects: &mut Effects) {
        if let Some(version) = self.version {
            message["jsonrpc"] = json!(version);
        }
        effects.push(Effect::write_json(&message));
    }
}
