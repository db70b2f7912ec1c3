//! What texts have to be that callers give: patterns for schemas, and words of the command line.

use serde::de::{DeserializeOwned, IntoDeserializer as _, value::Error as WordError};

/// The pattern of a text that is not blank: `#[schemars(regex(pattern = NOT_BLANK))]`.
pub const NOT_BLANK: &str = r"\S";
/// The pattern of a tag.
pub const TAG: &str = r"^[\w.-]+$";

/// Parses a word of the command line as JSON is parsed, so the error names the words that there
/// are.
pub fn parse_word<T: DeserializeOwned>(text: &str) -> Result<T, WordError> {
    T::deserialize(text.into_deserializer())
}
