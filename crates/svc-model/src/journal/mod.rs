//! The journal: sessions of clients, and records of their attempts (goal, hypothesis, action,
//! prediction).

mod outcome;
mod record;
mod session;
mod texts;
mod tier;
mod vocabulary;

pub use outcome::Outcome;
pub use record::{Ghap, GhapChange, GhapDraft, GhapEnd, Iteration, Lesson, Resolution, RootCause};
pub use session::{Session, ToolUse};
pub use tier::{is_vague, tier};
pub use vocabulary::{
    Domain, GhapStatus, OutcomeVerdict, RootCauseCategory, SessionSource, Strategy, Tier, Verdict,
};

pub(super) use vocabulary::words;
