//! What both sides of a connection share: server-sent events out and in, JSON-RPC, MCP's words and requests, the
//! host's socket protocol, and the choice of TLS.

pub mod host_protocol;
pub mod json_rpc;
pub mod mcp;
pub mod mcp_request;
pub mod sse;
pub mod sse_parser;
pub mod tls;
