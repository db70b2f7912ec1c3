//! Search of past records, and which of them proved useful.

mod experiences;
pub mod retrieval;
mod usefulness;

pub use experiences::{ExperienceQuery, Hit, find};

pub(super) use usefulness::{factor, note as note_confirmed};

use super::core::Core;

/// The room of search.
#[derive(Debug, Clone)]
pub struct Search {
    core: Core,
}

impl Search {
    pub(super) fn new(core: Core) -> Self {
        Self { core }
    }
}
