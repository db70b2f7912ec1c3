//! What the daemon keeps: an API of named methods and plain types. Nothing in it says which engine
//! holds the rows.
//!
//! `rows` and `upkeep` hold the types, `error` what can go wrong, `bus` wakes readers after a
//! commit, `saying` holds words of agents whose entry is not recorded yet, `lane` says for whom a
//! write is. `sqlite` is the engine, and the only place with SQL.
//!
//! # Where a row is read and written
//!
//! [`families`] lists the families of rows. `store.peers()` has the reads of peers, `tx.peers()`
//! what a write job does with them; both stand in `sqlite/peer.rs`. The [`Store`] itself opens and
//! queues, [`WriteTx`] appends.
//!
//! # A write job becomes a commit
//!
//! 1. A service calls `append` with events for one stream, or gives a closure to `write`, on
//!    `Store::on_behalf_of(caller)`. The daemon's own writes are called on the [`Store`]. A closure
//!    calls methods of [`WriteTx`] and of its families, and awaits nothing else.
//! 2. The job waits in the lane of its principal (`sqlite/write_queue.rs`).
//! 3. `sqlite/writer.rs`, on a thread of its own, yields once so that those whom the last commit
//!    woke can queue, then takes jobs from the lanes in turn, within bounds of jobs, bytes and
//!    time (`JOBS_PER_COMMIT`, `RUNS_PER_COMMIT`, `COMMIT_BYTES`).
//! 4. An append gets its seqs from memory (`sqlite/tx.rs`). Statements run on the writer's own
//!    thread, through its one connection (`sqlite/direct_connection.rs`). Each job runs once.
//! 5. A job that fails or panics undoes only itself: where several jobs write in a commit, a
//!    savepoint begins with the first statement of each that writes.
//! 6. The events of the group are one insert (`sqlite/event_insert.rs`). The commit syncs the
//!    disk. Then callers are answered and the [`Bus`] wakes readers. If the commit fails, every
//!    caller gets the failure, and the writer forgets what it knew.
//!
//! No job changes more than about 1,000 rows. A broadcast, retention and sweeps
//! (`sqlite/sweep.rs`) are many jobs, each of which leaves rows that the same conditions find. A
//! write that changes no row where it should change one is an error.
//!
//! # A reader catches up
//!
//! `sqlite/frames.rs` copies rows of the table into frames for the socket, a page at a time: no
//! reader holds a thread, a connection or a snapshot while its client takes a page. Behind the
//! table is the tail of the bus: the events of the last commits of each stream that somebody
//! follows, up to `TAIL_BYTES`. The first reader that asks renders a commit's frames, and all
//! others share them. A cursor that is behind the tail reads the table again.
//!
//! # The file is opened
//!
//! The kernel releases `svc.db.lock` when a daemon dies. The next one takes it (`sqlite/lock.rs`),
//! opens the file, and migrates if need be (`sqlite/migrate.rs`; the baseline makes the schema of
//! an empty file in one piece). What was acknowledged is in the file or its write-ahead log; what
//! was not is rolled back.

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
    AgentMail, AgentRow, AssignmentEnd, AssignmentRow, AssignmentState, HostProcess,
    RequestAnswerRow, RequestRow, WorkMode, WorkWish,
};
pub use rows::{
    AppendedSeqs, CalibrationRow, CallRow, CallState, ClusterRow, Clustering, FeedScope, FramePage,
    Frequencies, GhapPart, GivenItem, HitRate, LessonKind, ListedMessage, LogPage, LoginCodeRow,
    McpSessionRow, McpTransport, MemberRow, MemoryFilter, MessageRow, MessageTerms, NewCluster,
    PageSize, PeerRow, ProbabilityBin, ProcessSubject, RowPage, SearchCandidate, SearchFilter,
    SeenItem, SessionLock, SessionStart, ShownBy, SourceListRow, SourcePinRow, SourceProcessRow,
    SourceStateRow, StrandedInbox, StreamState, StreamView, SubjectHolders, TaskRow, TokenEnd,
    TokenRow, ToolCall, ToolCallCount, VerdictWeek,
};
pub use saying::{HeardWords, SaidAfter, SayingListener, Sayings};
pub use sqlite::families;
#[cfg(any(test, feature = "testing"))]
pub use sqlite::testing;
pub use sqlite::{
    DatabaseLock, LaneWrites, LockError, SearchIndex, Store, WriteTx, Writer, backup, last_backup,
    note_backup, prepare_restore, schema_difference,
};
pub use upkeep::{
    COMMIT_SECONDS, LastBackup, Migrations, OpenOptions, StoreSize, TrimOutcome, WriterStats,
};
