//! The door to standard output and error.
//!
//! A closed standard output is an [`OutputClosed`] error that ends the command cleanly. Every
//! function but [`exact`] and [`styled`] shows control and direction characters as symbols
//! (`terminal`), so that no message can drive someone's terminal.

use std::io::{self, IsTerminal as _, Write as _};

use serde::Serialize;
use serde_json::Value;

use crate::cli::terminal;

/// Nobody reads our standard output any more.
#[derive(Debug, thiserror::Error)]
#[error("the output was closed")]
pub(crate) struct OutputClosed;

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

/// Text of several lines on standard output, each with its line feed; without the last one, what
/// follows goes on in its line.
pub(crate) fn block(text: &str) -> anyhow::Result<()> {
    exact(terminal::block(text).as_bytes())
}

/// Text of several lines whose parts are harmless already, with colours of ours between them.
pub(crate) fn styled(text: &str) -> anyhow::Result<()> {
    exact(text.as_bytes())
}

/// One such line.
pub(crate) fn styled_line(text: &str) -> anyhow::Result<()> {
    styled(&format!("{text}\n"))
}

/// Bytes on standard output as they are, at once: for programs that read them, such as a shell's
/// completion and the protocol of `svc stdio`.
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

/// A JSON value without the quotes of a string.
pub(crate) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A text as part of a line.
pub(crate) fn visible(text: &str) -> String {
    terminal::line(text).into_owned()
}
