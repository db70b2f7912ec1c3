//! Sanitises text for a terminal: replaces characters that a terminal interprets, or that a person
//! does not see, with symbols.
//!
//! Control characters get Unicode's control pictures (`␛` for escape, `␊` for a line feed, `␡` for
//! delete). 8-bit controls, characters without width and those that change the direction of a line
//! become escapes such as `\u{202e}`; a joiner between characters that it joins stays. In JSON all
//! of them become JSON's own escapes, so a program reads the original text. `output` sends all text
//! through this module.

use std::borrow::Cow;
use std::fmt::Write as _;

use svc_model::quote::{chars_with_visibility, is_invisible};

/// A text on one line. Tabs are kept.
pub(super) fn line(text: &str) -> Cow<'_, str> {
    shown(text, |c| c == '\t')
}

/// A text of several lines: line feeds are kept, too.
pub(super) fn block(text: &str) -> Cow<'_, str> {
    shown(text, |c| matches!(c, '\t' | '\n'))
}

/// A text in a cell of a table, where a tab would break the alignment.
pub(super) fn cell(text: &str) -> Cow<'_, str> {
    shown(text, |_| false)
}

/// Sanitises a JSON document without changing its meaning.
pub(super) fn json(document: &str) -> Cow<'_, str> {
    // Outside of strings, JSON has no control characters but these.
    let stays = |c: char| c == '\n' || !is_unsafe(c);
    if document.chars().all(stays) {
        return Cow::Borrowed(document);
    }
    let mut out = String::with_capacity(document.len() + 16);
    for c in document.chars() {
        if stays(c) {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}").expect("writing to a string does not fail");
            }
        }
    }
    Cow::Owned(out)
}

/// Removes colour sequences (SGR of ECMA-48), which a program writes for a terminal of its own.
pub(super) fn without_colours(text: &str) -> Cow<'_, str> {
    const BEGIN: &str = "\u{1b}[";
    if !text.contains(BEGIN) {
        return Cow::Borrowed(text);
    }
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, after)) = rest.split_once(BEGIN) {
        out.push_str(before);
        let end = after.find(|c: char| !c.is_ascii_digit() && !matches!(c, ';' | ':'));
        let end = end.filter(|end| after[*end..].starts_with('m'));
        if end.is_none() {
            out.push_str(BEGIN);
        }
        rest = end.map_or(after, |end| &after[end + 1..]);
    }
    out.push_str(rest);
    Cow::Owned(out)
}

fn shown(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    if text.chars().all(|c| stays(c) || !is_unsafe(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for (c, is_unseen) in chars_with_visibility(text) {
        match c {
            c if stays(c) || !is_unsafe(c) => out.push(c),
            c if !is_unseen && !matches!(c, '\n' | '\t') => out.push(c),
            '\u{7f}' => out.push('\u{2421}'),
            c if c.is_ascii() => out.extend(char::from_u32(0x2400 + u32::from(c))),
            c => out.extend(c.escape_unicode()),
        }
    }
    Cow::Owned(out)
}

fn is_unsafe(c: char) -> bool {
    // The two variation selectors only choose between two glyphs of one character.
    let is_choice_of_picture = matches!(c, '\u{fe0e}' | '\u{fe0f}');
    matches!(c, '\n' | '\t') || (is_invisible(c) && !is_choice_of_picture)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[test]
    fn symbols_by_table() {
        for (text, is) in [
            ("plain é 中 😀 ✔\u{fe0f}\ttab", "plain é 中 😀 ✔\u{fe0f}\ttab"),
            ("\u{1b}]52;c;cm0gLXJm\u{7}", "␛]52;c;cm0gLXJm␇"),
            ("\u{9b}31mred\u{9d}0;t\u{9c}", "\\u{9b}31mred\\u{9d}0;t\\u{9c}"),
            ("a\nb\r\nc\u{b}\u{c}\0\u{8}\u{7f}", "a␊b␍␊c␋␌␀␈␡"),
            ("a\u{85}b\u{2028}c\u{2029}", "a\\u{85}b\\u{2028}c\\u{2029}"),
            (
                "\u{202e}gpj.exe\u{2066}\u{200f}\u{61c}",
                "\\u{202e}gpj.exe\\u{2066}\\u{200f}\\u{61c}",
            ),
            (
                "a\u{200b}b\u{200d}c\u{ad}d\u{feff}\u{e0041}",
                "a\\u{200b}b\\u{200d}c\\u{ad}d\\u{feff}\\u{e0041}",
            ),
        ] {
            assert_eq!(line(text), is);
            assert_eq!(line(&line(text)), is, "a second time changes nothing");
        }
        let joined = "👩\u{200d}💻 می\u{200c}خواهم";
        assert_eq!(line(joined), joined);
        assert_eq!(cell("a\tb\nc"), "a␉b␊c");
        assert_eq!(block("a\tb\nc\r\n\u{1b}"), "a\tb\nc␍\n␛");
        assert_eq!(
            json("[\n \"\u{9b}\u{202e}\\\\\u{7f}\u{e0041}é\"]"),
            "[\n \"\\u009b\\u202e\\\\\\u007f\\udb40\\udc41é\"]"
        );
    }

    #[test]
    fn colours_are_removed_and_other_controls_become_symbols() {
        for (text, is) in [
            ("plain", "plain"),
            ("\u{1b}[2m2026\u{1b}[0m \u{1b}[31;1mERROR\u{1b}[m codex: no", "2026 ERROR codex: no"),
            ("\u{1b}[38:5:1mred\u{1b}[2J\u{1b}[", "red\u{1b}[2J\u{1b}["),
            ("\u{1b}[1;", "\u{1b}[1;"),
        ] {
            assert_eq!(without_colours(text), is);
        }
    }

    fn obeyed(c: char) -> bool {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    }

    fn hostile() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            prop::sample::select(
                &[
                    "\u{1b}", "[2J", "\u{9b}", "\u{9d}", "52;", "\u{7}", "\u{7f}", "\r", "\n",
                    "\t", "\u{85}", "\u{2028}", "\u{202e}", "\u{2067}", "\u{200b}", "\u{61c}",
                    "\u{feff}", "\\", "\"",
                ][..]
            )
            .prop_map(str::to_owned),
            any::<char>().prop_map(String::from),
        ];
        prop::collection::vec(piece, 0..16).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn sanitised_text_has_no_controls(text in hostile()) {
            prop_assert!(!line(&text).chars().any(|c| obeyed(c) && c != '\t'));
            prop_assert!(!cell(&text).chars().any(obeyed));
            prop_assert!(!block(&text).chars().any(|c| obeyed(c) && !"\t\n".contains(c)));
            let document = Value::String(text).to_string();
            let shown = json(&document);
            prop_assert!(!shown.chars().any(obeyed));
            prop_assert_eq!(serde_json::from_str::<Value>(&shown).ok(), serde_json::from_str(&document).ok());
        }
    }
}
