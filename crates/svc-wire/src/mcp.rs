//! What servers and clients of the Model Context Protocol share: revisions, header names, and the
//! encoding of values in headers (SEP-2243, as amended in revision 2026-07-28).

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};

/// A revision of the protocol, named by its date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Revision {
    /// The first: HTTP with server-sent events on two paths.
    #[serde(rename = "2024-11-05")]
    V2024_11_05,
    /// Streamable HTTP, JSON-RPC batches.
    #[serde(rename = "2025-03-26")]
    V2025_03_26,
    #[serde(rename = "2025-06-18")]
    V2025_06_18,
    /// The last revision with sessions; streams begin with a priming event.
    #[serde(rename = "2025-11-25")]
    V2025_11_25,
    /// Stateless: a request contains all that the server needs.
    #[serde(rename = "2026-07-28")]
    V2026_07_28,
}

impl Revision {
    /// Revisions with `initialize` and sessions, the oldest first.
    pub const LEGACY: [Self; 4] =
        [Self::V2024_11_05, Self::V2025_03_26, Self::V2025_06_18, Self::V2025_11_25];
    pub const MODERN: [Self; 1] = [Self::V2026_07_28];

    /// `None` for an unknown revision.
    pub fn parse(text: &str) -> Option<Self> {
        Self::LEGACY.into_iter().chain(Self::MODERN).find(|revision| revision.as_str() == text)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    /// Whether requests of this revision need no session.
    pub fn is_modern(self) -> bool {
        self >= Self::V2026_07_28
    }

    /// Whether `text` is the date of a revision without sessions, known or not.
    pub fn names_modern(text: &str) -> bool {
        let shape = text.len() == 10
            && text.bytes().enumerate().all(|(index, byte)| match index {
                4 | 7 => byte == b'-',
                _ => byte.is_ascii_digit(),
            });
        shape && text >= Self::V2026_07_28.as_str()
    }
}

pub const PROTOCOL_VERSION: &str = "mcp-protocol-version";
/// The session, in revisions that have them.
pub const SESSION_ID: &str = "mcp-session-id";
/// Tools that a client wants in `tools/list`: `all` or `search`.
pub const EXPOSE: &str = "svc-expose";
/// The client's process, from `svc stdio`, which runs beside it.
pub const CLIENT_PROCESS: &str = "svc-client-process";
pub const METHOD: &str = "mcp-method";
/// Header that repeats the name in the parameters.
pub const NAME: &str = "mcp-name";
/// Prefix of headers that repeat an argument.
pub const PARAM_PREFIX: &str = "mcp-param-";
/// Annotation in a tool's input schema that asks for such a header.
pub const PARAM_ANNOTATION: &str = "x-mcp-header";

pub mod meta {
    pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
    pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
    pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
    /// Lowest level of log messages that the client wants.
    pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
    pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
    /// The listen request that a notification belongs to.
    pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
}

/// The extension that turns slow calls into tasks (SEP-2663).
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// The member of `params` that `Mcp-Name` repeats, for methods that have one.
pub fn name_member(method: &str) -> Option<&'static str> {
    match method {
        "tools/call" | "prompts/get" => Some("name"),
        "resources/read" => Some("uri"),
        "tasks/get" | "tasks/update" | "tasks/cancel" => Some("taskId"),
        _ => None,
    }
}

const SENTINEL: (&str, &str) = ("=?base64?", "?=");

/// The text itself if a header may contain it, else Base64 of its UTF-8 between sentinels.
pub fn encode_value(text: &str) -> Cow<'_, str> {
    let plain = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte))
        && text.trim_matches([' ', '\t']).len() == text.len()
        && !(text.starts_with(SENTINEL.0) && text.ends_with(SENTINEL.1));
    if plain {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}{}{}", SENTINEL.0, STANDARD.encode(text), SENTINEL.1))
}

/// `None` for a value that may not be sent.
pub fn decode_value(value: &[u8]) -> Option<Cow<'_, str>> {
    let text = std::str::from_utf8(value).ok()?.trim_matches([' ', '\t']);
    if !text.bytes().all(|byte| byte == b'\t' || (0x20..=0x7e).contains(&byte)) {
        return None;
    }
    let coded = text.strip_prefix(SENTINEL.0).and_then(|rest| rest.strip_suffix(SENTINEL.1));
    match coded {
        None => Some(Cow::Borrowed(text)),
        Some(coded) => String::from_utf8(STANDARD.decode(coded).ok()?).ok().map(Cow::Owned),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn header_values_are_encoded_and_decoded() {
        for (text, value) in [
            ("tools/call", "tools/call"),
            ("", ""),
            (" led", "=?base64?IGxlZA==?="),
            ("grün", "=?base64?Z3LDvG4=?="),
            ("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?="),
        ] {
            assert_eq!(encode_value(text), value);
            assert_eq!(decode_value(value.as_bytes()).as_deref(), Some(text));
        }
        for (value, text) in [
            ("  padded  ", Some("padded")),
            ("=?BASE64?YQ==?=", Some("=?BASE64?YQ==?=")),
            ("=?base64?YQ==", Some("=?base64?YQ==")),
            ("=?base64?YQ?=", None),
            ("=?base64?Y$==?=", None),
            ("gr\u{fc}n", None),
        ] {
            assert_eq!(decode_value(value.as_bytes()).as_deref(), text, "{value:?}");
        }
        assert_eq!(decode_value(b"\xff"), None);
    }

    #[test]
    fn modern_revisions_are_recognised() {
        for (text, known, modern) in [
            ("2024-11-05", true, false),
            ("2025-11-25", true, false),
            ("2026-07-28", true, true),
            ("2027-01-01", false, true),
            ("2025-01-01", false, false),
            ("draft", false, false),
            ("9999999999", false, false),
        ] {
            assert_eq!(Revision::parse(text).is_some(), known, "{text}");
            assert_eq!(Revision::names_modern(text), modern, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_survives_the_encoding(text in any::<String>()) {
            let value = encode_value(&text).into_owned();
            prop_assert!(value.bytes().all(|byte| (0x20..=0x7e).contains(&byte)));
            prop_assert_eq!(decode_value(value.as_bytes()).unwrap(), text);
        }
    }
}
