//! Servers of `--mcp-config`: a file, a document, or a document on standard input.

use std::fs::File;
use std::io::{self, BufRead as _, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::SourceDocument;
use crate::bounded_file;

/// Largest file that a flag names, in bytes: it may be a client's settings, with other keys.
const MAX_FLAG_FILE: u64 = 4 * 1024 * 1024;

/// The servers of one `--mcp-config`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagSources {
    /// The file, or `--mcp-config` for a document on the command line.
    pub from: String,
    /// The folder of that file; of a document the folder in which the command was given.
    pub base: String,
    /// What it names.
    pub document: SourceDocument,
}

impl FlagSources {
    /// Reads a value of `--mcp-config`: a document, the name of a file that has one, or `-` for a document that is the next
    /// line of standard input.
    pub fn read(value: &str) -> Result<Self, String> {
        let mut line = String::new();
        if value == "-" {
            let mut stdin = io::stdin().lock().take(MAX_FLAG_FILE);
            let read = stdin.read_line(&mut line);
            read.map_err(|error| format!("--mcp-config: standard input cannot be read: {error}"))?;
        }
        if value.trim_start().starts_with('{') || !line.is_empty() {
            let handed = HandedDocument::parse(&line);
            let (base, text) = match &handed {
                Some(handed) => (handed.0.clone(), handed.1.get()),
                None => (current_folder(), if line.is_empty() { value } else { line.as_str() }),
            };
            let document = SourceDocument::parse_json(text)
                .map_err(|problem| format!("--mcp-config: the document {problem}"))?;
            return Ok(Self { from: "--mcp-config".to_owned(), base, document });
        }
        let path =
            std::path::absolute(value).map_err(|error| format!("--mcp-config {value}: {error}"))?;
        let text = read_named(&path)
            .map_err(|error| format!("--mcp-config {value}: the file cannot be read: {error}"))?
            .ok_or_else(|| format!("--mcp-config {value}: there is no such file"))?;
        let document = SourceDocument::parse_json(&text)
            .map_err(|problem| format!("--mcp-config {value}: the file {problem}"))?;
        let from = path.display().to_string();
        Ok(Self { base: folder_of(&from), from, document })
    }
}

/// A document of `--mcp-config` on the standard input of a daemon in the background, with the folder in which the command was
/// given: a daemon in the background works in another.
#[derive(Debug, Serialize, Deserialize)]
pub struct HandedDocument(String, Box<RawValue>);

impl HandedDocument {
    /// One line with a document that was given in the present folder; the document as it is if it is none.
    pub fn line(document: &str) -> String {
        // A string in JSON has no line feed of its own.
        let document = document.replace(['\n', '\r'], " ");
        let handed = RawValue::from_string(document.clone());
        let handed = handed.and_then(|it| serde_json::to_string(&Self(current_folder(), it)));
        handed.unwrap_or(document) + "\n"
    }

    fn parse(line: &str) -> Option<Self> {
        line.starts_with('[').then(|| serde_json::from_str(line).ok()).flatten()
    }
}

fn current_folder() -> String {
    std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")).display().to_string()
}

/// The folder of a file.
pub(super) fn folder_of(file: &str) -> String {
    Path::new(file).parent().unwrap_or(Path::new("/")).display().to_string()
}

/// The text of a file that the person names; `None` if there is none. It may be the end of a pipe that a shell made, which has
/// its name among the open files of this process; any other pipe or device is refused, as it may never end.
fn read_named(path: &Path) -> io::Result<Option<String>> {
    let is_handed_over =
        ["/dev/fd", "/dev/stdin", "/proc/self/fd"].iter().any(|at| path.starts_with(at));
    if !is_handed_over {
        return bounded_file::read_text(path, MAX_FLAG_FILE);
    }
    let bytes = bounded_file::read_open(File::open(path)?, MAX_FLAG_FILE)?;
    bounded_file::text_of(bytes).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_that_cannot_be_read_is_named() {
        for value in ["/no/such/file", "{", "{}"] {
            let error = FlagSources::read(value).expect_err(value);
            assert!(error.contains("--mcp-config"), "{error}");
        }
    }

    #[test]
    fn a_document_keeps_its_folder_and_its_order_on_the_way_to_the_background() {
        let document = "{\"mcpServers\":{\"b\":{\"command\":\"x\"},\n\"a\":{\"command\":\"y\"}}}";
        let line = HandedDocument::line(document);
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        let HandedDocument(folder, text) = HandedDocument::parse(&line).expect("is one");
        assert_eq!(folder, current_folder());
        assert_eq!(text.get(), document.replace('\n', " "));
        // One that is none is refused where it is read.
        assert!(HandedDocument::parse(&HandedDocument::line("{")).is_none());
    }
}
