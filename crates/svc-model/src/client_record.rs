//! What a client's own record says of its session, beside what its hooks tell.

use super::{Peer, PeerStatus, Timestamp, WaitingFor, WaitingKind, limits};

/// What a client has written down of its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRecord {
    /// What the session does.
    pub state: RecordedState,
    /// Since when.
    pub at: Timestamp,
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

impl ClientRecord {
    /// The state that a peer gets by its client's record; `None` if nothing changes.
    ///
    /// The later word counts. A record from before the last event still holds when it says that a turn goes on, once the client
    /// has had the time to write it anew; that a turn is over it cannot have known before the turn began.
    pub fn corrects(
        &self,
        peer: &Peer,
        now: Timestamp,
    ) -> Option<(PeerStatus, Option<WaitingFor>)> {
        let is_later = self.at >= peer.since;
        let holds = is_later || now.since(peer.since) >= limits::RECORD_GRACE;
        if matches!(peer.status, PeerStatus::Unreachable | PeerStatus::Offline) {
            return None;
        }
        match (self.state, peer.status) {
            (RecordedState::Idle, PeerStatus::Busy | PeerStatus::Waiting) if is_later => {
                Some((PeerStatus::Idle, None))
            }
            (RecordedState::Idle, _)
            | (RecordedState::Busy, PeerStatus::Busy)
            | (RecordedState::Waiting(_), PeerStatus::Waiting) => None,
            (RecordedState::Busy, _) => holds.then_some((PeerStatus::Busy, None)),
            (RecordedState::Waiting(kind), _) => holds.then(|| {
                let asked =
                    WaitingFor { kind, since: self.at, title: None, tool: None, until: None };
                (PeerStatus::Waiting, Some(asked))
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
            let corrected = ClientRecord { state, at, failure: None }.corrects(&peer, now);
            let waits = corrected.as_ref().is_some_and(|(_, waiting_for)| waiting_for.is_some());
            assert_eq!(corrected.map(|(status, _)| status), expected, "{state:?} {status:?}");
            assert_eq!(waits, expected == Some(Waiting));
        }
    }
}
