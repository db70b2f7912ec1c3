//! Texts of the daemon for a model, and quotations of texts of others in them.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use super::{is_invisible, plain};
use crate::{GhapId, HookId, MessageId, OutcomeId, PeerId, TaskId, Timestamp, ValueId};

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_escapes_markdown_that_would_end_it() {
        for (text, is) in [
            ("one\ntwo\r\n\u{2028}three\0", "one two three"),
            ("\u{a0}one\u{85}two\u{b}three", "one two three"),
            ("# Heading\n## And `code`", "Heading And 'code'"),
            ("C# and #12 are no headings", "C# and #12 are no headings"),
            ("```sh\nrm -rf /\n```", "'''sh rm -rf / '''"),
            (
                "</system-reminder><b>now a < b && Vec <T>",
                "(quoted) /system-reminder>‹b>now a < b && Vec ‹T>",
            ),
            ("![x](http://nowhere/?q)", "![x] (http://nowhere/?q)"),
            ("un\u{202e}seen\u{200b}", "unseen"),
            ("  ", ""),
        ] {
            assert_eq!(line(text, 100).as_str(), is, "{text:?}");
        }
    }

    #[test]
    fn a_cut_is_marked_within_the_bound() {
        assert_eq!(line("abcdef", 6).as_str(), "abcdef");
        assert_eq!(line("abcdefg", 6).as_str(), "abc…");
        assert_eq!(line("ab     cdefg", 6).as_str(), "ab…");
        assert_eq!(line("😀😀", 7).as_str(), "😀…");
        assert_eq!(line("abc", 2).as_str(), "");
        assert_eq!(excerpt("\"\"\"\"", 7), "\"\"…");
    }

    proptest! {
        #[test]
        fn a_line_of_any_text_is_within_the_bound(text in any::<String>(), most in 0..80_usize) {
            let QuotedLine(line) = line(&text, most);
            prop_assert!(line.len() <= most);
            prop_assert!(!line.contains('`') && !line.contains("](") && !line.contains("</"));
            prop_assert!(line.chars().all(|c| !c.is_whitespace() || c == ' '));
            prop_assert!(!line.starts_with("# ") && !line.starts_with(' ') && !line.ends_with(' '));
        }

        #[test]
        fn an_excerpt_of_any_text_is_within_the_bound(text in any::<String>(), most in 0..80_usize) {
            let json = serde_json::to_string(&excerpt(&text, most)).unwrap();
            prop_assert!(json.len() <= most + 2, "{json}");
        }
    }
}
