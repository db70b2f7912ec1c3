//! How a caller names a thing: by its id or the beginning of it; a peer also by the key of its
//! session, or by its display name.

use crate::{Peer, PeerId, PeerStatus, backend_names, is_instance_name, stamp};

/// Names the newest item of a list, wherever an id is expected.
pub const LATEST: &str = "latest";
/// Characters of an id that are enough to name it, after the prefix of its kind.
pub const ID_PREFIX_CHARS: usize = 4;
/// Characters of a whole id, after the prefix of its kind.
const ID_CHARS: usize = 26;

/// A text where an id is expected, classified by its form alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdReference {
    /// A whole id, or something longer.
    Whole,
    Prefix(String),
}

impl IdReference {
    /// Whether a text is `kind`, the prefix of all ids of a kind, and too few characters to name
    /// anything.
    pub fn is_too_short(text: &str, kind: &str) -> bool {
        text.strip_prefix(kind)
            .is_some_and(|rest| rest.len() < ID_PREFIX_CHARS && rest.chars().all(is_digit))
    }

    /// Parses a caller's text, in which the prefix `kind` may be left out. `None` if the text is
    /// too short, or is the beginning of no id.
    pub fn parse(text: &str, kind: &str) -> Option<Self> {
        let rest = text.strip_prefix(kind).unwrap_or(text);
        match rest.len() {
            _ if rest.len() != text.len() && rest.len() >= ID_CHARS => Some(Self::Whole),
            ID_PREFIX_CHARS..=ID_CHARS if rest.chars().all(is_digit) => {
                Some(Self::Prefix(format!("{kind}{rest}")))
            }
            _ => None,
        }
    }
}

fn is_digit(c: char) -> bool {
    c.is_ascii_digit() || c.is_ascii_lowercase()
}

/// Prefix of every key of a session.
const KEY: &str = "agent:";

/// A text that names a peer, classified by its form alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerReference {
    Id(PeerId),
    IdPrefix(String),
    /// `agent:<backend>:<session id>`.
    SessionKey(SessionKey),
    /// A display name, which may be the beginning of an id as well.
    Name {
        id_prefix: Option<String>,
    },
}

impl PeerReference {
    /// `None` if the text can name no peer.
    ///
    /// A text that begins like an id or like a key is never a name. Otherwise a peer whose name is
    /// the beginning of another's id would get the other's messages.
    pub fn parse(text: &str) -> Option<Self> {
        if text == PeerId::OPERATOR {
            return Some(Self::Id(PeerId::operator()));
        }
        if text.starts_with(PeerId::PREFIX) {
            return match IdReference::parse(text, PeerId::PREFIX)? {
                IdReference::Whole => PeerId::parse(text).map(Self::Id),
                IdReference::Prefix(prefix) => Some(Self::IdPrefix(prefix)),
            };
        }
        if text.get(..KEY.len()).is_some_and(|head| head.eq_ignore_ascii_case(KEY)) {
            return SessionKey::parse(text).map(Self::SessionKey);
        }
        let id_prefix = match IdReference::parse(text, PeerId::PREFIX) {
            Some(IdReference::Prefix(prefix)) => Some(prefix),
            _ => None,
        };
        (!text.trim().is_empty()).then_some(Self::Name { id_prefix })
    }
}

/// The key of a session, `agent:<backend>:<session id>`. Keys are compared without case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionKey {
    /// In lower case.
    backend: String,
    /// The client's own id of its session; for a peer without a session, the peer's id.
    pub session_id: String,
}

impl SessionKey {
    fn parse(text: &str) -> Option<Self> {
        let (backend, session) = text.get(KEY.len()..)?.split_once(':')?;
        let backend = stamp::decode_word(backend)?.to_lowercase();
        let session_id = stamp::decode_word(session)?;
        (!session_id.is_empty()).then_some(Self { backend, session_id })
    }

    /// Whether it is a key of this client, by any of the client's names.
    pub fn is_backend(&self, backend: &str) -> bool {
        backend_names(&backend.to_lowercase()) == backend_names(&self.backend)
    }

    /// Whether it is the key of this peer's session.
    pub fn is_of(&self, peer: &Peer) -> bool {
        let session_id = peer.session_id.as_deref().unwrap_or(peer.peer_id.as_str());
        self.is_backend(&peer.backend)
            && session_id.to_lowercase() == self.session_id.to_lowercase()
    }
}

/// Whether a text has the form of a hosted agent's key: `agent:<instance>:<name>`, in lower case.
pub fn is_agent_key(text: &str) -> bool {
    let parts = text.strip_prefix(KEY).and_then(|rest| rest.split_once(':'));
    let is_part = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_' | b'.')
    };
    parts.is_some_and(|(instance, name)| {
        is_instance_name(instance) && !name.is_empty() && name.bytes().all(is_part)
    })
}

