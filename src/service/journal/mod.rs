//! The journal: GHAP records, what the team remembers, and what both put together for a prompt.

pub mod context;
mod import;
pub mod memories;
pub mod premortem;
mod records;
pub mod values;

pub use import::{Imported, OldGhap};
pub use records::{GhapChange, GhapDetail, NewGhap, NewOutcome, Resolution};

pub(super) use records::put_outcome;

use super::{core::Core, search::Search, team::Team};

/// The room of records, memories and values.
#[derive(Debug, Clone)]
pub struct Journal {
    core: Core,
    team: Team,
    search: Search,
}

impl Journal {
    pub(super) fn new(core: Core, team: Team, search: Search) -> Self {
        Self { core, team, search }
    }
}
