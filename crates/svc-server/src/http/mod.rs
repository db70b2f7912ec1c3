//! The HTTP adapter: REST, event streams, metrics. It parses, calls a service, and renders.
//!
//! Reading order: `connection` has the listeners and a client's connection, `edge` serves each
//! connection and is the stack of layers that every request passes, with `entry` and `admission` in
//! it and the table of all handlers at its end, then one file for each resource. Handlers know
//! `request` (what they share, and what they take of a request) and `api` (how a route and its
//! description are declared), and never the table. Statuses of errors are in `web`.

mod access;
mod admission;
mod agents;
mod api;
mod connection;
mod doctor;
mod edge;
mod entry;
mod events;
mod health;
mod journal;
mod page;
mod peers;
mod request;
mod sources;
mod tasks;
#[cfg(test)]
mod tests;

pub use crate::web::{Code, Problem};
pub use connection::{ConnectionBounds, Listener};
pub use doctor::Doctor;
pub use edge::{Edge, serve};
pub use entry::EntryRules;
pub use request::{App, AppState, Identity, Metrics};
