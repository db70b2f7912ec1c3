//! The token of a login: stored in the vault, and renewed by one request on behalf of all.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use oauth2::{
    AuthType, ClientId, ClientSecret, EndpointNotSet, EndpointSet, RefreshToken, RequestTokenError,
    TokenResponse as _, TokenUrl,
    basic::{BasicClient, BasicErrorResponse, BasicErrorResponseType, BasicTokenResponse},
};
use serde::{Deserialize, Serialize};
use svc_core::service::Services;
use svc_model::Timestamp;
use svc_sys::config::sources::SourceVault;

use super::discovery::AuthChallenge;
use crate::{
    http_clients::{HttpClients, IssuerUnreachable, post, safe_url, sender},
    lock,
};

/// Longest time before expiry at which a token is renewed.
const MARGIN: Duration = Duration::from_mins(1);
/// A token is renewed in the last 1/`LAST_PART` of its lifetime, so that a short-lived token is
/// used for most of it.
const LAST_PART: u32 = 5;

type TokenClient =
    BasicClient<EndpointNotSet, EndpointNotSet, EndpointNotSet, EndpointNotSet, EndpointSet>;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OauthClient {
    pub(super) id: String,
    pub(super) secret: Option<String>,
    /// `client_secret_basic`, `client_secret_post` or `none`.
    pub(super) auth_method: String,
}

impl OauthClient {
    /// The client for requests to a token endpoint.
    pub(super) fn at(&self, endpoint: TokenUrl) -> TokenClient {
        let auth_type = match self.auth_method.as_str() {
            "client_secret_basic" => AuthType::BasicAuth,
            _ => AuthType::RequestBody,
        };
        let client = BasicClient::new(ClientId::new(self.id.clone()))
            .set_token_uri(endpoint)
            .set_auth_type(auth_type);
        match self.sent_secret() {
            Some(secret) => client.set_client_secret(ClientSecret::new(secret.to_owned())),
            None => client,
        }
    }

    /// The secret, if requests carry it.
    fn sent_secret(&self) -> Option<&str> {
        self.secret.as_deref().filter(|_| self.auth_method != "none")
    }
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SourceLogin {
    /// The server's URL. The token is sent to no other.
    pub(super) url: String,
    /// The resource that the token is for, as the server names it.
    pub(super) resource: String,
    pub(super) issuer: String,
    pub(super) token_endpoint: String,
    pub(super) revocation_endpoint: Option<String>,
    pub(super) client: OauthClient,
    pub(super) access_token: String,
    pub(super) refresh_token: Option<String>,
    /// When the token expires, if the issuer said so, in milliseconds since 1970.
    pub(super) expires_at: Option<i64>,
    /// The token's lifetime when it was granted, in milliseconds.
    #[serde(default)]
    pub(super) lasts: Option<u64>,
    /// The scopes that were requested or granted.
    pub(super) scope: Option<String>,
}

impl std::fmt::Debug for SourceLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceLogin").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

impl SourceLogin {
    pub(super) fn take(&mut self, given: &BasicTokenResponse, now: Timestamp) {
        self.access_token.clone_from(given.access_token().secret());
        // An issuer that does not rotate the refresh token omits it.
        if let Some(token) = given.refresh_token() {
            self.refresh_token = Some(token.secret().clone());
        }
        let lasts = given.expires_in();
        self.expires_at = lasts.map(|lasts| now.plus(lasts).as_millis());
        self.lasts = lasts.map(|lasts| u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX));
        if let Some(scopes) = given.scopes() {
            let scopes: Vec<&str> = scopes.iter().map(|scope| scope.as_str()).collect();
            self.scope = Some(scopes.join(" "));
        }
    }

    /// The revocation endpoint, if its origin is the issuer's or the token endpoint's. Another
    /// origin gets no token.
    fn revocation_url(&self) -> Option<reqwest::Url> {
        let url = safe_url(self.revocation_endpoint.as_deref()?).ok()?;
        let is_of =
            |own: &str| reqwest::Url::parse(own).is_ok_and(|own| own.origin() == url.origin());
        (is_of(&self.issuer) || is_of(&self.token_endpoint)).then_some(url)
    }

