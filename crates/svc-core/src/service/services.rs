//! All rooms together.

use std::{ops::Deref, path::Path, sync::Arc};

use svc_model::{
    BudgetKind, Caller, Clock, Ids, Timestamp, conversation::SessionsPolicy, hook::HookPolicy,
};
use svc_store::Store;
use svc_sys::{config::SessionScopes, session_secret::SessionSecrets};

use super::{
    Error, Tokens, Tuning,
    access::Access,
    agents::{AgentSettings, Agents},
    budget::BudgetHold,
    conversations::Conversations,
    core::Core,
    hooks::Hooks,
    journal::Journal,
    log::Log,
    mcp::Mcp,
    search::Search,
    sources::Sources,
    tasks::Tasks,
    team::Team,
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
    /// Agents that the daemon runs.
    pub agents: Agents,
    /// What sessions say to each other.
    pub conversations: Conversations,
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
    /// Child MCP servers on record.
    pub sources: Sources,
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
        let core = Core::new(store, clock, ids, &tuning);
        let access = Access::new(core.clone(), tokens);
        let team = Team::new(core.clone(), access.clone());
        let search = Search::new(core.clone());
        let journal = Journal::new(core.clone(), team.clone(), search.clone());
        let hooks = Hooks::new(core.clone(), access.clone(), team.clone(), journal.clone());
        let agents = Agents::new(core.clone(), access.clone());
        Self(Arc::new(Rooms {
            access,
            conversations: Conversations::new(core.clone(), agents.clone(), hooks.clone()),
            agents,
            log: Log::new(core.clone()),
            team,
            tasks: Tasks::new(core.clone()),
            journal,
            search,
            hooks,
            mcp: Mcp::new(core.clone()),
            sources: Sources::new(core.clone()),
            core,
        }))
    }

    /// The same with what a person wants of hooks.
    #[must_use]
    pub fn with_hook_policy(mut self, policy: HookPolicy) -> Self {
        Arc::make_mut(&mut self.0).hooks.set_policy(policy);
        self
    }

    /// The same with whom sessions see and send to.
    #[must_use]
    pub fn with_sessions(self, policy: SessionsPolicy) -> Self {
        self.core.set_sessions(policy);
        self
    }

    /// The same with what sessions that a person starts may do beyond their own.
    #[must_use]
    pub fn with_session_scopes(self, scopes: SessionScopes) -> Self {
        self.core.set_session_scopes(scopes);
        self
    }

    /// The same with the data folder, in which the secrets of sessions stand.
    #[must_use]
    pub fn with_home(self, home: &Path) -> Self {
        self.core.set_session_secrets(SessionSecrets::in_home(home));
        self
    }

    /// The same with how agents are run.
    #[must_use]
    pub fn with_agents(mut self, settings: AgentSettings) -> Self {
        let rooms = Arc::make_mut(&mut self.0);
        rooms.agents.configure(settings);
        rooms.conversations.configure(&rooms.agents);
        self
    }

    /// The database beneath, for tests that look at it.
    #[cfg(any(test, feature = "testing"))]
    pub fn store(&self) -> &Store {
        &self.core.store
    }

    /// Takes a part of the caller's budget until it is dropped; `None` for the operator, who has
    /// none.
    ///
    /// # Errors
    /// [`Error::LimitReached`] says what to free.
    pub fn hold(
        &self,
        caller: &Caller,
        kind: BudgetKind,
        amount: u64,
    ) -> Result<Option<BudgetHold>, Error> {
        self.core.budget.hold(caller, kind, amount)
    }

    /// The same beyond the bound, for what began before this process did.
    pub fn hold_anyway(&self, caller: &Caller, kind: BudgetKind) -> Option<BudgetHold> {
        self.core.budget.hold_anyway(caller, kind, 1)
    }

    /// Takes bytes that are about to be stored for the caller, all or none of them.
    ///
    /// # Errors
    /// [`Error::LimitReached`], before anything is stored.
    pub fn take_stored(&self, caller: &Caller, bytes: u64) -> Result<(), Error> {
        self.core.budget.take_stored(caller, bytes, self.now())
    }

    /// Runs a heavy read of a caller's (a page of a list, a search, with what is rendered of it)
    /// when it is its turn, on a thread beside the runtime's. All heavy reads go this way, and none
    /// begins another.
    pub async fn read_in_turn<T: Send + 'static>(
        &self,
        caller: &Caller,
        read: impl Future<Output = T> + Send + 'static,
    ) -> T {
        self.core.read_turns.run(&caller.principal(), read).await
    }

    /// What all principals hold together, by kind.
    pub async fn budget_use(&self) -> Result<Vec<(BudgetKind, u64)>, Error> {
        let mut held = self.core.budget.levels();
        held.push((BudgetKind::Rows, self.core.store.upkeep().rows_kept_by_all().await?));
        Ok(held)
    }

    pub fn now(&self) -> Timestamp {
        self.core.now()
    }

    /// Times and bounds in force.
    pub fn tuning(&self) -> &Tuning {
        &self.core.tuning
    }
}
