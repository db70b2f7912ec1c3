//! Secrets and logins of servers, encrypted in a file.
//!
//! `credentials` is encrypted with AES-256-GCM; the key is in `credentials.key`. Both files are
//! private to the user, and no link to them is followed. Each change takes the lock of the data
//! folder, as a command and the daemon may write at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use svc_install::file::FolderLock;
use svc_model::source::SecretDestination;

use crate::private_file;

const MARK: &[u8] = b"svc-credentials-1\n";
/// Largest file, in bytes.
const MAX_FILE: u64 = 4 * 1024 * 1024;
/// Longest secret, in bytes.
pub const MAX_SOURCE_SECRET: usize = 64 * 1024;

type SecretValues = BTreeMap<String, String>;

/// An entry that takes secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretBearer {
    pub server: String,
    pub destination: SecretDestination,
    /// Whether the entry is in one of the person's own files.
    pub is_own: bool,
}

/// A snapshot of the secrets of all servers.
#[derive(Default)]
pub struct KeptSecrets(VaultContent);

impl std::fmt::Debug for KeptSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeptSecrets").finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceVault {
    home: PathBuf,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct VaultContent {
    /// Unbound secrets, by server and name: set before an entry of that server name existed. Only
    /// the person's own entry gets them.
    secrets: BTreeMap<String, SecretValues>,
    /// Bound secrets, by server, id of the destination, and name.
    bound: BTreeMap<String, BTreeMap<String, SecretValues>>,
    logins: BTreeMap<String, Value>,
}

impl VaultContent {
    fn remove_unbound(&mut self, server: &str, name: &str) -> bool {
        let Some(own) = self.secrets.get_mut(server) else { return false };
        let was_there = own.remove(name).is_some();
        if own.is_empty() {
            self.secrets.remove(server);
        }
        was_there
    }
}

impl KeptSecrets {
    /// The secrets that an entry gets, by name.
    pub fn given_to(&self, bearer: &SecretBearer) -> BTreeMap<String, String> {
        let unbound = self.0.secrets.get(&bearer.server).filter(|_| bearer.is_own);
        let bound = self.0.bound.get(&bearer.server);
        let bound = bound.and_then(|own| own.get(bearer.destination.id()));
        // Bound secrets override unbound ones.
        let all = unbound.into_iter().chain(bound).flatten();
        all.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Names of secrets that are kept for other servers of the entry's name, and not given to it.
    pub fn withheld_from(&self, bearer: &SecretBearer) -> BTreeSet<String> {
        let given = self.given_to(bearer);
        let kept = self.of_server(&bearer.server).into_iter().map(|(name, _)| name);
        kept.filter(|name| !given.contains_key(name)).collect()
    }

    /// Names of a server's secrets, each with its destination if it is bound.
    pub fn of_server(&self, server: &str) -> Vec<(String, Option<SecretDestination>)> {
        let unbound = self.0.secrets.get(server).into_iter().flat_map(BTreeMap::keys);
        let unbound = unbound.map(|name| (name.clone(), None));
        let bound = self.0.bound.get(server).into_iter().flatten().flat_map(|(id, values)| {
            values.keys().map(move |name| (name.clone(), Some(SecretDestination::named(id))))
        });
        unbound.chain(bound).collect()
    }

    pub fn has_unbound(&self, server: &str) -> bool {
        self.0.secrets.contains_key(server)
    }

    /// A hash that changes with the secrets that the entry gets.
    pub fn fingerprint(&self, bearer: &SecretBearer) -> String {
        let given = self.given_to(bearer);
        if given.is_empty() {
            return String::new();
        }
        let mut hash = Sha256::new();
        for part in given.iter().flat_map(|(name, value)| [name, value]) {
            hash.update(part.len().to_be_bytes());
            hash.update(part);
        }
        hex::encode(hash.finalize())
    }
}

impl SourceVault {
    pub fn new(home: &Path) -> Self {
        Self { home: home.to_owned() }
    }

    pub fn file(&self) -> PathBuf {
        self.home.join("credentials")
    }

    pub fn key_file(&self) -> PathBuf {
        self.home.join("credentials.key")
    }

