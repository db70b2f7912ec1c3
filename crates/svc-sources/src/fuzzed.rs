//! Checks that the fuzzer makes of the bytes of child servers.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde_json::{Value, value::RawValue};

use super::message::{RawMembers, ServerMessage, modern_params};

/// Checks what is read of a message, and what of the message is passed on.
///
/// A member that svc does not read is checked as JSON and passed on as it was written. Its number may
/// be one that no `f64` holds, and its arrays may be deeper than a [`Value`] may be: such a text is
/// JSON all the same.
pub fn read_message(text: &str) {
    let message = ServerMessage::parse(text);
    assert!(message.is_none() || is_json(text), "a message is JSON: {text}");
    if let (Some(members), Ok(read)) = (RawMembers::parse(text), serde_json::from_str(text)) {
        let passed: Result<Value, _> = serde_json::from_str(&members.into_text());
        assert_eq!(passed.ok(), Some::<Value>(read), "{text}");
    }
    let params = modern_params(text);
    let params: Result<BTreeMap<String, &RawValue>, _> = serde_json::from_str(&params);
    assert!(params.is_ok_and(|params| params["_meta"].get().starts_with('{')), "{text}");
}

/// Whether the text is JSON by its grammar.
fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}
