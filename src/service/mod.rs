//! What the system does, without a protocol. HTTP, and whatever else will speak to it, calls these.
//!
//! Each call gets the [`Caller`](crate::domain::Caller), whose identity comes from the credential. A change and its
//! event are one write job, so they commit together, and a caller that goes away tears nothing.

pub(crate) mod check;
pub mod context;
mod error;
pub mod events;
pub mod hooks;
mod inbox;
pub mod journal;
mod journal_import;
pub mod mcp;
pub mod memories;
mod peers;
pub mod premortem;
pub mod process;
mod reading;
mod reads;
mod retention;
#[cfg(any(test, feature = "bench"))]
pub mod retrieval;
pub mod search;
mod stream_moves;
mod tasks;
mod tokens;
mod usefulness;
pub mod values;

use std::{sync::Arc, time::Duration};

pub use error::{Error, ResourceKind};
pub use inbox::{Inbox, MessageDetail, Stamped};
pub use peers::PeerPage;
pub use reading::Reading;
pub use retention::Retention;
pub use stream_moves::{StreamEnd, StreamMoves};
pub use tasks::{Cancelled, Created, LastFrames, TaskPage, TaskWatch};
pub use tokens::{
    Credential, MintedToken, NewToken, TokenFileError, TokenInfo, TokenPage, Tokens, new_secret,
};

use reads::Reads;

use crate::{
    domain::{Clock, Ids, Task, limits},
    store::Store,
};

/// Everything that an adapter calls. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Services {
    pub(crate) store: Store,
    clock: Arc<dyn Clock>,
    ids: Ids,
    tuning: Tuning,
    lately: Arc<Lately>,
    /// Whose an MCP connection is.
    pub ties: Arc<hooks::Ties>,
    waiters: Arc<hooks::Waiters>,
    hook_policy: hooks::HookPolicy,
    /// Who may come in.
    pub tokens: Tokens,
}

/// What was read lately.
#[derive(Debug, Default)]
struct Lately {
    peers: Reads<PeerPage>,
    tasks: Reads<Task>,
}

/// Times and bounds that a test shortens. A user has no reason to.
#[derive(Debug, Clone, Copy)]
pub struct Tuning {
    /// [`limits::PEER_TIMEOUT`].
    pub peer_timeout: Duration,
    /// [`limits::LEASE`].
    pub lease: Duration,
    /// [`limits::INBOX_MAX`].
    pub inbox_max: u32,
    /// [`limits::RUNNER_GRACE`].
    pub runner_grace: Duration,
    /// [`limits::MAINTENANCE`].
    pub maintenance: Duration,
    /// [`limits::SSE_KEEP_ALIVE`].
    pub sse_keep_alive: Duration,
    /// [`limits::BODY_STALL`].
    pub body_stall: Duration,
    /// [`limits::MCP_TASK_AFTER`].
    pub mcp_task_after: Duration,
    /// [`limits::LIST_CHANGED_PAUSE`].
    pub list_changed_pause: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            peer_timeout: limits::PEER_TIMEOUT,
            lease: limits::LEASE,
            inbox_max: limits::INBOX_MAX,
            runner_grace: limits::RUNNER_GRACE,
            maintenance: limits::MAINTENANCE,
            sse_keep_alive: limits::SSE_KEEP_ALIVE,
            body_stall: limits::BODY_STALL,
            mcp_task_after: limits::MCP_TASK_AFTER,
            list_changed_pause: limits::LIST_CHANGED_PAUSE,
        }
    }
}

impl Services {
    /// Services over an open store.
    pub fn new(
        store: Store,
        clock: Arc<dyn Clock>,
        ids: Ids,
        tuning: Tuning,
        tokens: Tokens,
    ) -> Self {
        Self {
            store,
            clock,
            ids,
            tuning,
            lately: Arc::default(),
            ties: Arc::default(),
            waiters: Arc::default(),
            hook_policy: hooks::HookPolicy::default(),
            tokens,
        }
    }

    /// The same with what a person wants of hooks.
    #[must_use]
    pub fn with_hook_policy(self, hook_policy: hooks::HookPolicy) -> Self {
        Self { hook_policy, ..self }
    }

    /// The database beneath, for what only looks at it: health and metrics.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The present.
    pub fn now(&self) -> crate::domain::Timestamp {
        self.clock.now()
    }

    /// Times and bounds in force.
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }
}
