//! MCP sessions, their subscriptions, and the calls that are on record.

mod calls;
mod state;

pub use calls::{CallEnd, NewCall, NewMcpSession};
pub use state::Mcp;
