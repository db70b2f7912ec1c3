//! One running server. `start` starts and ends it, `keeper` restarts it when it ends and is the
//! handle for callers.

mod keeper;
mod start;

pub(super) use keeper::Instance;
pub(super) use start::{InstanceParts, ResourceMove, StartLesson};
