//! Secrets and logins of servers, encrypted in a file of their own.
//!
//! `credentials` is sealed with AES-256-GCM under a key in `credentials.key`. Both are the user's alone, and no link to them is followed.
//! Each change happens under a lock, as a command and the daemon may both write.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::private_file;

/// What the file begins with.
const MARK: &[u8] = b"svc-credentials-1\n";
/// Largest file, in bytes.
const MAX_FILE: u64 = 4 * 1024 * 1024;
/// Longest secret, in bytes.
pub const MAX_SOURCE_SECRET: usize = 64 * 1024;

/// Secrets and logins of servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceVault {
    home: PathBuf,
}

#[derive(Default, Serialize, Deserialize)]
struct VaultContent {
    /// By server, by name.
    #[serde(default)]
    secrets: BTreeMap<String, BTreeMap<String, String>>,
    /// By what names a server.
    #[serde(default)]
    logins: BTreeMap<String, Value>,
}

impl SourceVault {
    /// The vault of a data folder.
    pub fn of(home: &Path) -> Self {
        Self { home: home.to_owned() }
    }

    /// The file.
    pub fn file(&self) -> PathBuf {
        self.home.join("credentials")
    }

    /// The file with the key.
    pub fn key_file(&self) -> PathBuf {
        self.home.join("credentials.key")
    }

    /// The secrets of a server, by name.
    pub fn secrets(&self, server: &str) -> io::Result<BTreeMap<String, String>> {
        Ok(self.read()?.secrets.remove(server).unwrap_or_default())
    }

    /// For each server that has secrets what changes with them.
    pub fn stamps(&self) -> io::Result<BTreeMap<String, String>> {
        let of = |own: &BTreeMap<String, String>| {
            let mut hash = Sha256::new();
            for part in own.iter().flat_map(|(name, value)| [name, value]) {
                hash.update(part.len().to_be_bytes());
                hash.update(part);
            }
            hex::encode(hash.finalize())
        };
        Ok(self.read()?.secrets.iter().map(|(server, own)| (server.clone(), of(own))).collect())
    }

    /// Keeps a secret of a server.
    pub fn set_secret(&self, server: &str, name: &str, value: &str) -> io::Result<()> {
        self.change(|content| {
            let own = content.secrets.entry(server.to_owned()).or_default();
            own.insert(name.to_owned(), value.to_owned());
        })
    }

    /// Forgets a secret of a server; `false` if there is none of that name.
    pub fn unset_secret(&self, server: &str, name: &str) -> io::Result<bool> {
        self.change(|content| {
            let Some(own) = content.secrets.get_mut(server) else { return false };
            let was_there = own.remove(name).is_some();
            if own.is_empty() {
                content.secrets.remove(server);
            }
            was_there
        })
    }

    /// A login.
    pub fn login(&self, id: &str) -> io::Result<Option<Value>> {
        Ok(self.read()?.logins.remove(id))
    }

    /// Keeps a login, or forgets it.
    pub fn set_login(&self, id: &str, login: Option<Value>) -> io::Result<()> {
        self.change(|content| match login {
            Some(login) => drop(content.logins.insert(id.to_owned(), login)),
            None => drop(content.logins.remove(id)),
        })
    }

    fn read(&self) -> io::Result<VaultContent> {
        if !self.file().exists() && !self.file().is_symlink() {
            return Ok(VaultContent::default());
        }
        let _lock = self.lock(FlockOperation::LockShared)?;
        self.open()
    }

    fn change<T>(&self, change: impl FnOnce(&mut VaultContent) -> T) -> io::Result<T> {
        private_file::prepare_home(&self.home)?;
        let _lock = self.lock(FlockOperation::LockExclusive)?;
        let mut content = self.open()?;
        let outcome = change(&mut content);
        self.seal(&content)?;
        Ok(outcome)
    }

    fn lock(&self, operation: FlockOperation) -> io::Result<File> {
        let file = private_file::append(&self.home.join("credentials.lock"))?;
        flock(&file, operation)?;
        Ok(file)
    }

