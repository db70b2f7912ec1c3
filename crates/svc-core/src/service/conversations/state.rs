//! The state of the service.

use svc_model::conversation::SessionsPolicy;

use crate::service::{agents::Agents, core::Core, hooks::Hooks};

/// The service of conversations between sessions.
#[derive(Debug, Clone)]
pub struct Conversations {
    pub(super) core: Core,
    pub(super) agents: Agents,
    pub(super) hooks: Hooks,
}

impl Conversations {
    pub(in crate::service) const fn new(core: Core, agents: Agents, hooks: Hooks) -> Self {
        Self { core, agents, hooks }
    }

    pub(in crate::service) fn configure(&mut self, agents: &Agents) {
        self.agents = agents.clone();
    }

    /// Whom sessions see and send to.
    pub fn policy(&self) -> &SessionsPolicy {
        self.core.sessions()
    }
}
