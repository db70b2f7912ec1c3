//! The room of the journal.

use crate::service::{core::Core, search::Search, team::Team};

/// The room of GHAP records, memories and values.
#[derive(Debug, Clone)]
pub struct Journal {
    pub(super) core: Core,
    pub(super) team: Team,
    pub(super) search: Search,
}

impl Journal {
    pub(in crate::service) fn new(core: Core, team: Team, search: Search) -> Self {
        Self { core, team, search }
    }
}
