//! What the status of a participant rests on, if its client reports the session in several ways: by
//! hooks, and in the client's own record.

use crate::{
    Peer, PeerState, PeerStatus, StatusEvidence, Timestamp, WaitingFor, WaitingKind,
    hook::HookClient, limits,
};

impl StatusEvidence {
    /// The kind of evidence that events of a client's hooks are.
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
    /// The evidence of the peer's status once a state is reported; `None` if the present evidence
    /// is better, and the report is ignored.
    ///
    /// A host and an app-server report every change at once, so no other evidence counts while one
    /// of them holds the status. Claude Code's registry has every state, and hooks report most
    /// states a moment earlier: a hook counts until the registry is read again, and the evidence
    /// stays the registry. The end of a process counts whatever reports it.
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

    /// What its status rests on once this evidence is lost; `None` if it rests on another.
    pub fn evidence_without(&self, lost: StatusEvidence) -> Option<StatusEvidence> {
        (self.evidence == lost).then(|| {
            let client = HookClient::parse(&self.backend).filter(|_| self.session_id.is_some());
            client.map_or(StatusEvidence::Process, StatusEvidence::of_events)
        })
    }

    /// Whether its client's record has every state. Records of other clients only have ends of
    /// turns.
    fn is_in_registry(&self) -> bool {
        HookClient::parse(&self.backend) == Some(HookClient::ClaudeCode)
    }
}

/// A client's own record of its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRecord {
    pub state: RecordedState,
    /// When the state began.
    pub at: Timestamp,
    /// What it waits for in the client's words, on one line.
    pub asks: Option<String>,
    /// Why the last turn failed, on one line.
    pub failure: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedState {
    Busy,
    /// The client shows its person a prompt.
    Waiting(WaitingKind),
    Idle,
}

/// How a client's record relates to the known state of its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordRelation {
    Corrects(PeerState),
    /// The known state is right, and rests on the record from now on.
    Confirms(PeerState),
    Nothing,
    /// The record has been behind the hooks for [`limits::RECORD_LAG`].
    Lags,
}

impl ClientRecord {
    pub fn word_on(&self, peer: &Peer, now: Timestamp) -> RecordRelation {
        if let Some(state) = self.corrects(peer, now) {
            return RecordRelation::Corrects(state);
        }
        if peer.is_limited() {
            return RecordRelation::Nothing;
        }
        let is_known = matches!(
            (self.state, peer.status),
            (RecordedState::Busy, PeerStatus::Busy)
                | (RecordedState::Waiting(_), PeerStatus::Waiting)
                | (RecordedState::Idle, PeerStatus::Idle | PeerStatus::Online)
        );
        let is_of_peer = self.at >= peer.since || now.since(peer.since) >= limits::RECORD_GRACE;
        if is_known && is_of_peer && peer.evidence != StatusEvidence::Registry {
            return RecordRelation::Confirms(PeerState {
                status: peer.status,
                waiting_for: peer.waiting_for.clone(),
                at: peer.since,
                evidence: StatusEvidence::Registry,
            });
        }
        let is_behind = !is_known && self.at < peer.since;
        if is_behind && now.since(peer.since) >= limits::RECORD_LAG {
            return RecordRelation::Lags;
        }
        RecordRelation::Nothing
    }

