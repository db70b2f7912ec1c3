//! Scopes of the sessions that a person starts (`[sessions] scopes`).

use std::path::PathBuf;

use super::{FileConfig, value};

/// What sessions that a person starts may do beyond their own. The file is read for each client that comes for the first time:
/// a grant counts for the next session, without a restart of the daemon.
#[derive(Debug, Clone)]
pub struct SessionScopes {
    /// The configuration file.
    pub(super) file: PathBuf,
    /// Those of the environment, which the file does not change.
    pub(super) fixed: Option<Vec<String>>,
}

impl SessionScopes {
    /// The scopes now. A file that cannot be read gives none.
    pub fn now(&self) -> Vec<String> {
        if let Some(fixed) = &self.fixed {
            return fixed.clone();
        }
        let written = match FileConfig::load(&self.file) {
            Ok(file) => file.sessions.scopes.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(%error, "a new session gets no scopes");
                return Vec::new();
            }
        };
        value::each(&written, value::scope).unwrap_or_else(|problem| {
            tracing::warn!(problem, "a new session gets no scopes: sessions.scopes");
            Vec::new()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_those_of_the_file_as_it_is_now() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        let scopes = SessionScopes { file: file.clone(), fixed: None };
        assert!(scopes.now().is_empty(), "no file");
        for (text, expected) in [
            ("[sessions]\nscopes = [\"agents\"]", vec!["agents"]),
            ("[sessions]\nscopes = [\"agents\", \"read_all\"]", vec!["agents", "read_all"]),
            ("[sessions]\nscopes = [\"a b\"]", vec![]),
            ("[sessions]\nscopes = [\"agents\"]\nno such key", vec![]),
            ("", vec![]),
        ] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(scopes.now(), expected, "{text}");
        }
        std::fs::write(&file, "[sessions]\nscopes = [\"agents\"]").unwrap();
        let fixed = SessionScopes { fixed: Some(vec!["approve".to_owned()]), ..scopes };
        assert_eq!(fixed.now(), ["approve"], "the environment is stronger");
    }
}
