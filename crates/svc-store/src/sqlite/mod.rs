//! The SQLite engine, and the only SQL in the program: one file, one writer, a few readers.
//!
//! Reading order: `db` opens the file, `writer` turns queued jobs into commits, `tx` is the
//! interface of a write job. `families` lists the stored rows: one file for each family of rows has
//! its reads (`PeerReads`) and what write jobs may do with it (`PeerWrites`). `columns` maps values
//! of the domain to columns.

mod agent;
mod assignment;
mod browser;
mod calibration;
mod columns;
mod confirmation;
mod connect;
mod count;
mod db;
pub(crate) mod direct_connection;
mod errors;
pub mod families;
mod files;
mod frame_readers;
mod frames;
mod handover;
mod hook;
mod inbox;
#[cfg(test)]
mod job_tests;
mod journal;
mod json;
mod lock;
mod machine;
mod maintain;
mod mcp;
mod memory;
mod message;
mod migrate;
mod outcome;
mod page;
mod peer;
#[cfg(test)]
mod plan_tests;
mod project;
mod read_query;
#[cfg(test)]
mod reader_tests;
mod replay;
mod request;
mod restore;
pub(crate) mod row;
#[cfg(test)]
mod row_check_tests;
mod row_readers;
mod search;
mod seen;
mod session;
mod setting;
mod source;
mod statement;
mod streams;
mod sweep;
mod task;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod token;
mod tx;
mod values;
pub(crate) mod visibility;
mod write_connection;
mod write_queue;
mod writer;
#[cfg(test)]
mod writer_tests;

pub use db::{PrincipalWrites, Store, Writer};
pub use files::{backup, last_backup, note_backup};
pub use inbox::UndeliveredChoice;
pub use lock::{DatabaseLock, LockError};
pub use restore::{gone_to, prepare_restore, schema_difference};
pub use search::SearchIndex;
pub use tx::WriteTx;
pub use write_queue::WriteQueueKey;
