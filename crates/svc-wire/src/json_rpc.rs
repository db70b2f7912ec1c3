//! JSON-RPC 2.0: the envelope of every message of MCP, and of the vendors' protocols that hosts speak.
//!
//! [`JsonRpcEnvelope`] reads a message and [`JsonRpcWriter`] writes one. Ids, parameters and results stay as they are written,
//! so that the result of a tool reaches a client byte for byte. Neither bounds a message: whoever reads the bytes does.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::mcp::meta;

/// The only version.
const VERSION: &str = "2.0";

/// The text is not JSON.
pub const PARSE_ERROR: i64 = -32700;
/// The JSON is not a message.
pub const INVALID_REQUEST: i64 = -32600;
/// The receiver does not have the method.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The parameters are not those of the method.
pub const INVALID_PARAMS: i64 = -32602;
/// The receiver failed.
pub const INTERNAL_ERROR: i64 = -32603;

/// One message as it was received: a request, a notification or a response.
#[derive(Debug, Deserialize)]
pub struct JsonRpcEnvelope<'a> {
    #[serde(borrow)]
    jsonrpc: Option<&'a RawValue>,
    /// The id, as it is written.
    #[serde(borrow, default, deserialize_with = "present")]
    pub id: Option<&'a RawValue>,
    /// The method of a request or notification.
    #[serde(default)]
    pub method: Option<String>,
    /// Its parameters.
    #[serde(borrow, default, deserialize_with = "present")]
    pub params: Option<&'a RawValue>,
    /// The result of a response.
    #[serde(borrow, default, deserialize_with = "present")]
    pub result: Option<&'a RawValue>,
    /// The error of a response.
    #[serde(borrow, default, deserialize_with = "present")]
    pub error: Option<&'a RawValue>,
}

/// `null` is a value, and not the same as nothing.
fn present<'de, D: Deserializer<'de>>(source: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(source).map(Some)
}

impl<'a> JsonRpcEnvelope<'a> {
    /// Reads one message; a member that is `null` counts as absent.
    ///
    /// # Errors
    /// If the text is not an object with at most one of each member, or the method is no string. A batch is an array and fails.
    pub fn parse(text: &'a [u8]) -> Result<Self, serde_json::Error> {
        let mut message = Self::parse_with_nulls(text)?;
        for member in
            [&mut message.id, &mut message.params, &mut message.result, &mut message.error]
        {
            *member = member.filter(|raw| raw.get() != "null");
        }
        Ok(message)
    }

    /// As [`Self::parse`], but a member that is `null` is there: a `null` result is a result.
    pub fn parse_with_nulls(text: &'a [u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text)
    }

    /// Whether the message says that it is of version 2.0, as each has to. Some peers do without.
    pub fn says_version(&self) -> bool {
        self.jsonrpc.is_some_and(|raw| {
            serde_json::from_str::<String>(raw.get()).is_ok_and(|version| version == VERSION)
        })
    }

    /// Whether this is a request: it has a method and wants an answer.
    pub fn is_request(&self) -> bool {
        self.method.is_some() && self.id.is_some()
    }

    /// Whether this is a notification.
    pub fn is_notification(&self) -> bool {
        self.method.is_some() && self.id.is_none()
    }

    /// A member of `params`, as it is written.
    pub fn param(&self, name: &str) -> Option<&'a RawValue> {
        member(self.params?, name)
    }

    /// A member of `params` that is a string.
    pub fn text_param(&self, name: &str) -> Option<String> {
        serde_json::from_str(self.param(name)?.get()).ok()
    }

    /// The revision of MCP that the message itself names, as those without sessions do in every request.
    pub fn revision(&self) -> Option<String> {
        let revision = member(self.param("_meta")?, meta::PROTOCOL_VERSION)?;
        serde_json::from_str(revision.get()).ok()
    }
}

/// A member of an object, as it is written.
fn member<'a>(object: &'a RawValue, name: &str) -> Option<&'a RawValue> {
    let members: BTreeMap<String, &'a RawValue> = serde_json::from_str(object.get()).ok()?;
    members.get(name).copied()
}

/// The text of a message, member by member in the order of the calls. Each value is serialised once, into the text itself.
#[derive(Debug)]
pub struct JsonRpcWriter(Vec<u8>);

impl JsonRpcWriter {
    /// A message of at most a few hundred bytes.
    pub fn new() -> Self {
        Self::with_room(256)
    }

    /// A message of about `room` bytes: a large one is not moved while it grows.
    pub fn with_room(room: usize) -> Self {
        Self(Vec::with_capacity(room)).member("jsonrpc", VERSION)
    }

    /// A message for a peer that does without the version.
    pub fn without_version() -> Self {
        Self(Vec::with_capacity(256))
    }

    /// The id of a request, or of the request that this answers; `null` where that could not be read.
    #[must_use]
    pub fn id(self, id: &(impl Serialize + ?Sized)) -> Self {
        self.member("id", id)
    }

    /// The method of a request or a notification.
    #[must_use]
    pub fn method(self, method: &str) -> Self {
        self.member("method", method)
    }

    /// The parameters.
    #[must_use]
    pub fn params(self, params: &(impl Serialize + ?Sized)) -> Self {
        self.member("params", params)
    }

    /// The parameters, which are JSON already and are copied.
    #[must_use]
    pub fn params_json(mut self, params: &str) -> Self {
        self.begin("params");
        self.0.extend_from_slice(params.as_bytes());
        self
    }

    /// The result of a response.
    #[must_use]
    pub fn result(self, result: &(impl Serialize + ?Sized)) -> Self {
        self.member("result", result)
    }

    /// The error of a response.
    #[must_use]
    pub fn error(self, error: &(impl Serialize + ?Sized)) -> Self {
        self.member("error", error)
    }

    /// The message as text, without a line feed if no `params_json` has one.
    pub fn into_text(self) -> String {
        String::from_utf8(self.into_bytes()).expect("JSON is UTF-8")
    }

    /// The message as bytes.
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
    fn null_is_absent_or_a_value_as_the_reader_asks() {
        let text = br#"{"id":null,"method":"m","params":null,"result":null,"error":null}"#;
        let message = JsonRpcEnvelope::parse(text).unwrap();
        assert!(message.is_notification() && message.params.is_none());
        assert!(message.result.is_none() && message.error.is_none());
        let message = JsonRpcEnvelope::parse_with_nulls(text).unwrap();
        assert!(message.is_request() && message.params.is_some());
        assert!(message.result.is_some() && message.error.is_some());
    }

    #[test]
    fn versions_by_table() {
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
    fn what_is_no_message_is_refused() {
        for text in ["", "nonsense", "42", "[]", r#"{"method":7}"#, r#"{"id":1,"id":2}"#] {
            JsonRpcEnvelope::parse(text.as_bytes()).expect_err(text);
        }
    }

    #[test]
    fn raw_parts_pass_byte_for_byte() {
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
    fn an_error_has_an_id_if_only_null() {
        let error = json!({ "code": -1, "message": "no" });
        assert_eq!(
            JsonRpcWriter::new().id(&None::<&RawValue>).error(&error).into_text(),
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"no"}}"#
        );
    }

    #[test]
    fn a_message_without_version_is_read_as_well() {
        let text = JsonRpcWriter::without_version().method("m").params(&json!([1])).into_text();
        assert_eq!(text, r#"{"method":"m","params":[1]}"#);
        let message = JsonRpcEnvelope::parse(text.as_bytes()).unwrap();
        let params: Value = serde_json::from_str(message.params.unwrap().get()).unwrap();
        assert_eq!((message.method.as_deref(), params), (Some("m"), json!([1])));
    }
}
