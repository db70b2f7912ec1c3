//! The methods, but for `initialize`, `tools/call` and `subscriptions/listen`, which are more than one answer.
//!
//! `dispatch` finds the method, and makes the answer as the client's era has it. `discovery` says who the server is;
//! `relayed` is what servers behind the daemon answer; `prompts`, `resources`, `completion` and `tasks` are the methods of
//! those names.

mod completion;
mod discovery;
mod dispatch;
mod params;
mod prompts;
mod relayed;
mod resources;
mod tasks;
