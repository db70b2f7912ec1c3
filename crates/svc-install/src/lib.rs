//! The entries of svc in the configuration files of MCP clients and coding agents: installed,
//! inspected, uninstalled.
//!
//! # What is installed, and why
//!
//! - **The server is `svc stdio`**, a process that each client starts, and no URL. So no token
//!   stands in any file (`svc token rotate` makes nothing stale, a project may share the entry), no
//!   variable must be set, the port may change, a daemon that does not run is started, and a
//!   restart of the daemon is not noticed: over HTTP two clients never try again, and one loses the
//!   call that was under way. The price is a process for each session.
//! - **Hooks are commands** for a shell, `svc hook CLIENT`, which print nothing and exit with 0
//!   whatever happens, also when the program is gone. `catalogue` says what handlers of other
//!   types do while the server is away. opencode, whose hooks are code, has a plugin.
//! - **The files are edited here.** `claude mcp add` and its like refuse a name that exists, have
//!   no scope or replace silently, cannot install hooks, start a program of unknown age, and some
//!   write the whole file anew.
//! - **Permissions stay as they are** unless `--allow-tools` says otherwise: whether a model may
//!   call tools unasked is the person's decision. `allow` knows how each client keeps it.
//!
//! # How
//!
//! `catalogue` knows what each client needs in which file, [`edit`] makes the edits in a text and
//! undoes them, [`entries`] says which entries are ours, [`document`] knows the formats,
//! [`mod@file`] replaces a file, [`apply`] does these in order and remembers what was changed.
//! [`inspect`] compares without writing.

mod allow;
pub mod apply;
pub mod bounded_file;
mod catalogue;
pub mod client;
pub mod document;
pub mod edit;
pub mod entries;
pub mod file;
pub mod inspect;
pub mod probe;
#[cfg(test)]
mod tests;
pub mod trust;

pub use allow::ToolApprovals;
pub use apply::{ApplyError, FileOutcome, InstallRecord, Installer};
pub use client::{
    ClientCommand, ClientLocations, ClientVersion, InstallParts, InstallScope, KnownClient,
};
pub use document::FileFormat;
pub use edit::{Edit, FileChange, GrantForm};
pub use inspect::{ClientStatus, DaemonAddress, Expectation, InstalledPart, OperatorToken};
pub use probe::{Abilities, LimitAbility, MessageAbility, PromptAbility, StateAbility};
