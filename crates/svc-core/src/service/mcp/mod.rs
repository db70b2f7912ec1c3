//! MCP sessions, their subscriptions, and the calls that are on record.

mod calls;
mod room;

pub use calls::{CallEnd, NewCall, NewMcpSession};
pub use room::Mcp;
