//! The set of all services.

use std::{ops::Deref, sync::Arc};

use svc_model::{
    BudgetKind, Caller, Clock, Ids, Timestamp,
    hook::{HookClient, HookPolicy},
};
use svc_store::Store;

use super::{
    Result, Tokens, Tuning,
    access::Access,
    agents::{AgentSettings, Agents},
    budget::BudgetHold,
    codex::AppServers,
    conversations::Conversations,
    core::{Core, SessionSettings},
    handovers::Handovers,
    hooks::Hooks,
    journal::Journal,
    log::Log,
    machines::Machines,
    mcp::Mcp,
    projects::Projects,
    prompts::Prompts,
    search::Search,
    sources::Sources,
    tasks::Tasks,
    team::Team,
};
use crate::boxed;

/// Cloned for each request, at the cost of one reference count.
#[derive(Debug, Clone)]
pub struct Services(Arc<ServiceSet>);

/// The services that [`Services`] shares.
#[derive(Debug)]
pub struct ServiceSet {
    pub access: Access,
    pub log: Log,
    /// Peers, their inboxes, and the sessions of coding agents.
    pub team: Team,
    pub agents: Agents,
    pub app_servers: AppServers,
    pub conversations: Conversations,
    pub tasks: Tasks,
    pub journal: Journal,
    pub search: Search,
    pub hooks: Hooks,
    /// Hand-overs of messages to sessions by their clients' own ways.
    pub handovers: Handovers,
    pub machines: Machines,
    pub mcp: Mcp,
    pub projects: Projects,
    pub prompts: Prompts,
    pub sources: Sources,
    core: Core,
}

/// What the configuration sets, besides [`Tuning`].
#[derive(Debug, Default)]
pub struct ServiceSettings {
    pub sessions: SessionSettings,
    pub hooks: HookPolicy,
    /// Clients whose sessions are not woken by messages.
    pub wake_off: Vec<HookClient>,
    pub agents: AgentSettings,
}

impl Deref for Services {
    type Target = ServiceSet;

    fn deref(&self) -> &ServiceSet {
        &self.0
    }
}

impl Services {
    pub fn new(
        store: Store,
        clock: Arc<dyn Clock>,
        ids: Ids,
        tuning: Tuning,
        tokens: Tokens,
        settings: ServiceSettings,
    ) -> Self {
        let attended = settings.hooks.attended;
        let core = Core::new(store, clock, ids, &tuning, settings.sessions, attended);
        let access = Access::new(core.clone(), tokens);
        let team = Team::new(core.clone(), access.clone());
        let search = Search::new(core.clone());
        let journal = Journal::new(core.clone(), search.clone());
        let prompts = Prompts::new(core.clone());
        let app_servers = AppServers::new(core.clone(), team.clone(), prompts.clone());
        let handovers = Handovers::new(core.clone(), app_servers.connections(), settings.wake_off);
        let hooks = Hooks::new(
            core.clone(),
            access.clone(),
            team.clone(),
            journal.clone(),
            handovers.clone(),
            settings.hooks,
        );
        let agents = Agents::new(core.clone(), access.clone(), prompts.clone(), settings.agents);
        Self(Arc::new(ServiceSet {
            machines: Machines::new(core.clone(), access.clone(), agents.clone()),
            access,
            app_servers,
            conversations: Conversations::new(core.clone(), agents.clone(), hooks.clone()),
            agents,
            log: Log::new(core.clone()),
            team,
            tasks: Tasks::new(core.clone()),
            journal,
            search,
            handovers,
            hooks,
            mcp: Mcp::new(core.clone()),
            projects: core.projects.clone(),
            prompts,
            sources: Sources::new(core.clone()),
            core,
        }))
    }

    #[cfg(any(test, feature = "testing"))]
    pub fn store(&self) -> &Store {
        &self.core.store
    }

    /// Holds a part of the caller's budget until the hold is dropped; `None` for the operator, who
    /// has no bounds.
    ///
    /// # Errors
    /// [`Error::LimitReached`](super::Error::LimitReached), with a text that names what to free.
    pub fn hold(
        &self,
        caller: &Caller,
        kind: BudgetKind,
        amount: u64,
    ) -> Result<Option<BudgetHold>> {
        self.core.budget.hold(caller, kind, amount)
    }

    /// As [`Self::hold`], but waits for capacity, of which the bound must have enough.
    #[boxed]
    pub async fn hold_when_free(
        &self,
        caller: &Caller,
        kind: BudgetKind,
        amount: u64,
    ) -> Option<BudgetHold> {
        self.core.budget.hold_when_free(caller, kind, amount).await
    }

    /// Charges bytes that are about to be stored for the caller, all of them or none.
    ///
    /// # Errors
    /// [`Error::LimitReached`](super::Error::LimitReached), before anything is stored.
    pub fn take_stored(&self, caller: &Caller, bytes: u64) -> Result<()> {
        self.core.budget.take_stored(caller, bytes, self.now())
    }

    /// Runs a heavy read (a page of a list, a search, with its rendering) in the caller's turn, on
    /// a thread outside the runtime. All heavy reads must use this, and none may start another.
    pub async fn read_in_turn<T: Send + 'static>(
        &self,
        caller: &Caller,
        read: impl Future<Output = T> + Send + 'static,
    ) -> T {
        self.core.read_turns.run(&caller.principal(), read).await
    }

    /// What all principals together hold, by kind.
    #[boxed]
    pub async fn budget_use(&self) -> Result<Vec<(BudgetKind, u64)>> {
        let mut held = self.core.budget.levels();
        held.push((BudgetKind::Rows, self.core.store.upkeep().rows_kept_by_all().await?));
        Ok(held)
    }

    pub fn now(&self) -> Timestamp {
        self.core.now()
    }

    pub fn tuning(&self) -> &Tuning {
        &self.core.tuning
    }
}
