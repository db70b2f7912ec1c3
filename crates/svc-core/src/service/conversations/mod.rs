//! Conversations between sessions: sending to one and waiting for its answer, listing sessions,
//! reading their history, and starting new ones.
//!
//! `party` resolves the caller and the session that the caller names, as far as the caller may see
//! it. `send` stores a send before it is answered, and `reply` waits for its result. What a
//! target's turn does to a send is in `service/assignments`, as it is part of the commits that end
//! turns. `list`, `history` and `status` read sessions; `spawn` starts one.

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

    /// The policy on whom sessions may see and send to.
    pub fn policy(&self) -> &SessionsPolicy {
        self.core.sessions()
    }
}
