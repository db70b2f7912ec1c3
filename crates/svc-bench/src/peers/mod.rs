//! svc beside other servers. Each uses its own protocol, with the same kind of generator and the
//! same 200 bytes in each event.

mod bare;
mod contests;
mod mcp;
mod peer;
mod postgres;
mod postgres_store;
mod redis;

pub(crate) use contests::{run_append, run_mixed, run_replay};
pub(crate) use mcp::run as run_mcp;
pub(crate) use postgres_store::run as run_postgres_store;
