//! One request to a server at a URL, with all that its entry and a login put on it.

use std::sync::{Arc, PoisonError, RwLock};

use reqwest::{
    Response, StatusCode, Url,
    header::{AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE},
};
use svc_core::tools::RequestTrace;
use svc_wire::mcp_request::McpRequest;

use super::super::{
    auth::{AuthChallenge, RenewalFailure, SourceAuth},
    connection::{ConnectionEnd, RequestLoss, SourceConnection},
    headers_helper::HeadersHelper,
    http_clients::{HttpClients, problem_of},
};

/// A server at a URL.
#[derive(Debug)]
pub(crate) struct RemoteEndpoint {
    pub(crate) connection: Arc<SourceConnection>,
    pub(crate) clients: HttpClients,
    pub(crate) url: Url,
    /// Headers of the entry.
    pub(crate) fixed: HeaderMap,
    pub(crate) helper: Option<HeadersHelper>,
    /// Headers that the helper printed last.
    pub(crate) printed: RwLock<HeaderMap>,
    pub(crate) auth: Arc<SourceAuth>,
}

/// Says in headers what the caller has named its request by.
pub(super) fn add_trace(headers: &mut HeaderMap, trace: &RequestTrace) {
    for (name, value) in [("x-request-id", &trace.request_id), ("traceparent", &trace.parent)] {
        let value = value.as_deref().and_then(|value| HeaderValue::from_str(value).ok());
        if let Some(value) = value {
            headers.insert(name, value);
        }
    }
}

/// What a request was sent with.
enum SentCredential {
    /// A header of the entry.
    Fixed,
    /// A header that the helper printed.
    Printed,
    /// The token of a login.
    Login(String),
    Nothing,
}

impl RemoteEndpoint {
    /// Sends a request to the server's URL.
    pub(super) async fn send(&self, request: &McpRequest) -> Result<Response, RequestLoss> {
        self.send_to(&self.url, request).await
    }

    /// Sends a request to a URL of the server. A credential that is refused is renewed once.
    pub(super) async fn send_to(
        &self,
        url: &Url,
        request: &McpRequest,
    ) -> Result<Response, RequestLoss> {
        let mut is_renewed = false;
        loop {
            let (headers, credential) = self.headers(request).await?;
            let client = self.clients.of(url).map_err(|error| self.lost(error))?;
            let sending = client
                .request(request.method.clone(), url.clone())
                .headers(headers)
                .body(request.body.clone());
            let response = sending.send().await.map_err(|error| self.lost(error))?;
            let challenge = AuthChallenge::of(response.headers());
            match response.status() {
                StatusCode::UNAUTHORIZED if !is_renewed && self.renew(&credential).await? => {
                    is_renewed = true;
                }
                StatusCode::UNAUTHORIZED => {
                    return Err(self.refused(&credential, challenge).await);
                }
                StatusCode::FORBIDDEN
                    if response.headers().contains_key(WWW_AUTHENTICATE) && challenge.is_auth() =>
                {
                    return Err(self.refused(&credential, challenge).await);
                }
                status if status.is_redirection() && status != StatusCode::NOT_MODIFIED => {
                    let text =
                        "it redirects to another address: write that as its url, if it is right";
                    return Err(self.end(ConnectionEnd::Refused(text.to_owned())));
                }
                _ => return Ok(response),
            }
        }
    }

