//! The event log: pages of it, subscriptions that follow it, and what retention removes.

mod reading;
mod retention;
mod stream_moves;
mod subscription;

pub use reading::Reading;
pub use retention::Retention;
pub use stream_moves::{StreamEnd, StreamMoves};
pub use subscription::{After, Chunk, EventPage, Follow, Gap, GapReason, Selector, Subscription};

use super::core::Core;

/// The room of the log.
#[derive(Debug, Clone)]
pub struct Log {
    core: Core,
}

impl Log {
    pub(super) fn new(core: Core) -> Self {
        Self { core }
    }
}
