//! One running server. `start` starts and ends it, `keeper` starts it again when it ends and is
//! what callers have.

mod keeper;
mod start;

pub(super) use keeper::Instance;
pub(super) use start::{InstanceParts, ResourceMove, StartLesson};
