//! Sign-in codes of browsers, and the rows of browsers among the tokens.

use std::time::Duration;

use svc_model::{Timestamp, TokenHash, TokenId};

use super::{
    errors::changed,
    families::{BrowserReads, BrowserWrites},
    statement::{change, direct_row, pool_query, select_one, select_values},
};
use crate::{LoginCodeRow, StoreError, TokenEnd};

macro_rules! login_codes {
    ($run:ident, $($rest:tt)*) => {
        $run!(
            r#"select operator_credential, expires_at as "expires_at: Timestamp", used_at as "used_at: Timestamp"
            from login_code "#,
            LoginCodeRow,
            $($rest)*
        )
    };
}

direct_row!(LoginCodeRow { operator_credential, expires_at, used_at });

impl BrowserReads<'_> {
    /// The code with this SHA-256, in any state.
    pub async fn login_code(self, hash: &TokenHash) -> Result<Option<LoginCodeRow>, StoreError> {
        let hash = hash.as_slice();
        Ok(login_codes!(pool_query, "where hash = ?", hash)
            .fetch_optional(&self.store.readers)
            .await?)
    }
}

impl BrowserWrites<'_> {
    /// Stores a code by its SHA-256.
    pub async fn insert_login_code(
        &mut self,
        hash: &TokenHash,
        operator_credential: &str,
        expires_at: Timestamp,
    ) -> Result<(), StoreError> {
        let hash = hash.as_slice();
        change!(
            self.tx,
            "insert into login_code (hash, operator_credential, expires_at) values (?, ?, ?)",
            hash,
            operator_credential,
            expires_at
        );
        Ok(())
    }

    /// The code with this SHA-256, in any state.
    pub async fn login_code(
        &mut self,
        hash: &TokenHash,
    ) -> Result<Option<LoginCodeRow>, StoreError> {
        let hash = hash.as_slice();
        Ok(login_codes!(select_one, self.tx, "where hash = ?", hash))
    }

    /// Marks a code as used.
    pub async fn use_login_code(&mut self, hash: &TokenHash) -> Result<(), StoreError> {
        let key = hash.as_slice();
        let done = change!(
            self.tx,
            "update login_code set used_at = ? where hash = ? and used_at is null",
            self.tx.now,
            key
        );
        changed(done, "login_code", "of a browser")
    }

    /// Removes codes that expired more than `kept` ago, at most `limit`.
    pub async fn forget_login_codes(
        &mut self,
        kept: Duration,
        limit: u32,
    ) -> Result<(), StoreError> {
        let before = self.tx.now.minus(kept);
        change!(
            self.tx,
            "delete from login_code where hash in (select hash from login_code where expires_at < ? limit ?)",
            before,
            limit
        );
        Ok(())
    }

    /// Removes browsers that ended more than `kept` ago, at most `limit`.
    pub async fn forget(&mut self, kept: Duration, limit: u32) -> Result<(), StoreError> {
        let before = self.tx.now.minus(kept);
        change!(
            self.tx,
            "delete from token where token_id in
                (select token_id from token where operator_credential is not null and expires_at < ? limit ?)",
            before,
            limit
        );
        Ok(())
    }

    /// Revokes the cookies of all browsers. Returns those that were valid.
    pub async fn revoke_all(&mut self) -> Result<Vec<TokenId>, StoreError> {
        let ids = select_values!(
            self.tx,
            r#"update token set revoked_at = ?, revoke_reason = ?
            where operator_credential is not null and revoked_at is null
            returning token_id as "token_id!""#,
            self.tx.now,
            TokenEnd::Revoked
        );
        Ok(ids.into_iter().map(TokenId::from).collect())
    }
}
