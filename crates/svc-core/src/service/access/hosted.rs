//! Which of our agents a client's process belongs to. A process below the host of an agent acts as
//! that agent, whatever it connects with: the agent's own token, its hooks and its `svc stdio` are
//! one subject.

use std::time::Duration;

use svc_model::{ProcessIdentity, limits};
use svc_store::{AgentRow, ProcessSubject};
use svc_sys::process_list::{self, ProcessEntry};
use tokio::time::{Instant, sleep};

use super::Access;
use crate::service::Error;

/// Bound on the wait for the row that names the host: a program may connect before that is written.
const HOST_ROW_WAIT: Duration = Duration::from_secs(5);
/// Interval between lookups.
const HOST_ROW_POLL: Duration = Duration::from_millis(10);

/// What is above a process.
enum HostLookup {
    /// The host of a live agent.
    Agent(Box<AgentRow>),
    /// A host that no row names, while some agent's host is not known yet.
    UnknownHost,
    /// No host, or a client nearer than the host.
    Nobody,
}

impl Access {
    /// The subject of a process that a host of ours runs; `None` for all others.
    ///
    /// # Errors
    /// [`Error::Forbidden`] if the operator revoked the agent's own token.
    pub(super) async fn subject_below_host(
        &self,
        process: &ProcessIdentity,
    ) -> Result<Option<ProcessSubject>, Error> {
        let deadline = Instant::now() + HOST_ROW_WAIT;
        let agent = loop {
            match self.find_host_above(process).await? {
                HostLookup::Agent(agent) => break agent,
                HostLookup::UnknownHost if Instant::now() < deadline => sleep(HOST_ROW_POLL).await,
                HostLookup::UnknownHost | HostLookup::Nobody => return Ok(None),
            }
        };
        let token = match &agent.token_id {
            Some(id) => self.core.store.tokens().get(id).await?,
            None => None,
        };
        let key = agent.info.session_key;
        let Some(token) = token.filter(|token| token.revoked_at.is_none()) else {
            return Err(Error::Forbidden(format!("the operator took the token of {key} back")));
        };
        Ok(Some(ProcessSubject {
            token_id: None,
            session: key,
            scopes: token.scopes,
            project: token.project,
            cwd: token.cwd,
            is_barred: false,
        }))
    }

    async fn find_host_above(&self, process: &ProcessIdentity) -> Result<HostLookup, Error> {
        let (mut pid, mut started) = (process.pid, u64::MAX);
        let mut has_unknown_host = false;
        for _ in 0..limits::PROCESS_DEPTH {
            // A process that started later than its child has reused the id of an ancestor that
            // ended.
            let is_ancestor = |entry: &ProcessEntry| entry.is_running && entry.started <= started;
            let Some(entry) = ProcessEntry::read(pid).filter(is_ancestor) else { break };
            started = entry.started;
            let identity = entry.identity(pid);
            if let Some(agent) = self.core.store.agents().of_host(&identity).await? {
                return Ok(HostLookup::Agent(Box::new(agent)));
            }
            has_unknown_host |= is_host_program(pid);
            if pid == process.pid {
                if identity != *process {
                    return Ok(HostLookup::Nobody);
                }
            } else if self
                .core
                .store
                .tokens()
                .of_process(&identity, self.core.now())
                .await?
                .is_some()
            {
                return Ok(HostLookup::Nobody);
            }
            if entry.parent <= 1 {
                break;
            }
            pid = entry.parent;
        }
        if has_unknown_host {
            let live = self.core.store.agents().live().await?;
            let here = &self.core.store.machine().machine_id;
            if live.iter().any(|agent| agent.host.is_none() && agent.machine_id == *here) {
                return Ok(HostLookup::UnknownHost);
            }
        }
        Ok(HostLookup::Nobody)
    }
}

/// Whether a process is `svc agent host`.
fn is_host_program(pid: u32) -> bool {
    process_list::command_line(pid).is_some_and(
        |words| matches!(&words[..], [_, agent, host, ..] if agent == "agent" && host == "host"),
    )
}
