//! Conversations between sessions: sending to one and waiting for what it answers, seeing which
//! there are, what was said in them, and starting further ones.
//!
//! `party` says who calls and who is meant, as far as the caller may see it. `send` stores a send
//! before it is answered, `reply` waits for what comes of it. What a target's turn does to it
//! stands in `team`, as it is part of the commits that end turns. `list`, `history` and `status`
//! look at sessions; `spawn` starts one.

mod history;
mod list;
mod party;
mod reply;
mod send;
mod spawn;
mod status;

use svc_model::conversation::SessionsPolicy;

use crate::service::{agents::Agents, core::Core, hooks::Hooks};

pub use history::{HistoryText, SessionHistory, SessionHistoryQuery};
pub use list::{LastMessage, ListSessions, SessionEntry, SessionKind, SessionsPage};
pub use send::{SendDelivery, SendToSession, SessionReply};
pub use spawn::{Cleanup, SpawnSession, SpawnedSession};
pub use status::{SessionStatusView, SessionWaiting, SessionWaitingKind};

/// The service of conversations between sessions.
#[derive(Debug, Clone)]
pub struct Conversations {
    core: Core,
    agents: Agents,
    hooks: Hooks,
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
