use crate::service::core::Core;

/// The service of the log.
#[derive(Debug, Clone)]
pub struct Log {
    pub(super) core: Core,
}

impl Log {
    pub(in crate::service) fn new(core: Core) -> Self {
        Self { core }
    }
}
