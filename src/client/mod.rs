//! The client side of the daemon's HTTP interface, for the command line and for hooks.
//!
//! [`Discovery`] says where the daemon is and which token counts, [`Client`] speaks JSON to it, [`Follower`] follows one of its event
//! streams across restarts, [`mcp`] makes requests to an MCP server and [`McpReply`] reads what comes back. A leaf: it
//! knows the wire and the files of a daemon, never the daemon's insides, and it never prints. Plain HTTP only; TLS, if
//! any, belongs to a proxy.

mod connect;
mod connection;
mod discover;
mod endpoint;
mod error;
#[cfg(test)]
mod fake_daemon;
mod follow;
mod keyed_post;
pub mod mcp;
mod mcp_reply;
mod sse;
mod tls;
mod token_source;
mod url;

pub use connection::{Client, HttpReply, StreamingReply};
pub use discover::{DaemonFile, DaemonTarget, Discovery, Token};
pub use endpoint::Endpoint;
pub use error::{ClientError, ClientProblem};
pub(crate) use follow::backoff;
pub use follow::{FollowGap, FollowItem, Follower};
pub use keyed_post::post_keyed;
pub use mcp_reply::{McpReply, one_line};
pub use sse::{MAX_EVENT_BYTES, SseError, SseEvent, SseParser};
pub use tls::choose_tls;
pub use token_source::TokenSource;
pub use url::{Url, encode, with_query};
