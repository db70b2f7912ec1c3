use std::sync::Arc;

use tokio::sync::Mutex;

use crate::service::{core::Core, search::Search, team::Team};

/// The service of GHAP records, memories and values.
#[derive(Debug, Clone)]
pub struct Journal {
    pub(super) core: Core,
    pub(super) team: Team,
    pub(super) search: Search,
    /// Held while records are clustered: that keeps a core busy, and should not do so twice.
    pub(super) grouping: Arc<Mutex<()>>,
}

impl Journal {
    pub(in crate::service) fn new(core: Core, team: Team, search: Search) -> Self {
        Self { core, team, search, grouping: Arc::default() }
    }
}
