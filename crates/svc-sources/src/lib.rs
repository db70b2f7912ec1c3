//! Child MCP servers: one client for each, whoever calls.
//!
//! Reading order: `message` reads what a server sends, `connection` is the protocol's state with
//! one server and `questions` what the server asks on it; `stdio` carries it over a process's
//! pipes, `remote` over requests to a URL, `auth` logs in. `lists` fetches what a server offers;
//! `pins` compares that with what a person approved; `view` makes tools of it. `spec` is an entry
//! with its variables filled in, `instance` keeps one server running, `manager` has all of them.
//! `call` makes one request of a server for a call, `relay` finds whom a resource or prompt belongs
//! to. `core` is the built-in server.
//!
//! # A tool of a child is called
//!
//! An agent calls `files__read`. `files` is a child MCP server.
//!
//! 1. The catalogue has no tool of that name of its own and asks the view of the caller's project
//!    (`manager/plans.rs`). Views are made of lists that the servers gave when they last worked, so
//!    they are there before the servers are; a watcher makes them anew when a file changes, so a
//!    call looks at no file. What a project's server offers anew waits for a person's approval
//!    (`pins.rs`). A definition is kept as its server wrote it (`lists.rs`).
//! 2. To the MCP adapter the tool is a slow one: in a session its call is on record before the
//!    server hears of it.
//! 3. `call.rs` finds the instance by the entry's `sharing`, and starts one that is not there. A
//!    call waits some seconds for one that is starting; one that is down fails it at once with its
//!    state.
//! 4. The request is the caller's `params` as they were written, with the server's own name of the
//!    tool; its top comment draws the way. `connection.rs` notes the call under its number before
//!    it is sent, so a question or a log message of the server finds its session. A client without
//!    sessions is asked by the end of its request; the call waits in `suspended.rs` for the next
//!    one.
//! 5. The result goes back byte for byte (`Output::Verbatim`), except for strings that imitate the
//!    daemon's words (`message.rs`). A result that is a task is followed to its end
//!    (`child_task.rs`). A result above the bound is a file (`results.rs`).
//! 6. A server that floods waits: `pace.rs` bounds what it sends unasked, `stdio.rs` how much of
//!    its error output becomes events.
//! 7. The server dies. `instance/keeper.rs` closes the connection, so calls end with an unknown
//!    outcome, ends all that bears the mark of the process (`svc-sys/server_process.rs`), and
//!    starts a new one after a pause.
//!
//! A server at a URL has a connection in place of a process. `remote/streamable.rs` asks for the
//! revision without sessions and falls back to `initialize`; a stream that breaks before the
//! answer is resumed by its last event. `remote/endpoint.rs` puts headers and token on a request
//! and turns a 401 into one renewal; `auth/tokens.rs` holds the lock under which a token is
//! renewed.
//!
//! Tools of the built-in server run in this process. A path is walked from its root without
//! following a link (`core/folder.rs`); a page becomes Markdown in a process with bounds
//! (`markdown.rs`).

mod auth;
mod beside;
mod call;
mod child_task;
mod connection;
mod containers;
mod core;
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
mod questions;
mod relay;
mod remote;
mod resource_tools;
mod results;
mod spec;
mod stdio;
mod suspended;
mod view;

pub use login::{LoginOutcome, OpenLogin};
pub use manager::{SourceManager, SourceManagerParts};
pub use markdown::{CONVERTER, convert_page};
pub use message::read_message;
pub use metrics::SourceMetrics;
pub use pins::SourceChange;
pub use relay::RelayTarget;
pub use resource_tools::resource_tools;
pub use results::{KeptResult, ResultBounds};
