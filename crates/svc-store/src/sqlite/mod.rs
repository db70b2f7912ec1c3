//! The SQLite engine: one file, one writer, a few readers.
//!
//! `file` has the lock, the settings of connections and the copies, `migrate` the versions of the
//! schema, `restore` the check of a backup. `direct_connection` has the writer's connection,
//! and those of short reads and of replays. Statements are not here: families of rows have them.

pub(crate) mod direct_connection;
pub(crate) mod file;
pub(crate) mod migrate;
mod restore;
#[cfg(test)]
mod tests;

pub use file::{DatabaseLock, LockError, backup, last_backup, note_backup};
pub use restore::{gone_to, prepare_restore, schema_difference};
