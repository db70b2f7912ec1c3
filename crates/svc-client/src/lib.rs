//! The client side of the daemon's HTTP interface, for the command line and for hooks, and of a
//! host's socket.
//!
//! [`Discovery`] says where the daemon is and which token counts. [`Client`] speaks JSON to it,
//! over the Unix socket of the data folder or over plain HTTP; TLS, if any, belongs to a proxy.
//! [`Follower`] follows one event stream across restarts. [`McpReply`] reads what an MCP server
//! sent back. [`hosts`] starts, asks and follows the hosts of agents, and reads what a dead one
//! left.
//!
//! The crate knows the wire and the files of a daemon, nothing behind them, and it never prints.
//!
//! For programs beside `svc`: [`hosts::HostClient`] asks and follows the host of one agent, with or
//! without a daemon. `examples/talk_to_host.rs` shows that.

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
