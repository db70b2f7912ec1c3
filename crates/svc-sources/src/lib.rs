//! Child MCP servers: one client for each, whoever calls.
//!
//! Reading order: `message` reads what a server sends, `connection` is the protocol's state with one server, `stdio`
//! carries it over a process's pipes, `remote` over requests to a URL, with `headers_helper` and `auth` for who logs in (`login` does). `pace` slows a server that floods, `lists` fetches what a server offers, each of it a `definition`, `pins` compares that with what a person has approved. `spec` is an entry with its variables filled
//! in, `instance` keeps one server running. `view` makes tools of lists, `call` calls one, `call_outcome` counts it, `child_task` waits for one that takes long, `suspended` keeps one whose client is asked between two requests, `manager` has all of them. `containers` stops containers by their ids, `core` is the built-in
//! server. `results` keeps large results, `relay` passes on the methods of resources and prompts, `resource_tools` lets models read resources,
//! `markdown` makes markdown of a page in a process with bounds.

mod auth;
mod beside;
mod call;
mod call_outcome;
mod child_task;
mod connection;
mod containers;
mod core;
mod definition;
mod fuzzed;
mod headers_helper;
mod http_clients;
mod instance;
mod lists;
mod login;
mod manager;
pub mod markdown;
mod message;
mod metrics;
mod pace;
mod pins;
mod relay;
mod remote;
mod resource_tools;
mod results;
mod spec;
mod stderr;
mod stdio;
mod suspended;
mod view;

pub use fuzzed::read_message;
pub use login::{LoginOutcome, OpenLogin};
pub use manager::{SourceManager, SourceManagerParts};
pub use markdown::{CONVERTER, convert_page};
pub use metrics::SourceMetrics;
pub use pins::SourceChange;
pub use relay::Relayed;
pub use resource_tools::resource_tools;
pub use results::{KeptResult, ResultBounds};
