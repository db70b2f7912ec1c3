//! All rooms together.

use std::{ops::Deref, sync::Arc};

use super::{
    Tokens, Tuning, access::Access, core::Core, hooks::Hooks, journal::Journal, log::Log, mcp::Mcp,
    search::Search, tasks::Tasks, team::Team,
};
use crate::{
    domain::{Clock, Ids, Timestamp, hook::HookPolicy},
    store::Store,
};

/// All rooms. A clone is one count: every request has one.
#[derive(Debug, Clone)]
pub struct Services(Arc<Rooms>);

/// The rooms, which [`Services`] shares.
#[derive(Debug, Clone)]
pub struct Rooms {
    /// Tokens, and who may come in.
    pub access: Access,
    /// The event log: pages, subscriptions, retention.
    pub log: Log,
    /// Peers, their inboxes, and the sessions of coding agents.
    pub team: Team,
    /// Tasks and their output.
    pub tasks: Tasks,
    /// What was tried, predicted and learned.
    pub journal: Journal,
    /// Search of past records.
    pub search: Search,
    /// Events of coding agents.
    pub hooks: Hooks,
    /// MCP sessions and the calls that are on record.
    pub mcp: Mcp,
    core: Core,
}

impl Deref for Services {
    type Target = Rooms;

    fn deref(&self) -> &Rooms {
        &self.0
    }
}

impl Services {
    /// Opens the rooms over a store.
    pub fn new(
        store: Store,
        clock: Arc<dyn Clock>,
        ids: Ids,
        tuning: Tuning,
        tokens: Tokens,
    ) -> Self {
        let core = Core::new(store, clock, ids, tuning);
        let access = Access::new(core.clone(), tokens);
        let team = Team::new(core.clone(), access.clone());
        let search = Search::new(core.clone());
        let journal = Journal::new(core.clone(), team.clone(), search.clone());
        let hooks = Hooks::new(core.clone(), access.clone(), team.clone(), journal.clone());
        Self(Arc::new(Rooms {
            access,
            log: Log::new(core.clone()),
            team,
            tasks: Tasks::new(core.clone()),
            journal,
            search,
            hooks,
            mcp: Mcp::new(core.clone()),
            core,
        }))
    }

    /// The same with what a person wants of hooks.
    #[must_use]
    pub fn with_hook_policy(mut self, policy: HookPolicy) -> Self {
        Arc::make_mut(&mut self.0).hooks.set_policy(policy);
        self
    }

    /// The database beneath, for tests that look at it.
    #[cfg(test)]
    pub(crate) fn store(&self) -> &Store {
        &self.core.store
    }

    /// The present.
    pub fn now(&self) -> Timestamp {
        self.core.now()
    }

    /// Times and bounds in force.
    pub fn tuning(&self) -> &Tuning {
        &self.core.tuning
    }
}
