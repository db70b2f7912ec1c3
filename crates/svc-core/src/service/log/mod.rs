//! The event log: pages, readers that follow it, and retention.
//!
//! `cursor` says where a reader begins. Every reader that follows the log is built on `source`:
//! `subscription` returns frames, `follower` events, `reading` one response. `pages` and
//! `stream_moves` do not follow.

mod cursor;
mod follower;
mod growth;
mod pages;
mod reading;
mod retention;
mod source;
mod stream_changes;
mod subscription;
mod upkeep;

use crate::service::core::Core;

pub use cursor::{Gap, Selector, StartAfter};
pub use follower::StreamFollower;
pub use growth::{Growth, SizeBound};
pub use pages::EventPage;
pub use reading::EventReading;
pub use stream_changes::{StreamChanges, StreamEnd};
pub use subscription::{Subscription, SubscriptionChunk};
pub use upkeep::LogStatus;

pub use svc_store::{COMMIT_SECONDS, WriterStats};

/// The service of the log.
#[derive(Debug, Clone)]
pub struct Log {
    core: Core,
}

impl Log {
    pub(in crate::service) fn new(core: Core) -> Self {
        Self { core }
    }
}
