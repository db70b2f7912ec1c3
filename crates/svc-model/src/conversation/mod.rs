//! Conversations between sessions: what one session asks another, and what comes of it.
//!
//! - `provenance`: by which call a message came, of which session, in which run.
//! - `policy`: whom a session may see and send to, with the reason where it may not.
//! - `wait`: who waits for whom, and the circle that a further wait would close.
//! - `run`: the states of a send with its turn and its reply, and how far replies answer replies.
//! - `redact`: secrets of known shapes in what is shown of a conversation.

mod policy;
mod provenance;
mod redact;
mod run;
mod wait;

pub use policy::{
    AllowRule, SessionDenial, SessionParty, SessionSight, SessionsPolicy, SessionsVisibility,
};
pub use provenance::{Provenance, ProvenanceKind, SourceTool};
pub use redact::redacted;
pub use run::{RunMode, RunState, SendStatus, TurnReply, next_turn};
pub use wait::{WaitEdge, wait_circle};
