//! An event of a client's session, in one vocabulary for all clients.

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use svc_outcome::RunVerdict;

use super::{
    CodexPrompt,
    prompt::{AnswerRequest, ClaudePrompt, OpencodePrompt, RefusedAnswer},
};
use crate::{
    PeerStatus, Timestamp, WaitingFor, WaitingKind,
    agent::{RequestKind, RequestOption},
    journal::SessionSource,
    words::words,
};

words! {
    /// A kind of client.
    pub enum HookClient {
        /// Claude Code.
        ClaudeCode = "claude-code",
        /// Codex CLI.
        Codex = "codex",
        /// Gemini CLI.
        Gemini = "gemini",
        /// opencode.
        Opencode = "opencode",
    }
}

/// The shape of what a hook prints.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum HookFormat {
    /// The client's own.
    #[default]
    Client,
    /// `{"type": …}`, for scripts that read them.
    Spec,
}

impl HookClient {
    /// Whether a session continues with what a hook says at the end of a turn. opencode takes
    /// messages only at tool calls and prompts.
    pub const fn goes_on_at_stop(self) -> bool {
        !matches!(self, Self::Opencode)
    }

    /// The client with this name on the command line; `claude` is Claude Code.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "claude" => Some(Self::ClaudeCode),
            name => Self::ALL.into_iter().find(|client| client.as_str() == name),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct HookEvent {
    pub client: HookClient,
    /// The client's own name of the event.
    pub name: String,
    /// The client's own id of the session.
    pub session_id: String,
    /// The sub-agent in which it happened; empty for the session itself.
    pub agent_id: String,
    pub cwd: Option<String>,
    /// The client's own word for when it asks its person before it uses tools.
    pub permission_mode: Option<String>,
    pub moment: HookMoment,
}

#[derive(Debug, Clone, PartialEq)]
pub enum HookMoment {
    Start {
        source: SessionSource,
    },
    /// A prompt, by a person or by a program in place of one.
    Prompt {
        text: String,
    },
    ToolStart(HookToolUse),
    ToolEnd(HookToolUse),
    /// All tools that the model called at once are over: each has run, or was denied.
    BatchEnd,
    Stop {
        /// Whether a hook prolonged this turn.
        again: bool,
        /// The model's last words; `None` if the client does not report them.
        words: Option<String>,
    },
    /// The client shows its person a prompt. The turn continues with the answer.
    Waiting(HookPrompt),
    Answered(Option<PromptReply>),
    /// The turn is over without last words: its person ended it, or it failed.
    TurnOver {
        /// Why it failed, on one line.
        failure: Option<String>,
    },
    /// The turn is over, because the vendor refuses after too much usage.
    Refused(UsageLimit),
    /// The client waits within the turn for the end of a usage limit; `None` when the turn
    /// continues.
    Retry(Option<UsageLimit>),
    /// The client replaced the model's context by a summary.
    Compacted,
    End {
        /// The client's word for why.
        reason: Option<String>,
    },
    /// Anything else, which only shows that the session is alive.
    Other,
}

/// A usage limit, as a client reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageLimit {
    /// The client's words, on one line.
    pub said: String,
    /// When it ends; `None` if the client does not say so.
    pub until: Option<Timestamp>,
}

impl UsageLimit {
    /// What a session waits for that reached the limit at this time.
    pub fn waiting_for(&self, since: Timestamp) -> WaitingFor {
        WaitingFor {
            kind: WaitingKind::Limit,
            since,
            title: Some(self.said.clone()),
            tool: None,
            until: self.until,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptReply {
    /// The client's id of the prompt.
    pub prompt: String,
    /// The id of the option, if the client reports it.
    pub option_id: Option<String>,
}

/// What a client asks its person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookPrompt {
    pub kind: WaitingKind,
    /// What is asked, such as a command, on one line; `None` if the client does not say it.
    pub title: Option<String>,
    pub tool: Option<String>,
    /// The prompt itself, if it can be answered here.
    pub asks: Option<Box<ClientPrompt>>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct HookToolUse {
    /// The tool, by the client's name for it.
    pub tool: String,
    /// The client's id of this use.
    pub use_id: Option<String>,
    pub arguments: Value,
    /// Set once the use is over, if it was a test, a build or a check.
    pub run: Option<CheckedRun>,
}

/// A test, a build or a check that a session ran.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedRun {
    pub command: String,
    pub verdict: RunVerdict,
}

impl HookToolUse {
    #[cfg(test)]
    pub(super) fn example(tool: &str) -> Self {
        let arguments = Value::Null;
        Self { tool: tool.to_owned(), use_id: None, arguments, run: None }
    }

    /// What identifies this use within its session.
    pub fn call(&self) -> &str {
        self.use_id.as_deref().unwrap_or(&self.tool)
    }

    /// Whether it calls this tool of `svc`: `mcp_svc_peer_list` and `svc_peer_list` are
    /// `peer_list`, and so is a `ToolCall` of it.
    pub fn calls(&self, ours: &str) -> bool {
        self.is_named(ours) || (self.is_named("ToolCall") && self.arguments["name"] == ours)
    }

    fn is_named(&self, ours: &str) -> bool {
        let prefix = self.tool.strip_suffix(ours);
        prefix.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('_'))
    }
}

impl HookMoment {
    /// The status of the session's peer from now on; `None` if the event does not say it.
    pub fn peer_status(&self) -> Option<PeerStatus> {
        match self {
            // A client compacts its context within a turn or between two turns.
            // A sub-agent may wait for its person at the end of a batch.
            Self::Start { source: SessionSource::Compact }
            | Self::BatchEnd
            | Self::Compacted
            | Self::Other => None,
            Self::Start { .. } => Some(PeerStatus::Online),
            Self::Prompt { .. }
            | Self::ToolStart(_)
            | Self::ToolEnd(_)
            | Self::Answered(_)
            | Self::Retry(None) => Some(PeerStatus::Busy),
            Self::Waiting(_) | Self::Refused(_) | Self::Retry(Some(_)) => Some(PeerStatus::Waiting),
            Self::Stop { .. } | Self::TurnOver { .. } => Some(PeerStatus::Idle),
            Self::End { .. } => Some(PeerStatus::Offline),
        }
    }
}

impl HookEvent {
    pub fn is_of_sub_agent(&self) -> bool {
        !self.agent_id.is_empty()
    }

