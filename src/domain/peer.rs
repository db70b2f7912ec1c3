//! Peers: who is here.

use std::{collections::BTreeMap, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PeerId, Timestamp, limits};

impl PeerId {
    /// The id of the operator's own peer, which the daemon makes, and which is its name, too.
    pub const OPERATOR: &'static str = "operator";

    /// That id.
    pub fn operator() -> Self {
        Self::from(Self::OPERATOR.to_owned())
    }

    /// Whether it is that of the operator's own peer.
    pub fn is_operator(&self) -> bool {
        self.as_str() == Self::OPERATOR
    }
}

/// A peer, as its own project sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Peer {
    /// Given by the daemon at the first registration and kept.
    pub peer_id: PeerId,
    /// What people call it.
    pub display_name: String,
    /// Working folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Kind of client, such as `claude-code`, `codex`, `gemini`, `opencode`.
    pub backend: String,
    /// Group of peers that a broadcast may be limited to.
    pub circle: String,
    /// Part that it plays.
    pub role: PeerRole,
    /// Present state.
    pub status: PeerStatus,
    /// The client's own id of its session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The tmux pane it runs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tmux_pane: Option<String>,
    /// Its process on the daemon's machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Whatever it says of itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// First registration.
    pub registered_at: Timestamp,
    /// Last registration or heartbeat.
    pub last_seen: Timestamp,
}

/// What everybody sees of a peer, also those of other projects.
#[derive(Debug, Clone, Serialize)]
pub struct PeerPresence {
    peer_id: PeerId,
    display_name: String,
    backend: String,
    circle: String,
    role: PeerRole,
    status: PeerStatus,
    registered_at: Timestamp,
    last_seen: Timestamp,
}

impl PeerPresence {
    /// That of a peer.
    pub fn of(peer: &Peer) -> Self {
        Self {
            peer_id: peer.peer_id.clone(),
            display_name: peer.display_name.clone(),
            backend: peer.backend.clone(),
            circle: peer.circle.clone(),
            role: peer.role,
            status: peer.status,
            registered_at: peer.registered_at,
            last_seen: peer.last_seen,
        }
    }
}

impl From<PeerPresence> for Peer {
    /// A peer of which no more than this is shown.
    fn from(presence: PeerPresence) -> Self {
        Self {
            peer_id: presence.peer_id,
            display_name: presence.display_name,
            path: None,
            backend: presence.backend,
            circle: presence.circle,
            role: presence.role,
            status: presence.status,
            session_id: None,
            tmux_pane: None,
            pid: None,
            metadata: None,
            registered_at: presence.registered_at,
            last_seen: presence.last_seen,
        }
    }
}

/// What a peer says when it registers.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
pub struct RegisterInput {
    /// What people call it. Not blank.
    pub display_name: String,
    /// Kind of client. Not blank.
    pub backend: String,
    /// Working folder.
    pub path: Option<String>,
    /// Group of peers; `default` at the first registration.
    pub circle: Option<String>,
    /// Part that it plays; `agent` at the first registration.
    pub role: Option<PeerRole>,
    /// The client's own id of its session. With it, the identity is `(backend, session_id)`; without it,
    /// `(backend, path, tmux_pane)`.
    pub session_id: Option<String>,
    /// The tmux pane it runs in.
    pub tmux_pane: Option<String>,
    /// Its process on the daemon's machine: while it lives, the peer is idle at worst and not offline.
    pub pid: Option<u32>,
    /// Merged into what is known, key by key; `null` removes a key.
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

/// The state that a peer is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PeerStatus {
    /// Here, and free.
    Online,
    /// Here, and at work.
    Busy,
    /// Here, and silent.
    Idle,
    /// Gone, or not heard of for 60 s.
    Offline,
}

impl Peer {
    /// The operator's own peer, whom answers reach, before anything was heard of the operator.
    pub fn operator(now: Timestamp) -> Self {
        Self {
            peer_id: PeerId::operator(),
            display_name: PeerId::OPERATOR.to_owned(),
            path: None,
            backend: PeerId::OPERATOR.to_owned(),
            circle: "default".to_owned(),
            role: PeerRole::Human,
            status: PeerStatus::Offline,
            session_id: None,
            tmux_pane: None,
            pid: None,
            metadata: None,
            registered_at: now,
            last_seen: now,
        }
    }
}

