//! What the system does, without a protocol. Adapters (HTTP, MCP, tools) call these services.
//!
//! [`Services`] has one field for each service. A service is a struct over the shared means of
//! `core`. Its fields name the services that it calls, so that the direction is visible: `hooks`
//! calls `handovers`, `journal`, `team` and `access`; `journal` calls `search`; `team` calls
//! `access`; `conversations` calls `agents` and `hooks`; `agents` calls `access` and
//! `prompts`; `machines` calls `agents` and `access`; `codex` calls `hooks`, `team` and `prompts`,
//! and `handovers` sends through its connections.
//!
//! `assignments` is not a service: `team`, `agents`, `hooks` and `conversations` use it within
//! their write jobs.
//!
//! Each call gets the [`Caller`](svc_model::Caller), whose identity comes from the credential. A
//! change and its event are one write job, so they commit together, even if the caller disconnects.

pub mod access;
pub mod agents;
mod assignments;
mod budget;
pub mod check;
pub mod codex;
pub mod conversations;
mod core;
mod error;
pub mod handovers;
pub mod hooks;
pub mod journal;
pub mod log;
pub mod machines;
pub mod mcp;
mod page;
pub mod process;
pub mod projects;
pub mod prompts;
mod reads;
pub mod search;
mod services;
pub mod sources;
pub mod tasks;
pub mod team;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use access::{Credential, Tokens};
pub use budget::BudgetHold;
pub use core::{SessionSettings, Tuning};
pub use error::{Candidate, Error, ResourceKind, Result};
pub use page::{Listed, Page, PageBounds, PeersAt};
pub use services::{ServiceSet, ServiceSettings, Services};
