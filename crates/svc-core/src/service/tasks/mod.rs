//! Tasks: made by somebody, run by somebody, watched by those who may read them.

mod records;
mod room;
mod sweep;

pub use records::{Cancelled, Created, LastFrames, TaskWatch};
pub use room::Tasks;

pub(super) use records::{apply, make, stream_of};
