//! HTTP clients for servers and issuers, and where they may be sent.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use reqwest::{
    Client, Url,
    redirect::{Action, Attempt, Policy},
};
use svc_wire::choose_tls;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How many redirects within a server are followed.
const MAX_REDIRECTS: usize = 5;

/// Clients for servers on this machine, which no proxy stands before, and for all others. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct HttpClients(Arc<Made>);

/// Each is made when it is first used: it reads all certificates of the system, which a start does not wait for, and most
/// daemons need none.
#[derive(Debug, Default)]
struct Made {
    near: OnceLock<Client>,
    far: OnceLock<Client>,
}

impl HttpClients {
    /// The client for a URL.
    pub(super) fn of(&self, url: &Url) -> reqwest::Result<&Client> {
        let (made, is_near) =
            if is_loopback(url) { (&self.0.near, true) } else { (&self.0.far, false) };
        if let Some(client) = made.get() {
            return Ok(client);
        }
        choose_tls();
        let builder = Client::builder()
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .redirect(Policy::custom(within_server))
            .user_agent(concat!("svc/", env!("CARGO_PKG_VERSION")));
        let builder = if is_near { builder.no_proxy() } else { builder };
        let client = builder.build()?;
        Ok(made.get_or_init(|| client))
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
