//! One file and the edits that are wanted in it.

use std::path::PathBuf;

use super::document::FileFormat;
use super::edit::Edit;

/// One file and the edits that are wanted in it.
#[derive(Debug, Clone)]
pub struct FileChange {
    /// The file, which need not exist.
    pub path: PathBuf,
    /// How it is written.
    pub format: FileFormat,
    /// The edits, in this order.
    pub edits: Vec<Edit>,
}
