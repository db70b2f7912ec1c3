//! All servers: which there are for whom, their instances, and their tools.
//!
//! Reading order: `state` is what is known, `plans` reads the files, starts and ends servers as
//! they say, and makes tools that call them; `overview` shows all to people; `run` is the
//! beginning, the work beside calls, and the end.

mod overview;
mod plans;
mod run;
mod state;

pub use run::SourceManagerParts;
pub use state::SourceManager;
