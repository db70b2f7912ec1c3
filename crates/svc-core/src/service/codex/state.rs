//! The state of the service, and which processes it is about.

use std::{collections::HashSet, sync::Arc};

use svc_model::{ProcessIdentity, ProcessState, hook::AttendedPrompts, is_agent_key};
use svc_sys::client_records;

use super::lines::AppServerLines;
use crate::service::{Error, core::Core, prompts::Prompts, team::Team};

/// The service of Codex' app-servers.
#[derive(Debug, Clone)]
pub struct AppServers {
    pub(super) core: Core,
    pub(super) team: Team,
    pub(super) prompts: Prompts,
    pub(super) attended: AttendedPrompts,
    pub(super) lines: Arc<AppServerLines>,
}

impl AppServers {
    pub(in crate::service) fn new(core: Core, team: Team, prompts: Prompts) -> Self {
        Self { core, team, prompts, attended: AttendedPrompts::default(), lines: Arc::default() }
    }

    /// What hands texts to the connections.
    pub(in crate::service) fn lines(&self) -> Arc<AppServerLines> {
        Arc::clone(&self.lines)
    }

    pub(in crate::service) fn set_policy(&mut self, attended: AttendedPrompts) {
        self.attended = attended;
    }

    /// The processes from which hooks of attended sessions came.
    pub(super) async fn processes(&self) -> Result<HashSet<ProcessIdentity>, Error> {
        let mut rows = self.core.store.peers().in_processes(client_records::CODEX).await?;
        rows.retain(|row| !row.owner.as_deref().is_some_and(is_agent_key));
        Ok(rows.iter().filter_map(|row| Some(row.process()?.process)).collect())
    }

    /// Whether a process runs a session.
    pub(super) async fn is_needed(&self, process: &ProcessIdentity) -> bool {
        let here = self.core.here(process);
        let is_running = self.core.state_of(&here) == ProcessState::Running;
        is_running && self.processes().await.is_ok_and(|processes| processes.contains(process))
    }
}
