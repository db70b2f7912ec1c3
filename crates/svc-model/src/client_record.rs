//! What a client's own record says of its session, beside what its hooks tell.

use super::{
    Peer, PeerState, PeerStatus, StatusEvidence, Timestamp, WaitingFor, WaitingKind, limits,
};

/// What a client has written down of its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRecord {
    /// What the session does.
    pub state: RecordedState,
    /// Since when.
    pub at: Timestamp,
    /// What it waits for in the client's words, on one line.
    pub asks: Option<String>,
    /// Why the turn that is over failed, on one line.
    pub failure: Option<String>,
}

/// What a session does by its client's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedState {
    /// It is in a turn.
    Busy,
    /// It shows its person a prompt.
    Waiting(WaitingKind),
    /// Its turn is over.
    Idle,
}

/// What a look at a client's record comes to, beside what is known of its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordWord {
    /// The session is in another state.
    Corrects(PeerState),
    /// The session is in the state that is known, and that rests on the record from now on.
    Confirms(PeerState),
    /// Nothing new.
    Nothing,
    /// The record has been behind what hooks told for [`limits::RECORD_LAG`].
    Lags,
}

impl ClientRecord {
    /// What it says beside what is known of a peer.
    pub fn word_on(&self, peer: &Peer, now: Timestamp) -> RecordWord {
        if let Some(state) = self.corrects(peer, now) {
            return RecordWord::Corrects(state);
        }
        if peer.is_limited() {
            return RecordWord::Nothing;
        }
        let is_known = matches!(
            (self.state, peer.status),
            (RecordedState::Busy, PeerStatus::Busy)
                | (RecordedState::Waiting(_), PeerStatus::Waiting)
                | (RecordedState::Idle, PeerStatus::Idle | PeerStatus::Online)
        );
        let is_of_peer = self.at >= peer.since || now.since(peer.since) >= limits::RECORD_GRACE;
        if is_known && is_of_peer && peer.evidence != StatusEvidence::Registry {
            return RecordWord::Confirms(PeerState {
                status: peer.status,
                waiting_for: peer.waiting_for.clone(),
                at: peer.since,
                evidence: StatusEvidence::Registry,
            });
        }
        let is_behind = !is_known && self.at < peer.since;
        if is_behind && now.since(peer.since) >= limits::RECORD_LAG {
            return RecordWord::Lags;
        }
        RecordWord::Nothing
    }

    /// The state that a peer gets by its client's record; `None` if nothing changes.
    ///
    /// The later of the last event and the record counts. A record from before the last event still
    /// counts when it says that a turn goes on, once the client has had [`limits::RECORD_GRACE`] to
    /// write it anew. A record from before a turn cannot say that the turn is over.
    ///
    /// A turn that the record tells of has the time of the record, so that the client's next word
    /// of the same turn is later, however long this one took to be read.
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
            // The turn is over by the record, or it shows a dialog about the limit.
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

