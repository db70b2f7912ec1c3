//! Messages that go out, each serialised once.

use serde::Serialize;
use serde_json::{Value, value::RawValue};

use super::error::RpcError;

const VERSION: &str = "2.0";

#[derive(Serialize)]
struct ResultEnvelope<'a, R> {
    jsonrpc: &'static str,
    id: &'a RawValue,
    result: &'a R,
}

#[derive(Serialize)]
struct ErrorEnvelope<'a> {
    jsonrpc: &'static str,
    id: Option<&'a RawValue>,
    error: &'a RpcError,
}

#[derive(Serialize)]
struct NotificationEnvelope<'a, P> {
    jsonrpc: &'static str,
    method: &'a str,
    params: &'a P,
}

#[derive(Serialize)]
struct RequestEnvelope<'a> {
    jsonrpc: &'static str,
    id: &'a str,
    method: &'a str,
    params: &'a Value,
}

/// The answer to a request that went well.
pub(crate) fn result_message(id: &RawValue, result: &impl Serialize) -> String {
    result_message_with_room(id, result, 256)
}

/// The same of a result of about `room` bytes: a large one does not move about in memory while it grows.
pub(crate) fn result_message_with_room(
    id: &RawValue,
    result: &impl Serialize,
    room: usize,
) -> String {
    text_of(&ResultEnvelope { jsonrpc: VERSION, id, result }, room + id.get().len() + 64)
}

/// The answer to a request that failed. `id` is `null` where none could be read.
pub(crate) fn error_message(id: Option<&RawValue>, error: &RpcError) -> String {
    text_of(&ErrorEnvelope { jsonrpc: VERSION, id, error }, 256)
}

/// A notification.
pub(crate) fn notification_message(method: &str, params: &impl Serialize) -> String {
    text_of(&NotificationEnvelope { jsonrpc: VERSION, method, params }, 256)
}

/// A request to the client.
pub(crate) fn request_message(id: &str, method: &str, params: &Value) -> String {
    text_of(&RequestEnvelope { jsonrpc: VERSION, id, method, params }, 256)
}

fn text_of(message: &impl Serialize, room: usize) -> String {
    let mut text = Vec::with_capacity(room);
    serde_json::to_writer(&mut text, message).expect("a message of ours has a JSON form");
    String::from_utf8(text).expect("JSON is UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_parts_pass_byte_for_byte() {
        let id = RawValue::from_string("1.50".to_owned()).unwrap();
        let result = RawValue::from_string(r#"{"b": 1e2,  "a":"é"}"#.to_owned()).unwrap();
        assert_eq!(
            result_message(&id, &result),
            r#"{"jsonrpc":"2.0","id":1.50,"result":{"b": 1e2,  "a":"é"}}"#
        );
    }

    #[test]
    fn an_error_has_an_id_if_only_null() {
        let error = RpcError::new(-1, "no").status(400);
        let message = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"no"}}"#;
        assert_eq!(error_message(None, &error), message);
    }
}
