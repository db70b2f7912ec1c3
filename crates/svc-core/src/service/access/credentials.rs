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

/// Prefix of the name of an operator's credential.
pub(super) const OPERATOR_PREFIX: &str = "operator:";

/// The operator's token and a cache of the others. Cheap to clone.
///
/// A cached row is valid for [`limits::TOKEN_CACHE`]: the row decides, and another daemon on the
/// same database may have changed it. A revocation by this daemon takes effect at once.
#[derive(Clone)]
pub struct Tokens(pub(super) Arc<SharedCredentials>);

pub(super) struct SharedCredentials {
    file: PathBuf,
    operator: RwLock<[u8; 32]>,
    seen: Mutex<TokenCache>,
    /// Credentials with open streams, which end with them.
    watched: Mutex<HashMap<WatchKey, WatchedCredential>>,
    /// Counts revocations, so that a lookup that began before one does not cache the token again.
    pub(super) revocations: AtomicU64,
}

/// Recently read rows.
#[derive(Default)]
pub(super) struct TokenCache {
    /// Tokens by their hash.
    pub(super) by_hash: HashMap<[u8; 32], CachedToken>,
    /// Tokens of processes that the socket identifies.
    pub(super) by_process: HashMap<ProcessIdentity, CachedToken>,
    /// Browsers by the hash of their cookie.
    pub(super) by_cookie: HashMap<[u8; 32], Browser>,
    /// When the row of a token was last read as valid.
    pub(super) good: HashMap<TokenId, Timestamp>,
    /// Tokens that this daemon revoked, with the time. It overrides cached rows, so that their
    /// streams end.
    ended: HashMap<TokenId, Timestamp>,
}

/// The credential of a request, for a response that may outlast it.
#[derive(Debug, Clone)]
pub enum Credential {
    /// The operator's token, by its hash.
    Operator([u8; 32]),
    Session {
        id: TokenId,
        expires_at: Timestamp,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum WatchKey {
    Operator,
    Token(TokenId),
}

/// A credential with open streams.
#[derive(Default)]
struct WatchedCredential {
    over: CancellationToken,
    streams: usize,
}

/// Notifies a stream of the revocation of its credential.
pub(super) struct CredentialWatch {
    tokens: Tokens,
    key: WatchKey,
    over: CancellationToken,
}

impl CredentialWatch {
    /// Waits until the credential is rotated or revoked.
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
    /// The operator's credential under which it was signed in.
    pub(super) operator_credential: String,
}

impl TokenCache {
    /// Whether this daemon revoked the token recently.
    pub(super) fn has_ended(&self, id: &TokenId) -> bool {
        self.ended.contains_key(id)
    }

    /// Evicts entries; a miss reads the table.
    pub(super) fn evict(&mut self) {
        if self.by_hash.len() >= limits::STREAMS_CACHED {
            self.by_hash.clear();
        }
        if self.by_process.len() >= limits::STREAMS_CACHED {
            self.by_process.clear();
        }
        if self.by_cookie.len() >= limits::STREAMS_CACHED {
            self.by_cookie.clear();
        }
        if self.good.len() >= limits::STREAMS_CACHED {
            self.good.clear();
        }
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
    /// The token is too weak.
    #[error("the token in {path} {fault}: `svc token rotate` writes a new one")]
    Weak { path: String, fault: WeakSecret },
    #[error(
        "token file {path} is empty: remove it, and write a new one with `svc token init {path}`"
    )]
    Empty { path: String },
    /// A file that was named does not exist.
    #[error("token file {path} is not there: `svc token init {path}` makes it")]
    Missing { path: String },
}

impl Tokens {
    /// Reads the operator's token, or makes one if there is no file yet.
    pub fn open_or_make(file: &Path) -> Result<Self, TokenFileError> {
        let failed = |source| TokenFileError::Io { path: file.display().to_string(), source };
        let token = if let Some(text) = private_file::read_secret(file).map_err(failed)? {
            text
        } else {
            let token = new_secret();
            write_token(file, &token).map_err(failed)?;
            token
        };
        Self::holding(file, token.trim())
    }

    /// Reads the operator's token from a file that a person named.
    pub fn open(file: &Path) -> Result<Self, TokenFileError> {
        let path = || file.display().to_string();
        let text = private_file::read_secret(file)
            .map_err(|source| TokenFileError::Io { path: path(), source })?;
        let text = text.ok_or_else(|| TokenFileError::Missing { path: path() })?;
        Self::holding(file, text.trim())
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
        let operator = self.0.operator.read().unwrap_or_else(PoisonError::into_inner);
        bool::from(operator.ct_eq(token))
    }

    pub(super) fn operator(&self) -> TokenHash {
        *self.0.operator.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn rotate(&self) -> Result<String, TokenFileError> {
        let mut operator = self.0.operator.write().unwrap_or_else(PoisonError::into_inner);
        let token = new_secret();
        write_token(&self.0.file, &token).map_err(|source| TokenFileError::Io {
            path: self.0.file.display().to_string(),
            source,
        })?;
        *operator = token_hash(&token);
        drop(operator);
        self.end_watched(&WatchKey::Operator);
        Ok(token)
    }

    /// Distinguishes the operator's present token from an earlier one, and reveals nothing else
    /// about it.
    pub(super) fn operator_fingerprint(&self) -> String {
        let operator = self.0.operator.read().unwrap_or_else(PoisonError::into_inner);
        format!("{OPERATOR_PREFIX}{}", hex::encode(&Sha256::digest(*operator)[..16]))
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

fn write_token(file: &Path, token: &str) -> io::Result<()> {
    private_file::replace(file, format!("{token}\n").as_bytes())
}
