//! Where a daemon listens.

use std::fmt;
use std::path::PathBuf;

use super::url::Url;

/// Where a daemon listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// The Unix socket in a data folder.
    Socket(PathBuf),
    /// A URL that a person has given: perhaps another data folder's daemon, or one on another machine.
    Tcp(Url),
}

impl Endpoint {
    /// What stands in the `Host` header.
    pub(super) fn authority(&self) -> String {
        match self {
            Self::Socket(_) => "localhost".to_owned(),
            Self::Tcp(url) => url.authority(),
        }
    }

    /// The request target of a path on this daemon.
    pub(super) fn path(&self, path: &str) -> String {
        match self {
            Self::Socket(_) => path.to_owned(),
            Self::Tcp(url) => url.path(path),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Tcp(url) => url.fmt(f),
        }
    }
}
