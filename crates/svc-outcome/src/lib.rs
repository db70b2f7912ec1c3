//! The outcome of the tests, builds and checks that clients run in their shells.
//!
//! `shell` splits a command line, [`runner_of`] finds the test or build program in it,
//! `line_status` says what the status of the line means for it, `counts` reads its output, and
//! [`judge`] gives the verdict. All of it takes time linear in its input.

mod counts;
mod line_status;
mod runner;
mod shell;
mod tools;
mod verdict;

#[cfg(test)]
mod tests;

pub use runner::runner_of;
pub use tools::{RunKind, Runner};
pub use verdict::{MAX_SUMMARY_BYTES, RunResult, RunVerdict, ToolRun, judge};
