//! The secrets by which clients take their sessions up again: a file in the data folder for each session.
//!
//! A client that is resumed is another process, and to the daemon another principal. Its hook reads the file of the session that
//! it names and shows the secret to the daemon. So whoever reads the person's files may resume the person's sessions, and who
//! only calls tools may not. The daemon writes the file at the session's first event and keeps the hash.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest as _, Sha256};

use crate::domain::{TokenHash, new_secret, token_hash};
use crate::private_file;

/// The folder with the files.
#[derive(Debug, Clone)]
pub(crate) struct SessionSecrets {
    folder: PathBuf,
    /// Secrets whose sessions are being written, by session: two events at one moment get the same.
    pending: Arc<Mutex<HashMap<String, String>>>,
}

/// The secret of a session.
#[derive(Clone)]
pub(crate) struct SessionSecret {
    text: String,
    /// Whether there is no file of it yet.
    is_new: bool,
}

impl SessionSecret {
    pub(crate) fn hash(&self) -> TokenHash {
        token_hash(&self.text)
    }
}

impl std::fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionSecret").field("is_new", &self.is_new).finish_non_exhaustive()
    }
}

impl SessionSecrets {
    /// Those of a data folder, which need not exist.
    pub(crate) fn in_home(home: &Path) -> Self {
        Self { folder: home.join("sessions"), pending: Arc::default() }
    }

    /// What stands in the file of a session; `None` if there is none, or somebody else could have written it.
    pub(crate) fn read(&self, session_id: &str) -> Option<String> {
        let text = private_file::read_secret(&self.file(session_id)).ok().flatten()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// The secret of a session: that of its file, or a fresh one.
    pub(crate) fn obtain(&self, session_id: &str) -> SessionSecret {
        let mut pending = self.pending();
        if let Some(text) = self.read(session_id) {
            return SessionSecret { text, is_new: false };
        }
        let text = pending.entry(session_id.to_owned()).or_insert_with(new_secret).clone();
        SessionSecret { text, is_new: true }
    }

    /// Keeps a secret in the session's file, now that the session is the caller's.
    pub(crate) fn keep(&self, session_id: &str, secret: &SessionSecret) -> io::Result<()> {
        if !secret.is_new {
            return Ok(());
        }
        let kept = private_file::create_folder(&self.folder).and_then(|()| {
            private_file::replace_fleeting(&self.file(session_id), secret.text.as_bytes())
        });
        self.pending().remove(session_id);
        kept
    }

    /// Forgets a secret that is in no file: the session is not the caller's.
    pub(crate) fn give_up(&self, session_id: &str) {
        self.pending().remove(session_id);
    }

    /// Removes the file of a session.
    pub(crate) fn remove(&self, session_id: &str) -> io::Result<()> {
        match std::fs::remove_file(self.file(session_id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// A client's id may hold what a file's name may not.
    fn file(&self, session_id: &str) -> PathBuf {
        self.folder.join(hex::encode(Sha256::digest(session_id)))
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_session_has_one_secret_in_a_private_file() {
        let home = tempfile::tempdir().expect("a folder");
        let secrets = SessionSecrets::in_home(home.path());
        assert_eq!(secrets.read("s"), None);
        let (one, two) = (secrets.obtain("s"), secrets.obtain("s"));
        assert_eq!(one.hash(), two.hash(), "of one moment");
        assert_ne!(one.hash(), secrets.obtain("../s").hash());
        assert_eq!(secrets.read("s"), None, "before it is kept");
        secrets.keep("s", &one).expect("it is written");
        secrets.keep("s", &two).expect("it is written");
        let text = secrets.read("s").expect("a secret");
        assert_eq!((token_hash(&text), text.len()), (one.hash(), 64));
        assert_eq!(secrets.obtain("s").hash(), one.hash());
        let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode();
        assert_eq!(mode(&secrets.folder) & 0o777, 0o700);
        assert_eq!(mode(&secrets.file("s")) & 0o777, 0o600);
        secrets.remove("s").expect("it goes");
        secrets.remove("s").expect("it is gone");
        assert_ne!(secrets.obtain("s").hash(), one.hash());
    }

    #[test]
    fn a_file_that_others_read_is_no_secret() {
        let home = tempfile::tempdir().expect("a folder");
        let secrets = SessionSecrets::in_home(home.path());
        secrets.keep("s", &secrets.obtain("s")).expect("it is written");
        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(secrets.file("s"), open).expect("it is mine");
        assert_eq!(secrets.read("s"), None);
    }
}
