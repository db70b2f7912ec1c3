//! Child MCP servers on record: their lists, states, processes, and the events of their streams.

mod record;
mod state;

pub use record::{CallEvent, SourceKey, SourceLists, SourceStatus};
pub use state::Sources;
