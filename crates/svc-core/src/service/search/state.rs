use crate::service::core::Core;

/// The service that searches GHAP records.
#[derive(Debug, Clone)]
pub struct Search {
    pub(super) core: Core,
}

impl Search {
    pub(in crate::service) fn new(core: Core) -> Self {
        Self { core }
    }
}
