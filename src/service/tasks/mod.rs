//! Tasks: made by anybody, run by somebody, watched by all.

mod records;

use std::sync::Arc;

pub use records::{Cancelled, Created, LastFrames, TaskWatch};

use super::{core::Core, read_cache::ReadCache};
use crate::domain::Task;

/// The room of tasks.
#[derive(Debug, Clone)]
pub struct Tasks {
    core: Core,
    read: Arc<ReadCache<Task>>,
}

impl Tasks {
    pub(super) fn new(core: Core) -> Self {
        Self { core, read: Arc::default() }
    }
}
