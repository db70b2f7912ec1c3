//! The room itself: what its calls stand on.

use crate::service::core::Core;

/// The room of the log.
#[derive(Debug, Clone)]
pub struct Log {
    pub(super) core: Core,
}

impl Log {
    pub(in crate::service) fn new(core: Core) -> Self {
        Self { core }
    }
}
