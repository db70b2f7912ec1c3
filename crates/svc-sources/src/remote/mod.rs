//! Servers at a URL. `endpoint` sends one request and reads the response, `streamable` is
//! streamable HTTP, `link` chooses between it and the transport of 2024-11-05.

mod endpoint;
mod link;
mod streamable;

pub(super) use endpoint::RemoteEndpoint;
pub(super) use link::RemoteLink;
