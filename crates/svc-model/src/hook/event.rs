//! An event of a client's session, in one vocabulary for all clients.

use svc_outcome::RunVerdict;

use super::{ClientPrompt, HookClient};
use crate::{PeerStatus, Timestamp, WaitingFor, WaitingKind, journal::SessionSource};

/// Something that happened in a client's session.
#[derive(Debug, Clone, PartialEq)]
pub struct HookEvent {
    pub client: HookClient,
    /// The client's own name of the event.
    pub name: String,
    /// The client's own id of the session.
    pub session_id: String,
    /// The sub-agent in which it happened; empty for the session itself.
    pub agent_id: String,
    /// The working folder.
    pub cwd: Option<String>,
    /// Whether the client asks its person before it uses tools, in its own word.
    pub permission_mode: Option<String>,
    /// What happened.
    pub moment: HookMoment,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum HookMoment {
    /// The session begins, or begins again.
    Start {
        /// How it begins.
        source: SessionSource,
    },
    /// A person, or whoever plays one, said something.
    Prompt {
        /// The words.
        text: String,
    },
    /// A tool is about to run.
    ToolStart(HookToolUse),
    /// A tool has run, or failed.
    ToolEnd(HookToolUse),
    /// The turn is over.
    Stop {
        /// Whether this turn goes on only because a hook wanted it to.
        again: bool,
        /// Its last words; `None` if the client does not tell them.
        words: Option<String>,
    },
    /// The client shows its person a prompt, and the turn goes on with the answer.
    Waiting(HookPrompt),
    /// Such a prompt was answered.
    Answered(Option<PromptReply>),
    /// The turn is over without last words: its person ended it, or it failed.
    TurnOver {
        /// Why it failed, on one line.
        failure: Option<String>,
    },
    /// The turn is over: the vendor refuses for usage.
    Refused(UsageLimit),
    /// The client waits within the turn for the end of a usage limit, and goes on then; `None` once
    /// it does.
    Retry(Option<UsageLimit>),
    /// The client replaced the model's context by a summary.
    Compacted,
    /// The session is over.
    End {
        /// The client's word for why.
        reason: Option<String>,
    },
    /// Anything else: a sign of life.
    Other,
}

/// A usage limit, as a client tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageLimit {
    /// The client's words, on one line.
    pub said: String,
    /// When it ends; `None` if the client does not tell.
    pub until: Option<Timestamp>,
}

impl UsageLimit {
    /// What a session waits for that reached it at this time.
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

/// How a prompt was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptReply {
    /// The client's id of the prompt.
    pub prompt: String,
    /// The id of the option, if the client tells it.
    pub option_id: Option<String>,
}

/// What a client asks its person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookPrompt {
    /// What is wanted.
    pub kind: WaitingKind,
    /// What is asked, such as a command, on one line; `None` if the client does not say it.
    pub title: Option<String>,
    /// The tool that is to run.
    pub tool: Option<String>,
    /// What the hook itself may answer.
    pub asks: Option<Box<ClientPrompt>>,
}

/// One use of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct HookToolUse {
    /// The tool, by the client's name for it.
    pub tool: String,
    /// The client's id of this use.
    pub use_id: Option<String>,
    pub arguments: serde_json::Value,
    /// Set once the use is over, if it was a test, a build or a check.
    pub run: Option<CheckedRun>,
}

/// A test, a build or a check that a session ran.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedRun {
    pub command: String,
    /// How it went.
    pub verdict: RunVerdict,
}

impl HookToolUse {
    /// What names this use among those of its session.
    pub fn call(&self) -> &str {
        self.use_id.as_deref().unwrap_or(&self.tool)
    }

    /// Whether it calls this tool of ours: `mcp_svc_peer_list` and `svc_peer_list` are `peer_list`,
    /// and so is a `ToolCall` of it.
    pub fn calls(&self, ours: &str) -> bool {
        self.is_named(ours) || (self.is_named("ToolCall") && self.arguments["name"] == ours)
    }

    fn is_named(&self, ours: &str) -> bool {
        let prefix = self.tool.strip_suffix(ours);
        prefix.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('_'))
    }
}

impl HookMoment {
    /// The status that the session's peer has from now on; `None` if the event says nothing about
    /// that.
    pub fn peer_status(&self) -> Option<PeerStatus> {
        match self {
            // A context is cut down within a turn as well as between two.
            Self::Start { source: SessionSource::Compact } | Self::Compacted | Self::Other => None,
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
    /// Whether it happened in a sub-agent.
    pub fn is_of_sub_agent(&self) -> bool {
        !self.agent_id.is_empty()
    }

    /// Whether the session begins, or begins again.
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

    /// Whether what is said in return would reach the model.
    pub fn takes_context(&self) -> bool {
        use HookMoment::{Prompt, Start, Stop, ToolEnd, ToolStart};
        match (self.client, &self.moment) {
            (_, Start { .. } | Prompt { .. } | ToolEnd(_)) => {
                self.client != HookClient::Opencode
                    || matches!(self.moment, Prompt { .. } | ToolEnd(_))
            }
            // Claude Code overrules a hook that goes on too often, and its idle session can be
            // woken.
            (HookClient::ClaudeCode, Stop { again, .. }) => !again,
            (HookClient::ClaudeCode | HookClient::Codex, ToolStart(_))
            | (HookClient::Codex | HookClient::Gemini, Stop { .. }) => true,
            _ => false,
        }
    }
}
