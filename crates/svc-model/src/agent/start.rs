//! What a host is started with.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use subtle::ConstantTimeEq as _;

use super::{AgentBackend, PermissionMode};
use crate::{AgentId, new_secret};

/// Environment variable by which an agent and all its descendants are found: the agent's id.
pub const AGENT_MARK: &str = "SVC_AGENT_ID";

/// Proves to a host that an answer to a request of its agent comes from the daemon. The host gets
/// it over standard input, the daemon keeps it in its database, and nobody else has it. With an
/// empty key the host takes no answer.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AnswerKey(String);

impl AnswerKey {
    pub fn random() -> Self {
        Self(new_secret())
    }

    pub const fn from_text(text: String) -> Self {
        Self(text)
    }

    /// The key itself, for the host's input and for the daemon's row.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether a request presents this key. Always false for an empty key.
    pub fn is_shown_by(&self, shown: Option<&Self>) -> bool {
        !self.0.is_empty()
            && shown.is_some_and(|shown| bool::from(self.0.as_bytes().ct_eq(shown.0.as_bytes())))
    }
}

impl fmt::Debug for AnswerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnswerKey(…)")
    }
}

/// What a host is started with. Sent over standard input, because it contains secrets.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSpec {
    pub agent_id: AgentId,
    /// Folder of sockets and spools, absolute.
    pub folder: PathBuf,
    /// The project of its folder; may be empty.
    #[serde(default)]
    pub project: String,
    pub instance: String,
    /// The key of the agent's session, which is its address.
    pub session_key: String,
    pub backend: AgentBackend,
    /// Program and arguments, including those of settings; never empty. The backend adds its own.
    pub command: Vec<String>,
    /// Working folder, absolute.
    pub cwd: PathBuf,
    /// Variables besides those that the backend lets through.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    pub task: Option<String>,
    pub description: Option<String>,
    pub prompt: Option<AgentInput>,
    /// Whether no input follows the first. A program of `exec` then finds the end of its input.
    #[serde(default)]
    pub one_shot: bool,
    #[serde(default)]
    pub permission: PermissionMode,
    /// `exec`: the line that ends a turn.
    pub turn_end: Option<String>,
    pub model: Option<String>,
    /// The vendor's id of a conversation to continue.
    pub resume: Option<String>,
    /// Text for the system side; before the first prompt if the backend has no system side.
    pub system_prompt: Option<String>,
    /// The MCP server `svc` of this run.
    pub mcp: Option<AgentMcpServer>,
    #[serde(default)]
    pub answer_key: AnswerKey,
    /// Milliseconds within which the agent has to answer the handshake.
    #[serde(default = "HostSpec::default_start_timeout")]
    pub start_timeout_ms: u64,
    /// Milliseconds until an unanswered request is denied.
    #[serde(default = "HostSpec::default_request_timeout")]
    pub request_timeout_ms: u64,
    /// Milliseconds without a turn after which a one-shot agent is ended; 0: never.
    #[serde(default)]
    pub idle_timeout_ms: u64,
    /// Milliseconds that the socket stays open after the agent's end.
    #[serde(default = "HostSpec::default_linger")]
    pub linger_ms: u64,
}

impl HostSpec {
    const fn default_start_timeout() -> u64 {
        60_000
    }

    const fn default_request_timeout() -> u64 {
        600_000
    }

    const fn default_linger() -> u64 {
        10_000
    }
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentInput {
    pub input: String,
    /// The host makes an id if there is none.
    pub message_id: Option<String>,
    pub from: Option<String>,
    pub idempotency_key: Option<String>,
}

/// The MCP server that an agent gets for one run: a program, which proves on the daemon's socket
/// that the agent's process started it. It contains no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentMcpServer {
    pub command: String,
    pub args: Vec<String>,
    /// Complete: some agents pass few of their own variables to their servers.
    pub env: BTreeMap<String, String>,
}

impl AgentMcpServer {
    /// `svc stdio` for an agent of the daemon with this data folder.
    pub fn of_agent(program: &Path, home: &Path, agent: &AgentId) -> Self {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        Self {
            command: text(program),
            args: vec!["stdio".to_owned()],
            env: BTreeMap::from([
                ("SVC_HOME".to_owned(), text(home)),
                (AGENT_MARK.to_owned(), agent.as_str().to_owned()),
            ]),
        }
    }
}

/// The result of a host's start: the one line that `svc agent host` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum HostStarted {
    /// The program runs, and the socket answers.
    Running {
        host_pid: u32,
        /// Start time of the host in the system's unit; 0 where the system has no list of
        /// processes.
        host_started: u64,
        /// Process id of the agent's program.
        pid: u32,
        socket_path: PathBuf,
    },
    Failed {
        error: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_shown_whole_or_not_at_all() {
        let key = AnswerKey::random();
        assert_eq!(key.expose().len(), 64, "32 bytes");
        assert!(key.is_shown_by(Some(&key.clone())));
        let beginning = AnswerKey::from_text(key.expose()[..63].to_owned());
        let none = AnswerKey::default();
        for wrong in [None, Some(&none), Some(&beginning), Some(&AnswerKey::random())] {
            assert!(!key.is_shown_by(wrong), "{wrong:?}");
        }
        assert!(!none.is_shown_by(Some(&none)), "a host without a key takes no answer");
        assert!(!format!("{key:?}").contains(&key.expose()[..8]));
    }
}
