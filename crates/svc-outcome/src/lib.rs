//! What came of the tests, builds and checks that clients run in their shells.
//!
//! `shell` takes a command line apart, [`runner_of`] finds the test or build program in it,
//! `counts` reads what that printed, and [`judge`] weighs it with how the command ended. All of it
//! takes time linear in its input.

mod counts;
mod runner;
mod shell;
mod verdict;

#[cfg(test)]
mod tests;

pub use runner::{RunKind, Runner, runner_of};
pub use verdict::{MAX_SUMMARY_BYTES, RunResult, RunVerdict, ToolRun, judge};
