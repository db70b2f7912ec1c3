//! Search of past records, and which of the found records proved useful.

mod experiences;
mod prompt;

use crate::service::core::Core;

pub use experiences::{ExperienceHit, ExperienceQuery, find};

pub(super) use experiences::{confirmation_factor, note_confirmed};

#[derive(Debug, Clone)]
pub struct Search {
    core: Core,
}

impl Search {
    pub(in crate::service) fn new(core: Core) -> Self {
        Self { core }
    }
}
