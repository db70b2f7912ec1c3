//! U+0000 in texts of JSON: no database keeps it in every text, so it is refused where texts come
//! from a caller, and replaced where they are the output of a program.

use std::borrow::Cow;

/// The escape, which alone can stand for it: a raw one is no JSON.
const ESCAPE: &[u8] = b"\\u0000";

/// What a caller is told.
pub const NUL_REFUSED: &str = "a text must not have the character U+0000";

/// Whether a text in this JSON has U+0000.
pub fn json_has_nul(json: &str) -> bool {
    next_escape(json.as_bytes(), 0).is_some()
}

/// The JSON with U+FFFD for each U+0000.
pub fn json_without_nul(json: &str) -> Cow<'_, str> {
    let Some(mut at) = next_escape(json.as_bytes(), 0) else { return json.into() };
    let (mut clean, mut start) = (String::with_capacity(json.len()), 0);
    loop {
        clean.push_str(&json[start..at]);
        clean.push_str("\\ufffd");
        start = at + ESCAPE.len();
        match next_escape(json.as_bytes(), start) {
            Some(next) => at = next,
            None => break,
        }
    }
    clean.push_str(&json[start..]);
    clean.into()
}

/// Where the next escape begins. After a backslash that is escaped itself there is none.
fn next_escape(json: &[u8], from: usize) -> Option<usize> {
    let found = memchr::memmem::find_iter(&json[from..], ESCAPE).map(|at| from + at);
    found.into_iter().find(|at| {
        let before = json[..*at].iter().rev().take_while(|byte| **byte == b'\\').count();
        before.is_multiple_of(2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_character_counts() {
        for (json, clean) in [
            (r#"{"a":"\u0000"}"#, r#"{"a":"\ufffd"}"#),
            (r#"{"a\u0000":"b\\\u0000c\u0000"}"#, r#"{"a\ufffd":"b\\\ufffdc\ufffd"}"#),
            (r#"["\u0000\u0000"]"#, r#"["\ufffd\ufffd"]"#),
            (r#"{"a":"\\u0000"}"#, r#"{"a":"\\u0000"}"#),
            (r#"{"a":"\\\\u0000 \u0001 u0000"}"#, r#"{"a":"\\\\u0000 \u0001 u0000"}"#),
        ] {
            assert_eq!(json_has_nul(json), json != clean, "{json}");
            assert_eq!(json_without_nul(json), clean);
        }
    }
}
