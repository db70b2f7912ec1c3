//! Writes to standard output and error; no other module does.
//!
//! A closed standard output is an [`OutputClosed`] error that ends the command cleanly. Every
//! function but [`exact`] and [`styled`] replaces control characters and direction marks with
//! symbols (`terminal`), so no message can control a terminal.

use std::io::{self, IsTerminal as _, Write as _};

use anyhow::Result;
use ratatui::text::Span;
use serde::Serialize;
use serde_json::Value;

use crate::cli::terminal;

#[derive(Debug, thiserror::Error)]
#[error("the output was closed")]
pub(crate) struct OutputClosed;

/// One JSON document: indented for a terminal, else on one line.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let text = if io::stdout().is_terminal() {
        serde_json::to_string_pretty(value)?
    } else {
        serde_json::to_string(value)?
    };
    document(&text)
}

/// One JSON document on one line, on a terminal too: an item of an endless list.
pub(crate) fn ndjson(value: &impl Serialize) -> Result<()> {
    document(&serde_json::to_string(value)?)
}

fn document(text: &str) -> Result<()> {
    exact(format!("{}\n", terminal::json(text)).as_bytes())
}

pub(crate) fn line(text: &str) -> Result<()> {
    exact(format!("{}\n", terminal::line(text)).as_bytes())
}

/// Text of several lines, each with its line feed. Without the last line feed, the next output
/// continues the line.
pub(crate) fn block(text: &str) -> Result<()> {
    exact(terminal::block(text).as_bytes())
}

/// Text of several lines whose parts are sanitised already, with colours of this program.
pub(crate) fn styled(text: &str) -> Result<()> {
    exact(text.as_bytes())
}

pub(crate) fn styled_line(text: &str) -> Result<()> {
    styled(&format!("{text}\n"))
}

/// Writes bytes unchanged and flushes. For programs: a shell's completion and the protocol of
/// `svc stdio`.
pub(crate) fn exact(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| {
        if error.kind() == io::ErrorKind::BrokenPipe {
            anyhow::Error::new(OutputClosed)
        } else {
            anyhow::Error::new(error).context("cannot write to standard output")
        }
    })
}

/// One line on standard error. A failure is ignored, since there is nowhere to report it.
pub(crate) fn note(text: &str) {
    writeln!(io::stderr().lock(), "{}", terminal::line(text)).ok();
}

/// Several lines on standard error, the last without a line feed.
pub(crate) fn notes(text: &str) {
    writeln!(io::stderr().lock(), "{}", terminal::block(text)).ok();
}

/// A member of an object as a cell: strings without quotes, `-` if it is missing.
pub(crate) fn cell(value: &Value, key: &str) -> String {
    match value.get(key) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(value) => plain(value),
    }
}

pub(crate) fn items<'a>(page: &'a Value, key: &str) -> &'a [Value] {
    page.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A JSON value; a string without its quotes.
pub(crate) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Sanitises a text for a part of a line.
pub(crate) fn visible(text: &str) -> String {
    terminal::line(text).into_owned()
}

/// Wraps a text between words at `room` columns; `None` does not wrap. A word longer than a line
/// stays whole.
pub(crate) fn wrapped(text: &str, room: Option<usize>) -> String {
    let Some(room) = room.filter(|room| *room > 0) else { return text.to_owned() };
    let mut lines: Vec<String> = Vec::new();
    for line in text.split('\n') {
        if width(line) <= room {
            lines.push(line.to_owned());
            continue;
        }
        let mut broken = String::new();
        for word in line.split(' ') {
            if !broken.is_empty() && width(&broken) + 1 + width(word) > room {
                lines.push(std::mem::take(&mut broken));
            }
            if !broken.is_empty() {
                broken.push(' ');
            }
            broken.push_str(word);
        }
        lines.push(broken);
    }
    lines.join("\n")
}

pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Truncates a text to `room` columns, with `…` at its end.
pub(crate) fn cut(text: String, room: usize) -> String {
    if width(&text) <= room {
        return text;
    }
    let (mut shown, mut taken) = (String::new(), 0);
    let mut buffer = [0; 4];
    for c in text.chars() {
        let own = width(c.encode_utf8(&mut buffer));
        if taken + own + 1 > room {
            break;
        }
        taken += own;
        shown.push(c);
    }
    shown.push('…');
    shown
}

