//! `svc`: the team daemon for coding agents.
//!
//! `ARCHITECTURE.md` is the map. In short, from the lowest floor up; each imports only what is below it:
//!
//! - [`domain`]: values and rules, without input or output.
//! - [`store`]: the database and the log. The only SQL.
//! - [`service`]: what the system does, without a protocol.
//! - [`tools`]: what a model may ask of it, each tool declared once.
//! - [`sources`]: child MCP servers, which it starts and whose tools it offers.
//! - [`web`]: what the adapters that speak HTTP share.
//! - [`mcp`]: the MCP server. [`http`]: the daemon's HTTP face. [`client`]: the other end of it.
//! - `runner`: runs a program and sends what it prints to the daemon. Knows [`domain`] and [`client`] alone.
//! - `host`: the process of one agent, which outlives the daemon. `hosts`: the daemon's side of it.
//! - [`daemon`]: composition, sweeps, drains and lifecycle of the daemon.
//! - [`cli`]: the command line. The only floor that prints. [`fuzzing`]: what the fuzzer feeds.
//!
//! [`config`], [`telemetry`], `log_file`, `local_socket`, `connection_owner`, `private_file`, `project_folder`, `bounded_file`, `process_list`,
//! `claude_registry`, `hook_spool` and `session_secret` are leaves. Read `store/sqlite/writer.rs` and `service/log/subscription.rs` first: the
//! rest stands on them.

mod bounded_file;
pub mod cli;
pub mod client;
mod client_records;
pub mod config;
mod connection_owner;
pub mod daemon;
pub mod domain;
pub mod fuzzing;
mod hook_spool;
mod host;
mod hosts;
pub mod http;
mod local_socket;
mod log_file;
pub mod mcp;
mod private_file;
mod process_list;
mod project_folder;
mod runner;
pub mod service;
mod session_secret;
pub mod sources;
pub mod store;
pub mod telemetry;
pub mod tools;
pub mod web;
