//! MCP sessions, their subscriptions, and the calls that are on record.

mod calls;

use crate::service::core::Core;

pub use calls::{CallEnd, NewCall, NewMcpSession};

/// The service of MCP sessions and calls.
#[derive(Debug, Clone)]
pub struct Mcp {
    core: Core,
}

impl Mcp {
    pub(in crate::service) fn new(core: Core) -> Self {
        Self { core }
    }
}
