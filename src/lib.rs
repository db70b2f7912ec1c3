//! `svc`: the team daemon for coding agents.

pub mod cli;
pub mod client;
pub mod config;
