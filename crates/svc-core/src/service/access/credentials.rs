//! Credentials: the caller that a token stands for, and whether a credential is still good. Only
//! tokens identify a caller: the operator's token is in a file, tokens of sessions are in the
//! database, with a cache in memory.

use std::{
    collections::HashMap,
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use svc_model::{
    Caller, Principal, ProcessIdentity, Scope, Timestamp, TokenHash, TokenId, WeakSecret,
    check_secret, is_reserved_name, limits, new_secret, token_hash,
};
use svc_store::{TokenRow, job};
use svc_sys::{private_file, telemetry};
use tokio_util::sync::CancellationToken;

use crate::boxed;
use crate::service::{
    Error, Result,
    core::{Core, lock},
};

#[derive(Debug, Clone)]
pub struct Access {
    pub(super) core: Core,
    pub(super) tokens: Tokens,
}

impl Access {
    pub(in crate::service) fn new(core: Core, tokens: Tokens) -> Self {
        Self { core, tokens }
    }

    /// Evicts these tokens, whose rows are revoked already, and ends the streams that use them.
    pub(in crate::service) fn forget(&self, ids: &[TokenId]) {
        self.tokens.forget(ids, self.core.now());
    }

    #[boxed]
    pub async fn authenticate(&self, token: &str) -> Result<Option<(Caller, Credential)>> {
        let hash = token_hash(token);
        if self.tokens.is_operator(&hash) {
            return Ok(Some((Caller::Operator, Credential::Operator(hash))));
        }
        let read = || async move {
            // A token for a reserved name is older than the reservation. A browser's secret is
            // valid as a cookie only.
            let is_good = |row: &TokenRow| {
                let is_reserved = row.process.is_none() && is_reserved_name(&row.session);
                row.operator_credential.is_none() && !is_reserved
            };
            Ok(self.core.store.tokens().by_hash(&hash).await?.filter(is_good))
        };
        let seen = self.token_by(TokenKey::Token(hash), read).await?;
        Ok(seen.map(|seen| (seen.caller.clone(), seen.credential())))
    }

    /// The valid token of a key, from the cache or from the row that `read` finds. Records its use.
    pub(super) async fn token_by<F>(
        &self,
        key: TokenKey,
        read: impl FnOnce() -> F + Send,
    ) -> Result<Option<CachedToken>>
    where
        F: Future<Output = Result<Option<TokenRow>>> + Send,
    {
        let now = self.core.now();
        let known = self.tokens.known(&key, now);
        let seen = if let Some(seen) = known {
            seen
        } else {
            let revocations = self.tokens.revocations();
            // Boxed, as it is rare: otherwise every request would carry the future of the lookup.
            let row = Box::pin(read()).await?;
            let is_good = |row: &TokenRow| row.revoked_at.is_none() && row.expires_at > now;
            let Some(row) = row.filter(is_good) else { return Ok(None) };
            let seen = Box::pin(self.cached(row, now)).await?;
            self.tokens.cache(revocations, key, &seen);
            seen
        };
        self.record_use(&seen, now).await;
        Ok(Some(seen))
    }

    pub(super) async fn cached(&self, row: TokenRow, read_at: Timestamp) -> Result<CachedToken> {
        let root = match &row.project {
            Some(project) => self.core.projects.root(project, row.cwd.as_deref()).await?,
            None => None,
        };
        Ok(CachedToken::from_row(row, root, read_at))
    }

    /// Records the use of a token, at most once per [`limits::TOKEN_USE_RESOLUTION`].
    async fn record_use(&self, seen: &CachedToken, now: Timestamp) {
        if seen.used_at.is_some_and(|at| now.since(at) < limits::TOKEN_USE_RESOLUTION) {
            return;
        }
        self.tokens.seen().note_use(&seen.id, now);
        let id = seen.id.clone();
        let write = self.core.store.write(job!(|tx| tx.tokens().note_use(&id).await));
        // Authentication does not depend on this record.
        if let Err(error) = Box::pin(write).await {
            let error = telemetry::chain(&error);
            tracing::warn!(error, "cannot record the use of a token");
        }
    }

    /// Whether a credential is revoked or expired, according to memory alone.
    pub fn is_over(&self, credential: &Credential) -> bool {
        match credential {
            Credential::Operator(hash) => !self.tokens.is_operator(hash),
            Credential::Session { id, expires_at } => {
                *expires_at <= self.core.now() || self.tokens.seen().has_ended(id)
            }
        }
    }

    /// A future that completes when this credential is rotated, revoked or expires; `None` if it
    /// has ended already.
    ///
    /// An idle stream ends at once, and no other stream wakes.
    pub async fn until_over(
        &self,
        credential: &Credential,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        let watch = self.tokens.watch(credential);
        let (is_good, left) = match credential {
            Credential::Operator(_) => (!self.is_over(credential), None),
            Credential::Session { id, expires_at } => {
                let left = expires_at.since(self.core.now());
                (Box::pin(self.is_token_good(id)).await, Some(left))
            }
        };
        if !is_good {
            return None;
        }
        Some(async move {
            match left {
                Some(left) => drop(tokio::time::timeout(left, watch.cancelled()).await),
                None => watch.cancelled().await,
            }
        })
    }

    /// Names the credential of a caller, so that it can be checked later, also by another process.
    pub fn credential_name(&self, caller: &Caller) -> String {
        match caller.token() {
            None => self.tokens.operator_fingerprint(),
            Some(token) => token.as_str().to_owned(),
        }
    }

    /// Whether the credential of this name is still valid.
    ///
    /// # Errors
    /// [`Error::Unauthorized`] if it is not, or cannot be checked.
    #[boxed]
    pub async fn check_credential(&self, caller: &Caller, name: &str) -> Result<()> {
        let is_good = match caller.token() {
            None => name == self.tokens.operator_fingerprint(),
            Some(_) => match TokenId::parse(name) {
                Some(id) => self.is_token_good(&id).await,
                None => false,
            },
        };
        if is_good { Ok(()) } else { Err(Error::Unauthorized) }
    }

    /// The caller that made a call on record, with the present scopes and project of the token. An
    /// older row of the operator's does not name the credential.
    ///
    /// # Errors
    /// [`Error::Unauthorized`] if the credential is not valid any more.
    #[boxed]
    pub async fn caller_of_record(
        &self,
        principal: &Principal,
        credential: Option<&str>,
    ) -> Result<Caller> {
        let Principal::Session(key) = principal else {
            let present = self.tokens.operator_fingerprint();
            let is_good = credential.is_none_or(|name| name == present);
            return if is_good { Ok(Caller::Operator) } else { Err(Error::Unauthorized) };
        };
        let now = self.core.now();
        let row = match credential.and_then(TokenId::parse) {
            Some(id) => self.core.store.tokens().get(&id).await?,
            None => None,
        };
        let is_good = |row: &TokenRow| {
            *row.session == **key && row.revoked_at.is_none() && row.expires_at > now
        };
        let row = row.filter(is_good).ok_or(Error::Unauthorized)?;
        Ok(self.cached(row, now).await?.caller)
    }

    /// Whether the row of a token is valid. A failed read counts as invalid.
    async fn is_token_good(&self, id: &TokenId) -> bool {
        let now = self.core.now();
        {
            let seen = self.tokens.seen();
            if seen.has_ended(id) {
                return false;
            }
            if seen.good.get(id).is_some_and(|at| now.since(*at) < limits::TOKEN_CACHE) {
                return true;
            }
        }
        let revocations = self.tokens.revocations();
        let row = match self.core.store.tokens().get(id).await {
            Ok(row) => row,
            Err(error) => {
                let error = telemetry::chain(&error);
                tracing::warn!(error, "cannot check a token again");
                return false;
            }
        };
        let is_good = row.is_some_and(|row| row.revoked_at.is_none() && row.expires_at > now);
        let mut seen = self.tokens.seen();
        if is_good && self.tokens.revocations() == revocations {
            seen.evict();
            seen.good.insert(id.clone(), now);
        }
        is_good && !seen.has_ended(id)
    }
}

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
    watched: Mutex<WatchedCredentials>,
    revocations: AtomicU64,
}

