//! Child MCP servers on record: their lists, states, processes, and the events of their streams.

mod record;
mod room;

pub use record::{CallEvent, SourceKey, SourceLists, SourceStatus};
pub use room::Sources;
