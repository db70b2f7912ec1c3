//! Renders everything that others wrote before a model reads it.
//!
//! A model cannot tell by itself who wrote a text. So the text of a message, a name or a record
//! must not look like a line of the daemon, end its own quotation, or contain anything that a
//! person does not see.
//!
//! - [`plain`] removes invisible characters (a joiner with a visible effect stays) and breaks
//!   imitations of the daemon's stamps and of clients' tags (`imitation`, which compares texts by
//!   their `look`). The rest is unchanged: normalisation only finds imitations and is never
//!   applied to the result, since it would change code and names.
//! - [`QuotedText`] is a text of several lines, each after `> `. [`QuotedLine`] is one line within
//!   a line of the daemon.
//! - [`ModelText`] is a text of the daemon for a model. `model_text!` builds it from constants,
//!   numbers, ids and quotations. It accepts no bare `String`.
//! - [`json`] and [`value`] render all strings of a JSON document: results of the daemon's own
//!   tools, and declarations of a child server. [`unimitated_json`] and [`unimitated_value`] change
//!   only strings with an imitation: all other bytes of a child server's results are unchanged.

mod imitation;
mod look;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, fmt};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use self::imitation::unimitated;
use crate::{
    GhapId, HookId, MessageId, OutcomeId, PeerId, TaskId, Timestamp, ValueId,
    json_with_storable_texts,
};

pub use imitation::{plain, plain_data};
pub(crate) use look::skeleton as skeleton_of;
pub use look::{chars_with_visibility, is_invisible};

/// A text of several lines, each after `> `, so that none looks like a line of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotedText(String);

/// A text as one line of Markdown within a line of the daemon: it begins no heading, code block or
/// tag, and ends no list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotedLine(String);

impl QuotedText {
    pub fn new(text: &str) -> Self {
        Self(format!("> {}", plain(text).replace('\n', "\n> ")))
    }

    /// Keeps the first `chars` characters. Returns whether there were more.
    pub fn truncate_chars(&mut self, chars: usize) -> bool {
        let end = self.0.char_indices().nth(chars).map(|(end, _)| end);
        if let Some(end) = end {
            self.0.truncate(end);
            // A joiner at the cut joins nothing, so it would be invisible.
            self.0.truncate(self.0.trim_end_matches(is_invisible).len());
        }
        end.is_some()
    }
}

impl QuotedLine {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for QuotedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for QuotedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Quotes a text in one line of at most `max_bytes`; `…` marks an omission.
pub fn line(text: &str, max_bytes: usize) -> QuotedLine {
    let mut line = String::new();
    let text = plain(text);
    let mut rest = blanks_to_spaces(&text).peekable();
    while let Some(c) = rest.next() {
        let next = rest.peek().copied();
        let at_start = line.is_empty() || line.ends_with(' ');
        match c {
            // Headings. `C#` and `#12` are none.
            '#' if at_start && next.is_none_or(|next| next == ' ' || next == '#') => {
                while rest.next_if(|next| matches!(next, '#' | ' ')).is_some() {}
            }
            '`' => line.push('\''),
            '<' if next.is_some_and(|next| next.is_alphabetic() || "/!?".contains(next)) => {
                line.push('‹');
            }
            // Links and pictures, which a client might fetch.
            '(' if line.ends_with(']') => line.push_str(" ("),
            c => line.push(c),
        }
        // The rest is cut off below.
        if line.len() > max_bytes {
            break;
        }
    }
    cut(&mut line, max_bytes, str::len);
    QuotedLine(line)
}

/// The beginning of a text on one line, of at most `max_bytes` as JSON.
pub fn excerpt(text: &str, max_bytes: usize) -> String {
    let mut line = String::new();
    for c in blanks_to_spaces(&plain(text)) {
        line.push(c);
        if line.len() > max_bytes {
            break;
        }
    }
    cut(&mut line, max_bytes, |text| {
        text.len() + text.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count()
    });
    line
}

/// Shortens a text to `max_bytes` as counted by `size`, and marks the cut.
fn cut(text: &mut String, max_bytes: usize, size: impl Fn(&str) -> usize) {
    const MARK: char = '…';
    let whole = text.trim_end().len();
    text.truncate(whole);
    if size(text) <= max_bytes {
        return;
    }
    while !text.is_empty() && size(text) + MARK.len_utf8() > max_bytes {
        text.pop();
    }
    // A joiner at the cut joins nothing, so it would be invisible.
    let whole = text.trim_end_matches(|c: char| c.is_whitespace() || is_invisible(c)).len();
    text.truncate(whole);
    if MARK.len_utf8() <= max_bytes {
        text.push(MARK);
    }
}

/// Replaces each run of blanks by one space, and removes leading blanks.
fn blanks_to_spaces(text: &str) -> impl Iterator<Item = char> {
    let mut was_blank = true;
    text.chars().filter_map(move |c| {
        let is_blank = c.is_whitespace();
        let is_first = is_blank && !was_blank;
        was_blank = is_blank;
        if is_blank { is_first.then_some(' ') } else { Some(c) }
    })
}

/// A text for a model that the daemon wrote. What others wrote stands in it as a quotation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct ModelText(String);

/// Types that a [`ModelText`] may contain unchanged: the daemon's own texts, and quotations.
pub trait SafeForModels: fmt::Display {}

macro_rules! for_models {
    ($($type:ty),+ $(,)?) => { $(impl SafeForModels for $type {})+ };
}

for_models!(&'static str, ModelText, QuotedLine, QuotedText, Timestamp, u32, u64, usize, i32, i64);
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

/// A JSON text with plain strings, including member names. Line terminators stay, escaped. All
/// other bytes are unchanged. A text that is not JSON is returned unchanged.
pub fn json(text: &str) -> Cow<'_, str> {
    with_strings(text, plain_literal)
}

/// A JSON text in which strings with an imitation are plain, including member names. All other
/// bytes are unchanged. A text that is not JSON is returned unchanged.
pub fn unimitated_json(text: &str) -> Cow<'_, str> {
    with_strings(text, |literal| {
        let (string, _) = string_of(literal)?;
        let Cow::Owned(broken) = unimitated(&string) else { return None };
        Some(Value::String(broken).to_string())
    })
}

