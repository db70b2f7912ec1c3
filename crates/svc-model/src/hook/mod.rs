//! Hooks: what a coding agent's client tells of its session as it goes on, and what it can be told
//! in return.
//!
//! `payload` makes one vocabulary (`event`, `client`) of four clients' payloads. `effects` decides
//! what an event changes, `record_notes` what a session is told about GHAP records, `mail` how
//! messages are written for a model. `reply` puts what there is to say into the client's own shape,
//! and `output` says which answers a hook prints. Shapes are those that the installed clients
//! really send and accept (`fixtures/hooks`), and what one of them would refuse, or show as an
//! error, is not sent to it.

mod claude_prompt;
mod client;
mod client_prompt;
mod codex_prompt;
mod effects;
#[cfg(test)]
mod effects_tests;
mod event;
mod headline;
mod mail;
mod opencode_prompt;
mod output;
mod payload;
mod prompt;
mod record_notes;
mod reply;
mod run_payload;
mod title;

pub use claude_prompt::{ClaudePrompt, PromptAnswer, RefusedAnswer};
pub use client::{HookClient, HookFormat};
pub use client_prompt::ClientPrompt;
pub use codex_prompt::CodexPrompt;
pub use effects::{
    AttendedPrompts, HookAudience, HookIdHistory, HookPolicy, HookReception, HookTiming,
    MailHandover, MailOffer, PresenceChange, SessionEffect, ToolCountEffect, audience,
    follow_calls, is_sign_of_life, mail_handover, presence_change, reception, session_effect,
    session_source_of_start, tool_count_effect, waiting_for,
};
pub use event::{
    CheckedRun, HookEvent, HookMoment, HookPrompt, HookToolUse, PromptReply, UsageLimit,
};
pub use headline::{headline, headlines};
pub use mail::{MailDigest, turn_text};
pub use opencode_prompt::OpencodePrompt;
pub use output::{UnexpectedOutput, checked_output};
pub use payload::{MissingField, read, session_of};
pub use record_notes::{EarlierRun, abandoned_record_note, is_evidence, own_record_note, run_note};
pub use reply::{HELD_REQUEST, HookNote, HookReply, ReplyParts};
pub use title::one_line;
