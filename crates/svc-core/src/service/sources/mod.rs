//! Child MCP servers on record: their lists, states, processes, and the events of their streams.

mod record;

use crate::service::core::Core;

pub use record::{CallEvent, SourceKey, SourceLists, SourceStatus};

/// The service of child MCP servers.
#[derive(Debug, Clone)]
pub struct Sources {
    core: Core,
}

impl Sources {
    pub(in crate::service) fn new(core: Core) -> Self {
        Self { core }
    }
}
