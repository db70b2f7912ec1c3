//! The client side of the daemon's HTTP interface, for the command line and for hooks.
//!
//! [`Discovery`] says where the daemon is and which token counts, [`Client`] speaks JSON to it, [`Follower`] follows one of its event
//! streams across restarts, `svc_wire::mcp_request` makes requests to an MCP server and [`McpReply`] reads what comes back. A leaf: it
//! knows the wire and the files of a daemon, never the daemon's insides, and it never prints. Plain HTTP only; TLS, if
//! any, belongs to a proxy.
//!
//! For programs beside `svc`: [`hosts::HostClient`] asks and follows the host of one agent, with or without a daemon.
//! `examples/talk_to_host.rs` shows that.

mod connect;
mod connection;
mod discover;
mod endpoint;
mod error;
#[cfg(test)]
mod fake_daemon;
mod follow;
pub mod hosts;
mod keyed_post;
mod mcp_reply;
mod token_source;
mod url;

pub use connection::{Client, HttpReply, StreamingReply};
pub use discover::{DaemonFile, DaemonTarget, Discovery, Token};
pub use endpoint::Endpoint;
pub use error::{ClientError, ClientProblem};
pub use follow::backoff;
pub use follow::{FollowGap, FollowItem, Follower};
pub use keyed_post::post_keyed;
pub use mcp_reply::{McpReply, one_line};
pub use token_source::TokenSource;
pub use url::{Url, encode, with_query};
