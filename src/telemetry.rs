//! Logs: what is written where, and how an error is told.
//!
//! A line reads alone and its fields can be searched: dotted names by entity, units as a suffix. No token, prompt,
//! message or payload is ever logged.

use std::{
    fmt::Write as _, fs::OpenOptions, io::IsTerminal as _, os::unix::fs::OpenOptionsExt as _,
    path::PathBuf, sync::Mutex,
};

use file_rotate::{ContentLimit, FileRotate, compression::Compression, suffix::AppendCount};
use tracing_subscriber::{
    EnvFilter, Layer as _, fmt::writer::BoxMakeWriter, layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

/// An error and all that caused it, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        write!(text, ": {error}").expect("writing to a string does not fail");
        cause = error.source();
    }
    text
}

/// Where and how the log is written.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// A level, or directives such as `svc=debug,warn`.
    pub filter: String,
    /// One JSON object for each line; for people otherwise.
    pub json: bool,
    /// This file, rotated by size; the terminal otherwise.
    pub file: Option<PathBuf>,
}

/// Size at which a log file is put aside, in bytes.
const LOG_BYTES: usize = 8 * 1024 * 1024;
/// How many are kept beside the present one.
const LOG_FILES: usize = 3;

/// Sets the log up, once for the process.
///
/// # Errors
/// If the filter has no meaning.
pub fn init(options: &LogOptions) -> Result<(), tracing_subscriber::filter::ParseError> {
    let filter = EnvFilter::builder().parse(&options.filter)?;
    let writer = match &options.file {
        None => BoxMakeWriter::new(std::io::stderr),
        Some(path) => BoxMakeWriter::new(Mutex::new(FileRotate::new(
            path,
            AppendCount::new(LOG_FILES),
            ContentLimit::BytesSurpassed(LOG_BYTES),
            Compression::None,
            Some(private_append()),
        ))),
    };
    let colours = options.file.is_none() && std::io::stderr().is_terminal();
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(colours);
    let layer = if options.json { layer.json().boxed() } else { layer.boxed() };
    // A second call, as in a test of this process, keeps the first log.
    tracing_subscriber::registry().with(filter).with(layer).try_init().ok();
    std::panic::set_hook(Box::new(|panic| {
        tracing::error!(location = panic.location().map(ToString::to_string), "{panic}");
    }));
    Ok(())
}

fn private_append() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).create(true).append(true).mode(0o600);
    options
}
