//! JSON documents, with every string as [`plain`] gives it.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{imitation::plain_data, plain};

/// A JSON text with plain strings, names of members too. Ends of lines stay, escaped. All else passes byte for byte. What is
/// no JSON is given as it is.
pub fn json(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(length) = text[at..].find('"') {
        let start = at + length;
        let Some(end) = end_of_string(text, start) else { break };
        let literal = &text[start..end];
        if let Some(plain) = plain_literal(literal) {
            out.push_str(&text[copied..start]);
            out.push_str(&plain);
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

/// The index behind the string that begins at `start`.
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

/// A literal with the string made plain; `None` if it is.
fn plain_literal(literal: &str) -> Option<String> {
    let inner = literal.get(1..literal.len().checked_sub(1)?)?;
    let string: Cow<'_, str> = if inner.contains('\\') {
        Cow::Owned(serde_json::from_str(literal).ok()?)
    } else {
        Cow::Borrowed(inner)
    };
    let plain = plain_data(&string);
    let has_separators = inner.contains(['\u{2028}', '\u{2029}']);
    (has_separators || *plain != *string).then(|| {
        let literal = Value::String(plain.into_owned()).to_string();
        literal.replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
    })
}

/// The same for a value.
pub fn value(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(plain) = plain(text) {
                *text = plain;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(self::value),
        Value::Object(members) => {
            let is_plain = |name: &String| matches!(plain(name), Cow::Borrowed(_));
            if !members.keys().all(is_plain) {
                let renamed = std::mem::take(members).into_iter();
                *members = renamed
                    .map(|(name, value)| (plain(&name).into_owned(), value))
                    .collect::<Map<_, _>>();
            }
            members.values_mut().for_each(self::value);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
