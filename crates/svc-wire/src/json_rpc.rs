//! JSON-RPC 2.0: the envelope of every message of MCP, and of the vendors' protocols that hosts
//! speak.
//!
//! [`JsonRpcEnvelope`] reads a message and [`JsonRpcWriter`] writes one. Ids, parameters and
//! results keep their text, so that the result of a tool reaches a client byte for byte. Neither
//! bounds a message: the reader of the bytes does.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::mcp::meta;

const VERSION: &str = "2.0";

pub const PARSE_ERROR: i64 = -32700;
pub const INVALID_REQUEST: i64 = -32600;
pub const METHOD_NOT_FOUND: i64 = -32601;
pub const INVALID_PARAMS: i64 = -32602;
pub const INTERNAL_ERROR: i64 = -32603;

/// A received request, notification or response.
#[derive(Debug, Deserialize)]
pub struct JsonRpcEnvelope<'a> {
    #[serde(borrow)]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub id: Option<&'a RawValue>,
    #[serde(default)]
    pub method: Option<String>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub error: Option<&'a RawValue>,
}

/// `null` is a value, unlike an absent member.
fn present<'de, D: Deserializer<'de>>(source: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(source).map(Some)
}

impl<'a> JsonRpcEnvelope<'a> {
    /// A member that is `null` counts as absent. Fails on a batch, which is an array, on a member
    /// that occurs twice, and on a method that is no string.
    pub fn parse(text: &'a [u8]) -> Result<Self, serde_json::Error> {
        let mut message = Self::parse_with_nulls(text)?;
        for member in
            [&mut message.id, &mut message.params, &mut message.result, &mut message.error]
        {
            *member = member.filter(|raw| raw.get() != "null");
        }
        Ok(message)
    }

    /// As [`Self::parse`], but a member that is `null` is present: a `null` result is a result.
    pub fn parse_with_nulls(text: &'a [u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text)
    }

    /// Whether the message states version 2.0. The standard requires it; some peers omit it.
    pub fn says_version(&self) -> bool {
        self.jsonrpc.is_some_and(|raw| {
            serde_json::from_str::<String>(raw.get()).is_ok_and(|version| version == VERSION)
        })
    }

    pub fn is_request(&self) -> bool {
        self.method.is_some() && self.id.is_some()
    }

    pub fn param(&self, name: &str) -> Option<&'a RawValue> {
        member(self.params?, name)
    }

    /// A member of `params` that is a string.
    pub fn text_param(&self, name: &str) -> Option<String> {
        serde_json::from_str(self.param(name)?.get()).ok()
    }

    /// The revision of MCP in `params._meta`, which every request without a session has.
    pub fn revision(&self) -> Option<String> {
        let revision = member(self.param("_meta")?, meta::PROTOCOL_VERSION)?;
        serde_json::from_str(revision.get()).ok()
    }
}

fn member<'a>(object: &'a RawValue, name: &str) -> Option<&'a RawValue> {
    let members: BTreeMap<String, &'a RawValue> = serde_json::from_str(object.get()).ok()?;
    members.get(name).copied()
}

/// The text of a message, member by member in the order of calls. Each value is serialised once.
#[derive(Debug)]
#[must_use]
pub struct JsonRpcWriter(Vec<u8>);

impl JsonRpcWriter {
    /// For messages of a few hundred bytes.
    pub fn new() -> Self {
        Self::without_version().member("jsonrpc", VERSION)
    }

    /// For a peer that omits the version.
    pub fn without_version() -> Self {
        Self(Vec::with_capacity(256))
    }

    /// `null` for the response to a request whose id is unreadable.
    pub fn id(self, id: &(impl Serialize + ?Sized)) -> Self {
        self.member("id", id)
    }

    pub fn method(self, method: &str) -> Self {
        self.member("method", method)
    }

    pub fn params(self, params: &(impl Serialize + ?Sized)) -> Self {
        self.member("params", params)
    }

