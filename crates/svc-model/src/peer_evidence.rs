//! Which evidence holds a status: a client may tell of its session in several ways.

use super::{Peer, PeerState, PeerStatus, StatusEvidence, WaitingKind, hook::HookClient};

impl StatusEvidence {
    /// What the events of a client's hooks are.
    pub const fn of_events(client: HookClient) -> Self {
        match client {
            HookClient::Opencode => Self::Plugin,
            HookClient::ClaudeCode | HookClient::Codex | HookClient::Gemini => Self::Hook,
        }
    }
}

impl PeerState {
    fn is_limit(&self) -> bool {
        self.waiting_for.as_ref().is_some_and(|waiting| waiting.kind == WaitingKind::Limit)
    }
}

impl Peer {
    /// The evidence of the peer's status after the peer was told a state; `None` if the present
    /// evidence is better than that of the state, which then does not count.
    ///
    /// A host and an app-server tell of every change at once, so that no other evidence counts
    /// while one of them holds the status. Claude Code's registry has every state, and hooks tell
    /// of most states a moment earlier: a hook counts until the registry is read again, and the
    /// evidence stays the registry. The end of a process counts whatever tells of it.
    pub fn evidence_after(&self, told: &PeerState) -> Option<StatusEvidence> {
        let (held, next) = (self.evidence, told.evidence);
        if held == next || self.status == PeerStatus::Offline {
            return Some(next);
        }
        match held {
            StatusEvidence::Host => None,
            _ if told.status == PeerStatus::Offline => Some(next),
            StatusEvidence::AppServer => None,
            // The registry does not know of limits.
            _ if told.is_limit() => Some(next),
            StatusEvidence::Registry if self.is_in_registry() => Some(match next {
                StatusEvidence::Hook | StatusEvidence::Plugin | StatusEvidence::Process => held,
                better => better,
            }),
            _ => Some(next),
        }
    }

    /// What its status rests on when that tells nothing any more.
    pub fn evidence_without(&self, lost: StatusEvidence) -> Option<StatusEvidence> {
        (self.evidence == lost).then(|| {
            let client = HookClient::parse(&self.backend).filter(|_| self.session_id.is_some());
            client.map_or(StatusEvidence::Process, StatusEvidence::of_events)
        })
    }

    /// Whether its client's record has every state, and not only the ends of turns.
    fn is_in_registry(&self) -> bool {
        HookClient::parse(&self.backend) == Some(HookClient::ClaudeCode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;

    #[test]
    fn the_best_evidence_holds_a_status() {
        use PeerStatus::{Busy, Idle, Offline};
        use StatusEvidence::{AppServer, Hook, Host, Plugin, Process, Registry};
        let at = Timestamp::from_millis(0);
        for (backend, status, held, told, next, expected) in [
            ("claude-code", Busy, Process, Hook, Idle, Some(Hook)),
            ("claude-code", Busy, Hook, Registry, Idle, Some(Registry)),
            // A hook is a moment earlier, and the registry confirms or corrects it.
            ("claude-code", Busy, Registry, Hook, Idle, Some(Registry)),
            ("claude-code", Busy, Registry, Process, Idle, Some(Registry)),
            ("claude-code", Busy, Registry, Process, Offline, Some(Process)),
            ("claude-code", Busy, Hook, Process, Idle, Some(Process)),
            ("claude-code", Offline, Registry, Hook, Idle, Some(Hook)),
            // Their records tell of ends alone.
            ("codex", Busy, Hook, Registry, Idle, Some(Registry)),
            ("codex", Idle, Registry, Hook, Busy, Some(Hook)),
            ("codex", Busy, Hook, AppServer, Busy, Some(AppServer)),
            ("codex", Busy, AppServer, Hook, Idle, None),
            ("codex", Busy, AppServer, Registry, Idle, None),
            ("codex", Busy, AppServer, Process, Offline, Some(Process)),
            ("opencode", Busy, Process, Plugin, Idle, Some(Plugin)),
            ("claude", Busy, Host, Hook, Idle, None),
            ("claude", Busy, Host, Process, Offline, None),
            ("claude", Busy, Host, Host, Offline, Some(Host)),
            ("claude", Offline, Host, Process, Idle, Some(Process)),
        ] {
            let backend = backend.to_owned();
            let peer = Peer { backend, status, evidence: held, ..Peer::operator(at) };
            let state = PeerState { status: next, waiting_for: None, at, evidence: told };
            let after = peer.evidence_after(&state);
            assert_eq!(after, expected, "{peer:?} {state:?}");
        }
    }

    #[test]
    fn without_it_the_hooks_of_its_client_tell() {
        let at = Timestamp::from_millis(0);
        let session_id = Some("s".to_owned());
        let evidence = StatusEvidence::Registry;
        let mut peer = Peer { evidence, session_id, ..Peer::operator(at) };
        for (backend, expected) in [
            ("claude-code", StatusEvidence::Hook),
            ("opencode", StatusEvidence::Plugin),
            ("mine", StatusEvidence::Process),
        ] {
            backend.clone_into(&mut peer.backend);
            assert_eq!(peer.evidence_without(evidence), Some(expected), "{backend}");
            assert_eq!(peer.evidence_without(StatusEvidence::AppServer), None, "{backend}");
        }
    }
}
