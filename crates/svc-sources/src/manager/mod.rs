//! All servers: which there are for whom, their instances, and their tools.
//!
//! Reading order: `state` is what is known, `offer` makes tools that call a server, `plans` reads the files and starts and ends
//! servers as they say, `records` writes down what servers say, `overview` shows all to people, `start` is the beginning and the
//! end.

mod offer;
mod overview;
mod plans;
mod records;
mod start;
mod state;

pub use start::SourceManagerParts;
pub use state::SourceManager;
