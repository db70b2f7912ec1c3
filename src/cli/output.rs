//! What goes to the terminal: tables for people, JSON for programs, never colours.
//!
//! A closed standard output is an [`OutputClosed`] error that ends the command cleanly. Every function but [`exact`] shows
//! control and direction characters as symbols (`terminal`), so that no message can drive someone's terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};

use serde::Serialize;
use serde_json::Value;

use super::terminal;

/// Nobody reads our standard output any more.
#[derive(Debug, thiserror::Error)]
#[error("the output was closed")]
pub(crate) struct OutputClosed;

/// Longest cell of a table for a terminal, in characters.
const CELL: usize = 60;

/// One JSON document: indented for a terminal, on one line otherwise.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let text = if io::stdout().is_terminal() {
        serde_json::to_string_pretty(value)?
    } else {
        serde_json::to_string(value)?
    };
    document(&text)
}

/// One JSON document on one line, whatever the output: an item of an endless list.
pub(crate) fn ndjson(value: &impl Serialize) -> anyhow::Result<()> {
    document(&serde_json::to_string(value)?)
}

fn document(text: &str) -> anyhow::Result<()> {
    exact(format!("{}\n", terminal::json(text)).as_bytes())
}

/// One line of text on standard output.
pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    exact(format!("{}\n", terminal::line(text)).as_bytes())
}

/// Text of several lines on standard output, each with its line feed.
pub(crate) fn block(text: &str) -> anyhow::Result<()> {
    exact(terminal::block(text).as_bytes())
}

/// Bytes on standard output as they are, at once: for programs that read them, such as a shell's completion and the
/// protocol of `svc stdio`.
pub(crate) fn exact(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| {
        if error.kind() == io::ErrorKind::BrokenPipe {
            anyhow::Error::new(OutputClosed)
        } else {
            anyhow::Error::new(error).context("cannot write to standard output")
        }
    })
}

/// One line on standard error. Nothing can be done if that fails.
pub(crate) fn note(text: &str) {
    writeln!(io::stderr().lock(), "{}", terminal::line(text)).ok();
}

/// Several lines on standard error, the last without a line feed.
pub(crate) fn notes(text: &str) {
    writeln!(io::stderr().lock(), "{}", terminal::block(text)).ok();
}

/// A table of columns padded to their widest cell; `empty` is said instead of a table without rows.
pub(crate) fn table(headers: &[&str], rows: &[Vec<String>], empty: &str) -> anyhow::Result<()> {
    if rows.is_empty() {
        return line(empty);
    }
    block(&layout(headers, rows, io::stdout().is_terminal().then_some(CELL)))
}

/// `key: value` lines for one object, with the keys padded; further lines of a value stand below its first.
pub(crate) fn fields(pairs: &[(&str, String)]) -> anyhow::Result<()> {
    let width = pairs.iter().map(|(key, _)| key.len()).max().unwrap_or(0) + 1;
    let mut text = String::new();
    for (key, value) in pairs {
        let mut label = format!("{}:", visible(key));
        for part in value.split('\n') {
            writeln!(text, "{label:width$} {}", visible(part))
                .expect("writing to a string does not fail");
            label.clear();
        }
    }
    block(&text)
}

/// The fields of a JSON object that are set, in the order given, and then all others.
pub(crate) fn object(value: &Value, first: &[&str]) -> anyhow::Result<()> {
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

/// A field of an object as a cell: strings without quotes, nothing as `-`.
pub(crate) fn cell(value: &Value, key: &str) -> String {
    match value.get(key) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(value) => plain(value),
    }
}

/// The items under `key` of a page.
pub(crate) fn items<'a>(page: &'a Value, key: &str) -> &'a [Value] {
    page.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A page for people: a table, and how to get the next page if there is one.
///
/// `next` is the flag that takes the page's `next_cursor`.
pub(crate) fn page(
    page: &Value,
    key: &str,
    columns: &[(&str, &str)],
    empty: &str,
    next: &str,
) -> anyhow::Result<()> {
    let headers: Vec<&str> = columns.iter().map(|(header, _)| *header).collect();
    let rows: Vec<Vec<String>> = items(page, key)
        .iter()
        .map(|item| columns.iter().map(|(_, field)| cell(item, field)).collect())
        .collect();
    table(&headers, &rows, empty)?;
    if let Some(cursor) = page.get("next_cursor").filter(|cursor| !cursor.is_null()) {
        note(&format!("there is more: add {next} {}", plain(cursor)));
    }
    Ok(())
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A text as part of a line.
pub(crate) fn visible(text: &str) -> String {
    terminal::line(text).into_owned()
}

fn layout(headers: &[&str], rows: &[Vec<String>], limit: Option<usize>) -> String {
    let head = headers.iter().map(|header| (*header).to_owned()).collect();
    let cells: Vec<Vec<String>> = std::iter::once(head)
        .chain(
            rows.iter()
                .map(|row| row.iter().map(|text| shorten(&terminal::cell(text), limit)).collect()),
        )
        .collect();
    let widths: Vec<usize> = (0..headers.len())
        .map(|column| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut out = String::new();
    for row in &cells {
        let padded: Vec<String> =
            row.iter().zip(&widths).map(|(text, width)| format!("{text:width$}")).collect();
        out.push_str(padded.join("  ").trim_end());
        out.push('\n');
    }
    out
}

fn shorten(text: &str, limit: Option<usize>) -> String {
    match limit {
        Some(limit) if text.chars().count() > limit => {
            text.chars().take(limit - 1).chain(std::iter::once('…')).collect()
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_lines_up_and_shows_no_control_characters() {
        let rows = vec![
            vec!["a\tb\n".to_owned(), "x\u{1b}[31m\u{202e}".to_owned()],
            vec!["long".to_owned(), "é".to_owned()],
        ];
        let text = layout(&["ID", "TEXT"], &rows, None);
        assert_eq!(text, "ID    TEXT\na␉b␊  x␛[31m\\u{202e}\nlong  é\n");
    }

    #[test]
    fn a_long_cell_is_cut_on_a_terminal_only() {
        assert_eq!(shorten("abcdef", Some(4)), "abc…");
        assert_eq!(shorten("abcdef", None), "abcdef");
    }
}