/// Credentials with open streams.
#[derive(Default)]
struct WatchedCredentials {
    /// The streams hold the values: when a credential ends, its streams end. A key is the id of a
    /// token, or `None` for the operator's.
    watches: HashMap<Option<TokenId>, Weak<CancellationToken>>,
    /// Above this number, those without a stream are removed. Twice the number that was left then,
    /// so that a removal costs each new watch a constant time.
    bound: usize,
}

impl WatchedCredentials {
    fn watch(&mut self, key: Option<TokenId>) -> Arc<CancellationToken> {
        if let Some(known) = self.watches.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        if self.watches.len() >= self.bound {
            self.watches.retain(|_, watch| watch.strong_count() > 0);
            self.bound = 2 * self.watches.len() + 64;
        }
        let watch = Arc::<CancellationToken>::default();
        self.watches.insert(key, Arc::downgrade(&watch));
        watch
    }
}

/// What a request shows, by which its token is cached.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum TokenKey {
    Token(TokenHash),
    Cookie(TokenHash),
    Process(ProcessIdentity),
}

#[derive(Default)]
pub(super) struct TokenCache {
    by_key: HashMap<TokenKey, CachedToken>,
    /// When the row of a token was last read as valid.
    good: HashMap<TokenId, Timestamp>,
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

#[derive(Clone)]
pub(super) struct CachedToken {
    pub(super) caller: Caller,
    pub(super) id: TokenId,
    pub(super) expires_at: Timestamp,
    pub(super) used_at: Option<Timestamp>,
    pub(super) read_at: Timestamp,
    /// Fingerprint of the operator's token under which a browser was signed in.
    pub(super) operator_credential: Option<String>,
}

impl TokenCache {
    /// Clears what is full; a miss reads the table.
    fn evict(&mut self) {
        if self.by_key.len() >= limits::STREAMS_CACHED {
            self.by_key.clear();
        }
        if self.good.len() >= limits::STREAMS_CACHED {
            self.good.clear();
        }
    }

