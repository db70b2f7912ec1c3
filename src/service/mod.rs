//! What the system does, without a protocol. Adapters (HTTP, MCP, tools) call these rooms.
//!
//! [`Services`] has one door for each room. A room is a struct over the shared [`Core`], and names the rooms that it
//! calls as its fields, so that the direction between rooms is plain: `hooks` calls `journal`, `team` and `access`;
//! `journal` calls `search` and `team`; `team` calls `access`.
//!
//! Each call gets the [`Caller`](crate::domain::Caller), whose identity comes from the credential. A change and its
//! event are one write job, so they commit together, and a caller that goes away tears nothing.

pub mod access;
pub(crate) mod check;
mod core;
mod error;
pub mod hooks;
pub mod journal;
pub mod log;
pub mod mcp;
mod page;
pub mod process;
mod read_cache;
pub mod search;
pub mod tasks;
pub mod team;
#[cfg(test)]
pub(crate) mod testing;

use std::sync::Arc;

pub use access::{Credential, Tokens};
pub use core::Tuning;
pub use error::{Error, ResourceKind};
pub use page::{Page, shared_items};

use access::Access;
use core::Core;
use hooks::Hooks;
use journal::Journal;
use log::Log;
use mcp::Mcp;
use search::Search;
use tasks::Tasks;
use team::Team;

use crate::{
    domain::{Clock, Ids, Timestamp, hook::HookPolicy},
    store::Store,
};

/// The rooms. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Services {
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

impl Services {
    /// Opens the rooms over a store.
    pub fn new(
        store: Store,
        clock: Arc<dyn Clock>,
        ids: Ids,
        tuning: Tuning,
        tokens: Tokens,
    ) -> Self {
        let core = Core { store, clock, ids, tuning };
        let access = Access::new(core.clone(), tokens);
        let team = Team::new(core.clone(), access.clone());
        let search = Search::new(core.clone());
        let journal = Journal::new(core.clone(), team.clone(), search.clone());
        let hooks = Hooks::new(core.clone(), access.clone(), team.clone(), journal.clone());
        Self {
            access,
            log: Log::new(core.clone()),
            team,
            tasks: Tasks::new(core.clone()),
            journal,
            search,
            hooks,
            mcp: Mcp::new(core.clone()),
            core,
        }
    }

    /// The same with what a person wants of hooks.
    #[must_use]
    pub fn with_hook_policy(mut self, policy: HookPolicy) -> Self {
        self.hooks.set_policy(policy);
        self
    }

    /// The database beneath, for what only looks at it: health and metrics.
    pub fn store(&self) -> &Store {
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
