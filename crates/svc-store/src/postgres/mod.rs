//! The PostgreSQL engine: one schema of a server's database, one writer, a pool of readers.
//!
//! Each statement has one text, in `families`. `translate` converts it, and has another text for
//! the few statements that need one; the schema (`migrations/postgres`) defines functions that both
//! engines call by the same name. `open` checks the server and migrates the schema.
//! `write_connection` is the writer's connection, `listener` has the connection that holds the
//! schema's lock and receives notifications of other connections' commits, `readers` has all
//! others.

mod connection;
mod copy;
mod copy_rows;
mod listener;
mod open;
mod readers;
mod row;
#[cfg(any(test, feature = "testing"))]
mod tests;
mod translate;
mod write_connection;

pub(crate) use connection::reported;
pub use copy::{move_to_file, move_to_server};
pub(crate) use open::open;
pub use open::{inspect_server, look_at_server, migrate_server};
pub(crate) use readers::PgReaders;
pub(crate) use row::event_parts;
#[cfg(any(test, feature = "testing"))]
pub use tests::testing;
pub(crate) use write_connection::PgWriter;