    /// The state that a peer gets by its client's record; `None` if nothing changes.
    ///
    /// The later of the last event and the record counts. An earlier record that says that a turn
    /// goes on counts once the client has had [`limits::RECORD_GRACE`] to rewrite it. A record from
    /// before a turn cannot say that the turn is over.
    ///
    /// A turn that the record reports has the time of the record, so that the client's next record
    /// of the same turn is later, whatever the delay of reading.
    pub fn corrects(&self, peer: &Peer, now: Timestamp) -> Option<PeerState> {
        let is_later = self.at >= peer.since;
        let holds = is_later || now.since(peer.since) >= limits::RECORD_GRACE;
        if matches!(peer.status, PeerStatus::Unreachable | PeerStatus::Offline) {
            return None;
        }
        let at = self.at.min(now);
        let state = |status, waiting_for, at| PeerState {
            status,
            waiting_for,
            at,
            evidence: StatusEvidence::Registry,
        };
        if peer.is_limited() {
            // A record that says idle is about the refused turn; one that says waiting, about a
            // dialog on the limit.
            let goes_on = self.state == RecordedState::Busy && is_later;
            return goes_on.then(|| state(PeerStatus::Busy, None, at));
        }
        match (self.state, peer.status) {
            (RecordedState::Idle, PeerStatus::Busy | PeerStatus::Waiting) if is_later => {
                Some(state(PeerStatus::Idle, None, now))
            }
            (RecordedState::Idle, _)
            | (RecordedState::Busy, PeerStatus::Busy)
            | (RecordedState::Waiting(_), PeerStatus::Waiting) => None,
            (RecordedState::Busy, _) => holds.then(|| state(PeerStatus::Busy, None, at)),
            (RecordedState::Waiting(kind), _) => holds.then(|| {
                let asked = WaitingFor { kind, since: at, title: None, tool: None, until: None };
                state(PeerStatus::Waiting, Some(asked), at)
            }),
        }
    }