    fn margin(&self) -> Duration {
        self.lasts.map_or(MARGIN, |lasts| MARGIN.min(Duration::from_millis(lasts) / LAST_PART))
    }

    fn is_over(&self, at: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end <= at.as_millis())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RenewalFailure {
    /// A person has to log in again.
    NeedsLogin(String),
    /// The issuer cannot be reached; the login is kept.
    Unreachable(String),
}

#[derive(Debug, Default)]
struct KnownLogin {
    /// Whether the vault was read.
    is_read: bool,
    login: Option<SourceLogin>,
}

/// The login to one server, for all its instances and callers.
#[derive(Debug)]
pub(crate) struct SourceAuth {
    services: Services,
    vault: SourceVault,
    clients: HttpClients,
    /// The name of the login in the vault.
    id: String,
    /// The lock under which the token is renewed; others wait for it.
    login: tokio::sync::Mutex<KnownLogin>,
    renewals: AtomicU64,
    challenge: Mutex<AuthChallenge>,
}

impl SourceAuth {
    pub(crate) fn new(
        services: Services,
        vault: SourceVault,
        clients: HttpClients,
        id: String,
    ) -> Arc<Self> {
        let (login, challenge) = (tokio::sync::Mutex::default(), Mutex::default());
        let renewals = AtomicU64::new(0);
        Arc::new(Self { services, vault, clients, id, login, renewals, challenge })
    }

    pub(crate) fn note(&self, challenge: AuthChallenge) {
        *lock(&self.challenge) = challenge;
    }

    pub(crate) fn challenge(&self) -> AuthChallenge {
        lock(&self.challenge).clone()
    }

