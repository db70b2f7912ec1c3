//! The credentials in memory: the operator's token, and a cache of sessions' tokens.

use std::{
    collections::HashMap,
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use svc_model::{
    Caller, ProcessIdentity, Timestamp, TokenHash, TokenId, WeakSecret, check_secret, limits,
    new_secret, token_hash,
};
use svc_sys::private_file;
use tokio_util::sync::CancellationToken;

pub(super) const OPERATOR_PREFIX: &str = "operator:";

/// The operator's token and a cache of the others. Cheap to clone.
///
/// A cached row is valid for [`limits::TOKEN_CACHE`]: the row decides, and another daemon on the
/// same database may have changed it. A revocation by this daemon takes effect at once.
#[derive(Clone)]
pub struct Tokens(Arc<SharedCredentials>);

struct SharedCredentials {
    file: PathBuf,
    operator: RwLock<[u8; 32]>,
    seen: Mutex<TokenCache>,
    /// Credentials with open streams. When a credential ends, its streams end.
    watched: Mutex<HashMap<WatchKey, WatchedCredential>>,
    revocations: AtomicU64,
}

#[derive(Default)]
pub(super) struct TokenCache {
    pub(super) by_hash: HashMap<[u8; 32], CachedToken>,
    pub(super) by_process: HashMap<ProcessIdentity, CachedToken>,
    pub(super) by_cookie: HashMap<[u8; 32], Browser>,
    /// When the row of a token was last read as valid.
    pub(super) good: HashMap<TokenId, Timestamp>,
    /// Tokens that this daemon revoked, with the time. Overrides cached rows, so that the streams
    /// of these tokens end.
    ended: HashMap<TokenId, Timestamp>,
}

/// The credential of a request, for a response that may outlast it.
#[derive(Debug, Clone)]
pub enum Credential {
    Operator([u8; 32]),
    Session { id: TokenId, expires_at: Timestamp },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum WatchKey {
    Operator,
    Token(TokenId),
}

#[derive(Default)]
struct WatchedCredential {
    over: CancellationToken,
    streams: usize,
}

pub(super) struct CredentialWatch {
    tokens: Tokens,
    key: WatchKey,
    over: CancellationToken,
}

impl CredentialWatch {
    /// Completes when the credential is rotated or revoked.
    pub(super) async fn over(&self) {
        self.over.cancelled().await;
    }
}

impl Drop for CredentialWatch {
    fn drop(&mut self) {
        let mut watched = self.tokens.watched();
        // After a revocation, an entry of the same key belongs to the next credential.
        if let Some(known) = watched.get_mut(&self.key)
            && !self.over.is_cancelled()
        {
            known.streams -= 1;
            if known.streams == 0 {
                watched.remove(&self.key);
            }
        }
    }
}

#[derive(Clone)]
pub(super) struct CachedToken {
    pub(super) caller: Caller,
    pub(super) id: TokenId,
    pub(super) expires_at: Timestamp,
    pub(super) used_at: Option<Timestamp>,
    pub(super) read_at: Timestamp,
}

#[derive(Clone)]
pub(super) struct Browser {
    pub(super) seen: CachedToken,
    /// Fingerprint of the operator's token under which the browser was signed in.
    pub(super) operator_credential: String,
}

impl TokenCache {
    pub(super) fn has_ended(&self, id: &TokenId) -> bool {
        self.ended.contains_key(id)
    }

    pub(super) fn note_use(&mut self, id: &TokenId, now: Timestamp) {
        let browsers = self.by_cookie.values_mut().map(|browser| &mut browser.seen);
        let known = self.by_hash.values_mut().chain(self.by_process.values_mut()).chain(browsers);
        known.filter(|known| known.id == *id).for_each(|known| known.used_at = Some(now));
    }

    /// Evicts entries; a miss reads the table.
    pub(super) fn evict(&mut self) {
        fn bound<K, V>(map: &mut HashMap<K, V>) {
            if map.len() >= limits::STREAMS_CACHED {
                map.clear();
            }
        }
        bound(&mut self.by_hash);
        bound(&mut self.by_process);
        bound(&mut self.by_cookie);
        bound(&mut self.good);
    }
}

impl CachedToken {
    pub(super) fn is_fresh(&self, now: Timestamp) -> bool {
        now.since(self.read_at) < limits::TOKEN_CACHE
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("file", &self.0.file).finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    #[error("token file {path}")]
    Io {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("the token in {path} {fault}: `svc token rotate` writes a new one")]
    Weak { path: String, fault: WeakSecret },
    #[error(
        "token file {path} is empty: remove it, and write a new one with `svc token init {path}`"
    )]
    Empty { path: String },
    #[error("token file {path} is not there: `svc token init {path}` makes it")]
    Missing { path: String },
}

impl Tokens {
    /// Reads the operator's token, or makes one if there is no file yet.
    pub fn open_or_make(file: &Path) -> Result<Self, TokenFileError> {
        if let Some(text) = read_token(file)? {
            return Self::holding(file, text.trim());
        }
        let token = new_secret();
        write_token(file, &token)?;
        Self::holding(file, &token)
    }

    pub fn open(file: &Path) -> Result<Self, TokenFileError> {
        let missing = || TokenFileError::Missing { path: file.display().to_string() };
        Self::holding(file, read_token(file)?.ok_or_else(missing)?.trim())
    }

    fn holding(file: &Path, token: &str) -> Result<Self, TokenFileError> {
        if token.is_empty() {
            return Err(TokenFileError::Empty { path: file.display().to_string() });
        }
        check_secret(token)
            .map_err(|fault| TokenFileError::Weak { path: file.display().to_string(), fault })?;
        Ok(Self(Arc::new(SharedCredentials {
            file: file.to_owned(),
            operator: RwLock::new(token_hash(token)),
            seen: Mutex::default(),
            watched: Mutex::default(),
            revocations: AtomicU64::new(0),
        })))
    }

    pub(super) fn is_operator(&self, token: &[u8; 32]) -> bool {
        bool::from(self.operator().ct_eq(token))
    }

    pub(super) fn operator(&self) -> TokenHash {
        *self.0.operator.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn rotate(&self) -> Result<String, TokenFileError> {
        let mut operator = self.0.operator.write().unwrap_or_else(PoisonError::into_inner);
        let token = new_secret();
        write_token(&self.0.file, &token)?;
        *operator = token_hash(&token);
        drop(operator);
        self.end_watched(&WatchKey::Operator);
        Ok(token)
    }

    /// Distinguishes the operator's present token from an earlier one, and reveals nothing else
    /// about it.
    pub(super) fn operator_fingerprint(&self) -> String {
        format!("{OPERATOR_PREFIX}{}", hex::encode(&Sha256::digest(self.operator())[..16]))
    }

    /// The number of revocations so far, which [`Self::cache`] compares.
    pub(super) fn revocations(&self) -> u64 {
        self.0.revocations.load(SeqCst)
    }

    /// Caches a token whose row was read when `revocations` had this value: a lookup that began
    /// before a revocation does not cache the token again.
    pub(super) fn cache(
        &self,
        revocations: u64,
        token: &CachedToken,
        insert: impl FnOnce(&mut TokenCache),
    ) {
        let mut seen = self.seen();
        if self.revocations() == revocations {
            seen.evict();
            insert(&mut seen);
            seen.good.insert(token.id.clone(), token.read_at);
        }
    }

    pub(super) fn seen(&self) -> MutexGuard<'_, TokenCache> {
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watched(&self) -> MutexGuard<'_, HashMap<WatchKey, WatchedCredential>> {
        self.0.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a credential. The caller must check the credential afterwards: it may have been
    /// revoked before.
    pub(super) fn watch(&self, credential: &Credential) -> CredentialWatch {
        let key = match credential {
            Credential::Operator(_) => WatchKey::Operator,
            Credential::Session { id, .. } => WatchKey::Token(id.clone()),
        };
        let mut watched = self.watched();
        let known = watched.entry(key.clone()).or_default();
        known.streams += 1;
        CredentialWatch { tokens: self.clone(), key, over: known.over.clone() }
    }

    fn end_watched(&self, key: &WatchKey) {
        if let Some(known) = self.watched().remove(key) {
            known.over.cancel();
        }
    }

    /// Evicts revoked tokens and ends the streams that were opened with them.
    pub(in crate::service) fn forget(&self, ids: &[TokenId], now: Timestamp) {
        if ids.is_empty() {
            return;
        }
        self.0.revocations.fetch_add(1, SeqCst);
        let mut seen = self.seen();
        // Once the cache has expired, the row shows the revocation.
        seen.ended.retain(|_, at| now.since(*at) < 2 * limits::TOKEN_CACHE);
        seen.ended.extend(ids.iter().map(|id| (id.clone(), now)));
        seen.by_hash.retain(|_, seen| !ids.contains(&seen.id));
        seen.by_process.retain(|_, seen| !ids.contains(&seen.id));
        seen.by_cookie.retain(|_, browser| !ids.contains(&browser.seen.id));
        seen.good.retain(|id, _| !ids.contains(id));
        drop(seen);
        for id in ids {
            self.end_watched(&WatchKey::Token(id.clone()));
        }
    }
}

fn read_token(file: &Path) -> Result<Option<String>, TokenFileError> {
    private_file::read_secret(file).map_err(|source| io_error(file, source))
}

fn write_token(file: &Path, token: &str) -> Result<(), TokenFileError> {
    private_file::replace(file, format!("{token}\n").as_bytes())
        .map_err(|source| io_error(file, source))
}

fn io_error(file: &Path, source: io::Error) -> TokenFileError {
    TokenFileError::Io { path: file.display().to_string(), source }
}