/// Of peers that one text names, the only one, or the only one that is alive. Fails with the
/// candidates, the living first, if there are several or none.
pub fn choose<T>(mut candidates: Vec<T>, peer: impl Fn(&T) -> &Peer) -> Result<T, Vec<T>> {
    let is_alive = |candidate: &T| peer(candidate).status != PeerStatus::Offline;
    let alive = candidates.iter().filter(|candidate| is_alive(candidate)).count();
    candidates.sort_by_key(|candidate| !is_alive(candidate));
    if candidates.len() == 1 || alive == 1 {
        return Ok(candidates.swap_remove(0));
    }
    Err(candidates)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;

    #[test]
    fn a_beginning_that_is_too_short_is_known() {
        for (text, is) in [
            ("peer_", true),
            ("peer_01k", true),
            ("peer_01k9", false),
            ("peer_a b", false),
            ("msg_01", false),
            ("01k", false),
        ] {
            assert_eq!(IdReference::is_too_short(text, "peer_"), is, "{text}");
        }
    }

    #[test]
    fn four_characters_of_an_id_may_name_it() {
        let prefix = |text: &str| Some(IdReference::Prefix(text.to_owned()));
        for (text, reference) in [
            ("peer_01k9zz00000000000000000000", Some(IdReference::Whole)),
            ("peer_unknown_and_longer_than_any_id", Some(IdReference::Whole)),
            ("peer_01k9", prefix("peer_01k9")),
            ("01k9", prefix("peer_01k9")),
            ("01k9zz00000000000000000000", prefix("peer_01k9zz00000000000000000000")),
            ("peer_01k", None),
            ("peer_", None),
            ("01k", None),
            ("peer_01k9 zz", None),
            ("01K9", None),
            ("msg_01k9", None),
            ("", None),
        ] {
            assert_eq!(IdReference::parse(text, "peer_"), reference, "{text:?}");
        }
    }

    fn peer(backend: &str, session: Option<&str>, status: PeerStatus) -> Peer {
        Peer {
            peer_id: PeerId::from("peer_01".to_owned()),
            backend: backend.to_owned(),
            status,
            session_id: session.map(str::to_owned),
            ..Peer::operator(Timestamp::from_millis(0))
        }
    }

    #[test]
    fn a_text_is_an_id_a_key_or_a_name_by_its_form() {
        let whole = "peer_01k9zz00000000000000000000";
        let id = |text: &str| Some(PeerReference::Id(PeerId::from(text.to_owned())));
        let prefix = |text: &str| Some(PeerReference::IdPrefix(text.to_owned()));
        let name = |prefix: Option<&str>| {
            Some(PeerReference::Name { id_prefix: prefix.map(str::to_owned) })
        };
        for (text, reference) in [
            ("operator", id("operator")),
            (whole, id(whole)),
            ("peer_unknown_and_longer_than_any_id", id("peer_unknown_and_longer_than_any_id")),
            ("peer_01k9", prefix("peer_01k9")),
            ("peer_01k", None),
            ("peer_", None),
            ("peer_01k9 zz", None),
            ("01k9", name(Some("peer_01k9"))),
            ("01k", name(None)),
            ("Operator", name(None)),
            ("claude-code@repo", name(None)),
            ("agent:codex", None),
            ("agent:codex:", None),
            ("AGENT:codex:%zz", None),
            ("agent", name(Some("peer_agent"))),
            ("", None),
            (" ", None),
        ] {
            assert_eq!(PeerReference::parse(text), reference, "{text:?}");
        }
    }

    #[test]
    fn a_key_names_a_session_whatever_its_case() {
        use PeerStatus::Idle;

        let key = |text: &str| match PeerReference::parse(text) {
            Some(PeerReference::SessionKey(key)) => key,
            other => panic!("{text}: {other:?}"),
        };
        for (text, backend, session, is_of) in [
            ("agent:codex:S-1", "codex", "s-1", true),
            ("Agent:Codex:s-1", "codex", "s-1", true),
            ("agent:claude:s-1", "claude-code", "s-1", true),
            ("agent:claude-code:s-1", "claude-code", "s-1", true),
            ("agent:claude-code:s-1", "claude", "s-1", true),
            ("agent:codex:a:b", "codex", "a:b", true),
            ("agent:codex:a%20b", "codex", "a b", true),
            ("agent:codex:s-1", "gemini", "s-1", false),
            ("agent:codex:s-1", "codex", "s-2", false),
        ] {
            let key = key(text);
            assert_eq!(key.is_of(&peer(backend, Some(session), Idle)), is_of, "{text}");
            if is_of {
                assert!(key.session_id.eq_ignore_ascii_case(session), "{text}");
            }
        }
        assert!(key("agent:codex:peer_01").is_of(&peer("codex", None, Idle)), "without a session");
    }

    #[test]
    fn the_key_of_an_agent_has_a_form() {
        for (text, is) in [
            ("agent:reviewer:main", true),
            ("agent:a-1:task_01.b-c", true),
            ("agent:reviewer:", false),
            ("agent::main", false),
            ("agent:Reviewer:main", false),
            ("agent:reviewer:a:b", false),
            ("agent:reviewer:a b", false),
            ("xagent:reviewer:main", false),
            ("claude-code-1-ab", false),
        ] {
            assert_eq!(is_agent_key(text), is, "{text}");
        }
    }

    #[test]
    fn of_several_the_only_living_one_is_meant() {
        use PeerStatus::{Idle, Offline, Online};
        for (statuses, chosen) in [
            (&[Offline][..], Ok(Offline)),
            (&[Offline, Idle, Offline], Ok(Idle)),
            (&[Offline, Online, Idle], Err(vec![Online, Idle, Offline])),
            (&[Offline, Offline], Err(vec![Offline, Offline])),
            (&[], Err(vec![])),
        ] {
            let peers = statuses.iter().map(|status| peer("x", None, *status)).collect();
            let choice = choose(peers, |peer| peer);
            let statuses_of = |peers: Vec<Peer>| peers.iter().map(|peer| peer.status).collect();
            assert_eq!(choice.map(|peer| peer.status).map_err(statuses_of), chosen, "{statuses:?}");
        }
    }
}
