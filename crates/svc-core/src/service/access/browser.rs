//! Browsers that the operator signs in. `svc open` gets a code or a ticket; the page sends it once
//! and gets the secret of a cookie. A person sees a code; a ticket is in the arguments of the
//! program that opens the browser.
//!
//! The cookie stands for the operator, but it is no token: it is valid only in a browser's requests
//! to its own origin (the adapter checks that), it ends with the operator's token under which it
//! was made, and it cannot make another credential.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;
use svc_model::{Caller, Timestamp, TokenHash, TokenId, limits, new_secret, token_hash};
use svc_store::{LoginCodeRow, TokenRow, job};

use super::{
    Access, Credential,
    credentials::TokenKey,
    tokens::{MintedToken, new_token_row, require_operator},
};
use crate::boxed;
use crate::service::{Error, Result};

/// The session in the row of a browser. It is reserved: no session token is made for it.
const SUBJECT: &str = "operator";

/// A code that signs a browser in, once. The only time that it is shown.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct LoginCode {
    /// The code.
    pub code: String,
    /// Until when it may be used.
    pub expires_at: Timestamp,
}

/// A ticket that signs a browser of the daemon's user in, once. The only time that it is shown.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct LoginTicket {
    /// The ticket.
    pub ticket: String,
    /// Until when it may be used.
    pub expires_at: Timestamp,
}

#[derive(Clone, Copy)]
pub enum SignInKey<'a> {
    /// A code, which a person passed on.
    Code(&'a str),
    /// A ticket. The adapter accepts it from this user's programs only.
    Ticket(&'a str),
}

impl Access {
    /// Makes a code that signs a browser in. Only the operator may.
    #[boxed]
    pub async fn make_login_code(&self, caller: &Caller) -> Result<LoginCode> {
        let code = new_secret();
        let expires_at = self.store_key(caller, SignInKey::Code(&code)).await?;
        Ok(LoginCode { code, expires_at })
    }

    /// Makes a ticket that signs a browser of the daemon's user in. Only the operator may.
    #[boxed]
    pub async fn make_login_ticket(&self, caller: &Caller) -> Result<LoginTicket> {
        let ticket = new_secret();
        let expires_at = self.store_key(caller, SignInKey::Ticket(&ticket)).await?;
        Ok(LoginTicket { ticket, expires_at })
    }

    async fn store_key(&self, caller: &Caller, key: SignInKey<'_>) -> Result<Timestamp> {
        require_operator(caller)?;
        let (hash, credential) = (key.hash(), self.tokens.operator_fingerprint());
        let job = self.core.store.on_behalf_of(caller).write(job!(|tx| {
            let expires_at = tx.now().plus(limits::LOGIN_CODE_TTL);
            tx.browsers()
                .forget_login_codes(limits::LOGIN_CODE_KEPT, limits::SWEPT_ROWS_PER_JOB)
                .await?;
            tx.browsers().insert_login_code(&hash, &credential, expires_at).await?;
            Ok::<_, Error>(expires_at)
        }));
        job.await
    }

    /// Signs a browser in. The token is the secret of its cookie.
    ///
    /// # Errors
    /// [`Error::Forbidden`] for a key that is wrong, expired, or used.
    pub async fn sign_in(&self, key: SignInKey<'_>) -> Result<MintedToken> {
        let (hash, word) = (key.hash(), key.word());
        let operator = self.tokens.operator_fingerprint();
        // Checked before anything is written: the request has no credential yet.
        let known = self.core.store.browsers().login_code(&hash).await?;
        check_key(word, known.as_ref(), &operator, self.core.now())?;
        let secret = new_secret();
        let (cookie, ids) = (cookie_hash(&secret), self.core.ids.clone());
        let job = self.core.store.write(job!(|tx| {
            let known = tx.browsers().login_code(&hash).await?;
            check_key(word, known.as_ref(), &operator, tx.now())?;
            tx.browsers().use_login_code(&hash).await?;
            tx.browsers().forget(limits::BROWSER_KEPT, limits::SWEPT_ROWS_PER_JOB).await?;
            let subject = SUBJECT.to_owned();
            let row = TokenRow {
                operator_credential: Some(operator),
                ..new_token_row(&ids, subject, tx.now(), limits::BROWSER_TTL)
            };
            tx.tokens().insert(&row, &cookie).await?;
            Ok::<_, Error>(row)
        }));
        Ok(MintedToken { token: secret, info: job.await?.into() })
    }

    /// The operator and the browser's row, if this is the secret of a valid cookie.
    #[boxed]
    pub async fn authenticate_browser(
        &self,
        secret: &str,
    ) -> Result<Option<(Caller, Credential, TokenId)>> {
        let hash = cookie_hash(secret);
        let read = || async move { Ok(self.core.store.tokens().by_hash(&hash).await?) };
        let operator = Some(self.tokens.operator_fingerprint());
        let seen = self.token_by(TokenKey::Cookie(hash), read).await?;
        let seen = seen.filter(|seen| seen.operator_credential == operator);
        Ok(seen.map(|seen| (Caller::Operator, seen.credential(), seen.id)))
    }

    /// Signs all browsers out. If the write fails, their cookies are invalid all the same, because
    /// the operator's token has changed; only open requests go on.
    pub(super) async fn end_browsers(&self) {
        let job = self.core.store.write(job!(|tx| tx.browsers().revoke_all().await));
        let ended = job.await;
        match ended {
            Ok(ids) => self.forget(&ids),
            Err(error) => {
                let error = svc_sys::telemetry::chain(&error);
                tracing::warn!(error, "cannot sign browsers out");
            }
        }
    }
}

/// Shows the kind of the key without the secret.
impl fmt::Debug for SignInKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(self.word()).finish_non_exhaustive()
    }
}

