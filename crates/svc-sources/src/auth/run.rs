//! A login that is under way: it waits for the redirect, by the browser or by hand.

use std::{sync::Arc, time::Duration};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    callback::CallbackListener,
    flow::{LoginWish, PendingLogin},
    tokens::SourceAuth,
};

/// How long a person may take.
const PATIENCE: Duration = Duration::from_mins(10);

/// How far a login is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LoginProgress {
    /// It waits for the person.
    Waiting,
    /// The token is there.
    Done,
    /// It came to nothing, for this reason.
    Failed(String),
}

/// A login that is under way. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct LoginRun {
    pub(crate) authorization_url: String,
    pub(crate) redirect: String,
    pub(crate) progress: watch::Receiver<LoginProgress>,
    pasted: mpsc::Sender<String>,
    _end: DropGuard,
}

impl LoginRun {
    /// Finds out where to log in, and waits for the redirect on a port of this machine. `done` is called when the token is there.
    pub(crate) async fn start(
        auth: Arc<SourceAuth>,
        mut wish: LoginWish,
        port: u16,
        done: impl FnOnce() + Send + 'static,
    ) -> Result<Self, String> {
        let listener = CallbackListener::bind(port).await?;
        let redirect = listener.redirect();
        wish.redirect.clone_from(&redirect);
        let pending = PendingLogin::begin(&auth, wish).await?;
        let authorization_url = pending.authorization_url.to_string();
        let (progress, shown) = watch::channel(LoginProgress::Waiting);
        let (pasted, by_hand) = mpsc::channel(1);
        let stop = CancellationToken::new();
        let end = stop.clone();
        tokio::spawn(async move {
            let came = tokio::select! {
                () = end.cancelled() => return,
                came = redirect_of(&pending, listener, by_hand) => came,
                () = tokio::time::sleep(PATIENCE) => Err("the browser did not come back from the issuer in time".to_owned()),
            };
            let outcome = async {
                let login = pending.finish(&auth, &came?).await?;
                auth.set(login).await.map_err(|error| format!("the login cannot be kept: {error}"))
            };
            progress.send_replace(match outcome.await {
                Ok(()) => {
                    done();
                    LoginProgress::Done
                }
                Err(reason) => LoginProgress::Failed(reason),
            });
        });
        Ok(Self { authorization_url, redirect, progress: shown, pasted, _end: stop.drop_guard() })
    }

    /// Takes the address that the browser was redirected to, where it cannot reach this machine.
    pub(crate) fn paste(&self, redirect: &str) {
        let query = redirect.split_once('?').map_or(redirect, |(_, query)| query);
        let query = query.split_once('#').map_or(query, |(query, _)| query);
        self.pasted.try_send(query.trim().to_owned()).ok();
    }
}

/// The query of the redirect. What a browser brings of another login is not looked at.
async fn redirect_of(
    pending: &PendingLogin,
    listener: CallbackListener,
    mut by_hand: mpsc::Receiver<String>,
) -> Result<String, String> {
    let mut redirects = listener.redirects(&pending.own_redirect());
    tokio::select! {
        Some(query) = redirects.recv() => Ok(query),
        Some(query) = by_hand.recv() => Ok(query),
        else => Err("the port is gone".to_owned()),
    }
}
