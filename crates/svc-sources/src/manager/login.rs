//! Login to a server, and logout.

use std::{sync::Arc, time::Duration};

use svc_core::service::sources::SourceKey;
use svc_model::source::SourceTransport;

use super::state::SourceManager;
use crate::{
    auth::{LoginProgress, LoginRequest, LoginRun},
    spec::{FilledEntry, Variables},
};

/// The name of a configured client's secret.
const CLIENT_SECRET: &str = "OAUTH_CLIENT_SECRET";

/// A login that waits for a person.
#[derive(Debug, Clone)]
pub struct OpenLogin {
    /// The URL that the person opens in a browser.
    pub authorization_url: String,
    /// The redirect's URL.
    pub redirect: String,
}

/// The progress of a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoginOutcome {
    /// It waits for the person.
    Waiting,
    /// The server has a login.
    Done,
    /// It failed, for this reason.
    Failed(String),
}

/// The login to one server.
#[derive(Debug)]
pub struct SourceLoginFlow<'a> {
    pub(super) manager: &'a SourceManager,
    pub(super) key: &'a SourceKey,
}

impl SourceLoginFlow<'_> {
    /// Begins it. The error is for people.
    pub async fn begin(&self, port: Option<u16>) -> Result<OpenLogin, String> {
        let Self { manager, key } = self;
        let spec = manager.spec(key).ok_or("it is not to run")?;
        let kept = manager.vault().kept().map_err(|error| error.to_string())?;
        let (secrets, kept_from) = (kept.given_to(&spec.bearer), kept.kept_from(&spec.bearer));
        let variables = Variables { secrets: &secrets, kept_from: &kept_from, env: manager.env() };
        let filled = spec.fill(&variables, spec.root.as_deref())?;
        let (SourceTransport::Remote { oauth, .. }, FilledEntry::Remote(filled)) =
            (&spec.entry.transport, filled)
        else {
            return Err("it is a program and has no login".to_owned());
        };
        if filled.headers.contains_key(reqwest::header::AUTHORIZATION) {
            return Err("its entry has an Authorization header, which is what counts".to_owned());
        }
        if let Some(other) = kept_from.get(CLIENT_SECRET).filter(|_| oauth.client_id.is_some()) {
            return Err(format!(
                "its secret {CLIENT_SECRET} was set for {other}, and goes nowhere else: svc mcp secret set {} {CLIENT_SECRET}",
                key.name
            ));
        }
        let port = port.or(oauth.callback_port).unwrap_or(0);
        let request = LoginRequest {
            url: filled.url,
            choice: oauth.clone(),
            secret: secrets.get(CLIENT_SECRET).cloned(),
            redirect: String::new(),
        };
        // An earlier login holds the port.
        manager.state().logins.remove(*key);
        let (this, name) = (manager.downgrade(), SourceKey::clone(key));
        let done = move || {
            if let Some(manager) = this.upgrade() {
                manager.reconnect_all(&name);
            }
        };
        let run = LoginRun::start(manager.auth_of(key), request, port, done).await;
        let run = run.map_err(|problem| filled.redactor.hide(&problem).into_owned())?;
        let open = OpenLogin {
            authorization_url: run.authorization_url.clone(),
            redirect: run.redirect.clone(),
        };
        manager.state().logins.insert(SourceKey::clone(key), Arc::new(run));
        Ok(open)
    }

    /// Waits for a while for its end; `None` if it is not under way. `redirect` is a URL that a
    /// person pasted.
    pub async fn outcome(
        &self,
        redirect: Option<&str>,
        patience: Duration,
    ) -> Option<LoginOutcome> {
        let run = self.manager.state().logins.get(self.key).cloned()?;
        if let Some(redirect) = redirect {
            run.paste(redirect);
        }
        let mut progress = run.progress.clone();
        let over = progress.wait_for(|progress| *progress != LoginProgress::Waiting);
        let over = tokio::time::timeout(patience, over).await;
        let outcome = match over {
            Err(_) => LoginOutcome::Waiting,
            Ok(Err(_)) => LoginOutcome::Failed("the login was given up".to_owned()),
            Ok(Ok(progress)) => match &*progress {
                LoginProgress::Waiting => LoginOutcome::Waiting,
                LoginProgress::Done => LoginOutcome::Done,
                LoginProgress::Failed(reason) => LoginOutcome::Failed(reason.clone()),
            },
        };
        Some(outcome)
    }

    /// Removes it and revokes its tokens; `None` if there was none, `Some(false)` if the issuer
    /// could not be told.
    pub async fn end(&self) -> std::io::Result<Option<bool>> {
        let Self { manager, key } = self;
        manager.state().logins.remove(*key);
        let was_there = manager.auth_of(key).log_out().await?;
        manager.reconnect_all(key);
        Ok(was_there)
    }
}