impl SignInKey<'_> {
    /// Codes, tickets, cookies and tokens have distinct hash inputs, so none is accepted as
    /// another.
    fn hash(self) -> TokenHash {
        match self {
            Self::Code(code) => token_hash(&format!("login code\n{code}")),
            Self::Ticket(ticket) => token_hash(&format!("login ticket\n{ticket}")),
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Code(_) => "code",
            Self::Ticket(_) => "ticket",
        }
    }
}

/// Checks a key under this credential of the operator. `word` names the kind of the key.
fn check_key(word: &str, key: Option<&LoginCodeRow>, operator: &str, now: Timestamp) -> Result<()> {
    let fault = match key {
        None => "is not known",
        Some(key) if key.used_at.is_some() => "was used already",
        Some(key) if key.expires_at <= now => "has expired: it is valid for a minute",
        Some(key) if key.operator_credential != operator => {
            "was made under an operator token that was changed since"
        }
        Some(_) => return Ok(()),
    };
    Err(Error::Forbidden(format!("this {word} {fault}: `svc open` makes a new one")))
}

fn cookie_hash(secret: &str) -> TokenHash {
    token_hash(&format!("browser\n{secret}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use svc_store::testing::TestStore;

    use super::*;
    use crate::service::{PageBounds, testing::services};

    #[tokio::test]
    async fn a_code_expires_after_a_minute_and_a_cookie_after_half_a_day() {
        let test = TestStore::open().await;
        let access = services(&test).access.clone();
        let why =
            async |code: &str| access.sign_in(SignInKey::Code(code)).await.unwrap_err().to_string();
        let code = access.make_login_code(&Caller::Operator).await.unwrap().code;
        test.clock.advance(limits::LOGIN_CODE_TTL);
        assert!(why(&code).await.contains("has expired"));

        let code = access.make_login_code(&Caller::Operator).await.unwrap().code;
        test.clock.advance(limits::LOGIN_CODE_TTL.saturating_sub(Duration::from_millis(1)));
        let browser = access.sign_in(SignInKey::Code(&code)).await.unwrap();
        let is_good = async || {
            let known = access.authenticate_browser(&browser.token).await.unwrap();
            known.is_some_and(|(caller, ..)| caller.is_operator())
        };
        assert!(is_good().await);
        assert!(why(&code).await.contains("used already"));
        test.clock.advance(limits::BROWSER_TTL.saturating_sub(Duration::from_millis(1)));
        assert!(is_good().await);
        test.clock.advance(Duration::from_millis(1));
        assert!(!is_good().await);

        // The code's row is deleted after a while, and its use with it.
        test.clock.advance(limits::LOGIN_CODE_KEPT + limits::LOGIN_CODE_TTL);
        access.make_login_code(&Caller::Operator).await.unwrap();
        assert!(why(&code).await.contains("not known"));
    }

    #[tokio::test]
    async fn a_browser_ends_with_the_operator_token_also_when_another_process_rotates_it() {
        let test = TestStore::open().await;
        let access = services(&test).access.clone();
        let waiting = access.make_login_code(&Caller::Operator).await.unwrap().code;
        let code = access.make_login_code(&Caller::Operator).await.unwrap().code;
        let browser = access.sign_in(SignInKey::Code(&code)).await.unwrap();
        // A daemon that starts after `svc token rotate` has another token, over the same rows.
        std::fs::remove_file(test.folder().join("token")).unwrap();
        let later = services(&test).access.clone();
        assert!(later.authenticate_browser(&browser.token).await.unwrap().is_none());
        let refused = later.sign_in(SignInKey::Code(&waiting)).await.unwrap_err().to_string();
        assert!(refused.contains("was changed"), "{refused}");
        assert!(access.authenticate_browser(&browser.token).await.unwrap().is_some());

        access.rotate_operator_token(&Caller::Operator).await.unwrap();
        assert!(access.authenticate_browser(&browser.token).await.unwrap().is_none());
        let listed =
            access.list_tokens(&Caller::Operator, PageBounds::new(None, None)).await.unwrap();
        assert!(listed.items[0].revoked_at.is_some());
    }

    #[tokio::test]
    async fn a_code_a_cookie_and_a_token_are_not_accepted_as_each_other() {
        let test = TestStore::open().await;
        let access = services(&test).access.clone();
        let spare = access.make_login_code(&Caller::Operator).await.unwrap().code;
        let code = access.make_login_code(&Caller::Operator).await.unwrap().code;
        let browser = access.sign_in(SignInKey::Code(&code)).await.unwrap();
        assert!(access.authenticate_browser(&browser.token).await.unwrap().is_some());
        for secret in [&spare, &code, &browser.token, &format!("browser\n{}", browser.token)] {
            assert!(access.authenticate(secret).await.unwrap().is_none(), "as a token");
        }
        assert!(access.authenticate_browser(&spare).await.unwrap().is_none(), "a code as a cookie");
        let ticket = access.make_login_ticket(&Caller::Operator).await.unwrap().ticket;
        for key in [
            SignInKey::Code(&browser.token),
            SignInKey::Ticket(&browser.token),
            SignInKey::Ticket(&spare),
            SignInKey::Code(&ticket),
        ] {
            assert!(access.sign_in(key).await.is_err(), "as another {}", key.word());
        }
        assert!(access.authenticate(&ticket).await.unwrap().is_none(), "a ticket as a token");
        access.sign_in(SignInKey::Ticket(&ticket)).await.unwrap();
        assert!(access.sign_in(SignInKey::Ticket(&ticket)).await.is_err(), "a ticket works once");
    }
}
