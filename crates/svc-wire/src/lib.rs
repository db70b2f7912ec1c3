//! What both sides of a connection share. It does no input or output.
//!
//! [`sse`] frames server-sent events and [`sse_parser`] reads them. [`json_rpc`] is the envelope of
//! JSON-RPC. [`mcp`] has MCP's words and headers, [`mcp_request`] makes a request to an MCP server.
//! [`host_protocol`] is what a daemon and the host of an agent say to each other, [`tls`] the choice
//! of TLS for outgoing connections.
//!
//! For programs beside `svc`: [`host_protocol`] has the messages on a host's socket, which
//! `svc_client::hosts::HostClient` exchanges, and [`mcp_request::post`] makes a request to any MCP
//! server over Streamable HTTP. `examples/mcp_headers.rs` shows the second.

pub mod host_protocol;
pub mod json_rpc;
pub mod mcp;
pub mod mcp_request;
pub mod sse;
pub mod sse_parser;
pub mod tls;
