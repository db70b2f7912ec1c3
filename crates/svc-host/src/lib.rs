//! What runs programs beside the daemon: [`host`], the process of one hosted agent, and [`runner`], which runs a program and sends
//! what it prints. Names neither store nor services: both outlive the daemon.

pub mod host;
pub mod runner;
