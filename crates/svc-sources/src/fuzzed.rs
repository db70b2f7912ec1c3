//! What the fuzzer feeds of this room: bytes of child servers.

use serde_json::Value;

use super::message::{RawMembers, ServerMessage, modern_params};

/// Reads a message, and what of it is passed on.
pub fn read_message(text: &str) {
    let message = ServerMessage::parse(text);
    let read: Result<Value, _> = serde_json::from_str(text);
    assert!(message.is_none() || read.is_ok(), "a message is JSON");
    if let (Some(members), Ok(read)) = (RawMembers::parse(text), read) {
        let passed: Result<Value, _> = serde_json::from_str(&members.into_text());
        assert_eq!(passed.ok(), Some(read), "{text}");
    }
    let params: Result<Value, _> = serde_json::from_str(&modern_params(text));
    assert!(params.is_ok_and(|params| params["_meta"].is_object()), "{text}");
}
