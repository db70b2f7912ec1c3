//! OAuth logins to servers at a URL: here the client's registration with an issuer, and one login
//! from the URL that a person opens to the token. `discovery` finds the issuer, `callback` receives
//! the redirect, `tokens` stores the token and renews it.

mod callback;
mod discovery;
mod tokens;

pub(super) use discovery::AuthChallenge;
pub(super) use tokens::{RenewalFailure, SourceAuth};

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use oauth2::{
    AuthUrl, AuthorizationCode, ClientId, CsrfToken, PkceCodeChallenge, PkceCodeVerifier,
    RedirectUrl, Scope, TokenUrl, basic::BasicClient,
};
use reqwest::Url;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use subtle::ConstantTimeEq as _;
use svc_model::source::OauthChoice;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::{
    callback::{CallbackListener, RedirectCheck},
    discovery::{AuthorizationServer, challenge_of, discover},
    tokens::{OauthClient, SourceLogin, failure_of},
};
use super::http_clients::{HttpClients, post, sender};

/// How long a login waits for the person.
const TIMEOUT: Duration = Duration::from_mins(10);

/// The progress of a login.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "state", content = "reason", rename_all = "snake_case")]
pub enum LoginOutcome {
    /// The login waits for the person.
    Waiting,
    /// The server has a login.
    Done,
    /// The login failed, for this reason.
    Failed(String),
}

/// A login that waits for a person.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct OpenLogin {
    /// The URL that the person opens in a browser.
    pub authorization_url: String,
    /// Where the browser comes back to. The daemon listens there for 10 minutes.
    pub redirect_uri: String,
}

/// A login under way. Dropping it cancels it.
#[derive(Debug)]
pub(crate) struct LoginRun {
    pub(crate) open: OpenLogin,
    pub(crate) progress: watch::Receiver<LoginOutcome>,
    pasted: mpsc::Sender<String>,
    _end: DropGuard,
}

impl LoginRun {
    /// Discovers the issuer and waits for the redirect on a port of this machine. Calls `done` when
    /// the token is stored.
    pub(crate) async fn start(
        auth: Arc<SourceAuth>,
        request: LoginInput,
        port: u16,
        done: impl FnOnce() + Send + 'static,
    ) -> Result<Self, String> {
        let listener = CallbackListener::bind(port).await?;
        let redirect = listener.redirect();
        let pending = PendingLogin::begin(&auth, request, &redirect).await?;
        let open = OpenLogin {
            authorization_url: pending.authorization_url.to_string(),
            redirect_uri: redirect,
        };
        let (progress, shown) = watch::channel(LoginOutcome::Waiting);
        let (pasted, by_hand) = mpsc::channel(1);
        let stop = CancellationToken::new();
        let end = stop.clone();
        tokio::spawn(async move {
            let came = tokio::select! {
                () = end.cancelled() => return,
                came = redirect_of(&pending, listener, by_hand) => came,
                () = tokio::time::sleep(TIMEOUT) => Err("the browser did not come back from the issuer in time".to_owned()),
            };
            let outcome = async {
                let login = pending.finish(&auth, &came?).await?;
                auth.set(login).await.map_err(|error| format!("the login cannot be kept: {error}"))
            };
            progress.send_replace(match outcome.await {
                Ok(()) => {
                    done();
                    LoginOutcome::Done
                }
                Err(reason) => LoginOutcome::Failed(reason),
            });
        });
        Ok(Self { open, progress: shown, pasted, _end: stop.drop_guard() })
    }

    /// Takes the redirect's URL from a person whose browser cannot reach this machine.
    pub(crate) fn paste(&self, redirect: &str) {
        let query = redirect.split_once('?').map_or(redirect, |(_, query)| query);
        let query = query.split_once('#').map_or(query, |(query, _)| query);
        self.pasted.try_send(query.trim().to_owned()).ok();
    }
}

/// The query of the redirect. Redirects of other logins are ignored.
async fn redirect_of(
    pending: &PendingLogin,
    listener: CallbackListener,
    mut by_hand: mpsc::Receiver<String>,
) -> Result<String, String> {
    let mut redirects = listener.redirects(&pending.redirect_check());
    tokio::select! {
        Some(query) = redirects.recv() => Ok(query),
        Some(query) = by_hand.recv() => Ok(query),
        else => Err("the port is gone".to_owned()),
    }
}

