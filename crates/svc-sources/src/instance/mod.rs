//! One running server. `start` starts and ends it, `supervisor` restarts it when it ends and is the
//! handle for callers.

mod start;
mod supervisor;

pub(super) use start::{InstanceParts, ResourceChange, StartLists};
pub(super) use supervisor::Instance;
