//! Tokens of sessions: made, listed and taken back; and the exchange of the operator's.

use std::{collections::BTreeSet, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{
    Caller, IdReference, Ids, OWN_SCOPES, PeerReference, READ_ALL, Timestamp, TokenFingerprint,
    TokenHash, TokenId, is_agent_key, is_daemons_session_id, is_reserved_name, limits, new_secret,
    token_hash,
};
use svc_store::{PeerRow, TokenRow, job};

use super::Access;
use crate::boxed;
use crate::service::{Candidate, Error, Listed, Page, PageBounds, ResourceKind, Result, check};

fn check_scopes(scopes: &[String], of_servers: &BTreeSet<String>) -> Result<()> {
    let is_known =
        |scope: &&String| OWN_SCOPES.contains(&scope.as_str()) || of_servers.contains(*scope);
    let Some(unknown) = scopes.iter().find(|scope| !is_known(scope)) else { return Ok(()) };
    let shown: String = unknown.chars().take(64).collect();
    let known = OWN_SCOPES.iter().copied().chain(of_servers.iter().map(String::as_str));
    let known = known.collect::<Vec<_>>().join(", ");
    let why = format!("nothing asks for the scope {shown:?}; there are {known}");
    Err(Error::invalid("scopes", why))
}

/// Request for a session token.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct NewToken {
    /// The session that its holder will speak for. Not blank.
    pub session: String,
    /// What it may do beyond the ordinary, such as `exec`.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// A folder of the project whose things its holder may read. Without it the holder reads its
    /// own alone.
    pub project: Option<String>,
    /// How long it lives, in seconds: from 1 to 2592000, by default 43200.
    pub ttl_seconds: Option<u64>,
}

/// A fresh token of a session or of a client's process. The only time that it is shown.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct MintedToken {
    /// The token.
    pub token: String,
    #[serde(flatten)]
    pub info: TokenInfo,
}

/// A session token, as lists show it: without the token.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct TokenInfo {
    /// Its row's id.
    pub token_id: TokenId,
    /// What holds it.
    pub kind: TokenKind,
    /// The session that its holder speaks for, the same for every token of one process; `operator`
    /// for a browser that the operator signed in.
    pub session: String,
    /// What it may do beyond the ordinary.
    pub scopes: Vec<String>,
    /// The project whose things it reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ends by itself.
    pub expires_at: Timestamp,
    /// When it was last used, give or take a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<Timestamp>,
    /// When it was taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
    /// The client's process that it was given to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_pid: Option<u32>,
    /// The folder that this process worked in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

impl Listed for TokenInfo {
    const NAME: &'static str = "tokens";
}

/// What holds a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenKind {
    /// A session of an agent.
    Session,
    /// A process of a coding agent.
    Process,
    /// A browser that the operator signed in: a cookie.
    Browser,
}

impl Access {
    /// The hash of the token with this fingerprint, if it is valid.
    #[boxed]
    pub async fn good_token(&self, fingerprint: &TokenFingerprint) -> Result<Option<TokenHash>> {
        let operator = self.tokens.operator();
        if TokenFingerprint::from_hash(&operator) == *fingerprint {
            return Ok(Some(operator));
        }
        let (least, greatest) = fingerprint.range();
        Ok(self.core.store.tokens().good_between(&least, &greatest, self.core.now()).await?)
    }

    /// Makes a session token. Only the operator may. Its scopes must be the daemon's own, or of
    /// `of_servers`, which entries of servers require: any other scope would allow nothing.
    #[boxed]
    pub async fn mint_token(
        &self,
        caller: &Caller,
        input: NewToken,
        of_servers: &BTreeSet<String>,
    ) -> Result<MintedToken> {
        require_operator(caller)?;
        check_scopes(&input.scopes, of_servers)?;
        check::not_blank("session", &input.session)?;
        check::short("session", Some(&input.session))?;
        let input = self.resolve_attended(input).await?;
        if !is_agent_key(&input.session) {
            check::name("session", &input.session)?;
            if is_daemons_session_id(&input.session) {
                return Err(Error::not_yours("session", "the daemon gives ids of this form"));
            }
        }
        check::short("project", input.project.as_deref())?;
        let project = input.project.filter(|path| !path.trim().is_empty());
        let cwd = project.clone().filter(|folder| folder.starts_with('/'));
        let project = self.core.projects.of_any(project.as_deref()).await?;
        let ttl = input.ttl_seconds.map_or(limits::TOKEN_TTL, Duration::from_secs);
        if ttl.is_zero() || ttl > limits::TOKEN_TTL_MAX {
            let most = limits::TOKEN_TTL_MAX.as_secs();
            return Err(Error::invalid("ttl_seconds", format!("must be from 1 to {most}")));
        }
        let token = format!("svc_{}", new_secret());
        let (hash, ids) = (token_hash(&token), self.core.ids.clone());
        let job = self.core.store.on_behalf_of(caller).write(job!(|tx| {
            let row = TokenRow {
                scopes: input.scopes,
                project,
                cwd,
                ..new_token_row(&ids, input.session, tx.now(), ttl)
            };
            tx.tokens().insert(&row, &hash).await?;
            Ok(MintedToken { token, info: row.into() })
        }));
        job.await
    }

