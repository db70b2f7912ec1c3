//! The room itself: what its calls stand on.

use crate::domain::Task;
use crate::service::{core::Core, read_cache::ReadCache};
use std::sync::Arc;

/// The room of tasks.
#[derive(Debug, Clone)]
pub struct Tasks {
    pub(super) core: Core,
    pub(super) read: Arc<ReadCache<Task>>,
}

impl Tasks {
    pub(in crate::service) fn new(core: Core) -> Self {
        Self { core, read: Arc::default() }
    }
}
