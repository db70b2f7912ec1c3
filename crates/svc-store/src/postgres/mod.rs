//! The PostgreSQL engine: one schema of a server's database, one writer, a pool of readers.
//!
//! Statements have one text, in `sqlite`: `translate` carries it over, `own_texts` has the few that
//! need another one, and the schema (`migrations/postgres`) defines what both engines call alike.
//! `open` looks at the server and migrates the schema; `write_connection` is the writer's,
//! `listener` has the one that holds the schema and hears of other connections' commits, `readers`
//! all others.

mod connection;
mod copy;
mod copy_rows;
#[cfg(test)]
mod copy_tests;
mod errors;
mod listener;
mod open;
mod own_texts;
mod readers;
mod row;
mod server;
#[cfg(test)]
mod statement_tests;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod translate;
mod write_connection;
mod writer_state;
#[cfg(test)]
mod writer_tests;

use sqlx::postgres::PgRow as ServerRow;

pub(crate) use copy::{move_to_file, move_to_server};
pub(crate) use errors::reported;
pub(crate) use open::{inspect_server, look_at_server, migrate_server, open};
pub(crate) use readers::PgReaders;
pub(crate) use row::event_parts;
pub(crate) use write_connection::PgWriter;

/// A row of PostgreSQL.
pub(crate) type PgRow = ServerRow;

/// The single column of a row.
pub(crate) fn read_column<T: rusqlite::types::FromSql>(row: &PgRow) -> Result<T, sqlx::Error> {
    row::column(row, 0).map_err(connection::unreadable)
}

pub(crate) fn read_row<T: crate::sqlite::row::DirectRow>(row: &PgRow) -> Result<T, sqlx::Error> {
    row::read_row(row).map_err(connection::unreadable)
}
