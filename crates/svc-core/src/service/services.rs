//! The set of all services.

use std::{ops::Deref, path::Path, sync::Arc, time::Duration};

use svc_model::{
    BudgetKind, Caller, Clock, Ids, Timestamp,
    conversation::SessionsPolicy,
    hook::{HookClient, HookPolicy},
};
use svc_store::Store;
use svc_sys::{config::SessionScopes, session_secret::SessionSecrets};

use super::{
    Result, Tokens, Tuning,
    access::Access,
    agents::{AgentSettings, Agents},
    budget::BudgetHold,
    codex::AppServers,
    conversations::Conversations,
    core::Core,
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
#[derive(Debug, Clone)]
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
    ) -> Self {
        let core = Core::new(store, clock, ids, &tuning);
        let access = Access::new(core.clone(), tokens);
        let team = Team::new(core.clone(), access.clone());
        let search = Search::new(core.clone());
        let journal = Journal::new(core.clone(), search.clone());
        let prompts = Prompts::new(core.clone());
        let app_servers = AppServers::new(core.clone(), team.clone(), prompts.clone());
        let handovers = Handovers::new(core.clone(), app_servers.connections());
        let hooks = Hooks::new(
            core.clone(),
            access.clone(),
            team.clone(),
            journal.clone(),
            handovers.clone(),
        );
        let agents = Agents::new(core.clone(), access.clone(), prompts.clone());
        let machines = Machines::new(core.clone(), access.clone(), agents.clone());
        Self(Arc::new(ServiceSet {
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
            machines,
            mcp: Mcp::new(core.clone()),
            projects: core.projects.clone(),
            prompts,
            sources: Sources::new(core.clone()),
            core,
        }))
    }

    #[must_use]
    pub fn with_hook_policy(mut self, policy: HookPolicy) -> Self {
        let services = Arc::make_mut(&mut self.0);
        services.prompts.set_attended(policy.attended);
        services.app_servers.set_policy(policy.attended);
        services.hooks.set_policy(policy);
        self
    }

    /// Sets the clients whose sessions are not woken by messages.
    #[must_use]
    pub fn with_wake_off(self, clients: Vec<HookClient>) -> Self {
        self.handovers.set_off(clients);
        self
    }

    /// Sets how long a machine may be away before its tasks, agents and tokens end.
    #[must_use]
    pub fn with_away(mut self, away: Duration) -> Self {
        Arc::make_mut(&mut self.0).machines.set_away(away);
        self
    }

    #[must_use]
    pub fn with_sessions(self, policy: SessionsPolicy) -> Self {
        self.core.sessions.set(policy).ok();
        self
    }

    #[must_use]
    pub fn with_session_scopes(self, scopes: SessionScopes) -> Self {
        self.core.session_scopes.set(scopes).ok();
        self
    }

    /// Sets the data folder, which holds the secrets of sessions.
    #[must_use]
    pub fn with_home(self, home: &Path) -> Self {
        self.core.session_secrets.set(SessionSecrets::in_home(home)).ok();
        self
    }

    #[must_use]
    pub fn with_agents(mut self, settings: AgentSettings) -> Self {
        let services = Arc::make_mut(&mut self.0);
        services.agents.configure(settings);
        services.conversations.configure(&services.agents);
        self
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

    /// Like [`Self::hold`], but even beyond the bound: for what an earlier daemon began.
    pub fn hold_anyway(&self, caller: &Caller, kind: BudgetKind) -> Option<BudgetHold> {
        self.core.budget.hold_anyway(caller, kind, 1)
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