    pub fn kept(&self) -> io::Result<KeptSecrets> {
        self.read().map(KeptSecrets)
    }

    /// Without a bearer the secret is unbound: it waits for the person's entry of that server name.
    pub fn set_secret(
        &self,
        server: &str,
        bearer: Option<&SecretBearer>,
        name: &str,
        value: &str,
    ) -> io::Result<()> {
        self.change(|content| {
            if bearer.is_none_or(|bearer| bearer.is_own) {
                content.remove_unbound(server, name);
            }
            let own = match bearer {
                None => content.secrets.entry(server.to_owned()).or_default(),
                Some(bearer) => {
                    let own = content.bound.entry(server.to_owned()).or_default();
                    own.entry(bearer.destination.id().to_owned()).or_default()
                }
            };
            own.insert(name.to_owned(), value.to_owned());
        })
    }

    /// Binds unbound secrets to the person's own entries of the same server name.
    pub fn bind(&self, bearers: &[SecretBearer]) -> io::Result<()> {
        self.change(|content| {
            for bearer in bearers.iter().filter(|bearer| bearer.is_own) {
                let Some(values) = content.secrets.remove(&bearer.server) else { continue };
                let own = content.bound.entry(bearer.server.clone()).or_default();
                let own = own.entry(bearer.destination.id().to_owned()).or_default();
                for (name, value) in values {
                    own.entry(name).or_insert(value);
                }
            }
        })
    }

    /// Removes a secret for all destinations; returns `false` if it does not exist.
    pub fn unset_secret(&self, server: &str, name: &str) -> io::Result<bool> {
        self.change(|content| {
            let mut was_there = content.remove_unbound(server, name);
            let Some(own) = content.bound.get_mut(server) else { return was_there };
            own.retain(|_, values| {
                was_there |= values.remove(name).is_some();
                !values.is_empty()
            });
            if own.is_empty() {
                content.bound.remove(server);
            }
            was_there
        })
    }

    pub fn login(&self, id: &str) -> io::Result<Option<Value>> {
        Ok(self.read()?.logins.remove(id))
    }

    /// Stores a login; `None` removes it.
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
        // Without the lock, which only those take who change the file: they replace it at once.
        self.open()
    }

