//! What both sides of a connection share: server-sent events out and in, MCP's words and requests, the host's socket protocol, and the
//! choice of TLS. It does no input or output.
//!
//! For programs beside `svc`: [`host_protocol`] has the messages on a host's socket, which `svc_client::hosts::HostClient` exchanges,
//! and [`mcp_request::post`] makes a request to any MCP server over Streamable HTTP. `examples/mcp_headers.rs` shows the second.

pub mod host_protocol;
pub mod mcp;
pub mod mcp_request;
pub mod sse;
pub mod sse_parser;
pub mod tls;
