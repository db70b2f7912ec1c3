//! One running server.
//!
//! Reading order: `parts` is what it is made of and what it tells, `start` starts and ends it, `keeper` starts it again when it
//! ends, `handle` is what callers have.

mod handle;
mod keeper;
mod parts;
mod start;

pub(super) use handle::Instance;
pub(super) use parts::{InstanceParts, ResourceMove, StartLesson};
