//! What goes to the terminal: tables and sentences for people, JSON for programs.
//!
//! - [`write`]: the only way to stdout. Lines, blocks, JSON documents and exact bytes; one object,
//!   a line for each field; a text that is wrapped or truncated to the screen.
//! - [`screen`]: who reads. A [`Screen`] says how wide a row may be, whether colours are wanted,
//!   and which time it is; relative times, times of day, and the colour of a state.
//! - [`column`]: what stands in a column: an id, a state, a time, a folder, a number, a text.
//! - [`table`]: rows below each other, fitted to the screen; a page of a list as such a table or as
//!   JSON, what to do if it is empty, and the command for the next page.
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
//! A column of rank 0 is always shown. Of the others the one of the highest rank goes first where
//! the screen is too narrow, and one without any value, or with the usual one in all rows, is not
//! shown on a screen. A name is cut last. A program (a pipe) gets all columns, whole ids and exact
//! times. Rows that are no JSON go through [`table`], one object through [`object`], and text that
//! others wrote through [`visible`] wherever it becomes part of a sentence.

mod column;
mod screen;
mod table;
mod write;

pub(crate) use column::{Column, short};
pub(crate) use screen::{ColorChoice, Screen, Style, clock, relative, state_style};
pub(crate) use table::{Listing, table};
pub(crate) use write::{
    OutputClosed, block, cell, cut, exact, fields, items, json, line, ndjson, note, notes, object,
    plain, styled_line, visible, wrapped, wrapped_fields,
};
