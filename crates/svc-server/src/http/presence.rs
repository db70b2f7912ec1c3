//! Keeps the operator present while a page follows events.

use std::time::Duration;

use http::HeaderMap;
use svc_core::service::team::Team;
use svc_model::{Caller, PeerId};
use svc_sys::telemetry;
use tokio::{task::JoinHandle, time::sleep};

use super::App;

/// The heartbeat's period: a peer without one for a minute is away.
const INTERVAL: Duration = Duration::from_secs(10);

/// Whether the request is the page's, in a browser of the operator. Other programs that follow
/// events show them to nobody.
pub(super) fn is_kept_by(caller: &Caller, headers: &HeaderMap) -> bool {
    caller.is_operator() && headers.get("svc-page").is_some_and(|value| value == "1")
}

/// Sends heartbeats of the operator until it is dropped.
#[derive(Debug)]
pub(super) struct PagePresence(JoinHandle<()>);

impl PagePresence {
    /// Sends a first heartbeat, and begins to repeat it.
    pub(super) async fn keep(app: &App) -> Self {
        let team = app.services.team.clone();
        note(&team).await;
        Self(tokio::spawn(async move {
            loop {
                sleep(INTERVAL).await;
                note(&team).await;
            }
        }))
    }
}

async fn note(team: &Team) {
    if let Err(error) = team.heartbeat(&Caller::Operator, PeerId::OPERATOR, None).await {
        tracing::debug!(error = telemetry::chain(&error), "the operator is not noted");
    }
}

impl Drop for PagePresence {
    fn drop(&mut self) {
        self.0.abort();
    }
}
