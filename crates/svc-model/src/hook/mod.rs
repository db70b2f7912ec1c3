//! Hooks: what a coding agent's client reports of its session, and what the reply to a hook can
//! tell the client.
//!
//! `payload` reads the payloads of four clients into one vocabulary (`event`), `run_payload` the
//! results of shell commands in them, `prompt` and `codex_prompt` the prompts that a client shows
//! its person. `effects` decides what an event changes. `reply` writes messages and what a session
//! is told about GHAP records, renders the reply in the client's own shape, and says which answers
//! a hook prints. The shapes are those that the installed clients really send and accept
//! (`fixtures/hooks`): nothing is sent to a client that it would refuse, or show as an error.

mod codex_prompt;
mod effects;
mod event;
mod payload;
mod prompt;
mod reply;
mod run_payload;
#[cfg(test)]
mod tests;

pub use codex_prompt::CodexPrompt;
pub use effects::{
    AttendedPrompts, HookAudience, HookIdHistory, HookPolicy, HookReception, HookTiming,
    MailHandover, MailOffer, OpenCalls, PresenceChange, SessionEffect, ToolCountEffect, audience,
    follow_calls, is_sign_of_life, mail_handover, presence_change, reception, session_effect,
    session_source_of_start, tool_count_effect, waiting_for,
};
pub use event::{
    CheckedRun, ClientPrompt, HookClient, HookEvent, HookFormat, HookMoment, HookPrompt,
    HookToolUse, PromptReply, UsageLimit,
};
pub use payload::{MissingField, read, session_of};
pub use prompt::{AnswerRequest, ClaudePrompt, OpencodePrompt, RefusedAnswer, one_line};
pub use reply::{
    EarlierRun, HELD_REQUEST, HookReply, MailDigest, RunNote, UnexpectedOutput,
    abandoned_record_note, checked_output, headline, headlines, is_evidence, own_record_note,
    run_note, turn_text,
};