#[derive(Debug, Clone)]
pub(crate) struct LoginInput {
    pub(crate) url: Url,
    pub(crate) choice: OauthChoice,
    /// The secret of a configured client.
    pub(crate) secret: Option<String>,
}

struct PendingLogin {
    authorization_url: Url,
    state: CsrfToken,
    verifier: PkceCodeVerifier,
    redirect: RedirectUrl,
    /// Whether the redirect names the issuer.
    names_issuer: bool,
    /// The login, which has no token yet.
    login: SourceLogin,
}

impl PendingLogin {
    /// Discovers the issuer and finds or registers the client. The error is for people.
    async fn begin(auth: &SourceAuth, request: LoginInput, redirect: &str) -> Result<Self, String> {
        let LoginInput { url, choice, secret } = request;
        let challenge = match auth.challenge() {
            known if known.is_auth() => known,
            // The last login's end, or a restart, has left no challenge: the issuer refused to
            // renew a token before the server saw a request.
            _ => challenge_of(auth.clients(), &url).await,
        };
        let server = discover(auth.clients(), &url, &challenge).await?;
        let client = client_for(auth.clients(), &server, &choice, secret, redirect).await?;
        let granted = if challenge.lacks_scope() { auth.granted().await } else { None };
        let scope = wanted_scope(&choice, challenge.scope(), granted.as_deref(), &server);
        let endpoint = AuthUrl::new(server.authorization_endpoint.to_string())
            .map_err(|error| error.to_string())?;
        let redirect = RedirectUrl::new(redirect.to_owned()).map_err(|error| error.to_string())?;
        let (pkce, verifier) = PkceCodeChallenge::new_random_sha256();
        let asker = BasicClient::new(ClientId::new(client.id.clone()))
            .set_auth_uri(endpoint)
            .set_redirect_uri(redirect.clone());
        let mut asking = asker
            .authorize_url(CsrfToken::new_random)
            .set_pkce_challenge(pkce)
            .add_extra_param("resource", server.resource.clone());
        for one in scope.iter().flat_map(|scope| scope.split_whitespace()) {
            asking = asking.add_scope(Scope::new(one.to_owned()));
        }
        if scope.iter().any(|scope| scope.split_whitespace().any(|one| one == "offline_access")) {
            asking = asking.add_extra_param("prompt", "consent");
        }
        let (authorization_url, state) = asking.url();
        let login = SourceLogin {
            url: url.to_string(),
            resource: server.resource,
            issuer: server.issuer,
            token_endpoint: server.token_endpoint.to_string(),
            revocation_endpoint: server.revocation_endpoint.map(|url| url.to_string()),
            client,
            access_token: String::new(),
            refresh_token: None,
            expires_at: None,
            lasts: None,
            scope,
        };
        let names_issuer = server.names_itself;
        Ok(Self { authorization_url, state, verifier, redirect, names_issuer, login })
    }

    fn redirect_check(&self) -> RedirectCheck {
        let own = self.state.secret().clone();
        Arc::new(move |query| {
            let state = param(query, "state").unwrap_or_default();
            state.as_bytes().ct_eq(own.as_bytes()).into()
        })
    }

    /// Trades the code of the redirect for the token. The error is for people.
    async fn finish(mut self, auth: &SourceAuth, query: &str) -> Result<SourceLogin, String> {
        if !self.redirect_check()(query) {
            return Err("the redirect belongs to another login".to_owned());
        }
        // A response in the name of another issuer would get this issuer's code (RFC 9207).
        match param(query, "iss") {
            Some(issuer) if issuer != self.login.issuer => {
                return Err("the redirect is of another issuer".to_owned());
            }
            None if self.names_issuer => {
                return Err("the redirect does not name its issuer, and should".to_owned());
            }
            _ => {}
        }
        if let Some(error) = param(query, "error") {
            let code: String = error.chars().filter(char::is_ascii_graphic).take(64).collect();
            return Err(format!("the issuer answered {code}"));
        }
        let code = param(query, "code").ok_or("the redirect has no code")?;
        let endpoint =
            TokenUrl::new(self.login.token_endpoint.clone()).map_err(|error| error.to_string())?;
        let http = sender(auth.clients());
        let given = self
            .login
            .client
            .at(endpoint)
            .set_redirect_uri(self.redirect)
            .exchange_code(AuthorizationCode::new(code))
            .set_pkce_verifier(self.verifier)
            .add_extra_param("resource", self.login.resource.clone())
            .request_async(&http)
            .await;
        let given = given.map_err(|error| match failure_of(error) {
            RenewalFailure::Unreachable(reason) => reason,
            RenewalFailure::NeedsLogin(reason) => {
                reason.replace("the login is over", "no token was given")
            }
        })?;
        self.login.take(&given, auth.now());
        Ok(self.login)
    }
}

