//! Search of past records, and which of them proved useful.

mod candidates;
mod confirmations;
mod experiences;
mod lead;
mod prompt;
pub mod retrieval;
mod state;

pub use experiences::{ExperienceHit, ExperienceQuery, find};
pub use state::Search;

pub(super) use confirmations::{confirmation_factor, note_confirmed};
