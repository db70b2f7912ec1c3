//! The server's HTTP face: `/mcp` for every revision and for bare calls, `/sse` and `/messages` for 2024-11-05.
//!
//! `router` is the table. `request` has what all paths need of a request; `post` answers `POST /mcp`, with `batch` for
//! batches, `one_way` for messages that want no answer and `listen` for listen requests; `session` is `GET` and `DELETE`
//! of a session; `legacy_sse` are the two paths of 2024-11-05.

mod batch;
mod legacy_sse;
mod listen;
mod one_way;
mod post;
mod request;
mod router;
mod session;

pub use router::routes;
