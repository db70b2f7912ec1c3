//! The log: where it is written, in which format, and how an error looks in it.
//!
//! Each line stands alone. Its fields have dotted names by entity, with the unit as a suffix. No token, prompt, message
//! or payload is ever logged.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal as _},
    path::PathBuf,
    sync::Mutex,
};

use tracing_subscriber::{
    Layer as _,
    filter::{ParseError, Targets},
    fmt::writer::BoxMakeWriter,
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use crate::log_file::LogFile;

/// An error and all its causes, in one line.
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

/// Why the log cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The filter has no meaning.
    #[error("log_level {0:?} has no meaning")]
    Filter(String, #[source] ParseError),
    /// The log's file cannot be opened.
    #[error("the log file cannot be opened")]
    File(#[from] io::Error),
}

/// Sets up the log, once for the process.
///
/// # Errors
/// If the filter has no meaning, or the file cannot be opened.
pub fn init(options: &LogOptions) -> Result<(), InitError> {
    let filter: Targets =
        options.filter.parse().map_err(|error| InitError::Filter(options.filter.clone(), error))?;
    let writer = match &options.file {
        None => BoxMakeWriter::new(io::stderr),
        Some(path) => BoxMakeWriter::new(Mutex::new(LogFile::open(path.clone())?)),
    };
    let colours = options.file.is_none() && io::stderr().is_terminal();
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(colours);
    let layer = if options.json { layer.json().boxed() } else { layer.boxed() };
    // A second call, as in a test of this process, keeps the first log.
    tracing_subscriber::registry().with(filter).with(layer).try_init().ok();
    std::panic::set_hook(Box::new(|panic| {
        tracing::error!(location = panic.location().map(ToString::to_string), "{panic}");
    }));
    Ok(())
}