    pub fn is_in_turn(&self) -> bool {
        self.state != RecordedState::Idle
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SINCE: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn record(state: RecordedState, at: Timestamp) -> ClientRecord {
        ClientRecord { state, at, asks: None, failure: None }
    }

    #[test]
    fn the_best_evidence_holds_a_status() {
        use PeerStatus::{Busy, Idle, Offline};
        use StatusEvidence::{AppServer, Hook, Host, Plugin, Process, Registry};
        let at = Timestamp::from_millis(0);
        for (backend, status, held, told, next, expected) in [
            ("claude-code", Busy, Process, Hook, Idle, Some(Hook)),
            ("claude-code", Busy, Hook, Registry, Idle, Some(Registry)),
            // A hook reports a moment earlier, and the registry confirms or corrects it.
            ("claude-code", Busy, Registry, Hook, Idle, Some(Registry)),
            ("claude-code", Busy, Registry, Process, Idle, Some(Registry)),
            ("claude-code", Busy, Registry, Process, Offline, Some(Process)),
            ("claude-code", Busy, Hook, Process, Idle, Some(Process)),
            ("claude-code", Offline, Registry, Hook, Idle, Some(Hook)),
            // Codex' records only have ends of turns.
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
    fn evidence_without_a_registry_depends_on_the_client() {
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

    #[test]
    fn later_of_record_and_hook_decides_the_status() {
        use PeerStatus::{Busy, Idle, Offline, Online, Waiting};
        let (before, after) =
            (SINCE.minus(Duration::from_secs(9)), SINCE.plus(Duration::from_millis(1)));
        let asks = RecordedState::Waiting(WaitingKind::Permission);
        let (soon, later) =
            (SINCE.plus(Duration::from_millis(10)), SINCE.plus(limits::RECORD_GRACE));
        for (state, at, status, now, expected) in [
            // Esc at a dialog, which no hook reports.
            (RecordedState::Idle, after, Waiting, soon, Some(Idle)),
            (RecordedState::Idle, after, Busy, soon, Some(Idle)),
            // The prompt was just given, and the record is about the turn before.
            (RecordedState::Idle, before, Busy, soon, None),
            (RecordedState::Idle, before, Busy, later, None),
            (RecordedState::Idle, after, Online, soon, None),
            (RecordedState::Busy, after, Waiting, soon, Some(Busy)),
            (RecordedState::Busy, before, Waiting, soon, None),
            (RecordedState::Busy, before, Waiting, later, Some(Busy)),
            (RecordedState::Busy, before, Idle, soon, None),
            // The turn went on although a hook of its end was called.
            (RecordedState::Busy, before, Idle, later, Some(Busy)),
            (RecordedState::Busy, after, Busy, later, None),
            (asks, after, Busy, soon, Some(Waiting)),
            (asks, after, Waiting, later, None),
            (asks, after, Offline, later, None),
        ] {
            let peer = Peer { status, since: SINCE, ..Peer::operator(SINCE) };
            let record = record(state, at);
            let corrected = record.corrects(&peer, now);
            let waits = corrected.as_ref().is_some_and(|state| state.waiting_for.is_some());
            assert_eq!(corrected.map(|state| state.status), expected, "{state:?} {status:?}");
            assert_eq!(waits, expected == Some(Waiting));
        }
    }

    #[test]
    fn the_end_of_a_turn_counts_that_was_recorded_before_the_turn_was_read() {
        let stopped = SINCE;
        let after = |millis| stopped.plus(Duration::from_millis(millis));
        // A slow hook of the end of the turn: the client is busy by its own record for a while.
        let busy = record(RecordedState::Busy, stopped.minus(Duration::from_secs(9)));
        let mut peer = Peer { status: PeerStatus::Idle, since: stopped, ..Peer::operator(stopped) };
        let state = busy.corrects(&peer, after(1300)).expect("the turn goes on");
        assert_eq!((state.status, state.at), (PeerStatus::Busy, busy.at));
        (peer.status, peer.since) = (state.status, state.at);
        let idle = record(RecordedState::Idle, after(1200));
        let state = idle.corrects(&peer, after(1700)).expect("the turn is over");
        assert_eq!((state.status, state.at), (PeerStatus::Idle, after(1700)));
    }

    #[test]
    fn a_status_rests_on_the_record_while_that_follows() {
        use PeerStatus::{Busy, Idle, Online};
        use StatusEvidence::{Hook, Registry};
        let (before, after) =
            (SINCE.minus(Duration::from_secs(9)), SINCE.plus(Duration::from_millis(1)));
        let (soon, later) = (after.plus(limits::RECORD_GRACE), SINCE.plus(limits::RECORD_LAG));
        for (state, at, status, evidence, now, expected) in [
            (RecordedState::Busy, after, Busy, Hook, after, "confirms"),
            (RecordedState::Idle, before, Online, Hook, soon, "confirms"),
            (RecordedState::Idle, before, Idle, Hook, after, "nothing"),
            (RecordedState::Busy, after, Busy, Registry, soon, "nothing"),
            (RecordedState::Idle, after, Busy, Registry, after, "corrects"),
            // A hook reported a prompt, and the record is still about the turn before.
            (RecordedState::Idle, before, Busy, Registry, soon, "nothing"),
            (RecordedState::Idle, before, Busy, Registry, later, "lags"),
        ] {
            let peer = Peer { status, evidence, since: SINCE, ..Peer::operator(SINCE) };
            let record = record(state, at);
            let word = match record.word_on(&peer, now) {
                RecordRelation::Corrects(_) => "corrects",
                RecordRelation::Confirms(same) => {
                    assert_eq!((same.status, same.at), (status, SINCE));
                    "confirms"
                }
                RecordRelation::Nothing => "nothing",
                RecordRelation::Lags => "lags",
            };
            assert_eq!(word, expected, "{record:?} {peer:?}");
        }
    }

    #[test]
    fn a_record_does_not_end_a_limit_unless_a_turn_begins() {
        let after = SINCE.plus(Duration::from_millis(1));
        let later = SINCE.plus(limits::RECORD_LAG);
        let limit = WaitingFor {
            kind: WaitingKind::Limit,
            since: SINCE,
            title: None,
            tool: None,
            until: Some(later),
        };
        let status = PeerStatus::Waiting;
        let peer = Peer { status, since: SINCE, waiting_for: Some(limit), ..Peer::operator(SINCE) };
        let word = |state: RecordedState, at: Timestamp| record(state, at).word_on(&peer, later);
        let dialog = RecordedState::Waiting(WaitingKind::Question);
        assert_eq!(word(RecordedState::Idle, after), RecordRelation::Nothing);
        assert_eq!(word(dialog, after), RecordRelation::Nothing);
        assert_eq!(
            word(RecordedState::Busy, SINCE.minus(Duration::from_secs(1))),
            RecordRelation::Nothing
        );
        assert!(matches!(word(RecordedState::Busy, after), RecordRelation::Corrects(_)));
        assert!(!peer.is_past_limit(later) && peer.is_past_limit(later.plus(limits::AFTER_LIMIT)));
    }
}
