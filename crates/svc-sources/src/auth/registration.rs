//! The client's registration with an issuer: configured, described by a document, or registered on
//! demand (RFC 7591).

use bytes::Bytes;
use oauth2::AuthType;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use svc_model::source::OauthChoice;

use super::discovery::AuthorizationServer;
use crate::http_clients::{HttpClients, post};

/// A client as an issuer knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OauthClient {
    pub(super) id: String,
    pub(super) secret: Option<String>,
    /// `client_secret_basic`, `client_secret_post` or `none`.
    pub(super) auth_method: String,
}

impl OauthClient {
    /// Where a request carries the secret.
    pub(super) fn auth_type(&self) -> AuthType {
        if self.auth_method == "client_secret_basic" {
            AuthType::BasicAuth
        } else {
            AuthType::RequestBody
        }
    }

    /// The secret, if requests carry it.
    pub(super) fn sent_secret(&self) -> Option<&str> {
        self.secret.as_deref().filter(|_| self.auth_method != "none")
    }
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

/// The client for a login.
pub(super) async fn client_for(
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
