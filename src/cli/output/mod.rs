//! What goes to the terminal: tables and sentences for people, JSON for programs.
//!
//! - [`write`]: the only way to stdout. Lines, blocks, JSON documents and exact bytes; one object,
//!   a line for each field, or a nested document; a text that is wrapped or truncated to the
//!   screen.
//! - [`screen`]: the reader. A [`Screen`] has the width of a row, whether colours are wanted, and
//!   the current time; it renders relative times, times of day, and the colour of a state.
//! - [`column`]: the content of a column: an id, a state, a time, a folder, a number, a text.
//! - [`table`]: a table that fits the screen; a page of a list as such a table or as JSON, the text
//!   for an empty list, and the command for the next page.
//!
//! # A list, for people and for programs
//!
//! ```text
//! const LIST: Listing = Listing {
//!     items: "hosts",
//!     columns: &[
//!         Column::id("AGENT", "agent_id"),
//!         Column::text("NAME", "name"),
//!         Column::state("STATE", "state"),
//!         Column::path("FOLDER", "cwd").rank(2),
//!         Column::time("STARTED", "started_at").rank(1),
//!     ],
//!     empty: "no agent runs; `svc agent start claude` starts one",
//!     next: Some("--cursor"),
//! };
//! // Prints JSON if `--json` was given, else the table.
//! LIST.print(context, &page)?;
//! ```
//!
//! A column of rank 0 is always shown, unless it can be spared. If the screen is too narrow, the
//! columns with the highest rank are hidden first. A screen also hides a column without any value,
//! and one with its usual value in all rows. Names are truncated last. With `--full` a screen gets
//! all columns and whole cells, and a program (a pipe) gets them always, with exact times. Print
//! one object with [`object`]. Pass text of others
//! through [`visible`] before it becomes part of a sentence.

mod column;
mod screen;
mod table;
mod write;

pub(crate) use column::{Column, short};
pub(crate) use screen::{ColorChoice, Screen, Style, clock, relative, state_style};
pub(crate) use table::Listing;
pub(crate) use write::{
    OutputClosed, block, cell, cut, exact, fields, items, json, line, ndjson, note, notes, object,
    plain, readable, styled_line, visible, wrapped,
};
