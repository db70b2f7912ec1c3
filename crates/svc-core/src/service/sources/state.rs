use crate::service::core::Core;

/// The service of child MCP servers.
#[derive(Debug, Clone)]
pub struct Sources {
    pub(super) core: Core,
}

impl Sources {
    pub(in crate::service) fn new(core: Core) -> Self {
        Self { core }
    }
}