    pub(super) fn has_ended(&self, id: &TokenId) -> bool {
        self.ended.contains_key(id)
    }

    pub(super) fn note_use(&mut self, id: &TokenId, now: Timestamp) {
        let known = self.by_key.values_mut().filter(|known| known.id == *id);
        known.for_each(|known| known.used_at = Some(now));
    }
}

impl CachedToken {
    /// `root` is that of the row's project on this machine.
    pub(super) fn from_row(row: TokenRow, root: Option<String>, read_at: Timestamp) -> Self {
        Self {
            caller: Caller::Session {
                key: row.session.into(),
                token: row.token_id.clone(),
                scopes: row.scopes.into_iter().map(Scope).collect(),
                project: row.project.map(Arc::from),
                process: row.process.map(Arc::new),
                root: root.map(Arc::from),
                folder: row.cwd.map(Arc::from),
            },
            id: row.token_id,
            expires_at: row.expires_at,
            used_at: row.last_used_at,
            read_at,
            operator_credential: row.operator_credential,
        }
    }

    pub(super) fn credential(&self) -> Credential {
        Credential::Session { id: self.id.clone(), expires_at: self.expires_at }
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
        self.end_watched(None);
        Ok(token)
    }

    /// Distinguishes the operator's present token from an earlier one, and reveals nothing else
    /// about it.
    pub(super) fn operator_fingerprint(&self) -> String {
        format!("operator:{}", hex::encode(&Sha256::digest(self.operator())[..16]))
    }

    /// The number of revocations so far, which [`Self::cache`] compares.
    pub(super) fn revocations(&self) -> u64 {
        self.0.revocations.load(SeqCst)
    }

    /// The token that was cached by this key, while its row need not be read again.
    pub(super) fn known(&self, key: &TokenKey, now: Timestamp) -> Option<CachedToken> {
        let is_fresh = |token: &&CachedToken| {
            now.since(token.read_at) < limits::TOKEN_CACHE && token.expires_at > now
        };
        self.seen().by_key.get(key).filter(is_fresh).cloned()
    }

    /// Caches a token whose row was read when `revocations` had this value: a lookup that began
    /// before a revocation does not cache the token again.
    pub(super) fn cache(&self, revocations: u64, key: TokenKey, token: &CachedToken) {
        let mut seen = self.seen();
        if self.revocations() == revocations {
            seen.evict();
            seen.by_key.insert(key, token.clone());
            seen.good.insert(token.id.clone(), token.read_at);
        }
    }

    pub(super) fn seen(&self) -> MutexGuard<'_, TokenCache> {
        lock(&self.0.seen)
    }

    /// Watches a credential: the result is cancelled when the credential is rotated or revoked. The
    /// caller must check the credential afterwards: it may have been revoked before.
    fn watch(&self, credential: &Credential) -> Arc<CancellationToken> {
        let key = match credential {
            Credential::Operator(_) => None,
            Credential::Session { id, .. } => Some(id.clone()),
        };
        lock(&self.0.watched).watch(key)
    }

    fn end_watched(&self, key: Option<&TokenId>) {
        let watch = lock(&self.0.watched).watches.remove(&key.cloned());
        if let Some(watch) = watch.and_then(|watch| watch.upgrade()) {
            watch.cancel();
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
        seen.by_key.retain(|_, seen| !ids.contains(&seen.id));
        seen.good.retain(|id, _| !ids.contains(id));
        drop(seen);
        for id in ids {
            self.end_watched(Some(id));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_without_streams_are_removed_in_amortised_time() {
        let mut watched = WatchedCredentials::default();
        let mut number = 0;
        let mut next = || {
            number += 1;
            TokenId::parse(&format!("tok_{number}"))
        };
        let held: Vec<_> = (0..1000).map(|_| watched.watch(next())).collect();
        let mut removals = 0;
        for _ in 0..10_000 {
            let before = watched.watches.len();
            drop(watched.watch(next()));
            removals += u32::from(watched.watches.len() <= before);
            assert!(watched.watches.len() <= 2 * held.len() + 64);
        }
        assert!(removals < 20, "{removals}");
    }
}