    /// Resolves the key of an attended session to its subject, so that the token's holder acts as
    /// that session, and not as a second one of the same name.
    async fn resolve_attended(&self, input: NewToken) -> Result<NewToken> {
        let Some(PeerReference::SessionKey(key)) = PeerReference::parse(&input.session) else {
            return Ok(input);
        };
        let store = &self.core.store;
        if store.agents().of_key(&input.session).await?.is_some() {
            return Ok(input);
        }
        let rows = store.peers().of_session_key(&key.session_id, limits::PAGE_DEFAULT).await?;
        let of_key = |row: &PeerRow| {
            row.session_key().is_some_and(|known| known.eq_ignore_ascii_case(&input.session))
        };
        let Some(row) = rows.into_iter().find(of_key) else { return Ok(input) };
        let Some(own) = row.peer.session_id else { return Ok(input) };
        if row.owner.as_deref().is_some_and(is_reserved_name) {
            let session = &input.session;
            return Err(Error::Conflict(format!(
                "{session} is a session of a client that runs: its own `svc stdio` speaks for it, and no other token does"
            )));
        }
        let project = input.project.or(row.project);
        Ok(NewToken { session: row.owner.unwrap_or(own), project, ..input })
    }

    /// A page of session tokens, the latest first. Only a caller with `read_all` sees them.
    pub async fn list_tokens(
        &self,
        caller: &Caller,
        page: impl Into<PageBounds<'_>>,
    ) -> Result<Page<TokenInfo>> {
        if !caller.has_scope(READ_ALL) {
            let why = "tokens are the operator's to see, or need read_all";
            return Err(Error::Forbidden(why.to_owned()));
        }
        let read = async |before: Option<String>, limit| {
            self.core.store.tokens().list(before.as_deref(), limit).await
        };
        let key = |row: &TokenRow| row.token_id.clone();
        let page = Page::read("tokens", page.into(), read, key).await?;
        Ok(page.map(TokenInfo::from))
    }

    /// Revokes a session token, by its id or a prefix of it, from the next request on. Only the
    /// operator may.
    #[boxed]
    pub async fn revoke_token(&self, caller: &Caller, id: &str) -> Result<TokenInfo> {
        require_operator(caller)?;
        let unknown = || Error::not_found(ResourceKind::Token, id);
        let id = match IdReference::parse(id, TokenId::PREFIX) {
            Some(IdReference::Prefix(prefix)) => {
                let limit = limits::PAGE_DEFAULT;
                let rows = self.core.store.tokens().with_prefix(&prefix, limit).await?;
                Error::only_one(ResourceKind::Token, id, rows, candidate)?.token_id
            }
            _ => TokenId::parse(id).ok_or_else(unknown)?,
        };
        let (store, to_revoke) = (self.core.store.on_behalf_of(caller), id.clone());
        let row = store.write(job!(|tx| tx.tokens().revoke(&to_revoke).await)).await?;
        self.forget(&[id]);
        row.map(TokenInfo::from).ok_or_else(unknown)
    }

    /// Replaces the operator's token. Only the operator may. Browsers that were signed in under the
    /// old one are signed out.
    #[boxed]
    pub async fn rotate_operator_token(&self, caller: &Caller) -> Result<String> {
        require_operator(caller)?;
        let token = self.tokens.rotate().map_err(|error| {
            let why = svc_sys::telemetry::chain(&error);
            Error::Conflict(format!("the token is as it was: {why}"))
        })?;
        self.end_browsers().await;
        Ok(token)
    }
}

/// The row of a new token, without scopes, project or process.
pub(in crate::service) fn new_token_row(
    ids: &Ids,
    session: String,
    now: Timestamp,
    ttl: Duration,
) -> TokenRow {
    TokenRow {
        token_id: TokenId::new(ids, now),
        session,
        scopes: Vec::new(),
        project: None,
        created_at: now,
        expires_at: now.plus(ttl),
        last_used_at: None,
        revoked_at: None,
        process: None,
        cwd: None,
        operator_credential: None,
    }
}

fn candidate(row: &TokenRow) -> Candidate {
    let state = if row.revoked_at.is_some() { "revoked" } else { "good" };
    let about = format!("{state}, of {}, since {}", row.session, row.created_at);
    Candidate { id: row.token_id.as_str().to_owned(), about }
}

impl From<TokenRow> for TokenInfo {
    fn from(row: TokenRow) -> Self {
        let kind = match (&row.operator_credential, &row.process) {
            (Some(_), _) => TokenKind::Browser,
            (None, Some(_)) => TokenKind::Process,
            (None, None) => TokenKind::Session,
        };
        Self {
            token_id: row.token_id,
            kind,
            session: row.session,
            scopes: row.scopes,
            project: row.project,
            created_at: row.created_at,
            expires_at: row.expires_at,
            last_used_at: row.last_used_at,
            revoked_at: row.revoked_at,
            client_pid: row.process.map(|process| process.pid),
            cwd: row.cwd,
        }
    }
}

pub(super) fn require_operator(caller: &Caller) -> Result<()> {
    if caller.is_operator() {
        return Ok(());
    }
    Err(Error::Forbidden("only the operator token may do this".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_64_hex_digits_and_differ() {
        let (one, two) = (new_secret(), new_secret());
        assert!(one.len() == 64 && one.bytes().all(|byte| byte.is_ascii_hexdigit()), "{one}");
        assert_ne!(one, two);
    }
}