/// `key: value` lines with padded keys; further lines of a value are indented below its first.
pub(crate) fn fields(pairs: &[(&str, String)]) -> Result<()> {
    let width = label_width(pairs);
    let mut text = String::new();
    for (key, value) in pairs {
        let mut label = format!("{}:", visible(key));
        for part in value.split('\n') {
            text.extend([&*format!("{label:width$}"), " ", &visible(part), "\n"]);
            label.clear();
        }
    }
    block(&text)
}

/// The members of a JSON object that are set: those in `first`, then all others.
pub(crate) fn object(value: &Value, first: &[&str]) -> Result<()> {
    let Some(map) = value.as_object() else {
        return json(value);
    };
    let named = first.iter().filter_map(|key| map.get_key_value(*key));
    let others = map.iter().filter(|(key, _)| !first.contains(&key.as_str()));
    let pairs: Vec<(&str, String)> = named
        .chain(others)
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| (key.as_str(), plain(value)))
        .collect();
    fields(&pairs)
}

fn label_width(pairs: &[(&str, String)]) -> usize {
    pairs.iter().map(|(key, _)| key.len()).max().unwrap_or(0) + 1
}

/// An object for people: a line for each member; members of a member follow, indented. Lines are
/// wrapped at the width of the screen.
pub(crate) fn readable(value: &Value, width: Option<u16>) -> String {
    fn put(text: &mut String, indent: usize, label: &str, value: &Value, width: Option<u16>) {
        let margin = " ".repeat(indent);
        let room = width.map(|width| usize::from(width).saturating_sub(indent + 2));
        let mut line = |rest: &str| {
            let rest = wrapped(format!("{label}{rest}").trim_end(), room);
            // Further lines are indented like a text of several lines.
            let rest = rest.replace('\n', &format!("\n{margin}  "));
            text.extend([&*margin, &rest, "\n"]);
        };
        match value {
            Value::Object(members) if !members.is_empty() => {
                line("");
                for (key, value) in members {
                    put(text, indent + 2, &format!("{}: ", visible(key)), value, width);
                }
            }
            Value::Array(items) if !items.is_empty() => {
                line("");
                for item in items {
                    put(text, indent + 2, "- ", item, width);
                }
            }
            Value::String(words) if words.contains('\n') => {
                line("");
                for part in words.lines() {
                    let part = wrapped(&visible(part), room);
                    let part = part.replace('\n', &format!("\n{margin}  "));
                    text.extend([&*margin, "  ", &part, "\n"]);
                }
            }
            Value::Array(_) => line("none"),
            value => line(&visible(&plain(value))),
        }
    }
    let mut text = String::new();
    match value.as_object() {
        Some(members) => {
            for (key, value) in members {
                put(&mut text, 0, &format!("{}: ", visible(key)), value, width);
            }
        }
        None => put(&mut text, 0, "", value, width),
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_wraps_between_words() {
        assert_eq!(wrapped("one two three", Some(8)), "one two\nthree");
        assert_eq!(wrapped("one\n\ntwo three four", Some(9)), "one\n\ntwo three\nfour");
        assert_eq!(wrapped("a-word-that-is-too-long b", Some(5)), "a-word-that-is-too-long\nb");
        assert_eq!(wrapped("中文 中文", Some(5)), "中文\n中文", "a character may take two");
        assert_eq!(wrapped("one two three", None), "one two three");
    }

    #[test]
    fn truncated_text_ends_with_an_ellipsis() {
        let shown = |text: &str, room| cut(text.to_owned(), room);
        assert_eq!((shown("four", 4), shown("fours", 4)), ("four".to_owned(), "fou…".to_owned()));
        assert_eq!(shown("中文中文", 6), "中文…", "a character may take two");
    }

    #[test]
    fn object_is_printed_as_indented_lines() {
        let value = json!({
            "task": { "status": "done", "n": 1 }, "frames": [{ "line": "a\u{1b}[1m" }], "none": [], "text": "a\nb",
        });
        let expected = "\
            frames:\n  -\n    line: a␛[1m\nnone: none\ntask:\n  n: 1\n  status: done\ntext:\n  a\n  b\n";
        assert_eq!(readable(&value, None), expected);
        let long = json!({ "tools": [{ "purpose": "sends a message to a peer" }], "text": "one two\nthree" });
        let expected = "text:\n  one two\n  three\ntools:\n  -\n    purpose: sends a\n      message to a peer\n";
        assert_eq!(readable(&long, Some(24)), expected);
    }
}
