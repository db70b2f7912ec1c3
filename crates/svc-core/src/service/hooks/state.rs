//! The state of the service, and what it does beside storing events.

use std::sync::Arc;

use svc_model::{McpSessionId, hook::HookPolicy, limits};

use super::{announced_calls::AnnouncedCalls, earlier_output::EarlierWords, waiters::MailWaiters};
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
    /// Which session an MCP tool is called in.
    pub ties: Arc<AnnouncedCalls>,
    pub(super) waiters: Arc<MailWaiters>,
    pub(super) earlier_words: Arc<EarlierWords>,
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
            earlier_words: Arc::default(),
            policy: HookPolicy::default(),
        }
    }

    pub(in crate::service) fn set_policy(&mut self, policy: HookPolicy) {
        self.policy = policy;
    }

    /// The session that a client's process works for, as hooks with the operator's credential have
    /// told.
    pub async fn session_of_process(&self, pid: u32) -> Result<Option<String>, Error> {
        Ok(self.core.store.peers().session_of_process(pid).await?)
    }

    /// Remembers that an MCP connection is this session's.
    pub async fn tie_mcp_session(&self, id: &McpSessionId, session: &str) -> Result<(), Error> {
        let (id, session) = (id.clone(), session.to_owned());
        self.core
            .store
            .write(move |tx| {
                Box::pin(async move { Ok(tx.mcp().tie_session(&id, &session).await?) })
            })
            .await
    }

    /// Forgets ids of events that nobody sends again, and what was given to sessions that nobody
    /// goes on with.
    pub async fn sweep_hooks(&self) -> Result<(), Error> {
        let now = self.core.now();
        self.core.store.sweeps().forget_hooks(now.minus(limits::HOOK_IDS_KEPT)).await?;
        self.core.store.sweeps().forget_seen_by_silent(now.minus(limits::SEEN_KEPT)).await?;
        Ok(())
    }
}
