//! Black-box tests: each starts the real program and talks to it as a client does.
//!
//! `daemon` owns processes and folders, `stored` reads and changes their rows, `wire` has HTTP and
//! SSE byte by byte, `expect` and `shapes` check responses. Every other file tests one promise.

/// Ends a test that cannot run here.
macro_rules! only_if {
    ($can_run:expr) => {
        if !$can_run {
            return;
        }
    };
}

mod daemon;
mod expect;
mod shapes;
mod wire;
mod words;

#[cfg(target_os = "linux")]
mod agent_requests;
#[cfg(target_os = "linux")]
mod agent_storms;
#[cfg(target_os = "linux")]
mod agent_words;
#[cfg(target_os = "linux")]
mod agenthost;
mod agents;
mod attended;
mod auth;
#[cfg(target_os = "linux")]
mod away;
mod budget;
mod cli;
mod codex;
mod conformance;
mod connections;
#[cfg(target_os = "linux")]
mod conversations;
mod crash;
mod disk;
mod documents;
mod errors;
mod files;
mod first_day;
#[expect(
    unreachable_pub,
    reason = "the crate of the fuzzer, which is this file, makes them public"
)]
#[path = "../fuzz/targets.rs"]
mod fuzz_targets;
mod handovers;
mod health;
mod hook;
#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
mod hosted;
mod identity;
mod install;
mod journal;
mod learning;
#[cfg(target_os = "linux")]
mod machines;
mod mcp;
mod mcp_agents;
mod mcp_rmcp;
mod messages;
mod migrate;
mod model;
mod moves;
mod outputs;
mod ownership;
mod packaging;
mod page;
mod pages;
mod peers;
mod people;
mod picture_attended;
mod picture_hosted;
mod picture_words;
mod postgres;
#[cfg(target_os = "linux")]
mod power;
mod projects;
mod prompts;
mod reference;
mod registry;
mod restore;
mod screens;
#[cfg(target_os = "linux")]
mod service_unit;
mod sources;
#[cfg(target_os = "linux")]
mod speaking;
mod sse;
mod stdio;
mod stored;
mod tasks;
mod terminal;
mod tidy;
mod tools;
mod top;
mod tour;
mod trust;
#[cfg(target_os = "linux")]
mod trust_agents;
mod trust_budget;
mod trust_files;
#[cfg(target_os = "linux")]
mod trust_floods;
mod trust_http;
mod trust_names;
mod trust_sources;
#[cfg(target_os = "linux")]
mod trust_user;
mod upgrade;
mod views;
mod wake;
