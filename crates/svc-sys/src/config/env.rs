//! The environment as a value.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use super::ConfigError;

/// A snapshot of environment variables, taken once at the edge of the program.
///
/// An empty variable counts as one that is not set, as the XDG rules have it.
#[derive(Clone, Default)]
pub struct Env(BTreeMap<OsString, OsString>);

/// Shows the names only: a value may be a token.
impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Env {
    /// Reads the environment of this process.
    pub fn from_process() -> Self {
        std::env::vars_os().collect()
    }

    /// The variable's value, or `None` if it is not set or empty.
    pub fn os(&self, name: &str) -> Option<&OsStr> {
        self.0.get(OsStr::new(name)).map(OsString::as_os_str).filter(|value| !value.is_empty())
    }

    /// The variable's value as text, or `None` if it is not set or empty.
    ///
    /// Fails with [`ConfigError::Invalid`] if the value is not UTF-8.
    pub fn text(&self, name: &str) -> Result<Option<&str>, ConfigError> {
        self.os(name)
            .map(|value| {
                value.to_str().ok_or_else(|| ConfigError::Invalid {
                    source_name: format!("environment variable {name}"),
                    problem: "is not valid UTF-8".to_owned(),
                    advice: "set it to plain text, or unset it".to_owned(),
                })
            })
            .transpose()
    }
}

impl<K: Into<OsString>, V: Into<OsString>> FromIterator<(K, V)> for Env {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}
