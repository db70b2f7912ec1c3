//! MCP sessions, their subscriptions, and the calls that are on record.

mod calls;

pub use calls::{CallEnd, NewCall, NewMcpSession};

use super::core::Core;

/// The room of MCP sessions and calls.
#[derive(Debug, Clone)]
pub struct Mcp {
    core: Core,
}

impl Mcp {
    pub(super) fn new(core: Core) -> Self {
        Self { core }
    }
}
