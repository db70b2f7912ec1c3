//! Child MCP servers: one client for each, shared by all callers.
//!
//! Reading order: `message` parses a server's messages, `connection` is the protocol's state for
//! one server and handles the server's requests on it; `stdio` carries it over a process's pipes,
//! `remote` over requests to a URL, `auth` logs in. `lists` fetches what a server offers,
//! compares that with what a person approved and makes tools of it. `spec` is an entry with its
//! variables filled in, `instance` keeps one server running, `manager` has all of them. `call`
//! sends one request to a server for a call, `relay` finds the server of a resource or prompt.
//! `core` is the built-in server.
//!
//! # A tool of a child is called
//!
//! An agent calls `files__read`. `files` is a child MCP server.
//!
//! 1. The catalogue has no built-in tool of that name and asks the view of the caller's project
//!    (`manager/plans.rs`). Views are made from the lists that the servers gave when they last
//!    worked, so they exist before the servers run; a watcher rebuilds them when a file changes, so
//!    a call reads no file. New definitions of a project's server wait for a person's approval
//!    (`lists.rs`), where a definition is kept byte for byte.
//! 2. The MCP adapter treats the tool as slow: in a session its call is on record before the server
//!    gets it.
//! 3. `call.rs` finds the instance by the entry's `sharing`, and starts it if there is none. A call
//!    waits some seconds for an instance that is starting, and fails at once with the state of one
//!    that is down.
//! 4. The request has the caller's `params` unchanged, with the server's own name of the tool; the
//!    comment at the top of `call.rs` draws its path. `connection.rs` registers the call under its
//!    number before the request is sent, so a question or a log message of the server finds its
//!    session. A client without sessions is asked by the end of its request; the call waits in
//!    `suspended.rs` for the next one.
//! 5. The result is returned byte for byte (`Output::Verbatim`), except for strings that imitate
//!    the daemon's stamps (`message.rs`). A result that is a task is followed to its end
//!    (`call.rs`). A result above the bound becomes a file (`results.rs`).
//! 6. A server that floods is throttled: `message.rs` bounds its unsolicited messages, `stdio.rs`
//!    the part of its error output that becomes events.
//! 7. The server dies. `instance/mod.rs` closes the connection, so calls end with an unknown
//!    outcome, kills all processes with the mark of the server (`svc-sys/server_process.rs`), and
//!    restarts it after a backoff.
//!
//! A server at a URL has a connection in place of a process. `remote/streamable.rs` asks for the
//! revision without sessions and falls back to `initialize`; a stream that breaks before the
//! response is resumed by its last event. `remote/endpoint.rs` adds headers and the token to a
//! request and answers a 401 with one renewal; `auth/tokens.rs` holds the lock under which a token
//! is renewed.
//!
//! Tools of the built-in server run in this process. A path is opened from its root component by
//! component without following a link (`core/folder.rs`); a page becomes Markdown in a process with
//! bounds (`core/fetch.rs`).

mod auth;
mod call;
mod connection;
mod core;
mod fuzz;
mod http_clients;
mod instance;
mod lists;
mod manager;
mod message;
mod metrics;
mod relay;
mod remote;
mod resource_tools;
mod results;
mod spec;
#[cfg(test)]
#[path = "tests/spec.rs"]
mod spec_for_tests;
mod stdio;
mod suspended;

use std::sync::{Mutex, MutexGuard, PoisonError};

use svc_core::{
    service::Error,
    tools::{ErrorType, ToolError},
};
use svc_sys::telemetry;
use tokio::runtime::{Handle, RuntimeFlavor};

pub use self::core::{CONVERTER, convert_page};
pub use auth::{LoginOutcome, OpenLogin};
pub use fuzz::read_message;
pub use lists::SourceChange;
pub use manager::{FolderSources, SourceManager, SourceManagerParts};
pub use metrics::SourceMetrics;
pub use relay::{CallerSources, RelayTarget};
pub use resource_tools::resource_tools;
pub use results::{KeptResult, KeptResults, ResultBounds};

fn field_error(kind: ErrorType, field: &str, text: impl Into<String>) -> ToolError {
    ToolError { field: Some(field.to_owned()), ..ToolError::new(kind, text) }
}

/// Logs that something could not be stored, which stops nothing.
fn log_unstored(stored: Result<(), Error>, problem: &str) {
    if let Err(error) = stored {
        tracing::warn!(error = telemetry::chain(&error), "{problem}");
    }
}

/// Locks a mutex, also one whose earlier holder panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs work that blocks or takes long, while another thread takes over the tasks of this one.
fn run_blocking<R>(work: impl FnOnce() -> R) -> R {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    if matches!(flavor, Ok(RuntimeFlavor::MultiThread)) {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}
