//! Events of lines, as the agent wrote them.

use std::borrow::Cow;

use base64::Engine as _;
use serde::Serialize;

use svc_sys::lines::Line;

/// Longest line of an event, in bytes.
const MAX_LINE: usize = 1024 * 1024;

/// An event of one line, without a copy of it.
#[derive(Serialize)]
pub(super) struct TurnOutputLine<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    data: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<&'static str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

impl<'a> TurnOutputLine<'a> {
    /// The event of a line of this kind: `output` or `stderr`.
    pub(super) fn of(kind: &'static str, line: Line<'a>) -> Self {
        let truncated = line.is_cut || line.bytes.len() > MAX_LINE;
        let mut bytes = &line.bytes[..line.bytes.len().min(MAX_LINE)];
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text),
            // The cut may have gone through a character.
            Err(error) if truncated && bytes.len() - error.valid_up_to() < 4 => {
                bytes = &bytes[..error.valid_up_to()];
                std::str::from_utf8(bytes)
            }
            Err(error) => Err(error),
        };
        if let Ok(text) = text {
            Self { kind, data: text.into(), encoding: None, truncated }
        } else {
            let data = base64::engine::general_purpose::STANDARD.encode(bytes).into();
            Self { kind, data, encoding: Some("base64"), truncated }
        }
    }
}
