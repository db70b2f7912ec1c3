//! A text of the daemon for a model.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use super::{QuotedLine, QuotedText};
use crate::{GhapId, HookId, MessageId, OutcomeId, PeerId, TaskId, Timestamp, ValueId};

/// A text for a model that the daemon wrote. What others wrote stands in it as a quotation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct ModelText(String);

/// Types that a [`ModelText`] may contain unchanged: the daemon's own texts, and quotations.
pub trait SafeForModels: fmt::Display {}

impl SafeForModels for &'static str {}
impl SafeForModels for ModelText {}
impl SafeForModels for QuotedLine {}
impl SafeForModels for QuotedText {}
impl SafeForModels for Timestamp {}

macro_rules! for_models {
    ($($type:ty),+ $(,)?) => { $(impl SafeForModels for $type {})+ };
}

for_models!(u32, u64, usize, i32, i64);
for_models!(PeerId, MessageId, TaskId, GhapId, OutcomeId, HookId, ValueId);

/// Like `format!`, for a [`ModelText`]. Each argument has to implement [`SafeForModels`]; none is
/// captured by name.
#[macro_export]
macro_rules! model_text {
    ($format:literal $(, $argument:expr)* $(,)?) => {
        $crate::quote::ModelText::from_arguments(
            // A literal from a macro captures no variables, so every argument is checked.
            format_args!(concat!($format) $(, $crate::quote::ModelText::checked(&$argument))*)
        )
    };
}
pub use model_text;

impl ModelText {
    /// Used by `model_text!` only.
    pub fn from_arguments(arguments: fmt::Arguments<'_>) -> Self {
        Self(arguments.to_string())
    }

    /// Used by `model_text!` only.
    pub const fn checked<T: SafeForModels>(argument: &T) -> &T {
        argument
    }

    /// Appends a text.
    pub fn push(&mut self, text: &impl SafeForModels) {
        use fmt::Write as _;
        // Writing to a string never fails.
        let _ = write!(self.0, "{text}");
    }

    /// Joins texts with an empty line.
    pub fn paragraphs<'a>(texts: impl IntoIterator<Item = &'a Self>) -> Self {
        let texts: Vec<&str> = texts.into_iter().map(Self::as_str).collect();
        Self(texts.join("\n\n"))
    }

    /// Keeps the first `chars` characters.
    pub fn truncate_chars(&mut self, chars: usize) {
        if let Some((end, _)) = self.0.char_indices().nth(chars) {
            self.0.truncate(end);
        }
    }

    /// Number of characters.
    pub fn chars(&self) -> usize {
        self.0.chars().count()
    }

    pub const fn len(&self) -> usize {
        self.0.len()
    }

    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn into_string(self) -> String {
        self.0
    }
}

impl fmt::Display for ModelText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
