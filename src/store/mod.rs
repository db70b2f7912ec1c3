//! What the daemon keeps: an API of named methods and plain types. Nothing here says which engine holds the rows.
//!
//! `sqlite` is the first engine and the only place with SQL. `bus` wakes readers after a commit.

mod bus;
mod sqlite;

pub use bus::{Batch, Bus, Commit, Heard, Listener, render};
#[cfg(test)]
pub(crate) use sqlite::testing;
pub use sqlite::{
    Appended, CalibrationRow, CallRow, CallState, Candidate, ClusterRow, Clustering, Counted,
    DatabaseLock, FeedScope, Frames, Frequencies, GhapFilter, Given, Grouped, HitRate, Index, Item,
    Kind, LockError, McpSessionRow, McpTransport, MemberRow, MemoryFilter, MessageRow,
    MigrateError, Migrations, OpenOptions, Page, Part, PeerFilter, PeerRow, SearchFilter,
    SessionFilter, SessionStart, ShownBy, Size, Store, StoreError, StreamState, StreamView, Take,
    TaskFilter, TaskRow, TokenRow, ToolCall, Trim, WriteStats, WriteTx, Writer, backup,
    check_integrity,
};
