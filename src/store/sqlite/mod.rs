//! The SQLite engine, and the only SQL in the program: one file, one writer, a few readers.
//!
//! Reading order: [`db`](self) opens the file, `writer` turns queued jobs into commits, `tx` is what a job sees,
//! `log` appends and `replay` reads the log. One file per table family holds the rest.

mod confirmation;
mod db;
mod error;
mod hook;
mod journal;
mod lock;
mod log;
mod maintain;
mod mcp;
mod memory;
mod message;
mod migrate;
mod peer;
mod replay;
mod search;
mod seen;
mod tally;
mod task;
#[cfg(test)]
pub(crate) mod testing;
mod token;
mod tx;
mod values;
mod version;
mod writer;

use super::bus::{self, Batch, Bus};
pub use confirmation::{Given, ShownBy};
pub use db::{OpenOptions, Store, Writer};
pub use error::StoreError;
pub use journal::{CalibrationRow, GhapFilter, HitRate, Kind, SessionFilter, SessionStart};
pub use lock::{DatabaseLock, LockError};
pub use log::{Appended, StreamState};
pub use maintain::{Size, Trim, backup, check_integrity};
pub use mcp::{CallRow, CallState, McpSessionRow, McpTransport};
pub use memory::MemoryFilter;
pub use message::MessageRow;
pub use migrate::{MigrateError, Migrations};
pub use peer::{PeerFilter, PeerRow};
pub use replay::{FeedScope, Frames, Page, StreamView, Take};
pub use search::{Candidate, Frequencies, Index, Part, SearchFilter};
pub use seen::Item;
pub use tally::{Counted, ToolCall};
pub use task::{TaskFilter, TaskRow};
pub use token::TokenRow;
pub use tx::WriteTx;
pub use values::{ClusterRow, Clustering, Grouped, MemberRow};
pub use writer::WriteStats;
