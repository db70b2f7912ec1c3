//! Tasks: their records, output and sweep.

mod change;
mod records;
mod state;
mod sweep;

pub use records::{Cancelled, Created, LastFrames, TaskWatch};
pub use state::Tasks;

pub(super) use change::{apply, stream_of};
pub(super) use records::make;
