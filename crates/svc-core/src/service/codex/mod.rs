//! The app-servers of Codex, which run the sessions of all terminals of a user: what they tell of
//! the sessions' states and prompts, and the answers that they are given.
//!
//! The hooks of a session run in the app-server's process. The daemon connects to that process and
//! believes it for the sessions whose hooks came from it, and for threads that persons open there
//! beside those; hooks tell of a thread only with its first prompt. A Codex without an app-server
//! has no socket: its hooks are the only evidence.

mod follow;
mod lines;
mod open_prompts;
mod registry;
mod run;
mod state;

pub(in crate::service) use lines::AppServerLines;
pub use registry::{OpenedThread, ThreadRegistry};
pub use state::AppServers;
