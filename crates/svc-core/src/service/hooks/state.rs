//! The state of the service, and its functions that store no events.

use std::sync::Arc;

use svc_model::{McpSessionId, hook::HookPolicy, limits};

use super::{announced_calls::AnnouncedCalls, earlier_output::EarlierTexts, waiters::MailWaiters};
use crate::service::{
    Error, access::Access, core::Core, handovers::Handovers, journal::Journal, team::Team,
};

/// The service of hooks: what coding agents' events change, and the replies to them.
#[derive(Debug, Clone)]
pub struct Hooks {
    pub(super) core: Core,
    pub(super) access: Access,
    pub(super) team: Team,
    pub(super) journal: Journal,
    pub(super) handovers: Handovers,
    /// Finds the session in which an MCP tool is called.
    pub ties: Arc<AnnouncedCalls>,
    pub(super) waiters: Arc<MailWaiters>,
    pub(super) earlier_texts: Arc<EarlierTexts>,
    pub(super) policy: HookPolicy,
}

impl Hooks {
    pub(in crate::service) fn new(
        core: Core,
        access: Access,
        team: Team,
        journal: Journal,
        handovers: Handovers,
    ) -> Self {
        Self {
            core,
            access,
            team,
            journal,
            handovers,
            ties: Arc::default(),
            waiters: Arc::default(),
            earlier_texts: Arc::default(),
            policy: HookPolicy::default(),
        }
    }

    pub(in crate::service) fn set_policy(&mut self, policy: HookPolicy) {
        self.policy = policy;
    }

    /// The session of a client's process, as reported by hooks with the operator's credential.
    pub async fn session_of_process(&self, pid: u32) -> Result<Option<String>, Error> {
        Ok(self.core.store.peers().session_of_process(pid).await?)
    }

    /// Stores that an MCP connection belongs to this session.
    pub async fn tie_mcp_session(&self, id: &McpSessionId, session: &str) -> Result<(), Error> {
        let (id, session) = (id.clone(), session.to_owned());
        self.core
            .store
            .write(move |tx| {
                Box::pin(async move { Ok(tx.mcp().tie_session(&id, &session).await?) })
            })
            .await
    }

    /// Removes ids of events that will not be sent again, and what was noted as given to sessions
    /// that are silent for long.
    pub async fn sweep_hooks(&self) -> Result<(), Error> {
        let now = self.core.now();
        self.core.store.sweeps().forget_hooks(now.minus(limits::HOOK_IDS_KEPT)).await?;
        self.core.store.sweeps().forget_seen_by_silent(now.minus(limits::SEEN_KEPT)).await?;
        Ok(())
    }
}