/// The scopes to request: those configured, else those of the challenge and the earlier grant, else
/// those of the metadata.
fn wanted_scope(
    choice: &OauthChoice,
    challenge: Option<&str>,
    granted: Option<&str>,
    server: &AuthorizationServer,
) -> Option<String> {
    let mut wanted: Vec<&str> = match (&choice.scopes, challenge, &server.resource_scopes) {
        (Some(configured), _, _) => configured.split_whitespace().collect(),
        (None, Some(challenge), _) => granted
            .unwrap_or_default()
            .split_whitespace()
            .chain(challenge.split_whitespace())
            .collect(),
        (None, None, Some(scopes)) => scopes.split_whitespace().collect(),
        (None, None, None) => Vec::new(),
    };
    if server.has_offline_access && !wanted.is_empty() && choice.scopes.is_none() {
        wanted.push("offline_access");
    }
    let mut seen = std::collections::HashSet::new();
    wanted.retain(|scope| seen.insert(*scope));
    (!wanted.is_empty()).then(|| wanted.join(" "))
}

fn param(query: &str, name: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

/// The first of `ours` that an issuer supports. Without a list the issuer supports
/// `client_secret_basic` (RFC 8414).
fn auth_method(server: &AuthorizationServer, ours: &[&str]) -> Option<String> {
    let default = ["client_secret_basic".to_owned()];
    let theirs = server.auth_methods.as_deref().unwrap_or(&default);
    ours.iter()
        .find(|own| theirs.iter().any(|method| method == *own))
        .map(|method| (*method).to_owned())
}

async fn client_for(
    clients: &HttpClients,
    server: &AuthorizationServer,
    choice: &OauthChoice,
    secret: Option<String>,
    redirect: &str,
) -> Result<OauthClient, String> {
    if let Some(id) = &choice.client_id {
        let auth_method = match &secret {
            Some(_) => auth_method(server, &["client_secret_basic", "client_secret_post"])
                .unwrap_or_else(|| "client_secret_basic".to_owned()),
            None => "none".to_owned(),
        };
        return Ok(OauthClient { id: id.clone(), secret, auth_method });
    }
    if let Some(document) = choice.client_metadata_url.as_ref().filter(|_| server.takes_documents) {
        return Ok(OauthClient {
            id: document.clone(),
            secret: None,
            auth_method: "none".to_owned(),
        });
    }
    let Some(endpoint) = &server.registration_endpoint else {
        let text = "registers no clients: set oauth.clientId in the entry";
        return Err(format!("the issuer {} {text}", server.issuer));
    };
    let wanted = match &server.auth_methods {
        None => "none".to_owned(),
        Some(_) => auth_method(server, &["none", "client_secret_post", "client_secret_basic"])
            .ok_or_else(|| {
                format!("the issuer {} takes none of this client's ways to log in", server.issuer)
            })?,
    };
    let registration = json!({
        "client_name": "svc",
        "redirect_uris": [redirect],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": wanted,
        "application_type": "native",
    });
    let body = Bytes::from(registration.to_string());
    let response = post(clients, endpoint, "application/json", body)
        .await
        .map_err(|error| error.to_string())?;
    let status = response.status();
    let registered: Value = serde_json::from_slice(response.body()).unwrap_or_default();
    let text = |name: &str| registered.get(name).and_then(Value::as_str).map(str::to_owned);
    let id = text("client_id").filter(|_| status.is_success());
    let Some(id) = id else {
        return Err(format!(
            "the issuer {} refuses to register this client (HTTP {})",
            server.issuer,
            status.as_u16()
        ));
    };
    let secret = text("client_secret");
    let auth_method = text("token_endpoint_auth_method")
        .unwrap_or_else(|| if secret.is_none() { "none".to_owned() } else { wanted });
    Ok(OauthClient { id, secret, auth_method })
}
