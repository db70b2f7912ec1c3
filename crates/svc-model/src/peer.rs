//! Participants ("peers"): who is here, and in which state.

use std::{collections::BTreeMap, time::Duration};

use clap::Args;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{NOT_BLANK, PeerId, Timestamp, limits, parse_word, words::words};

impl PeerId {
    /// The id, and the name, of the operator's own peer, which the daemon makes.
    pub const OPERATOR: &'static str = "operator";

    pub fn operator() -> Self {
        Self::from(Self::OPERATOR.to_owned())
    }

    pub fn is_operator(&self) -> bool {
        self.as_str() == Self::OPERATOR
    }
}

/// A peer, as its own project sees it.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Peer {
    /// Given by the daemon at the first registration and kept.
    pub peer_id: PeerId,
    /// What people call it.
    pub display_name: String,
    /// Working folder.
    pub path: Option<String>,
    /// Kind of client, such as `claude-code`, `codex`, `gemini`, `opencode`.
    pub backend: String,
    /// Group of peers that a broadcast may be limited to.
    pub circle: String,
    /// Part that it plays.
    pub role: PeerRole,
    /// Present state.
    pub status: PeerStatus,
    /// What that state rests on.
    pub evidence: StatusEvidence,
    /// Since when it is in that state.
    pub since: Timestamp,
    /// What it waits for, while its state is `waiting`.
    pub waiting_for: Option<WaitingFor>,
    /// The client's own id of its session.
    pub session_id: Option<String>,
    /// Session key of the hosted agent that it is the peer of.
    pub agent: Option<String>,
    /// The tmux pane it runs in.
    pub tmux_pane: Option<String>,
    /// Its process on the daemon's machine.
    pub pid: Option<u32>,
    /// Name of the machine of that process, in lists, if there are several.
    pub machine: Option<String>,
    /// Whatever it says of itself.
    pub metadata: Option<BTreeMap<String, String>>,
    /// First registration.
    pub registered_at: Timestamp,
    /// Last registration or heartbeat.
    pub last_seen: Timestamp,
}

impl Peer {
    /// Whether its vendor refuses because of a usage limit.
    pub fn is_limited(&self) -> bool {
        let kind = self.waiting_for.as_ref().map(|waiting| waiting.kind);
        self.status == PeerStatus::Waiting && kind == Some(WaitingKind::Limit)
    }

    /// Whether its usage limit ended at least [`limits::AFTER_LIMIT`] ago.
    pub fn is_past_limit(&self, now: Timestamp) -> bool {
        let until = self.waiting_for.as_ref().and_then(|waiting| waiting.until);
        self.is_limited() && until.is_some_and(|until| now >= until.plus(limits::AFTER_LIMIT))
    }

    /// What everybody may see of it, also in other projects.
    #[must_use]
    pub fn presence(&self) -> Self {
        Self {
            peer_id: self.peer_id.clone(),
            display_name: self.display_name.clone(),
            backend: self.backend.clone(),
            circle: self.circle.clone(),
            role: self.role,
            status: self.status,
            evidence: self.evidence,
            since: self.since,
            registered_at: self.registered_at,
            last_seen: self.last_seen,
            // Everything else is hidden: the operator has no other values at first.
            ..Self::operator(self.since)
        }
    }
}

/// The names of a backend, that of peers first. Claude Code is `claude-code` there, and `claude` in
/// session keys and of hosted agents; any other backend has one name.
pub fn backend_names(backend: &str) -> (&str, &str) {
    match backend {
        "claude-code" | "claude" => ("claude-code", "claude"),
        backend => (backend, backend),
    }
}

