//! What came of the tests, builds and checks that clients run in their shells.
//!
//! Read it along the way of a command: `shell` takes the line apart, [`runner_of`] finds the runner in it through what it is
//! wrapped in, `counts` reads what the runner said, and [`judge`] weighs that with how the command ended.
//! All of it takes time linear in what it is given.

mod counts;
mod runner;
mod shell;
mod verdict;

#[cfg(test)]
mod tests;

pub use runner::{RunKind, Runner, runner_of};
pub use verdict::{MAX_SUMMARY_BYTES, RunResult, RunVerdict, ToolRun, judge};
