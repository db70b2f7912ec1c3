//! A prompt of a client that takes an answer beside its dialog.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    claude_prompt::{ClaudePrompt, PromptAnswer, RefusedAnswer},
    codex_prompt::CodexPrompt,
    opencode_prompt::OpencodePrompt,
};
use crate::agent::{RequestKind, RequestOption};

/// What a client asks, in its own form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "client", rename_all = "snake_case")]
pub enum ClientPrompt {
    Claude(ClaudePrompt),
    Codex(CodexPrompt),
    Opencode(OpencodePrompt),
}

impl ClientPrompt {
    pub fn kind(&self) -> RequestKind {
        match self {
            Self::Claude(prompt) => prompt.kind(),
            Self::Codex(prompt) => prompt.kind(),
            Self::Opencode(prompt) => prompt.kind(),
        }
    }

    /// What is asked, on one line.
    pub fn title(&self) -> String {
        match self {
            Self::Claude(prompt) => prompt.title(),
            Self::Codex(prompt) => prompt.title(),
            Self::Opencode(prompt) => prompt.title(),
        }
    }

    /// The call: `{name, input}`.
    pub fn tool(&self) -> Value {
        match self {
            Self::Claude(prompt) => prompt.tool(),
            Self::Codex(prompt) => prompt.tool(),
            Self::Opencode(prompt) => prompt.tool(),
        }
    }

    pub fn options(&self) -> Vec<RequestOption> {
        match self {
            Self::Claude(prompt) => prompt.options(),
            Self::Codex(prompt) => prompt.options(),
            Self::Opencode(prompt) => prompt.options(),
        }
    }

    /// What the client takes for an answer.
    ///
    /// # Errors
    /// If the prompt takes no such answer.
    pub fn output(&self, answer: PromptAnswer<'_>) -> Result<Value, RefusedAnswer> {
        match self {
            Self::Claude(prompt) => prompt.output(answer),
            Self::Codex(prompt) => prompt.output(answer),
            Self::Opencode(prompt) => prompt.output(answer),
        }
    }

    /// Whether both are one prompt, by the client's own id of it.
    pub fn is_same(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
            && self.id().is_some_and(|id| other.id() == Some(id))
    }

    /// The client's own id of the prompt, if it has one.
    pub fn id(&self) -> Option<&str> {
        match self {
            Self::Claude(_) => None,
            Self::Codex(prompt) => Some(&prompt.id),
            Self::Opencode(prompt) => Some(&prompt.id),
        }
    }
}