/// What a peer says when it registers. Who registers again keeps what it leaves out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize, JsonSchema)]
pub struct RegisterInput {
    /// Your name. Others can send to it if it is unique.
    #[arg(long, visible_alias = "name", value_name = "NAME", help = "The name that people see")]
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub display_name: String,
    /// What kind of client you are, such as `claude-code`, `codex`, `gemini`, `opencode`.
    #[arg(long, help = "What kind of agent it is, such as claude or codex")]
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub backend: String,
    /// The folder that you work in.
    #[arg(long, help = "Its working folder")]
    #[schemars(length(max = limits::SHORT_TEXT_BYTES))]
    pub path: Option<String>,
    /// Your group, to which a broadcast can be limited; `default` at first.
    #[arg(long, help = "Its circle [default: default]")]
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub circle: Option<String>,
    /// Your role; `agent` at first.
    #[arg(long, value_parser = parse_word::<PeerRole>)]
    #[arg(help = "agent, orchestrator or human [default: agent]")]
    pub role: Option<PeerRole>,
    /// Your session; by default that of this call.
    #[arg(long, value_name = "ID", help = "Its session")]
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub session_id: Option<String>,
    /// The tmux pane that you run in.
    #[arg(long, value_name = "PANE", help = "The tmux pane it runs in")]
    #[schemars(length(max = limits::SHORT_TEXT_BYTES))]
    pub tmux_pane: Option<String>,
    /// Your process on the daemon's machine: while it lives you are not offline.
    #[arg(long, help = "Its process id; the peer is not offline while that process lives")]
    #[schemars(range(min = 1, max = u32::MAX))]
    pub pid: Option<u32>,
    /// Further facts about you. Merged key by key; `null` removes a key.
    #[arg(skip)]
    pub metadata: Option<BTreeMap<String, Option<String>>>,
}

/// The part that a peer plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PeerRole {
    /// A coding agent.
    Agent,
    /// One that gives work to others.
    Orchestrator,
    /// A person.
    Human,
}

words! {
    /// The state that a peer is in.
    pub enum PeerStatus {
        /// Here, and free.
        Online = "online",
        /// Here, and at work: from the prompt to the end of the turn.
        Busy = "busy",
        /// Here, and waits for what only a person, or time, can give.
        Waiting = "waiting",
        /// Here, and its turn is over.
        Idle = "idle",
        /// On a machine, or with a host, that does not answer.
        Unreachable = "unreachable",
        /// Gone, or not heard of for 60 s.
        Offline = "offline",
    }
}

/// The states that a client may say it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReportedStatus {
    /// Here, and free.
    Online,
    /// At work.
    Busy,
    /// Its turn is over.
    Idle,
    /// Gone.
    Offline,
}