    /// Whether it says that the session is in a turn.
    pub fn is_in_turn(&self) -> bool {
        self.state != RecordedState::Idle
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_later_word_counts() {
        use PeerStatus::{Busy, Idle, Offline, Online, Waiting};
        let since = Timestamp::from_millis(1_800_000_000_000);
        let (before, after) =
            (since.minus(Duration::from_secs(9)), since.plus(Duration::from_millis(1)));
        let asks = RecordedState::Waiting(WaitingKind::Permission);
        let (soon, later) =
            (since.plus(Duration::from_millis(10)), since.plus(limits::RECORD_GRACE));
        for (state, at, status, now, expected) in [
            // Esc at a dialog, of which no hook tells.
            (RecordedState::Idle, after, Waiting, soon, Some(Idle)),
            (RecordedState::Idle, after, Busy, soon, Some(Idle)),
            // The prompt was just given, and the record is that of the turn before.
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
            let peer = Peer { status, since, ..Peer::operator(since) };
            let record = ClientRecord { state, at, asks: None, failure: None };
            let corrected = record.corrects(&peer, now);
            let waits = corrected.as_ref().is_some_and(|state| state.waiting_for.is_some());
            assert_eq!(corrected.map(|state| state.status), expected, "{state:?} {status:?}");
            assert_eq!(waits, expected == Some(Waiting));
        }
    }

    #[test]
    fn the_end_of_a_turn_counts_that_was_recorded_before_the_turn_was_read() {
        let stopped = Timestamp::from_millis(1_800_000_000_000);
        let after = |millis| stopped.plus(Duration::from_millis(millis));
        // A slow hook of the end of the turn: the client is busy by its own record for a while.
        let busy = ClientRecord {
            state: RecordedState::Busy,
            at: stopped.minus(Duration::from_secs(9)),
            asks: None,
            failure: None,
        };
        let mut peer = Peer { status: PeerStatus::Idle, since: stopped, ..Peer::operator(stopped) };
        let state = busy.corrects(&peer, after(1300)).expect("the turn goes on");
        assert_eq!((state.status, state.at), (PeerStatus::Busy, busy.at));
        (peer.status, peer.since) = (state.status, state.at);
        let idle =
            ClientRecord { state: RecordedState::Idle, at: after(1200), asks: None, failure: None };
        let state = idle.corrects(&peer, after(1700)).expect("the turn is over");
        assert_eq!((state.status, state.at), (PeerStatus::Idle, after(1700)));
    }

    #[test]
    fn a_status_rests_on_the_record_while_that_follows() {
        use PeerStatus::{Busy, Idle, Online};
        use StatusEvidence::{Hook, Registry};
        let since = Timestamp::from_millis(1_800_000_000_000);
        let (before, after) =
            (since.minus(Duration::from_secs(9)), since.plus(Duration::from_millis(1)));
        let (soon, later) = (after.plus(limits::RECORD_GRACE), since.plus(limits::RECORD_LAG));
        for (state, at, status, evidence, now, expected) in [
            (RecordedState::Busy, after, Busy, Hook, after, "confirms"),
            (RecordedState::Idle, before, Online, Hook, soon, "confirms"),
            (RecordedState::Idle, before, Idle, Hook, after, "nothing"),
            (RecordedState::Busy, after, Busy, Registry, soon, "nothing"),
            (RecordedState::Idle, after, Busy, Registry, after, "corrects"),
            // A hook told of a prompt, and the record is still that of the turn before.
            (RecordedState::Idle, before, Busy, Registry, soon, "nothing"),
            (RecordedState::Idle, before, Busy, Registry, later, "lags"),
        ] {
            let peer = Peer { status, evidence, since, ..Peer::operator(since) };
            let record = ClientRecord { state, at, asks: None, failure: None };
            let word = match record.word_on(&peer, now) {
                RecordWord::Corrects(_) => "corrects",
                RecordWord::Confirms(same) => {
                    assert_eq!((same.status, same.at), (status, since));
                    "confirms"
                }
                RecordWord::Nothing => "nothing",
                RecordWord::Lags => "lags",
            };
            assert_eq!(word, expected, "{record:?} {peer:?}");
        }
    }

    #[test]
    fn a_record_does_not_end_a_limit_unless_a_turn_begins() {
        let since = Timestamp::from_millis(1_800_000_000_000);
        let after = since.plus(Duration::from_millis(1));
        let later = since.plus(limits::RECORD_LAG);
        let limit = WaitingFor {
            kind: WaitingKind::Limit,
            since,
            title: None,
            tool: None,
            until: Some(later),
        };
        let status = PeerStatus::Waiting;
        let peer = Peer { status, since, waiting_for: Some(limit), ..Peer::operator(since) };
        let word = |state: RecordedState, at: Timestamp| {
            ClientRecord { state, at, asks: None, failure: None }.word_on(&peer, later)
        };
        let dialog = RecordedState::Waiting(WaitingKind::Question);
        assert_eq!(word(RecordedState::Idle, after), RecordWord::Nothing);
        assert_eq!(word(dialog, after), RecordWord::Nothing);
        assert_eq!(
            word(RecordedState::Busy, since.minus(Duration::from_secs(1))),
            RecordWord::Nothing
        );
        assert!(matches!(word(RecordedState::Busy, after), RecordWord::Corrects(_)));
        assert!(!peer.is_past_limit(later) && peer.is_past_limit(later.plus(limits::AFTER_LIMIT)));
    }
}
