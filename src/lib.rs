//! `svc`: the team daemon for coding agents.

pub mod domain;
pub mod http;
pub mod service;
pub mod store;
pub mod telemetry;
