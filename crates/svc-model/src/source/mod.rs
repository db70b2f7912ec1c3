//! Child MCP servers: their entries, what becomes of the variables in them, the names of their
//! tools, and their states.
//!
//! Reading order: `entry` is one server as it is configured, `expansion` fills in its variables,
//! `destination` says where its secrets go, `tool_name` makes names that every client takes,
//! `state` is what a server is doing, `pause` when one that ended is started again.

mod destination;
mod entry;
mod expansion;
mod pause;
mod state;
mod tool_name;

pub use destination::SecretDestination;
pub use entry::{
    BUILTIN_CORE, OauthChoice, RemoteKind, Sharing, SourceEntry, SourceProblem, SourceTransport,
    matches_glob,
};
pub use expansion::{MissingVariable, Redactor, expand};
pub use pause::{STARTS_BEFORE_FAILED, restart_pause};
pub use state::{SourceInstance, SourceState, SourceView};
pub use tool_name::{child_tool_name, cut_description, source_name};
