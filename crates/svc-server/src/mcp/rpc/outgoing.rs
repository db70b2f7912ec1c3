//! Messages that go out, each serialised once.

use serde::Serialize;
use serde_json::{Value, value::RawValue};
use svc_wire::json_rpc::JsonRpcWriter;

use super::error::RpcError;

/// The answer to a request that went well.
pub(crate) fn result_message(id: &RawValue, result: &impl Serialize) -> String {
    JsonRpcWriter::new().id(id).result(result).into_text()
}

/// The same of a result of about `room` bytes.
pub(crate) fn result_message_with_room(
    id: &RawValue,
    result: &impl Serialize,
    room: usize,
) -> String {
    let room = room + id.get().len() + 64;
    JsonRpcWriter::with_room(room).id(id).result(result).into_text()
}

/// The answer to a request that failed. `id` is `null` where none could be read.
pub(crate) fn error_message(id: Option<&RawValue>, error: &RpcError) -> String {
    JsonRpcWriter::new().id(&id).error(error).into_text()
}

/// A notification.
pub(crate) fn notification_message(method: &str, params: &impl Serialize) -> String {
    JsonRpcWriter::new().method(method).params(params).into_text()
}

/// A request to the client.
pub(crate) fn request_message(id: &str, method: &str, params: &Value) -> String {
    JsonRpcWriter::new().id(id).method(method).params(params).into_text()
}
