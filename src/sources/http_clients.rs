//! HTTP clients for servers and issuers, and where they may be sent.

use std::time::Duration;

use reqwest::{
    Client, Url,
    redirect::{Action, Attempt, Policy},
};

use crate::client::choose_tls;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How many redirects within a server are followed.
const MAX_REDIRECTS: usize = 5;

/// Clients for servers on this machine, which no proxy stands before, and for all others.
#[derive(Debug, Clone)]
pub(super) struct HttpClients {
    near: Client,
    far: Client,
}

impl HttpClients {
    /// Makes them.
    pub(super) fn new() -> reqwest::Result<Self> {
        choose_tls();
        let builder = || {
            Client::builder()
                .connect_timeout(CONNECT)
                .tcp_nodelay(true)
                .redirect(Policy::custom(within_server))
                .user_agent(concat!("svc/", env!("CARGO_PKG_VERSION")))
        };
        Ok(Self { near: builder().no_proxy().build()?, far: builder().build()? })
    }

    /// The client for a URL.
    pub(super) fn of(&self, url: &Url) -> &Client {
        if is_loopback(url) { &self.near } else { &self.far }
    }
}

/// Whether a URL is of this machine.
pub(super) fn is_loopback(url: &Url) -> bool {
    match url.host_str() {
        Some("localhost") => true,
        Some(host) => {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
        }
        None => false,
    }
}

/// A redirect is followed within its origin only, so that nothing of a request goes elsewhere.
fn within_server(attempt: Attempt<'_>) -> Action {
    let is_same =
        attempt.previous().last().is_some_and(|from| from.origin() == attempt.url().origin());
    let keeps_body = matches!(attempt.status().as_u16(), 307 | 308);
    if is_same && keeps_body && attempt.previous().len() <= MAX_REDIRECTS {
        attempt.follow()
    } else {
        attempt.stop()
    }
}

/// What went wrong with a request, without its URL: that may hold a secret.
pub(super) fn problem_of(error: reqwest::Error) -> String {
    let error = error.without_url();
    if error.is_timeout() {
        return "it did not answer in time".to_owned();
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        let more = inner.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = inner.source();
    }
    text
}
