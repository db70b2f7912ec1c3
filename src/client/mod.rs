//! The client side of the daemon's HTTP interface, for the command line and for hooks.
//!
//! [`Discovery`] finds the daemon and the token, [`Client`] speaks JSON to it, [`Follower`] follows one of its event
//! streams across restarts, [`mcp`] makes requests to an MCP server and [`Answer`] reads what comes back. A leaf: it
//! knows the wire and the files of a daemon, never the daemon's insides, and it never prints. Plain HTTP only; TLS, if
//! any, belongs to a proxy.

mod answer;
mod connection;
mod discover;
mod error;
#[cfg(test)]
mod fake;
mod follow;
pub mod mcp;
mod sse;
mod url;

pub use answer::{Answer, one_line};
pub use connection::{Client, Reply, Streaming};
pub use discover::{DaemonFile, Discovery, Target, Token, TokenSource, process_exists};
pub use error::{ClientError, Problem};
pub(crate) use follow::wait as backoff;
pub use follow::{Follower, Gap, Item};
pub use sse::{MAX_EVENT_BYTES, Parser, SseError, SseEvent};
pub use url::{Url, encode, with_query};