    /// Copies parameters that are JSON already.
    pub fn params_json(mut self, params: &str) -> Self {
        self.begin("params");
        self.0.extend_from_slice(params.as_bytes());
        self
    }

    pub fn result(self, result: &(impl Serialize + ?Sized)) -> Self {
        self.member("result", result)
    }

    pub fn error(self, error: &(impl Serialize + ?Sized)) -> Self {
        self.member("error", error)
    }

    /// Without a line feed, unless `params_json` had one.
    pub fn into_text(self) -> String {
        String::from_utf8(self.into_bytes()).expect("JSON is UTF-8")
    }

    pub fn into_bytes(mut self) -> Vec<u8> {
        self.0.push(b'}');
        self.0
    }

    fn member(mut self, name: &str, value: &(impl Serialize + ?Sized)) -> Self {
        self.begin(name);
        serde_json::to_writer(&mut self.0, value).expect("a message of ours has a JSON form");
        self
    }

    fn begin(&mut self, name: &str) {
        self.0.push(if self.0.is_empty() { b'{' } else { b',' });
        self.0.push(b'"');
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\":");
    }
}

impl Default for JsonRpcWriter {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn null_is_absent_or_a_value_by_choice_of_the_reader() {
        let text = br#"{"id":null,"method":"m","params":null,"result":null,"error":null}"#;
        let message = JsonRpcEnvelope::parse(text).unwrap();
        assert!(message.method.is_some() && message.id.is_none() && message.params.is_none());
        assert!(message.result.is_none() && message.error.is_none());
        let message = JsonRpcEnvelope::parse_with_nulls(text).unwrap();
        assert!(message.is_request() && message.params.is_some());
        assert!(message.result.is_some() && message.error.is_some());
    }

    #[test]
    fn version_is_recognised() {
        for (text, says) in [
            (r#"{"jsonrpc":"2.0"}"#, true),
            (r#"{"jsonrpc":"\u0032.0"}"#, true),
            (r#"{"jsonrpc":"1.0"}"#, false),
            (r#"{"jsonrpc":2.0}"#, false),
            (r#"{"jsonrpc":null}"#, false),
            ("{}", false),
        ] {
            let message = JsonRpcEnvelope::parse(text.as_bytes()).unwrap();
            assert_eq!(message.says_version(), says, "{text}");
        }
    }

    #[test]
    fn invalid_message_is_refused() {
        for text in ["", "nonsense", "42", "[]", r#"{"method":7}"#, r#"{"id":1,"id":2}"#] {
            JsonRpcEnvelope::parse(text.as_bytes()).expect_err(text);
        }
    }

    #[test]
    fn raw_parts_are_copied_byte_for_byte() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let (id, result) = (raw("1.50"), raw(r#"{"b": 1e2,  "a":"é"}"#));
        assert_eq!(
            JsonRpcWriter::new().id(&id).result(&result).into_text(),
            r#"{"jsonrpc":"2.0","id":1.50,"result":{"b": 1e2,  "a":"é"}}"#
        );
        let text = JsonRpcWriter::new().id("a").method("m").params_json(r#"{"x": 1.0}"#);
        assert_eq!(
            text.into_text(),
            r#"{"jsonrpc":"2.0","id":"a","method":"m","params":{"x": 1.0}}"#
        );
    }

    #[test]
    fn error_without_id_has_a_null_id() {
        let error = json!({ "code": -1, "message": "no" });
        assert_eq!(
            JsonRpcWriter::new().id(&None::<&RawValue>).error(&error).into_text(),
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"no"}}"#
        );
    }

    #[test]
    fn message_without_version_is_read() {
        let text = JsonRpcWriter::without_version().method("m").params(&json!([1])).into_text();
        assert_eq!(text, r#"{"method":"m","params":[1]}"#);
        let message = JsonRpcEnvelope::parse(text.as_bytes()).unwrap();
        let params: Value = serde_json::from_str(message.params.unwrap().get()).unwrap();
        assert_eq!((message.method.as_deref(), params), (Some("m"), json!([1])));
    }
}
