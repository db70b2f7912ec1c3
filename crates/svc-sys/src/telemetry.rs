//! The log: its destination, its format, and the rendering of errors in it.
//!
//! Field names are dotted by entity, with the unit as a suffix. Tokens, prompts, messages and
//! payloads are never logged.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;
use std::sync::Mutex;

use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::private_file::{self, if_there};

/// An error with all its causes on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let why = error.to_string();
        // An error may quote its cause, as those of databases do.
        if !text.ends_with(&why) {
            write!(text, ": {why}").expect("writing to a string does not fail");
        }
        cause = error.source();
    }
    text
}

#[derive(Debug, Clone)]
pub struct LogOptions {
    /// A level, or filter directives such as `svc=debug,warn`.
    pub filter: String,
    /// One JSON object per line, else text.
    pub json: bool,
    /// A file that is rotated by size; `None` for the terminal.
    pub file: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("log_level {0:?} has no meaning")]
    Filter(String, #[source] ParseError),
    #[error("the log file cannot be opened")]
    File(#[from] io::Error),
}

/// Sets up the log, once for the process.
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
    // A second call, as in tests, keeps the first log.
    tracing_subscriber::registry().with(filter).with(layer).try_init().ok();
    std::panic::set_hook(Box::new(|panic| {
        tracing::error!(location = panic.location().map(ToString::to_string), "{panic}");
    }));
    Ok(())
}

/// Size at which a file is rotated, in bytes.
const MAX_BYTES: u64 = 8 * 1024 * 1024;
/// Rotated files that are kept beside the current one.
const KEPT: usize = 3;

/// Appends to a log file that only its owner may read.
#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    file: File,
    len: u64,
    /// Whether the last write ended a line: a line is never split between two files.
    is_line_over: bool,
    max_bytes: u64,
}

impl LogFile {
    fn open(path: PathBuf) -> io::Result<Self> {
        let file = private_file::append(&path)?;
        let len = file.metadata()?.len();
        Ok(Self { path, file, len, is_line_over: true, max_bytes: MAX_BYTES })
    }

    /// The file from `age` rotations ago.
    fn aged(&self, age: usize) -> PathBuf {
        let mut name: OsString = self.path.clone().into();
        if age > 0 {
            name.push(format!(".{age}"));
        }
        name.into()
    }

    fn rotate(&mut self) -> io::Result<()> {
        for age in (0..KEPT).rev() {
            if_there(fs::rename(self.aged(age), self.aged(age + 1)))?;
        }
        self.file = private_file::append(&self.path)?;
        self.len = 0;
        Ok(())
    }
}

impl Write for LogFile {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if self.is_line_over && self.len >= self.max_bytes {
            // If the rotation fails, the log file just grows.
            self.rotate().ok();
        }
        let written = self.file.write(text)?;
        self.len += written as u64;
        if let Some(last) = text[..written].last() {
            self.is_line_over = *last == b'\n';
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("error returned from database: {0}")]
    struct Quoting(#[source] io::Error);

    #[test]
    fn cause_that_an_error_quotes_is_not_repeated() {
        let quoting = Quoting(io::Error::other("(code: 26) file is not a database"));
        let text = "error returned from database: (code: 26) file is not a database";
        assert_eq!(chain(&quoting), text);
        let file = InitError::File(io::Error::other("no space"));
        assert_eq!(chain(&file), "the log file cannot be opened: no space");
    }

    #[test]
    fn full_file_is_rotated_and_the_oldest_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("svc.log");
        fs::write(&path, "before\n").unwrap();
        let mut log = LogFile { max_bytes: 10, ..LogFile::open(path.clone()).unwrap() };
        for number in 0..10 {
            writeln!(log, "line {number}").unwrap();
        }
        let read = |age| fs::read_to_string(log.aged(age)).unwrap();
        assert_eq!(read(0), "line 9\n");
        assert_eq!(read(1), "line 7\nline 8\n");
        assert_eq!(read(2), "line 5\nline 6\n");
        assert_eq!(read(3), "line 3\nline 4\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn file_that_cannot_be_rotated_is_still_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("svc.log");
        // The rotation fails here, since a file cannot replace a folder.
        fs::write(folder.path().join("svc.log.2"), "").unwrap();
        fs::create_dir_all(folder.path().join("svc.log.3/occupied")).unwrap();
        let mut log = LogFile { max_bytes: 1, ..LogFile::open(path.clone()).unwrap() };
        writeln!(log, "one").unwrap();
        writeln!(log, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\n");
    }
}
