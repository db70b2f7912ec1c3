//! The room of the search.

use crate::service::core::Core;

/// The room of the search of GHAP records.
#[derive(Debug, Clone)]
pub struct Search {
    pub(super) core: Core,
}

impl Search {
    pub(in crate::service) fn new(core: Core) -> Self {
        Self { core }
    }
}
