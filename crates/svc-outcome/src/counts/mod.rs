//! What the output of a runner says: how many passed, failed and were skipped, and what failed first.
//!
//! Each tool has a line of its own that sums up; only such a line counts, as the output of what is tested may say anything.
//! Where it is not known which tool writes (`npm test`, `make check`) all of them are tried, so their lines have to be told
//! apart by themselves.

mod checks;
mod line;
mod read;
mod report;
mod test_runners;

pub(super) use read::{is_cut, read};
pub(super) use report::RunReport;
