//! What goes to the terminal: tables and sentences for people, JSON for programs.
//!
//! - [`write`]: the only way to stdout. Lines, blocks, JSON documents and exact bytes; nothing else
//!   writes to standard output or error.
//! - [`screen`]: whom it is for. A [`Screen`] says how wide a row may be, whether colours are
//!   wanted, and which time it is.
//! - [`style`]: the few colours, and the colour of a state.
//! - [`relative_time`]: "3 min ago".
//! - [`clock`]: the time of day, for a feed.
//! - [`column`]: what stands in a column: an id, a state, a time, a folder, a number, a text.
//! - [`table`]: rows below each other, fitted to the screen.
//! - [`listing`]: a page of a list as such a table, or as JSON; what to do if it is empty, and the
//!   command for the next page.
//! - [`record`]: one object, a line for each field.
//! - [`fitting`]: a text that is broken between words, or cut, to fit the screen.
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

mod clock;
mod column;
mod fitting;
mod listing;
mod record;
mod relative_time;
mod screen;
mod style;
mod table;
mod write;

pub(crate) use clock::clock;
pub(crate) use column::{Column, short};
pub(crate) use fitting::{cut, wrapped};
pub(crate) use listing::Listing;
pub(crate) use record::{fields, object, wrapped_fields};
pub(crate) use relative_time::relative;
pub(crate) use screen::{ColorChoice, Screen};
pub(crate) use style::{Style, state_style};
pub(crate) use table::table;
pub(crate) use write::{
    OutputClosed, block, cell, exact, items, json, line, ndjson, note, notes, plain, styled_line,
    visible,
};
