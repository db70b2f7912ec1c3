//! Tests of the crate as a whole, and [`testing`], the stores that tests of other crates use, too.

#[cfg(test)]
mod jobs;
pub mod testing;
#[cfg(test)]
mod writer;
