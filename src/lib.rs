//! `svc`: the team daemon for coding agents, as a program: the command line.
//!
//! `ARCHITECTURE.md` is the map. In short, from the lowest crate up; each names only what is above it in this list:
//!
//! - [`svc_model`]: values and rules, without input or output.
//! - [`svc_sys`]: the operating system: files, sockets, processes, configuration, the log.
//! - [`svc_wire`]: what both sides of a connection share.
//! - [`svc_client`]: the other end of the daemon, and of a host.
//! - [`svc_store`]: the database and the log. The only SQL.
//! - `svc_core`: what the system does, without a protocol, and what a model may ask of it.
//! - [`svc_sources`]: child MCP servers, which it starts and whose tools it offers.
//! - [`svc_server`]: the adapters, composition, sweeps, drains and lifecycle of the daemon.
//! - [`svc_host`]: the process of one agent, which outlives the daemon, and what runs a program.
//! - [`cli`]: the command line. The only part that prints. [`fuzzing`]: what the fuzzer feeds.
//!
//! Read `svc-store/sqlite/writer.rs` and `svc-core/service/log/subscription.rs` first: the rest stands on them.

pub mod cli;
pub mod fuzzing;
