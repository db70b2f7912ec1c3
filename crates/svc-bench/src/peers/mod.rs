//! svc beside servers that people run. Each speaks its own protocol, to the same kind of generator,
//! with the same 200 bytes in each event.

mod bare;
mod contests;
mod mcp;
mod peer;
mod postgres;
mod redis;

pub(crate) use contests::{run_append, run_mixed, run_replay};
pub(crate) use mcp::run as run_mcp;
