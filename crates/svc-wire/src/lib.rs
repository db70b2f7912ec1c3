//! What both sides of a connection share, without I/O.
//!
//! [`sse`] frames and parses server-sent events. [`json_rpc`] is the envelope of JSON-RPC. [`mcp`]
//! has MCP's revisions and headers, [`mcp_request`] makes a request to an MCP server.
//! [`host_protocol`] has the messages of the socket of an agent's host.
//!
//! For programs other than `svc`: `svc_client::hosts::HostClient` exchanges the messages of
//! [`host_protocol`], and [`mcp_request::post`] makes a request to any MCP server over Streamable
//! HTTP. `examples/mcp_headers.rs` shows the second.

pub mod host_protocol;
pub mod json_rpc;
pub mod mcp;
pub mod mcp_request;
pub mod sse;

use std::time::Duration;

use http::{HeaderMap, header::RETRY_AFTER};

/// Chooses the TLS provider of the process, before clients of other servers are built. Idempotent.
pub fn choose_tls() {
    rustls::crypto::ring::default_provider().install_default().ok();
}

/// The delay in a `Retry-After` header, at most a minute. Only seconds are parsed: no daemon sends
/// a date, and for a date of another server the caller has its own backoff.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.min(60)))
}
