//! The person is here for as long as a page of ours listens to what happens.

use std::time::Duration;

use http::HeaderMap;
use svc_core::service::team::Team;
use svc_model::{Caller, PeerId};
use svc_sys::telemetry;
use tokio::{task::JoinHandle, time::sleep};

use super::App;

/// How often it is noted: a peer that says nothing for a minute is away.
const INTERVAL: Duration = Duration::from_secs(10);

/// Whether who asks is our page in a browser of the operator's. Other programs that listen show
/// nothing to anybody.
pub(super) fn is_kept_by(caller: &Caller, headers: &HeaderMap) -> bool {
    caller.is_operator() && headers.get("svc-page").is_some_and(|value| value == "1")
}

/// Notes that the operator is here again and again, until it is dropped.
#[derive(Debug)]
pub(super) struct PagePresence(JoinHandle<()>);

impl PagePresence {
    /// Notes it, and begins to note it again and again.
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
