//! Secrets with which clients resume sessions: one file per session in the data folder.
//!
//! A resumed client is another process, and so another principal for the daemon. Its hook reads the
//! file of the session that it names and sends the secret to the daemon. So a program that can read
//! the person's files may resume the person's sessions, and a program that only calls tools may
//! not. The daemon writes the file at the session's first event and stores the hash.

use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use svc_model::{TokenHash, new_secret, token_hash};

use crate::private_file::{self, if_there};

#[derive(Debug, Clone)]
pub struct SessionSecrets {
    folder: PathBuf,
}

impl SessionSecrets {
    /// The folder need not exist.
    pub fn in_home(home: &Path) -> Self {
        Self { folder: home.join("sessions") }
    }

    /// `None` if the file does not exist, or if somebody else could have written it.
    pub fn read(&self, session_id: &str) -> Option<String> {
        let text = private_file::read_secret(&self.file(session_id)).ok().flatten()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// Creates the file if it is missing; returns the hash of the secret. The caller serialises
    /// calls, since concurrent ones may write different secrets.
    pub fn ensure(&self, session_id: &str) -> io::Result<TokenHash> {
        if let Some(text) = self.read(session_id) {
            return Ok(token_hash(&text));
        }
        let text = new_secret();
        private_file::create_folder(&self.folder)?;
        private_file::replace(&self.file(session_id), text.as_bytes())?;
        Ok(token_hash(&text))
    }

    pub fn remove(&self, session_id: &str) -> io::Result<()> {
        if_there(std::fs::remove_file(self.file(session_id))).map(drop)
    }

    /// The file name is a hash, as a client's session id may contain any character.
    fn file(&self, session_id: &str) -> PathBuf {
        self.folder.join(hex::encode(Sha256::digest(session_id)))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn session_has_one_secret_in_a_private_file() {
        let home = tempfile::tempdir().expect("a folder");
        let secrets = SessionSecrets::in_home(home.path());
        assert_eq!(secrets.read("s"), None);
        let hash = secrets.ensure("s").expect("it is written");
        let text = secrets.read("s").expect("a secret");
        assert_eq!((token_hash(&text), text.len()), (hash, 64));
        assert_eq!(secrets.ensure("s").expect("it is there"), hash);
        assert_ne!(secrets.ensure("../s").expect("it is written"), hash);
        let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode();
        assert_eq!(mode(&secrets.folder) & 0o777, 0o700);
        assert_eq!(mode(&secrets.file("s")) & 0o777, 0o600);
        secrets.remove("s").expect("it goes");
        secrets.remove("s").expect("it is gone");
        assert_ne!(secrets.ensure("s").expect("it is written"), hash);
    }

    #[test]
    fn file_that_others_can_read_is_ignored() {
        let home = tempfile::tempdir().expect("a folder");
        let secrets = SessionSecrets::in_home(home.path());
        secrets.ensure("s").expect("it is written");
        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(secrets.file("s"), open).expect("it is mine");
        assert_eq!(secrets.read("s"), None);
    }
}
