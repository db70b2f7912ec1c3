//! Conversations between sessions: sends, and their results.
//!
//! - `provenance`: the call, session and run that a message came from.
//! - `policy`: which sessions a session may see and send to, with the reason of a denial.
//! - `wait`: the graph of waits, and the cycle that a further wait would close.
//! - `run`: the states of a send with its turn and its reply, and the bound of replies to replies.
//! - `redact`: removes secrets of known formats from what is shown of a conversation.

mod policy;
mod provenance;
mod redact;
mod run;
mod wait;

pub use policy::{
    AllowRule, SessionDenial, SessionParty, SessionRelation, SessionsPolicy, SessionsVisibility,
};
pub use provenance::{Provenance, ProvenanceKind, SourceTool};
pub use redact::redacted;
pub use run::{RunMode, RunState, SendStatus, TurnReply, next_turn};
pub use wait::{WaitEdge, wait_cycle};