    fn read<'a>(
        &self,
        known: &'a mut KnownLogin,
    ) -> Result<&'a mut Option<SourceLogin>, RenewalFailure> {
        if !known.is_read {
            let kept = self.vault.login(&self.id);
            let kept = kept.map_err(|error| RenewalFailure::Unreachable(error.to_string()))?;
            known.login = kept.and_then(|kept| serde_json::from_value(kept).ok());
            known.is_read = true;
        }
        Ok(&mut known.login)
    }

    /// The token for requests to a URL, renewed if it is about to expire; `None` without a login.
    pub(crate) async fn token(&self, url: &reqwest::Url) -> Result<Option<String>, RenewalFailure> {
        let before = self.renewals.load(SeqCst);
        let mut login = self.login.lock().await;
        // A caller that waited for a renewal uses the new token, however short its lifetime is.
        let is_just_made = self.renewals.load(SeqCst) != before;
        let kept = self.read(&mut login)?;
        let Some(own) = kept.as_mut().filter(|own| own.url == url.as_str()) else {
            return Ok(None);
        };
        let now = self.services.now();
        if !is_just_made && own.is_over(now.plus(own.margin())) && own.refresh_token.is_some() {
            match self.refresh(kept).await {
                // The old token is still valid for some seconds.
                Err(RenewalFailure::Unreachable(_))
                    if kept.as_ref().is_some_and(|own| !own.is_over(now)) => {}
                renewed => renewed?,
            }
        }
        Ok(kept.as_ref().map(|own| own.access_token.clone()))
    }

    /// Renews a token that was refused, unless it was renewed already; `false` if it cannot be
    /// renewed.
    pub(crate) async fn renew(&self, refused: &str) -> Result<bool, RenewalFailure> {
        let mut login = self.login.lock().await;
        let kept = self.read(&mut login)?;
        match kept {
            None => Ok(false),
            Some(own) if own.access_token != refused => Ok(true),
            Some(own) if own.refresh_token.is_none() => Ok(false),
            Some(_) => self.refresh(kept).await.map(|()| true),
        }
    }

    async fn refresh(&self, kept: &mut Option<SourceLogin>) -> Result<(), RenewalFailure> {
        let Some(own) = kept else { return Ok(()) };
        let endpoint = TokenUrl::new(own.token_endpoint.clone())
            .map_err(|_| RenewalFailure::NeedsLogin("its issuer has no address".to_owned()))?;
        let token = RefreshToken::new(own.refresh_token.clone().unwrap_or_default());
        let http = sender(&self.clients);
        let asked = own
            .client
            .at(endpoint)
            .exchange_refresh_token(&token)
            .add_extra_param("resource", own.resource.clone())
            .request_async(&http)
            .await;
        match asked {
            Ok(given) => {
                own.take(&given, self.services.now());
                self.renewals.fetch_add(1, SeqCst);
                self.keep(kept.as_ref());
                Ok(())
            }
            Err(error) => {
                let failure = failure_of(error);
                if let RenewalFailure::NeedsLogin(_) = &failure {
                    *kept = None;
                    self.keep(None);
                }
                Err(failure)
            }
        }
    }

    fn keep(&self, login: Option<&SourceLogin>) {
        let login = login.and_then(|login| serde_json::to_value(login).ok());
        if let Err(error) = self.vault.set_login(&self.id, login) {
            tracing::error!(error = %error, "a login cannot be kept, and is lost with this process");
        }
    }

    pub(crate) async fn set(&self, new: SourceLogin) -> std::io::Result<()> {
        let mut login = self.login.lock().await;
        let value = serde_json::to_value(&new).map_err(std::io::Error::other)?;
        self.vault.set_login(&self.id, Some(value))?;
        *login = KnownLogin { is_read: true, login: Some(new) };
        self.note(AuthChallenge::default());
        Ok(())
    }

    pub(super) async fn granted(&self) -> Option<String> {
        let mut login = self.login.lock().await;
        self.read(&mut login).ok()?.as_ref()?.scope.clone()
    }

    /// Removes the login and revokes its tokens; `None` if there was none, `Some(false)` if the
    /// issuer could not be told.
    pub(crate) async fn log_out(&self) -> std::io::Result<Option<bool>> {
        let mut login = self.login.lock().await;
        let kept = self.read(&mut login).ok().and_then(Option::take);
        self.vault.set_login(&self.id, None)?;
        let Some(own) = kept else { return Ok(None) };
        Ok(Some(self.revoke(&own).await))
    }

    /// Revokes tokens (RFC 7009), the refresh token first.
    async fn revoke(&self, login: &SourceLogin) -> bool {
        let Some(url) = login.revocation_url() else { return false };
        let tokens = [
            login.refresh_token.as_deref().map(|token| (token, "refresh_token")),
            Some((login.access_token.as_str(), "access_token")),
        ];
        let mut is_revoked = true;
        for (token, kind) in tokens.into_iter().flatten() {
            let form = revocation(&login.client, token, kind);
            let kind = "application/x-www-form-urlencoded";
            let told = post(&self.clients, &url, kind, form.into()).await;
            is_revoked &= told.is_ok_and(|response| response.status().is_success());
        }
        is_revoked
    }

    pub(super) fn clients(&self) -> &HttpClients {
        &self.clients
    }

    pub(super) fn now(&self) -> Timestamp {
        self.services.now()
    }
}

fn revocation(client: &OauthClient, token: &str, kind: &str) -> String {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.append_pair("token", token).append_pair("token_type_hint", kind);
    form.append_pair("client_id", &client.id);
    if let Some(secret) = client.sent_secret() {
        form.append_pair("client_secret", secret);
    }
    form.finish()
}

/// Why an issuer granted no token: its error code, without its description.
pub(super) fn failure_of(
    error: RequestTokenError<IssuerUnreachable, BasicErrorResponse>,
) -> RenewalFailure {
    match error {
        RequestTokenError::Request(error) => RenewalFailure::Unreachable(error.to_string()),
        RequestTokenError::ServerResponse(refusal) => {
            let code: &BasicErrorResponseType = refusal.error();
            let code: String =
                code.as_ref().chars().filter(char::is_ascii_graphic).take(64).collect();
            match code.as_str() {
                "temporarily_unavailable" | "server_error" | "slow_down" => {
                    RenewalFailure::Unreachable(format!("the issuer answered {code}"))
                }
                _ => RenewalFailure::NeedsLogin(format!(
                    "the login is over: the issuer answered {code}"
                )),
            }
        }
        RequestTokenError::Parse(..) | RequestTokenError::Other(_) => {
            RenewalFailure::Unreachable("the issuer's answer cannot be read".to_owned())
        }
    }
}