    fn change<T>(&self, change: impl FnOnce(&mut VaultContent) -> T) -> io::Result<T> {
        private_file::prepare_home(&self.home)?;
        let _lock = FolderLock::take(&self.home)?;
        let mut content = self.open()?;
        let outcome = change(&mut content);
        self.seal(&content)?;
        Ok(outcome)
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

    fn own(server: &str, destination: &str) -> SecretBearer {
        let destination = SecretDestination::named(destination);
        SecretBearer { server: server.to_owned(), destination, is_own: true }
    }

    fn given(vault: &SourceVault, bearer: &SecretBearer) -> BTreeMap<String, String> {
        vault.kept().expect("opens").given_to(bearer)
    }

    #[test]
    fn secret_is_given_only_to_its_destination() {
        let home = tempfile::tempdir().expect("a folder");
        let vault = SourceVault::new(home.path());
        let mine = own("a", "https://a.example");
        let of_project = |id: &str| SecretBearer { is_own: false, ..own("a", id) };
        let theirs = of_project("https://b.example");
        vault.set_secret("a", Some(&mine), "KEY", "one").expect("is kept");
        assert_eq!(given(&vault, &mine)["KEY"], "one");
        // The address is the destination: an entry of a project with it gets the secret too.
        assert_eq!(given(&vault, &of_project("https://a.example"))["KEY"], "one");
        for other in [&theirs, &own("a", "https://b.example"), &own("b", "https://a.example")] {
            assert_eq!(given(&vault, other), BTreeMap::new(), "{other:?}");
        }
        vault.set_secret("a", Some(&theirs), "KEY", "two").expect("is kept");
        assert_eq!(
            (&*given(&vault, &mine)["KEY"], &*given(&vault, &theirs)["KEY"]),
            ("one", "two")
        );
        // Only the person's own entry gets unbound secrets.
        vault.set_secret("c", None, "OLD", "old").expect("is kept");
        let mine = own("c", "own");
        let theirs = SecretBearer { is_own: false, ..own("c", "/p/.mcp.json") };
        assert_eq!(given(&vault, &theirs), BTreeMap::new());
        let before = vault.kept().expect("opens").fingerprint(&mine);
        vault.bind(&[theirs.clone(), mine.clone()]).expect("is bound");
        assert_eq!(
            vault.kept().expect("opens").fingerprint(&mine),
            before,
            "nothing starts anew for it"
        );
        assert!(!vault.kept().expect("opens").has_unbound("c"));
        assert_eq!(given(&vault, &mine)["OLD"], "old");
        assert_eq!(given(&vault, &own("c", "https://c.example")), BTreeMap::new());
        assert_eq!(given(&vault, &theirs), BTreeMap::new());
        assert!(vault.unset_secret("a", "KEY").expect("is gone"));
        assert!(vault.kept().expect("opens").of_server("a").is_empty());
    }

    #[test]
    fn secrets_are_encrypted_and_read_back() {
        let home = tempfile::tempdir().expect("a folder");
        let vault = SourceVault::new(home.path());
        let bearer = own("a", "https://a.example");
        assert_eq!(given(&vault, &bearer), BTreeMap::new());
        vault.set_secret("a", Some(&bearer), "KEY", "hidden-value").expect("is kept");
        vault.set_login("a\n", Some(json!({ "token": "hidden-token" }))).expect("is kept");
        for file in [vault.file(), vault.key_file()] {
            let mode = std::fs::metadata(&file).expect("is there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{}", file.display());
            let text =
                String::from_utf8_lossy(&std::fs::read(&file).expect("is read")).into_owned();
            assert!(!text.contains("hidden") && !text.contains("KEY"), "{text}");
        }
        let again = SourceVault::new(home.path());
        assert_eq!(given(&again, &bearer)["KEY"], "hidden-value");
        assert_eq!(again.login("a\n").expect("opens"), Some(json!({ "token": "hidden-token" })));
        assert!(again.unset_secret("a", "KEY").expect("is gone"));
        assert!(!again.unset_secret("a", "KEY").expect("was gone"));
        again.set_login("a\n", None).expect("is forgotten");
        assert_eq!(again.login("a\n").expect("opens"), None);
    }

    #[test]
    fn lock_of_a_stopped_process_is_not_waited_for_without_end() {
        let home = tempfile::tempdir().expect("a folder");
        let vault = SourceVault::new(home.path());
        vault.set_secret("a", None, "KEY", "value").expect("is kept");
        let _stopped = FolderLock::take(home.path()).expect("is free");
        assert!(vault.kept().expect("opens").has_unbound("a"), "readers need no lock");
        let error = vault.set_secret("a", None, "KEY", "other").expect_err("is locked").to_string();
        assert!(error.contains("another process holds"), "{error}");
    }

    #[test]
    fn file_that_is_damaged_open_to_others_or_a_link_is_refused_and_stays() {
        let home = tempfile::tempdir().expect("a folder");
        let vault = SourceVault::new(home.path());
        vault.set_secret("a", None, "KEY", "value").expect("is kept");
        let good = std::fs::read(vault.file()).expect("is read");
        let mut bad = good.clone();
        *bad.last_mut().expect("has bytes") ^= 1;
        private_file::replace(&vault.file(), &bad).expect("is written");
        assert!(vault.kept().is_err());
        assert!(vault.set_secret("a", None, "KEY", "other").is_err(), "it is not written over");
        private_file::replace(&vault.file(), &good).expect("is written");
        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(vault.file(), open).expect("is ours");
        let error = vault.kept().map(|_| ()).expect_err("others can read it").to_string();
        assert!(error.contains("chmod 600"), "{error}");
        std::fs::rename(vault.file(), home.path().join("elsewhere")).expect("is moved");
        symlink("elsewhere", vault.file()).expect("is linked");
        let error = vault.kept().map(|_| ()).expect_err("it is a link").to_string();
        assert!(error.contains("symbolic link"), "{error}");
    }
}
