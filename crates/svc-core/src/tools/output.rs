use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Value, json, value::RawValue};
use svc_model::quote;

use super::{Failure, ToolError};

#[derive(Debug, Clone)]
pub enum Output {
    Object(Box<RawValue>),
    /// The whole result of a child server, byte for byte.
    Verbatim(Box<RawValue>),
    /// Content in the protocol's form.
    Content {
        content: Vec<Value>,
        /// The object, if there is one.
        structured: Option<Value>,
        is_error: bool,
    },
}

impl Output {
    pub(super) fn from_result(result: &impl Serialize) -> Result<Self, Failure> {
        let json = serde_json::value::to_raw_value(result).map_err(|_| ToolError::internal())?;
        Ok(Self::Object(json))
    }

    /// Quotes all strings for a model: see [`quote`].
    pub(super) fn plain(mut self) -> Self {
        match &mut self {
            Self::Object(object) => {
                if let Cow::Owned(json) = quote::json(object.get()) {
                    match RawValue::from_string(json) {
                        Ok(plain) => *object = plain,
                        // Unreachable: only strings were replaced, by strings.
                        Err(_) => return Self::error(&ToolError::internal()),
                    }
                }
            }
            Self::Verbatim(_) => {}
            Self::Content { content, structured, .. } => {
                content.iter_mut().chain(structured).for_each(quote::value);
            }
        }
        self
    }

    pub fn text(text: impl Into<String>) -> Self {
        let block = json!({ "type": "text", "text": text.into() });
        Self::Content { content: vec![block], structured: None, is_error: false }
    }

    /// A failure that is reported to the model.
    pub fn error(error: &ToolError) -> Self {
        let mut structured = json!({ "error": error });
        quote::value(&mut structured);
        let block = json!({ "type": "text", "text": structured.to_string() });
        Self::Content { content: vec![block], structured: Some(structured), is_error: true }
    }

    pub fn is_error(&self) -> bool {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Verdict {
            #[serde(default)]
            is_error: bool,
        }
        match self {
            Self::Object(_) => false,
            Self::Content { is_error, .. } => *is_error,
            Self::Verbatim(result) => {
                serde_json::from_str(result.get()).is_ok_and(|Verdict { is_error }| is_error)
            }
        }
    }
}
