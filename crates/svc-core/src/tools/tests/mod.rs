//! Tests of the families of tools, through the catalogue.

mod events;
mod hooks;
mod peers;
mod sessions;
mod tasks;
mod tool_search;
