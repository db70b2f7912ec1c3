//! All servers: their plans by caller, their instances, and their tools.
//!
//! Reading order: `state` is the shared state, `plans` reads the files, starts and ends servers
//! accordingly, and makes tools that call them; `overview` shows all to people; `run` is the start,
//! the background work, and the end.

mod overview;
mod plans;
mod run;
mod state;

pub use run::SourceManagerParts;
pub use state::SourceManager;
