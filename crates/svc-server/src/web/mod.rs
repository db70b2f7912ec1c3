//! What the HTTP adapters share: problem details, bounded bodies, `Accept`, the keep-alive timer of
//! idle streams.

mod accept;
mod body;
mod keep_alive;
mod problem;
mod route;

pub(crate) use accept::Accept;
pub(crate) use body::{TOO_HEAVY, is_too_heavy, parse_body};
pub use body::{is_json, read, text_of};
pub use keep_alive::{KeepAlive, KeepAliveTimer};
pub(crate) use problem::ProblemBody;
pub use problem::{Code, Problem};
pub use route::RouteName;

/// Marks a request whose `X-Request-Id` its client has given.
#[derive(Debug, Clone, Copy)]
pub struct GivenRequestId;

/// Marks a response to a POST whose stream has no end of its own: it ends with its caller's token.
#[derive(Debug, Clone, Copy)]
pub struct Endless;
