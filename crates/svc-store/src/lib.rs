//! The database of the daemon: an API of named methods and plain types. The API does not show which
//! engine holds the rows.
//!
//! `rows` and `upkeep` hold the types, `error` the failures by outcome. `bus` wakes readers after a
//! commit. `families` has the statements, whose text is the same for both engines; `sqlite` runs
//! them on a file, `postgres` on a server.
//!
//! # Where a row is read and written
//!
//! [`families`] lists the families of rows. `store.peers()` has the reads of peers, `tx.peers()`
//! what a write job may do with them; both are in `families/peer.rs`. The [`Store`] opens the
//! database and queues jobs, [`WriteTx`] appends events.
//!
//! # From a write job to a commit
//!
//! 1. A service calls `append` with events for one stream, or gives a closure to `write`, on
//!    `Store::on_behalf_of(caller)`. The daemon's own writes are called on the [`Store`]. A closure
//!    calls methods of [`WriteTx`] and of its families, and awaits nothing else.
//! 2. The job waits in the queue of its principal (`writer.rs`).
//! 3. The writer, on a thread of its own, yields once, so that tasks which the last commit
//!    woke can queue jobs. It then takes jobs from the principals' queues in turn (round robin),
//!    bounded by jobs, bytes and time (`JOBS_PER_COMMIT`, `RUNS_PER_COMMIT`, `COMMIT_BYTES`).
//! 4. An append gets its seqs from memory (`tx.rs`). Statements run on the writer's thread,
//!    through its one connection (`sqlite/direct_connection.rs`). Each job runs once.
//! 5. A job that fails or panics rolls back only its own changes: where a commit has several jobs
//!    with statements, each job opens a savepoint before its first statement that writes.
//! 6. The events of the group are one insert (`sqlite/direct_connection.rs`). The commit syncs the
//!    disk. Then the writer answers the callers and the [`Bus`] wakes readers. If the commit fails,
//!    every caller gets the failure, and the writer drops its cached stream states.
//!
//! No job changes more than about 1,000 rows. A broadcast, retention and sweeps
//! (`families/maintain.rs`) are many jobs; each job leaves the remaining rows such that the same
//! query finds them. A write that should change a row and changes none is an error.
//!
//! # How a reader catches up
//!
//! `families/frames.rs` copies rows of the table into frames for the socket, a page at a time. A
//! reader holds no thread, connection or snapshot while its client takes a page. The bus keeps the
//! tail of each followed stream in memory: the events of the last commits, up to `TAIL_BYTES`. The
//! first reader that asks renders a commit's frames; all others share them. A cursor that is behind
//! the tail reads the table.
//!
//! # Opening the file
//!
//! The kernel releases `svc.db.lock` when a daemon dies. The next daemon takes the lock
//! (`sqlite/file.rs`), opens the file, and migrates if need be (`sqlite/migrate.rs`; the baseline
//! creates the schema of an empty file in one step). Acknowledged writes are in the file or its
//! write-ahead log; all others are rolled back.

#![cfg_attr(
    not(feature = "postgres"),
    expect(
        clippy::infallible_destructuring_match,
        clippy::unnecessary_wraps,
        clippy::unused_async,
        reason = "what has one engine and waits for none reads like what has two"
    )
)]

/// The closure of a write job: what it does to the transaction `tx`, as a future that owns all that
/// it names.
#[macro_export]
macro_rules! job {
    (|$tx:pat_param| $work:block) => { move |$tx| ::std::boxed::Box::pin(async move $work) };
    (|$tx:pat_param| $work:expr) => { move |$tx| ::std::boxed::Box::pin(async move { $work }) };
}

/// Boxes the future of an async function. The code of a future is generated in each crate that
/// awaits it, with all that it awaits itself, unless it is boxed.
pub use async_recursion::async_recursion as boxed;
pub use svc_boxed::boxed_methods;

mod bus;
mod columns;
mod error;
pub mod families;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(not(feature = "postgres"))]
#[path = "without_postgres.rs"]
mod postgres;
mod readers;
mod rows;
mod sqlite;
mod statement;
mod store;
#[cfg(any(test, feature = "testing"))]
mod tests;
mod tx;
mod upkeep;
mod writer;

pub use bus::{
    Batch, Bus, Commit, EntryDelta, EntryListener, ListenerRead, PrecedingEvent, StreamListener,
    UnfinishedEntries, render,
};
pub use error::{
    CopyError, EngineError, MigrateError, RestoreError, Result, StoreError, StoreTrouble,
};
pub use families::UndeliveredChoice;
#[cfg(all(feature = "postgres", any(test, feature = "testing")))]
pub use postgres::testing as scratch_server;
pub use postgres::{inspect_server, look_at_server, migrate_server, move_to_file, move_to_server};
pub use rows::*;
pub use sqlite::{
    DatabaseLock, LockError, backup, gone_to, last_backup, note_backup, prepare_restore,
    schema_difference,
};
pub use store::{PrincipalWrites, Store, Writer};
#[cfg(any(test, feature = "testing"))]
pub use tests::testing;
pub use tx::WriteTx;
pub use upkeep::{
    CopyReport, LastBackup, Migrations, OpenOptions, PostgresOptions, ServerReport, ServerSync,
    SizeSample, StoreSize, TrimOutcome,
};
pub use writer::{COMMIT_SECONDS, WriteQueueKey, WriterStats};
