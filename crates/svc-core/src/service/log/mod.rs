//! The event log: pages, readers that follow it, and retention.
//!
//! `subscription` says where a reader begins, and every reader that follows the log is built on it:
//! it returns frames, `reading` events. `upkeep` has sizes, retention and maintenance.

mod reading;
mod subscription;
mod upkeep;

use crate::service::core::Core;

pub use reading::{EventPage, EventReading, StreamChanges, StreamEnd, StreamFollower};
pub use subscription::{Gap, Selector, StartAfter, Subscription, SubscriptionChunk};
pub use upkeep::{Growth, LogStatus, SizeBound};

pub use svc_store::{COMMIT_SECONDS, WriterStats};

#[derive(Debug, Clone)]
pub struct Log {
    core: Core,
}

impl Log {
    pub(in crate::service) fn new(core: Core) -> Self {
        Self { core }
    }
}
