//! Tasks: their records, output and sweep.

mod change;
mod records;
mod sweep;

use std::sync::Arc;

use serde::Serialize;
use svc_model::{Ownership, Task};

use crate::service::{core::Core, read_cache::ReadCache};

pub use records::{Cancelled, Created, LastFrames, TaskWatch};

pub(super) use change::{apply, stream_of};
pub(super) use records::make;
pub(super) use sweep::end_or_note;

/// The service of tasks.
#[derive(Debug, Clone)]
pub struct Tasks {
    core: Core,
    read: Arc<ReadCache<OwnedTask>>,
}

/// A task with its ownership.
#[derive(Debug, Serialize)]
struct OwnedTask {
    task: Arc<Task>,
    #[serde(skip)]
    owned: Ownership,
}

impl Tasks {
    pub(in crate::service) fn new(core: Core) -> Self {
        Self { core, read: Arc::default() }
    }
}
