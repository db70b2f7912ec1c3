//! The app-servers of Codex, which run the sessions of all terminals of a user: what they tell of
//! the sessions' states and prompts, and the answers that they are given.
//!
//! A session's hooks run in its app-server's process. That process is connected to, and what it
//! says counts for the sessions whose hooks came from it, and for no other. Codex without an
//! app-server has no socket of its own: its hooks are all there is.

mod follow;
mod lines;
mod open_prompts;
mod run;
mod state;

pub(in crate::service) use lines::AppServerLines;
pub use state::AppServers;
