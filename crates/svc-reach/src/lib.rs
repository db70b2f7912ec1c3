//! Drivers of coding agents that a person started. Each client has one: a state machine without
//! I/O, which reads what the client tells and writes what is wanted of it.

pub mod codex;