impl Peer {
    /// Whether another session may have this peer's name. Who reads the name in an old message would take the one for the
    /// other, so it is free only when this one was not here for long, when the other follows it in the same process, or when
    /// its session has ended by itself and nobody ever wrote to it or heard of it.
    pub fn frees_its_name(
        &self,
        is_predecessor: bool,
        is_unmentioned: bool,
        now: Timestamp,
    ) -> bool {
        let silence = now.since(self.last_seen);
        let is_free = is_predecessor || is_unmentioned || silence >= limits::PEER_NAME_KEPT;
        self.status == PeerStatus::Offline && is_free
    }

    /// The name of a peer whose own another session has got: with the end of its id, which no other has.
    pub fn name_aside(&self) -> String {
        if self.is_put_aside() {
            return self.display_name.clone();
        }
        format!("{}{}", self.display_name, self.aside_end())
    }

    /// Whether another session has got its name.
    pub fn is_put_aside(&self) -> bool {
        self.display_name.ends_with(&self.aside_end())
    }

    fn aside_end(&self) -> String {
        let id = self.peer_id.as_str();
        let end = id.char_indices().nth_back(5).map_or(id, |(start, _)| &id[start..]);
        format!("~{end}")
    }
}

impl PeerStatus {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Online => "online",
            Self::Busy => "busy",
            Self::Idle => "idle",
            Self::Offline => "offline",
        }
    }

    /// What silence makes of a peer: after `timeout` it is offline, or idle while its process lives. `None` if
    /// nothing changes.
    pub fn after_silence(self, silence: Duration, timeout: Duration, alive: bool) -> Option<Self> {
        if silence < timeout || self == Self::Offline {
            return None;
        }
        let silent = if alive { Self::Idle } else { Self::Offline };
        (silent != self).then_some(silent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_put_aside_has_a_name_of_its_own_and_keeps_it() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let id = PeerId::from("peer_01k9zz000000000000000abcde".to_owned());
        let mut peer =
            Peer { peer_id: id, display_name: "codex@web".to_owned(), ..Peer::operator(now) };
        assert!(!peer.is_put_aside());
        peer.display_name = peer.name_aside();
        assert_eq!(peer.display_name, "codex@web~0abcde");
        assert!(peer.is_put_aside());
        assert_eq!(peer.name_aside(), peer.display_name);
    }

    #[test]
    fn a_name_is_free_when_nobody_takes_the_one_for_the_other() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let long = limits::PEER_NAME_KEPT;
        for (status, silence, is_predecessor, is_unmentioned, is_free) in [
            (PeerStatus::Offline, long, false, false, true),
            (
                PeerStatus::Offline,
                long.saturating_sub(Duration::from_millis(1)),
                false,
                false,
                false,
            ),
            (PeerStatus::Offline, Duration::ZERO, true, false, true),
            (PeerStatus::Offline, Duration::ZERO, false, true, true),
            (PeerStatus::Idle, long, false, false, false),
            (PeerStatus::Idle, long, true, true, false),
        ] {
            let peer = Peer { status, last_seen: now.minus(silence), ..Peer::operator(now) };
            let frees = peer.frees_its_name(is_predecessor, is_unmentioned, now);
            assert_eq!(frees, is_free, "{status:?} {silence:?}");
        }
    }

    #[test]
    fn silence_makes_idle_or_offline() {
        use PeerStatus::{Busy, Idle, Offline, Online};
        for (status, silence, alive, expected) in [
            (Online, 59, false, None),
            (Online, 60, false, Some(Offline)),
            (Online, 60, true, Some(Idle)),
            (Busy, 61, true, Some(Idle)),
            (Idle, 600, true, None),
            (Idle, 600, false, Some(Offline)),
            (Offline, 600, false, None),
            (Offline, 600, true, None),
        ] {
            let after =
                status.after_silence(Duration::from_secs(silence), Duration::from_mins(1), alive);
            assert_eq!(after, expected, "{status:?} after {silence} s, alive: {alive}");
        }
    }
}
