//! The SQLite engine, and the only SQL in the program: one file, one writer, a few readers.
//!
//! Reading order: `db` opens the file, `writer` turns queued jobs into commits, `tx` is the
//! interface of a write job. `families` lists the stored rows: the file of a family has its reads
//! (`PeerReads`) and what write jobs may do with it (`PeerWrites`). `statement` has the macros by
//! which all of them run SQL, `row` maps values of the domain to columns.

mod agent;
mod assignment;
mod db;
pub(crate) mod direct_connection;
pub mod families;
mod file;
mod frames;
mod hook;
mod inbox;
#[cfg(test)]
mod job_tests;
mod journal;
mod machine;
mod maintain;
mod mcp;
mod memory;
mod message;
mod migrate;
mod peer;
mod project;
mod read_query;
#[cfg(test)]
mod reader_tests;
mod request;
mod restore;
pub(crate) mod row;
mod row_readers;
mod search;
mod session;
mod statement;
mod streams;
mod task;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod token;
mod tx;
mod values;
mod write_queue;
mod writer;
#[cfg(test)]
mod writer_tests;

pub use db::{PrincipalWrites, Store, Writer};
pub use file::{DatabaseLock, LockError, backup, last_backup, note_backup};
pub use inbox::UndeliveredChoice;
pub use restore::{gone_to, prepare_restore, schema_difference};
pub use search::SearchIndex;
pub use tx::WriteTx;
pub use write_queue::WriteQueueKey;
