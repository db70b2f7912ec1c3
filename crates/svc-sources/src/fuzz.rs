//! What the fuzzer feeds: a message of a server.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde_json::{Value, value::RawValue};

use crate::message::{RawMembers, ServerMessage, modern_params};

/// Fuzz target: checks what is parsed of a message, and what of the message is forwarded.
///
/// A member that svc does not parse is checked as JSON and forwarded unchanged. It may hold a
/// number that no `f64` holds, or arrays that are nested deeper than a [`Value`] may be: that is
/// JSON, too.
pub fn read_message(text: &str) {
    let message = ServerMessage::parse(text);
    assert!(
        message.is_none() || serde_json::from_str::<IgnoredAny>(text).is_ok(),
        "a message is JSON: {text}"
    );
    if let (Some(members), Ok(read)) = (RawMembers::parse(text), serde_json::from_str(text)) {
        let passed: Result<Value, _> = serde_json::from_str(&members.into_text());
        assert_eq!(passed.ok(), Some::<Value>(read), "{text}");
    }
    let params = modern_params(text);
    let params: Result<BTreeMap<String, &RawValue>, _> = serde_json::from_str(&params);
    assert!(params.is_ok_and(|params| params["_meta"].get().starts_with('{')), "{text}");
}
