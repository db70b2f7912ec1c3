//! Where a token came from, so that an error can say so.

use std::path::PathBuf;

/// Where a token came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// `SVC_TOKEN`.
    Env,
    /// The token file.
    File(PathBuf),
    /// The token file does not exist.
    Missing(PathBuf),
    /// The request is one that carries none.
    Withheld,
}