/// A JSON text in which `change` replaces string literals.
fn with_strings(text: &str, change: impl Fn(&str) -> Option<String>) -> Cow<'_, str> {
    let mut out = String::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(length) = text[at..].find('"') {
        let start = at + length;
        let Some(end) = end_of_string(text, start) else { break };
        let literal = &text[start..end];
        if let Some(changed) = change(literal) {
            out.push_str(&text[copied..start]);
            out.push_str(&changed);
            copied = end;
        }
        at = end;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[copied..]);
    Cow::Owned(out)
}

/// The index after the string that begins at `start`.
fn end_of_string(text: &str, start: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = start + 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// The string of a literal, and whether its surrogates are all in pairs. U+FFFD stands for others,
/// which serde refuses and a client may read.
fn string_of(literal: &str) -> Option<(Cow<'_, str>, bool)> {
    let inner = literal.get(1..literal.len().checked_sub(1)?)?;
    if !inner.contains('\\') {
        return Some((Cow::Borrowed(inner), true));
    }
    if let Ok(string) = serde_json::from_str(literal) {
        return Some((Cow::Owned(string), true));
    }
    let string = serde_json::from_str(&json_with_storable_texts(literal)).ok()?;
    Some((Cow::Owned(string), false))
}

/// A literal with its string made plain; `None` if it is plain already.
fn plain_literal(literal: &str) -> Option<String> {
    let (string, is_paired) = string_of(literal)?;
    let plain = plain_data(&string);
    let has_separators = literal.contains(['\u{2028}', '\u{2029}']);
    (has_separators || !is_paired || *plain != *string).then(|| {
        let literal = Value::String(plain.into_owned()).to_string();
        literal.replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
    })
}

/// Like [`json`], for a value.
pub fn value(value: &mut Value) {
    change_strings(value, plain);
}

/// A value in which strings with an imitation are plain, including member names.
pub fn unimitated_value(value: &mut Value) {
    change_strings(value, unimitated);
}

fn change_strings(value: &mut Value, change: fn(&str) -> Cow<'_, str>) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(changed) = change(text) {
                *text = changed;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| change_strings(item, change)),
        Value::Object(members) => {
            let stays = |name: &String| matches!(change(name), Cow::Borrowed(_));
            if !members.keys().all(stays) {
                let renamed = std::mem::take(members).into_iter();
                *members = renamed
                    .map(|(name, value)| (change(&name).into_owned(), value))
                    .collect::<Map<_, _>>();
            }
            members.values_mut().for_each(|value| change_strings(value, change));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
