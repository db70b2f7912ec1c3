//! JSON documents whose strings are rendered by [`plain`], all of them or only those with an
//! imitation.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::imitation::{plain, plain_data, unimitated};

/// A JSON text with plain strings, including member names. Line terminators stay, escaped. All
/// other bytes are unchanged. A text that is not JSON is returned unchanged.
pub fn json(text: &str) -> Cow<'_, str> {
    with_strings(text, plain_literal)
}

/// A JSON text in which strings with an imitation are plain, including member names. All other
/// bytes are unchanged. A text that is not JSON is returned unchanged.
pub fn unimitated_json(text: &str) -> Cow<'_, str> {
    with_strings(text, |literal| {
        let string = string_of(literal)?;
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

fn string_of(literal: &str) -> Option<Cow<'_, str>> {
    let inner = literal.get(1..literal.len().checked_sub(1)?)?;
    if inner.contains('\\') {
        serde_json::from_str(literal).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}

/// A literal with its string made plain; `None` if it is plain already.
fn plain_literal(literal: &str) -> Option<String> {
    let string = string_of(literal)?;
    let plain = plain_data(&string);
    let has_separators = literal.contains(['\u{2028}', '\u{2029}']);
    (has_separators || *plain != *string).then(|| {
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
