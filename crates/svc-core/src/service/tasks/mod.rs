//! Tasks: made by somebody, run by somebody, watched by those who may read them.

mod change;
mod records;
mod room;
mod sweep;

pub use records::{Cancelled, Created, LastFrames, TaskWatch};
pub use room::Tasks;

pub(super) use change::{apply, stream_of};
pub(super) use records::make;
