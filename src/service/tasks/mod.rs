//! Tasks: made by anybody, run by somebody, watched by all.

mod records;
mod room;

pub use records::{Cancelled, Created, LastFrames, TaskWatch};
pub use room::Tasks;
