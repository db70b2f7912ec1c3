//! The room itself: what its calls stand on.

use crate::service::core::Core;

/// The room of child MCP servers.
#[derive(Debug, Clone)]
pub struct Sources {
    pub(super) core: Core,
}

impl Sources {
    pub(in crate::service) fn new(core: Core) -> Self {
        Self { core }
    }
}
