//! The room itself: what its calls stand on.

use crate::{
    domain::conversation::SessionsPolicy,
    service::{agents::Agents, core::Core},
};

/// The room of conversations between sessions.
#[derive(Debug, Clone)]
pub struct Conversations {
    pub(super) core: Core,
    pub(super) agents: Agents,
}

impl Conversations {
    pub(in crate::service) const fn new(core: Core, agents: Agents) -> Self {
        Self { core, agents }
    }

    pub(in crate::service) fn configure(&mut self, agents: &Agents) {
        self.agents = agents.clone();
    }

    /// Whom sessions see and send to.
    pub fn policy(&self) -> &SessionsPolicy {
        self.core.sessions()
    }
}
