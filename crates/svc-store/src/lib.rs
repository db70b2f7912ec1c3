//! What the daemon keeps: an API of named methods and plain types. Nothing here says which engine holds the rows.
//!
//! `rows` and `upkeep` hold the types, `error` what can go wrong, `bus` wakes readers after a commit, `lane` says for whom a
//! write is. `sqlite` is the
//! first engine, and the only place with SQL.

mod bus;
mod error;
mod lane;
mod rows;
mod saying;
mod sqlite;
mod upkeep;

pub use bus::{Batch, Bus, Commit, Heard, StreamListener, render};
pub use error::{EngineError, MigrateError, RestoreError, StoreError};
pub use lane::WriteLane;
pub use rows::{
    AgentFilter, AgentMail, AgentRow, DispatchMode, DispatchRow, DispatchState, DispatchWish,
    HostProcess, RequestAnswerRow, RequestRow, RunEnd, RunRow, TaskAsker,
};
pub use rows::{
    AppendedSeqs, CalibrationRow, CallRow, CallState, ClusterRow, Clustering, FeedScope, FramePage,
    Frequencies, GhapFilter, GhapPart, GivenItem, HitRate, LessonKind, LogPage, LoginCodeRow,
    McpSessionRow, McpTransport, MemberRow, MemoryFilter, MessageFilter, MessageListRow,
    MessageRow, MessageTerms, NewCluster, PageSize, PeerFilter, PeerRow, ProbabilityBin,
    ProcessSubject, RowPage, SearchCandidate, SearchFilter, SeenItem, SessionFilter, SessionLock,
    SessionStart, ShownBy, SourceListRow, SourcePinRow, SourceProcessRow, SourceStateRow,
    StrandedInbox, StreamState, StreamView, SubjectHolders, TaskFilter, TaskRow, TokenEnd,
    TokenRow, ToolCall, ToolCallCount, VerdictWeek,
};
pub use saying::{HeardWords, SaidAfter, SayingListener, Sayings};
#[cfg(any(test, feature = "testing"))]
pub use sqlite::testing;
pub use sqlite::{
    DatabaseLock, LaneWrites, LockError, SearchIndex, Store, WriteTx, Writer, backup, last_backup,
    note_backup, prepare_restore, schema_difference,
};
pub use upkeep::{
    COMMIT_SECONDS, LastBackup, Migrations, OpenOptions, StoreSize, TrimOutcome, WriterStats,
};
