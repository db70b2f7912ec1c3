//! Writes to standard output and error; no other module does.
//!
//! A closed standard output is an [`OutputClosed`] error that ends the command cleanly. Every
//! function but [`exact`] and [`styled`] replaces control and direction characters by symbols
//! (`terminal`), so that no message can control a terminal.

use std::io::{self, IsTerminal as _, Write as _};

use serde::Serialize;
use serde_json::Value;

use crate::cli::terminal;

/// Standard output is closed.
#[derive(Debug, thiserror::Error)]
#[error("the output was closed")]
pub(crate) struct OutputClosed;

/// One JSON document: indented for a terminal, else on one line.
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

pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    exact(format!("{}\n", terminal::line(text)).as_bytes())
}

/// Text of several lines, each with its line feed. Without the last line feed, the next output
/// continues the line.
pub(crate) fn block(text: &str) -> anyhow::Result<()> {
    exact(terminal::block(text).as_bytes())
}

/// Text of several lines whose parts are sanitised already and which has colours of this program.
pub(crate) fn styled(text: &str) -> anyhow::Result<()> {
    exact(text.as_bytes())
}

/// Like `styled`, with one line feed at the end.
pub(crate) fn styled_line(text: &str) -> anyhow::Result<()> {
    styled(&format!("{text}\n"))
}

/// Writes bytes unchanged and flushes: for programs such as a shell's completion and the protocol
/// of `svc stdio`.
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

/// One line on standard error. A failure is ignored, since it could be reported nowhere.
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
