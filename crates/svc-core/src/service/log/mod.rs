//! The event log: pages of it, readers that follow it, and what retention removes.
//!
//! `cursor` says where a reader begins, `source` is what every reader that follows is made of:
//! `subscription` gives frames, `follower` events, `reading` one answer. `pages` and `stream_moves`
//! do not follow.

mod cursor;
mod follower;
mod pages;
mod reading;
mod retention;
mod room;
mod source;
mod stream_moves;
mod subscription;
mod upkeep;

pub use cursor::{Gap, Selector, StartAfter};
pub use follower::StreamFollower;
pub use pages::EventPage;
pub use reading::EventReading;
pub use retention::Retention;
pub use room::Log;
pub use stream_moves::{StreamEnd, StreamMoves};
pub use subscription::{Subscription, SubscriptionChunk};
pub use upkeep::LogStatus;

pub use svc_store::{COMMIT_SECONDS, WriterStats};