    fn open(&self) -> io::Result<VaultContent> {
        let Some(sealed) = private_file::read_secret_bytes(&self.file(), MAX_FILE)? else {
            return Ok(VaultContent::default());
        };
        let damaged = || {
            let text = format!(
                "{} cannot be opened with the key in {}: remove it, and log in again",
                self.file().display(),
                self.key_file().display()
            );
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        let key = self.key()?.ok_or_else(damaged)?;
        let sealed = sealed.strip_prefix(MARK).ok_or_else(damaged)?;
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LEN>().ok_or_else(damaged)?;
        let mut text = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = key.open_in_place(nonce, Aad::from(MARK), &mut text).map_err(|_| damaged())?;
        serde_json::from_slice(opened).map_err(|_| damaged())
    }

    fn seal(&self, content: &VaultContent) -> io::Result<()> {
        let key = match self.key()? {
            Some(key) => key,
            None => self.make_key()?,
        };
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).map_err(io::Error::other)?;
        let mut text = serde_json::to_vec(content).map_err(io::Error::other)?;
        let unique = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(unique, Aad::from(MARK), &mut text)
            .map_err(|_| io::Error::other("the credentials cannot be sealed"))?;
        private_file::replace(&self.file(), &[MARK, nonce.as_slice(), &text].concat())
    }

    fn key(&self) -> io::Result<Option<LessSafeKey>> {
        let Some(text) = private_file::read_secret(&self.key_file())? else { return Ok(None) };
        let bytes = hex::decode(text.trim()).ok();
        let key = bytes.and_then(|bytes| UnboundKey::new(&AES_256_GCM, &bytes).ok());
        let damaged = || {
            let text = format!("{} holds no key", self.key_file().display());
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        key.map(LessSafeKey::new).map(Some).ok_or_else(damaged)
    }

    fn make_key(&self) -> io::Result<LessSafeKey> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        private_file::create_new(&self.key_file(), hex::encode(bytes).as_bytes())?;
        let key = UnboundKey::new(&AES_256_GCM, &bytes);
        key.map(LessSafeKey::new).map_err(|_| io::Error::other("the key is of no use"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_kept_is_sealed_and_comes_back() {
        let home = tempfile::tempdir().expect("a folder");
        let vault = SourceVault::of(home.path());
        assert_eq!(vault.secrets("a").expect("is empty"), BTreeMap::new());
        vault.set_secret("a", "KEY", "hidden-value").expect("is kept");
        vault.set_login("a\n", Some(json!({ "token": "hidden-token" }))).expect("is kept");
        for file in [vault.file(), vault.key_file()] {
            let mode = std::fs::metadata(&file).expect("is there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{}", file.display());
            let text =
                String::from_utf8_lossy(&std::fs::read(&file).expect("is read")).into_owned();
            assert!(!text.contains("hidden") && !text.contains("KEY"), "{text}");
        }
        let again = SourceVault::of(home.path());
        assert_eq!(again.secrets("a").expect("opens")["KEY"], "hidden-value");
        assert_eq!(again.login("a\n").expect("opens"), Some(json!({ "token": "hidden-token" })));
        assert!(again.unset_secret("a", "KEY").expect("is gone"));
        assert!(!again.unset_secret("a", "KEY").expect("was gone"));
        again.set_login("a\n", None).expect("is forgotten");
        assert_eq!(again.login("a\n").expect("opens"), None);
    }

    #[test]
    fn a_file_that_is_damaged_open_to_others_or_a_link_is_refused_and_stays() {
        let home = tempfile::tempdir().expect("a folder");
        let vault = SourceVault::of(home.path());
        vault.set_secret("a", "KEY", "value").expect("is kept");
        let good = std::fs::read(vault.file()).expect("is read");
        let mut bad = good.clone();
        *bad.last_mut().expect("has bytes") ^= 1;
        private_file::replace(&vault.file(), &bad).expect("is written");
        assert!(vault.secrets("a").is_err());
        assert!(vault.set_secret("a", "KEY", "other").is_err(), "it is not written over");
        private_file::replace(&vault.file(), &good).expect("is written");
        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(vault.file(), open).expect("is ours");
        let error = vault.secrets("a").expect_err("others can read it").to_string();
        assert!(error.contains("chmod 600"), "{error}");
        std::fs::rename(vault.file(), home.path().join("elsewhere")).expect("is moved");
        symlink("elsewhere", vault.file()).expect("is linked");
        let error = vault.secrets("a").expect_err("it is a link").to_string();
        assert!(error.contains("symbolic link"), "{error}");
    }
}
