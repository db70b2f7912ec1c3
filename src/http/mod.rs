//! The HTTP face: REST, event streams, metrics. An adapter: it parses, calls a service, and renders.
//!
//! Reading order: `server` accepts connections, `edge` decides who may come in, `routes` is the table of all that
//! there is, then one file for each resource. Status codes live in `web::problem`.

mod body;
mod edge;
mod events;
mod health;
mod journal;
mod messages;
mod metrics;
mod openapi;
mod peers;
mod protocol;
mod routes;
mod server;
mod sse;
mod tasks;
mod tokens;
mod tools;

pub use crate::web::{Code, Problem};
pub use edge::{Access, Edge};
pub use metrics::Metrics;
pub use routes::{App, Identity, Parts, openapi_document};
pub use server::serve;
