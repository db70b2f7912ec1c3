//! The entries of svc in the configuration files of MCP clients and coding agents: installed,
//! inspected, uninstalled.
//!
//! # What is installed, and why
//!
//! - **The server is `svc stdio`**, a process that each client starts, and not a URL. So no file
//!   holds a token (`svc token rotate` makes nothing stale, and a project may share the entry), no
//!   variable must be set, the port may change, a daemon that does not run is started, and clients
//!   do not notice a restart of the daemon: over HTTP two clients never reconnect, and one loses
//!   the call in progress. The price is one process per session.
//! - **Hooks are commands** for a shell, `svc hook CLIENT`, which print nothing and exit with 0
//!   whatever happens, even if the program is gone. `catalogue` says what handlers of other types
//!   do while the server is away. opencode, whose hooks are code, gets a plugin.
//! - **svc edits the files itself.** `claude mcp add` and similar commands refuse an existing name,
//!   have no scope or replace silently, cannot install hooks, start a program of unknown version,
//!   and some rewrite the whole file.
//! - **Permissions stay as they are** without `--allow-tools`: whether a model may call tools
//!   without asking is the person's decision. `allow` knows where each client stores it.
//!
//! # How
//!
//! `catalogue` knows what each client needs in which file, [`edit`] makes the edits in a text and
//! undoes them, [`entries`] says which entries are svc's, [`document`] knows the formats, and
//! [`mod@file`] replaces a file. [`apply`] combines them and records the changes. [`inspect`]
//! compares without writing.

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
pub use apply::{ApplyError, FileOutcome, InstallRecord, InstalledFile, Installer};
pub use client::{
    ClientCommand, ClientLocations, ClientVersion, InstallParts, InstallScope, KnownClient,
};
pub use document::FileFormat;
pub use edit::{Edit, FileChange, GrantForm};
pub use inspect::{ClientStatus, DaemonAddress, Expectation, InstalledPart, OperatorToken};
pub use probe::{Abilities, Ability};