    pub fn is_start(&self) -> bool {
        matches!(self.moment, HookMoment::Start { .. })
    }

    /// The tool call that this event counts: of a use's start and end, the one at which the client
    /// takes context, so that a reminder reaches the model. Gemini drops what comes before a tool,
    /// and opencode takes nothing there.
    pub fn counted_tool(&self) -> Option<&HookToolUse> {
        match (self.client, &self.moment) {
            (HookClient::ClaudeCode | HookClient::Codex, HookMoment::ToolStart(tool))
            | (HookClient::Gemini | HookClient::Opencode, HookMoment::ToolEnd(tool)) => Some(tool),
            _ => None,
        }
    }

    /// The test, build or check that is over with this event.
    pub fn finished_run(&self) -> Option<(&HookToolUse, &CheckedRun)> {
        match &self.moment {
            HookMoment::ToolEnd(tool) => Some((tool, tool.run.as_ref()?)),
            _ => None,
        }
    }

    #[cfg(test)]
    pub(super) fn example(client: HookClient, name: &str, moment: HookMoment) -> Self {
        Self {
            client,
            name: name.to_owned(),
            session_id: "s".to_owned(),
            agent_id: String::new(),
            cwd: None,
            permission_mode: None,
            moment,
        }
    }

    /// Whether the reply would reach the model.
    pub fn takes_context(&self) -> bool {
        use HookMoment::{Prompt, Start, Stop, ToolEnd, ToolStart};
        match (self.client, &self.moment) {
            (_, Start { .. } | Prompt { .. } | ToolEnd(_)) => {
                self.client != HookClient::Opencode
                    || matches!(self.moment, Prompt { .. } | ToolEnd(_))
            }
            // Claude Code overrules a hook that prolongs a turn too often, and its idle session can
            // be woken.
            (HookClient::ClaudeCode, Stop { again, .. }) => !again,
            (HookClient::ClaudeCode | HookClient::Codex, ToolStart(_))
            | (HookClient::Codex | HookClient::Gemini, Stop { .. }) => true,
            _ => false,
        }
    }
}

/// What a client asks its person, in the client's own form, with the answer beside the client's
/// dialog.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "client", rename_all = "snake_case")]
pub enum ClientPrompt {
    Claude(ClaudePrompt),
    Codex(CodexPrompt),
    Opencode(OpencodePrompt),
}

macro_rules! of_each {
    ($self:ident, $prompt:ident => $value:expr) => {
        match $self {
            Self::Claude($prompt) => $value,
            Self::Codex($prompt) => $value,
            Self::Opencode($prompt) => $value,
        }
    };
}

impl ClientPrompt {
    pub fn kind(&self) -> RequestKind {
        of_each!(self, prompt => prompt.kind())
    }

    /// What is asked, on one line.
    pub fn title(&self) -> String {
        of_each!(self, prompt => prompt.title())
    }

    /// The call: `{name, input}`.
    pub fn tool(&self) -> Value {
        of_each!(self, prompt => prompt.tool())
    }

    pub fn options(&self) -> Vec<RequestOption> {
        of_each!(self, prompt => prompt.options())
    }

    /// What the client takes for this answer: what the hook prints, the result of the app-server's
    /// request, or what the plugin posts. Fails if the prompt takes no such answer.
    pub fn output(&self, answer: &AnswerRequest) -> Result<Value, RefusedAnswer> {
        of_each!(self, prompt => prompt.output(answer))
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
