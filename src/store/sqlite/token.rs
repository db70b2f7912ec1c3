//! Rows of session tokens. They hold the hash of a token and never the token.

use super::{db::Store, errors::changed, tx::WriteTx};
use crate::{
    domain::{Timestamp, TokenHash, TokenId},
    store::{StoreError, TokenRow},
};

struct RawToken {
    token_id: String,
    session: String,
    scopes: String,
    project: Option<String>,
    created_at: Timestamp,
    expires_at: Timestamp,
    last_used_at: Option<Timestamp>,
    revoked_at: Option<Timestamp>,
}

impl TryFrom<RawToken> for TokenRow {
    type Error = StoreError;

    fn try_from(raw: RawToken) -> Result<Self, StoreError> {
        let scopes = serde_json::from_str(&raw.scopes).map_err(|error| StoreError::BadRow {
            table: "token",
            id: raw.token_id.clone(),
            why: format!("scopes: {error}"),
        })?;
        Ok(Self {
            token_id: TokenId::from(raw.token_id),
            session: raw.session,
            scopes,
            project: raw.project,
            created_at: raw.created_at,
            expires_at: raw.expires_at,
            last_used_at: raw.last_used_at,
            revoked_at: raw.revoked_at,
        })
    }
}

macro_rules! tokens {
    ($tail:literal $(, $arg:expr)*) => {
        sqlx::query_as!(
            RawToken,
            r#"select token_id as "token_id!", session, scopes, nullif(project, '') as "project: String",
                created_at as "created_at: Timestamp",
                expires_at as "expires_at: Timestamp", last_used_at as "last_used_at: Timestamp",
                revoked_at as "revoked_at: Timestamp"
            from token "# + $tail
            $(, $arg)*
        )
    };
}

impl WriteTx {
    /// Stores a token's row with the SHA-256 of the token.
    pub async fn insert_token(
        &mut self,
        row: &TokenRow,
        hash: &[u8; 32],
    ) -> Result<(), StoreError> {
        let (id, hash) = (row.token_id.as_str(), hash.as_slice());
        let scopes = serde_json::to_string(&row.scopes).expect("strings have a JSON form");
        let project = row.project.as_deref().unwrap_or_default();
        sqlx::query!(
            "insert into token (token_id, hash, session, scopes, project, created_at, expires_at)
            values (?, ?, ?, ?, ?, ?, ?)",
            id,
            hash,
            row.session,
            scopes,
            project,
            row.created_at,
            row.expires_at
        )
        .execute(&mut self.conn)
        .await?;
        Ok(())
    }

    /// Takes a token back; one that is taken back already keeps its time.
    pub async fn revoke_token(&mut self, id: &TokenId) -> Result<Option<TokenRow>, StoreError> {
        let id = id.as_str();
        sqlx::query!(
            "update token set revoked_at = ? where token_id = ? and revoked_at is null",
            self.now,
            id
        )
        .execute(&mut self.conn)
        .await?;
        let raw = tokens!("where token_id = ?", id).fetch_optional(&mut self.conn).await?;
        raw.map(TokenRow::try_from).transpose()
    }

    /// Takes back all tokens of a session: those that were good until now.
    pub async fn revoke_tokens_of(&mut self, session: &str) -> Result<Vec<TokenId>, StoreError> {
        let ids = sqlx::query_scalar!(
            r#"update token set revoked_at = ? where session = ? and revoked_at is null
            returning token_id as "token_id!""#,
            self.now,
            session
        )
        .fetch_all(&mut self.conn)
        .await?;
        Ok(ids.into_iter().map(TokenId::from).collect())
    }

    /// Records that a token was used.
    pub async fn use_token(&mut self, id: &TokenId) -> Result<(), StoreError> {
        let id = id.as_str();
        let done =
            sqlx::query!("update token set last_used_at = ? where token_id = ?", self.now, id)
                .execute(&mut self.conn)
                .await?;
        changed(done.rows_affected(), "token", id)
    }
}

impl Store {
    /// The token with this SHA-256, whatever became of it.
    pub async fn token_by_hash(&self, hash: &[u8; 32]) -> Result<Option<TokenRow>, StoreError> {
        let hash = hash.as_slice();
        let raw = tokens!("where hash = ?", hash).fetch_optional(&self.readers).await?;
        raw.map(TokenRow::try_from).transpose()
    }

    /// The hash of a token that is good `now` and whose hash is from `least` to `greatest`.
    pub async fn good_token_between(
        &self,
        least: &TokenHash,
        greatest: &TokenHash,
        now: Timestamp,
    ) -> Result<Option<TokenHash>, StoreError> {
        let (least, greatest) = (least.as_slice(), greatest.as_slice());
        let hash = sqlx::query_scalar!(
            "select hash from token where hash between ? and ? and revoked_at is null and expires_at > ? limit 1",
            least,
            greatest,
            now
        )
        .fetch_optional(&self.readers)
        .await?;
        Ok(hash.and_then(|hash| hash.try_into().ok()))
    }

    /// Tokens, the latest first, before the one named `before`, at most `limit`.
    pub async fn tokens(
        &self,
        before: Option<&str>,
        limit: u32,
    ) -> Result<Vec<TokenRow>, StoreError> {
        let rows = tokens!(
            "where ?1 is null or token_id < ?1 order by token_id desc limit ?2",
            before,
            limit
        )
        .fetch_all(&self.readers)
        .await?;
        rows.into_iter().map(TokenRow::try_from).collect()
    }
}