    async fn headers(
        &self,
        request: &McpRequest,
    ) -> Result<(HeaderMap, SentCredential), RequestLoss> {
        let mut headers = self.fixed.clone();
        let mut credential = if headers.contains_key(AUTHORIZATION) {
            SentCredential::Fixed
        } else {
            SentCredential::Nothing
        };
        for (name, value) in self.printed.read().unwrap_or_else(PoisonError::into_inner).iter() {
            if name == AUTHORIZATION {
                credential = SentCredential::Printed;
            }
            headers.insert(name, value.clone());
        }
        if matches!(credential, SentCredential::Nothing) {
            let token =
                self.auth.token(&self.url).await.map_err(|failure| self.not_renewed(failure))?;
            if let Some(token) = token {
                self.connection.hide_also(std::slice::from_ref(&token));
                if let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {token}")) {
                    value.set_sensitive(true);
                    headers.insert(AUTHORIZATION, value);
                }
                credential = SentCredential::Login(token);
            }
        }
        // What the protocol needs is not for the entry to change.
        headers.extend(request.headers.clone());
        Ok((headers, credential))
    }

    /// Gets a new credential in place of one that was refused; `false` if there is none to get.
    async fn renew(&self, sent: &SentCredential) -> Result<bool, RequestLoss> {
        if self.helper.is_some() {
            self.print_headers().await?;
            return Ok(true);
        }
        match sent {
            SentCredential::Login(token) => {
                self.auth.renew(token).await.map_err(|failure| self.not_renewed(failure))
            }
            SentCredential::Fixed | SentCredential::Printed | SentCredential::Nothing => Ok(false),
        }
    }

    /// Runs the helper, if the entry has one.
    pub(super) async fn print_headers(&self) -> Result<(), RequestLoss> {
        let Some(helper) = &self.helper else { return Ok(()) };
        match helper.run().await {
            Ok((headers, values)) => {
                self.connection.hide_also(&values);
                *self.printed.write().unwrap_or_else(PoisonError::into_inner) = headers;
                Ok(())
            }
            Err(problem) => {
                Err(self.end(ConnectionEnd::Fault(format!("headersHelper: {problem}"))))
            }
        }
    }

    /// Nobody answered.
    fn lost(&self, error: reqwest::Error) -> RequestLoss {
        let is_unreachable = error.is_connect();
        let problem = problem_of(error);
        if is_unreachable {
            return self.end(ConnectionEnd::Fault(format!("it cannot be reached: {problem}")));
        }
        self.down(problem)
    }

    /// Ends the connection to a server that is down; what became of the request is unknown.
    pub(super) fn down(&self, reason: String) -> RequestLoss {
        self.connection.end_for(ConnectionEnd::Fault(reason.clone()));
        RequestLoss::Unanswered(reason)
    }

    fn not_renewed(&self, failure: RenewalFailure) -> RequestLoss {
        self.end(match failure {
            RenewalFailure::NeedsLogin(reason) => ConnectionEnd::NeedsAuth(reason),
            RenewalFailure::Unreachable(reason) => ConnectionEnd::Fault(reason),
        })
    }

    async fn refused(&self, sent: &SentCredential, challenge: AuthChallenge) -> RequestLoss {
        let lacks_scope = challenge.lacks_scope();
        let reason = match sent {
            SentCredential::Fixed => {
                let text = "it refuses the Authorization header of its entry";
                return self.end(ConnectionEnd::Refused(text.to_owned()));
            }
            SentCredential::Printed => "it refuses what headersHelper printed",
            SentCredential::Login(_) if lacks_scope => "it needs more than the login allows",
            SentCredential::Login(_) => "it refuses the login",
            SentCredential::Nothing => "it needs a login",
        };
        if matches!(sent, SentCredential::Printed) {
            return self.end(ConnectionEnd::Fault(reason.to_owned()));
        }
        self.auth.note(challenge);
        let other = match sent {
            SentCredential::Nothing => self.auth.other_url(&self.url).await,
            _ => None,
        };
        self.end(ConnectionEnd::NeedsAuth(match other {
            Some(other) => {
                format!("{reason}; the login that is kept is for {other}, and goes nowhere else")
            }
            None => reason.to_owned(),
        }))
    }

    /// Ends the connection; the request was not taken.
    pub(super) fn end(&self, end: ConnectionEnd) -> RequestLoss {
        let (ConnectionEnd::Fault(reason)
        | ConnectionEnd::NeedsAuth(reason)
        | ConnectionEnd::Refused(reason)) = &end;
        let reason = reason.clone();
        self.connection.end_for(end);
        RequestLoss::NotTaken(reason)
    }
}
