//! The HTTP adapter: REST, event streams, metrics. It parses, calls a service, and renders.
//!
//! Reading order: `connection` accepts connections and serves each with hyper, `edge` is the
//! stack of layers that every request passes, with `entry`'s rules, `identify` and `admission` in
//! it, `routes` is the table of all handlers, then one file for each resource. Handlers know
//! `state` (what they share), `api` (how a route and its description are declared) and `body`, and
//! never the table. Status codes are in `web::problem`.

mod admission;
mod agents;
mod api;
mod body;
mod bounds;
mod client_connection;
mod connection;
mod conversations;
mod daemon_proof;
mod doctor;
mod doctor_process;
mod edge;
mod entry;
mod events;
mod exposition;
mod handovers;
mod health;
mod identify;
mod journal;
mod listener;
mod messages;
mod metrics;
mod openapi;
mod page;
mod peers;
mod presence;
mod projects;
mod prompts;
mod protocol;
mod routes;
mod send_message;
mod sources;
mod sse;
mod state;
mod tasks;
#[cfg(test)]
mod tests;
mod tokens;
mod tools;

pub use crate::web::{Code, Problem};
pub use client_connection::ConnectionBounds;
pub use connection::serve;
pub use doctor_process::Doctor;
pub use edge::Edge;
pub use entry::EntryRules;
pub use listener::{Listener, Transport};
pub use metrics::Metrics;
pub use state::{App, Identity, Parts};
