//! All servers: their plans by caller, their instances, and their tools.
//!
//! Reading order: `state` is the shared state, `plans` reads the files, starts and ends servers
//! accordingly; `tools` makes tools that call them; `overview` shows all to people, who log in by
//! `login`; `run` is the start, the background work, and the end; `records` writes what servers
//! report into the database.

mod login;
mod overview;
mod plans;
mod records;
mod run;
mod state;
mod tools;

pub use login::{LoginOutcome, OpenLogin, SourceLoginFlow};
pub use overview::FolderSources;
pub use run::SourceManagerParts;
pub use state::SourceManager;