impl From<ReportedStatus> for PeerStatus {
    fn from(reported: ReportedStatus) -> Self {
        match reported {
            ReportedStatus::Online => Self::Online,
            ReportedStatus::Busy => Self::Busy,
            ReportedStatus::Idle => Self::Idle,
            ReportedStatus::Offline => Self::Offline,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerState {
    pub status: PeerStatus,
    pub waiting_for: Option<WaitingFor>,
    /// When the state began.
    pub at: Timestamp,
    pub evidence: StatusEvidence,
}

/// What a session waits for.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WaitingFor {
    /// What kind of thing it is.
    pub kind: WaitingKind,
    /// Since when it waits for it.
    pub since: Timestamp,
    /// What is asked, such as a command, on one line.
    pub title: Option<String>,
    /// The tool that is to run.
    pub tool: Option<String>,
    /// When it goes on by itself.
    pub until: Option<Timestamp>,
}

/// A kind of thing that a session waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitingKind {
    /// A person's permission.
    Permission,
    /// A person's answer to a question.
    Question,
    /// The end of a usage limit.
    Limit,
    /// What another session replies; only sessions show it.
    Reply,
}

impl Peer {
    /// The operator's own peer, before any contact with the operator. Answers to the operator go to
    /// it.
    pub fn operator(now: Timestamp) -> Self {
        Self {
            peer_id: PeerId::operator(),
            display_name: PeerId::OPERATOR.to_owned(),
            path: None,
            backend: PeerId::OPERATOR.to_owned(),
            circle: "default".to_owned(),
            role: PeerRole::Human,
            status: PeerStatus::Offline,
            evidence: StatusEvidence::Process,
            since: now,
            waiting_for: None,
            session_id: None,
            agent: None,
            tmux_pane: None,
            pid: None,
            machine: None,
            metadata: None,
            registered_at: now,
            last_seen: now,
        }
    }
}

impl PeerStatus {
    /// The status of a peer after a silence; `None` if it stays. After the timeout a peer is idle
    /// if it is alive, else offline. The turn of a peer that is alive ends after
    /// [`limits::TURN_SILENCE`], unless a call of a tool is open.
    pub fn after_silence(self, silence: PeerSilence) -> Option<Self> {
        let PeerSilence { lasts, timeout, is_alive, is_calling, is_limited } = silence;
        let silent = match self {
            Self::Unreachable | Self::Offline => return None,
            Self::Busy | Self::Waiting if is_alive => {
                if is_calling || is_limited || lasts < limits::TURN_SILENCE {
                    return None;
                }
                Self::Idle
            }
            Self::Online | Self::Busy | Self::Waiting | Self::Idle if lasts < timeout => {
                return None;
            }
            Self::Online | Self::Idle if is_alive => Self::Idle,
            Self::Online | Self::Busy | Self::Waiting | Self::Idle => Self::Offline,
        };
        (silent != self).then_some(silent)
    }
}

#[derive(Debug, Clone, Copy)]
pub struct PeerSilence {
    /// Time since the last contact.
    pub lasts: Duration,
    /// After this time a peer that is not alive is offline.
    pub timeout: Duration,
    /// Whether its process or its session is known to live.
    pub is_alive: bool,
    /// Whether a call of a tool is open.
    pub is_calling: bool,
    /// Whether it waits for the end of a usage limit.
    pub is_limited: bool,
}

words! {
    /// What a status rests on.
    pub enum StatusEvidence {
        /// The last hook that its client called.
        Hook = "hook",
        /// Its client's own record of the session, which the daemon reads.
        Registry = "registry",
        /// The app-server that runs the session.
        AppServer = "app-server",
        /// The last event that the plugin in its client told of.
        Plugin = "plugin",
        /// The host of an agent that the daemon runs.
        Host = "host",
        /// Its process, and the calls that it makes.
        Process = "process",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_makes_idle_or_offline_and_ends_no_turn_in_a_call() {
        use PeerStatus::{Busy, Idle, Offline, Online, Unreachable, Waiting};
        for (status, seconds, is_alive, is_calling, expected) in [
            (Online, 59, false, false, None),
            (Online, 60, false, false, Some(Offline)),
            (Online, 60, true, false, Some(Idle)),
            (Busy, 61, false, true, Some(Offline)),
            (Busy, 599, true, false, None),
            (Busy, 600, true, false, Some(Idle)),
            (Busy, 40_000, true, true, None),
            (Waiting, 599, true, false, None),
            (Waiting, 600, true, false, Some(Idle)),
            (Waiting, 600, true, true, None),
            (Waiting, 60, false, true, Some(Offline)),
            (Idle, 600, true, false, None),
            (Idle, 600, false, false, Some(Offline)),
            (Unreachable, 6000, false, false, None),
            (Offline, 600, false, false, None),
            (Offline, 600, true, false, None),
        ] {
            let silence = PeerSilence {
                lasts: Duration::from_secs(seconds),
                timeout: Duration::from_mins(1),
                is_alive,
                is_calling,
                is_limited: false,
            };
            let after = status.after_silence(silence);
            assert_eq!(after, expected, "{status:?} {silence:?}");
            let limited = PeerSilence { is_limited: true, ..silence };
            if is_alive && matches!(status, Busy | Waiting) {
                assert_eq!(status.after_silence(limited), None, "{status:?} {limited:?}");
            }
        }
    }
}
