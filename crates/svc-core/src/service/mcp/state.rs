use crate::service::core::Core;

/// The service of MCP sessions and calls.
#[derive(Debug, Clone)]
pub struct Mcp {
    pub(super) core: Core,
}

impl Mcp {
    pub(in crate::service) fn new(core: Core) -> Self {
        Self { core }
    }
}
