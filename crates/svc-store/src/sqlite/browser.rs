//! Codes that sign browsers in, and the rows of browsers among the tokens.

use std::time::Duration;

use svc_model::{Timestamp, TokenHash, TokenId};

use super::{db::Store, errors::changed, tx::WriteTx};
use crate::{LoginCodeRow, StoreError, TokenEnd};

macro_rules! login_codes {
    ($hash:expr) => {
        sqlx::query_as!(
            LoginCodeRow,
            r#"select operator_credential, expires_at as "expires_at: Timestamp", used_at as "used_at: Timestamp"
            from login_code where hash = ?"#,
            $hash
        )
    };
}

impl Store {
    /// The code with this SHA-256, whatever became of it.
    pub async fn login_code(&self, hash: &TokenHash) -> Result<Option<LoginCodeRow>, StoreError> {
        let hash = hash.as_slice();
        Ok(login_codes!(hash).fetch_optional(&self.readers).await?)
    }
}

impl WriteTx {
    /// Stores a code by its SHA-256.
    pub async fn insert_login_code(
        &mut self,
        hash: &TokenHash,
        operator_credential: &str,
        expires_at: Timestamp,
    ) -> Result<(), StoreError> {
        let hash = hash.as_slice();
        sqlx::query!(
            "insert into login_code (hash, operator_credential, expires_at) values (?, ?, ?)",
            hash,
            operator_credential,
            expires_at
        )
        .execute(self.checked()?)
        .await?;
        Ok(())
    }

    /// The code with this SHA-256, whatever became of it.
    pub async fn login_code(
        &mut self,
        hash: &TokenHash,
    ) -> Result<Option<LoginCodeRow>, StoreError> {
        let hash = hash.as_slice();
        Ok(login_codes!(hash).fetch_optional(self.checked()?).await?)
    }

    /// A code is used from now on.
    pub async fn use_login_code(&mut self, hash: &TokenHash) -> Result<(), StoreError> {
        let key = hash.as_slice();
        let done = sqlx::query!(
            "update login_code set used_at = ? where hash = ? and used_at is null",
            self.now,
            key
        )
        .execute(self.checked()?)
        .await?;
        changed(done.rows_affected(), "login_code", "of a browser")
    }

    /// Removes codes that ended more than `kept` ago, at most `limit`.
    pub async fn forget_login_codes(
        &mut self,
        kept: Duration,
        limit: u32,
    ) -> Result<(), StoreError> {
        let before = self.now.minus(kept);
        sqlx::query!(
            "delete from login_code where hash in (select hash from login_code where expires_at < ? limit ?)",
            before,
            limit
        )
        .execute(self.checked()?)
        .await?;
        Ok(())
    }

    /// Removes browsers that ended more than `kept` ago, at most `limit`.
    pub async fn forget_browsers(&mut self, kept: Duration, limit: u32) -> Result<(), StoreError> {
        let before = self.now.minus(kept);
        sqlx::query!(
            "delete from token where token_id in
                (select token_id from token where operator_credential is not null and expires_at < ? limit ?)",
            before,
            limit
        )
        .execute(self.checked()?)
        .await?;
        Ok(())
    }

    /// Takes back the cookies of all browsers. Answers which were good until now.
    pub async fn revoke_browsers(&mut self) -> Result<Vec<TokenId>, StoreError> {
        let ids = sqlx::query_scalar!(
            r#"update token set revoked_at = ?, revoke_reason = ?
            where operator_credential is not null and revoked_at is null
            returning token_id as "token_id!""#,
            self.now,
            TokenEnd::Revoked
        )
        .fetch_all(self.checked()?)
        .await?;
        Ok(ids.into_iter().map(TokenId::from).collect())
    }
}
