//! Servers at a URL.
//!
//! Reading order: `endpoint` sends one request with all that the entry and a login put on it, `stream` reads what comes
//! back, `streamable` and `legacy_sse` are the two transports, `link` chooses between them.

mod endpoint;
mod legacy_sse;
mod link;
mod stream;
mod streamable;

pub(super) use endpoint::RemoteEndpoint;
pub(super) use link::RemoteLink;
