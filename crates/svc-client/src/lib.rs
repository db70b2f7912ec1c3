//! The client side of the daemon's HTTP interface, for the command line and for hooks.
//!
//! [`Discovery`] finds the daemon and its token. [`Client`] sends and receives JSON. [`Follower`]
//! follows one event stream across restarts of the daemon. [`McpReply`] reads the response of an
//! MCP server to a request of `svc_wire::mcp_request`. The crate uses only the wire formats and the
//! files of a daemon, and prints nothing. It speaks plain HTTP; TLS is for a proxy.

mod connection;
mod discover;
mod error;
mod follow;
pub mod hosts;
#[cfg(test)]
mod tests;

pub use connection::{Client, HttpReply, McpReply, StreamingReply, one_line};
pub use discover::{
    DaemonFile, DaemonTarget, Discovery, Endpoint, Token, Url, encode, with_object, with_query,
};
pub use error::{ClientError, ClientProblem, TokenSource};
pub use follow::{FollowGap, FollowItem, Follower, backoff, post_keyed};
