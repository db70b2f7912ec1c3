//! The daemon: its adapters, [`http`] and [`mcp`], what they share, [`web`], and [`daemon`], which starts, sweeps and ends it.

pub mod daemon;
pub mod http;
pub mod mcp;
pub mod web;
