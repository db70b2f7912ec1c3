//! Where a token came from, so that an error can say so.

use std::fmt;
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
    /// The daemon gave it to the client's process, or the socket shows the process itself.
    Process,
}

impl fmt::Display for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env => f.write_str("the token in SVC_TOKEN"),
            Self::File(path) => write!(f, "the token in {}", path.display()),
            Self::Missing(path) => write!(f, "a token that would be in {}", path.display()),
            Self::Withheld => f.write_str("a token"),
            Self::Process => f.write_str("the token of this client's process"),
        }
    }
}
