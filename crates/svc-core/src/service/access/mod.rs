//! Authentication: the operator's token, browsers that the operator signed in, the tokens of
//! sessions, and processes that the Unix socket identifies. This file checks a credential again
//! after a long wait.

mod browser;
mod client_process;
mod credentials;
mod process_tokens;
mod tokens;

use svc_model::{Caller, Principal, TokenId, limits};

use self::credentials::OPERATOR_PREFIX;
use super::{Error, core::Core};

pub use browser::{BrowserSignIn, LoginCode, LoginTicket, SignInKey};
pub use credentials::{Credential, TokenFileError, Tokens};
pub use process_tokens::{NewProcessToken, ProcessToken};
pub use tokens::{MintedToken, NewToken, TokenInfo, TokenKind};

/// Who made a call on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordedCaller {
    Good(Caller),
    Revoked,
    /// The row names a credential that the principal does not have.
    Unknown,
}

#[derive(Debug, Clone)]
pub struct Access {
    core: Core,
    tokens: Tokens,
}

impl Access {
    pub(super) fn new(core: Core, tokens: Tokens) -> Self {
        Self { core, tokens }
    }

    /// Evicts these tokens, whose rows are revoked already, and ends the streams that use them.
    pub(super) fn forget(&self, ids: &[TokenId]) {
        self.tokens.forget(ids, self.core.now());
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

    pub async fn is_good(&self, credential: &Credential) -> bool {
        !self.is_over(credential)
            && match credential {
                Credential::Operator(_) => true,
                Credential::Session { id, .. } => self.is_token_good(id).await,
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
        if !Box::pin(self.is_good(credential)).await {
            return None;
        }
        let left = match credential {
            Credential::Operator(_) => None,
            Credential::Session { expires_at, .. } => Some(expires_at.since(self.core.now())),
        };
        Some(async move {
            match left {
                Some(left) => drop(tokio::time::timeout(left, watch.over()).await),
                None => watch.over().await,
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
    pub async fn check_credential(&self, caller: &Caller, name: &str) -> Result<(), Error> {
        let is_good = match caller.token() {
            None => name == self.tokens.operator_fingerprint(),
            Some(_) => match TokenId::parse(name) {
                Some(id) => self.is_token_good(&id).await,
                None => false,
            },
        };
        if is_good { Ok(()) } else { Err(Error::Unauthorized) }
    }

    /// The caller that made a call on record, with the present scopes and project of the token.
    pub async fn caller_of_record(
        &self,
        principal: &Principal,
        credential: Option<&str>,
    ) -> Result<RecordedCaller, Error> {
        let key = match principal {
            Principal::Operator => return Ok(self.operator_of_record(credential)),
            Principal::Session(key) => key,
        };
        let now = self.core.now();
        let row = match credential.and_then(TokenId::parse) {
            Some(id) => self.core.store.tokens().get(&id).await?,
            None => None,
        };
        Ok(match row.filter(|row| *row.session == **key) {
            None => RecordedCaller::Unknown,
            Some(row) if row.revoked_at.is_none() && row.expires_at > now => {
                RecordedCaller::Good(self.cached(row, now).await?.caller)
            }
            Some(_) => RecordedCaller::Revoked,
        })
    }

    fn operator_of_record(&self, credential: Option<&str>) -> RecordedCaller {
        // Older rows do not name the credential.
        if credential.is_none_or(|name| name == self.tokens.operator_fingerprint()) {
            return RecordedCaller::Good(Caller::Operator);
        }
        let is_operators = credential.is_some_and(|name| name.starts_with(OPERATOR_PREFIX));
        if is_operators { RecordedCaller::Revoked } else { RecordedCaller::Unknown }
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
                let error = svc_sys::telemetry::chain(&error);
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
