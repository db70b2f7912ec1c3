//! Who is followed: each process is connected to again and again, while it runs a session.

use std::{collections::HashSet, sync::Arc, time::Duration};

use svc_model::{ProcessIdentity, limits};
use svc_reach::codex_socket::{CodexSocket, CodexSocketError};
use svc_sys::{backoff::Backoff, local_socket::ConnectError, telemetry};
use tokio::task::JoinSet;

use super::{AppServers, ThreadRegistry, follow::AppServerFollower};

/// Wait before a connection is tried again. A hook of Codex ends it.
const RECONNECT: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_mins(1));

impl AppServers {
    /// Follows the app-servers of all sessions, as long as they run.
    pub async fn run(self, registry: Arc<dyn ThreadRegistry>) {
        let mut heard = self.core.codex_hooks.subscribe();
        let mut followers = JoinSet::new();
        let mut followed = HashSet::new();
        loop {
            match self.processes().await {
                Ok(processes) => {
                    for process in processes {
                        if followed.insert(process.clone()) {
                            let registry = Arc::clone(&registry);
                            followers.spawn(self.clone().keep_following(process, registry));
                        }
                    }
                }
                Err(error) => {
                    let error = telemetry::chain(&error);
                    tracing::error!(error, "cannot read which processes run sessions of Codex");
                }
            }
            tokio::select! {
                _ = heard.changed() => {}
                Some(ended) = followers.join_next() => {
                    if let Ok(process) = ended {
                        followed.remove(&process);
                    }
                }
                () = tokio::time::sleep(limits::PID_CHECK) => {}
            }
        }
    }

    /// Connects to a process again and again, while it runs a session.
    async fn keep_following(
        self,
        process: ProcessIdentity,
        registry: Arc<dyn ThreadRegistry>,
    ) -> ProcessIdentity {
        let mut heard = self.core.codex_hooks.subscribe();
        let (mut failures, mut last) = (0, String::new());
        while self.is_needed(&process).await {
            let why = match CodexSocket::connect(&process).await {
                Ok(socket) => {
                    tracing::debug!(pid = process.pid, "connected to an app-server of Codex");
                    (failures, last) = (0, String::new());
                    let follower = AppServerFollower::new(&self, &process, &*registry);
                    follower.follow(socket, &mut heard).await
                }
                Err(error) => error,
            };
            if let Err(error) = self.team.lose_app_server(&process).await {
                let error = telemetry::chain(&error);
                tracing::error!(error, "cannot note that an app-server of Codex is gone");
            }
            let told = telemetry::chain(&why);
            if told != last {
                note_failure(&process, &why, &told);
                last = told;
            }
            tokio::select! {
                _ = heard.changed() => {}
                () = tokio::time::sleep(RECONNECT.wait(failures)) => {}
            }
            failures = failures.saturating_add(1);
        }
        process
    }
}

/// A process without an app-server is as it should be.
fn note_failure(process: &ProcessIdentity, why: &CodexSocketError, told: &str) {
    let pid = process.pid;
    match why {
        CodexSocketError::Connect(ConnectError::Absent(_) | ConnectError::OtherProcess { .. })
        | CodexSocketError::Unknown
        | CodexSocketError::Closed => {
            tracing::debug!(pid, why = told, "no app-server of Codex is followed");
        }
        _ => tracing::warn!(pid, why = told, "the app-server of Codex is not used"),
    }
}
