use std::sync::Arc;

use serde::Serialize;
use svc_model::{Ownership, Task};

use crate::service::{core::Core, read_cache::ReadCache};

/// The service of tasks.
#[derive(Debug, Clone)]
pub struct Tasks {
    pub(super) core: Core,
    pub(super) read: Arc<ReadCache<OwnedTask>>,
}

/// A task with its ownership.
#[derive(Debug, Serialize)]
pub(super) struct OwnedTask {
    pub(super) task: Arc<Task>,
    #[serde(skip)]
    pub(super) owned: Ownership,
}

impl Tasks {
    pub(in crate::service) fn new(core: Core) -> Self {
        Self { core, read: Arc::default() }
    }
}
