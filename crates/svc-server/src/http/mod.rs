//! The HTTP adapter: REST, event streams, metrics. It parses, calls a service, and renders.
//!
//! Reading order: `connection` accepts connections from `listener` and serves each with hyper,
//! `edge` is the stack of layers that every request passes, with `entry` and `admission` in it,
//! `routes` is the table of all handlers, then one file for each resource. Handlers know `state`
//! (what they share), `api` (how a route and its description are declared) and `body`, and never
//! the table. Statuses of errors are in `web::problem`.

mod access;
mod admission;
mod agents;
mod api;
mod body;
mod connection;
mod edge;
mod entry;
mod events;
mod health;
mod holds;
mod journal;
mod listener;
mod page;
mod peers;
mod routes;
mod sources;
mod state;
mod tasks;
#[cfg(test)]
mod tests;

pub use crate::web::{Code, Problem};
pub use connection::serve;
pub use edge::Edge;
pub use entry::EntryRules;
pub use listener::{ConnectionBounds, Listener, Transport};
pub use state::{App, AppState, Doctor, Identity, Metrics};
