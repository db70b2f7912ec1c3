//! Messages from session to session: where one comes from, its turn and its reply, and who waits
//! for whom. `policy` says which sessions a session may see and send to, `redact` removes secrets
//! from what is shown of a conversation.

use std::collections::{HashMap, HashSet, VecDeque};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{RunId, words::words};

mod policy;
mod redact;

pub use policy::{
    AllowRule, SessionDenial, SessionParty, SessionRelation, SessionsPolicy, SessionsVisibility,
};
pub use redact::redacted;

/// Where a message comes from. It is stored with the message, and is in its events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Provenance {
    /// What kind of source it is.
    pub kind: ProvenanceKind,
    /// Key of the session that sent it; absent if the person did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_session_key: Option<String>,
    /// The call that it came by.
    pub source_tool: SourceTool,
    /// The send that it belongs to: a reply has that of its question.
    pub run_id: RunId,
}

/// Kind of source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProvenanceKind {
    /// Another session, or the person through the daemon: not the user of the receiving session.
    InterSession,
}

words! {
    /// The call by which a message came.
    pub enum SourceTool {
        /// A message to one peer, also over HTTP and on the terminal.
        PeerSend = "peer_send",
        /// A message to many.
        PeerBroadcast = "peer_broadcast",
        /// A message to a session, or the reply to one.
        SessionsSend = "sessions_send",
        /// The end of a child.
        SessionsSpawn = "sessions_spawn",
        /// The end of a dispatched task.
        SendMessage = "SendMessage",
        /// What a hosted agent asks permission for.
        AgentRequest = "agent_request",
    }
}

impl Provenance {
    /// `source_session_key`: `None` for the person.
    pub fn inter_session(
        source_session_key: Option<String>,
        source_tool: SourceTool,
        run_id: RunId,
    ) -> Self {
        Self { kind: ProvenanceKind::InterSession, source_session_key, source_tool, run_id }
    }
}

/// How a message is to be taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunMode {
    /// As a turn of its own, whose words are the reply.
    #[default]
    Followup,
    /// To be known: nothing is answered.
    Notify,
    /// Into the turn that is under way.
    Steer,
}

words! {
    /// How far a send is.
    pub enum RunState {
        /// The target has not begun with it.
        Queued = "queued",
        /// The target has it before its eyes.
        Running = "running",
        /// It was answered.
        Ok = "ok",
        /// The turn ended without words.
        NoReply = "no_reply",
        /// It met a limit of the target's.
        Timeout = "timeout",
        /// It failed.
        Error = "error",
    }
}

impl RunState {
    pub const fn is_over(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }
}

/// What the one who sent is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SendStatus {
    /// The reply is here.
    Ok,
    /// It was taken; a reply comes later as a message, once.
    Accepted,
    /// The turn ended without words.
    NoReply,
    /// It met a limit of the target's.
    Timeout,
    /// It was refused, or failed.
    Error,
    /// Not for this caller.
    Forbidden,
}

impl From<RunState> for SendStatus {
    fn from(state: RunState) -> Self {
        match state {
            RunState::Queued | RunState::Running => Self::Accepted,
            RunState::Ok => Self::Ok,
            RunState::NoReply => Self::NoReply,
            RunState::Timeout => Self::Timeout,
            RunState::Error => Self::Error,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnReply {
    Text(String),
    /// No text, or [`Self::SKIP`].
    Silence,
}

impl TurnReply {
    /// A final text that counts as no reply.
    pub const SKIP: &'static str = "REPLY_SKIP";

    pub fn from_text(text: &str) -> Self {
        match text.trim() {
            "" | Self::SKIP => Self::Silence,
            _ => Self::Text(text.to_owned()),
        }
    }
}

/// The number of the turn that answers the reply of turn `turn`; `None` after a silence, and after
/// `most` turns.
pub fn next_turn(turn: u32, most: u32, reply: &TurnReply) -> Option<u32> {
    (*reply != TurnReply::Silence && turn < most).then_some(turn + 1)
}

/// Keys of a waiting session and of the session that it waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitEdge {
    pub waiter: String,
    pub awaited: String,
}

/// The shortest cycle that a wait of `from` for `to` would close, from `from` back to itself.
pub fn wait_cycle(edges: &[WaitEdge], from: &str, to: &str) -> Option<Vec<String>> {
    let mut next: HashMap<&str, Vec<&str>> = HashMap::new();
    for WaitEdge { waiter, awaited } in edges {
        next.entry(waiter).or_default().push(awaited);
    }
    let mut came_from: HashMap<&str, &str> = HashMap::new();
    let (mut seen, mut ahead) = (HashSet::from([to]), VecDeque::from([to]));
    while let Some(here) = ahead.pop_front() {
        if here == from {
            let mut path = vec![from.to_owned()];
            let mut at = here;
            while at != to {
                at = came_from[at];
                path.push(at.to_owned());
            }
            path.push(from.to_owned());
            // The search followed the edges to `from` backwards.
            path.reverse();
            return Some(path);
        }
        for awaited in next.get(here).into_iter().flatten() {
            if seen.insert(awaited) {
                came_from.insert(awaited, here);
                ahead.push_back(awaited);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn provenance_has_this_form_on_the_wire() {
        use SourceTool::{
            AgentRequest, PeerBroadcast, PeerSend, SendMessage, SessionsSend, SessionsSpawn,
        };

        let key = Some("agent:reviewer:main".to_owned());
        let run = RunId::from("run_1".to_owned());
        let provenance = Provenance::inter_session(key, SessionsSend, run);
        assert_eq!(
            serde_json::to_value(&provenance).unwrap(),
            serde_json::json!({
                "kind": "inter_session", "sourceSessionKey": "agent:reviewer:main",
                "sourceTool": "sessions_send", "runId": "run_1",
            })
        );
        for tool in
            [PeerSend, PeerBroadcast, SessionsSend, SessionsSpawn, SendMessage, AgentRequest]
        {
            assert_eq!(serde_json::json!(tool), tool.as_str());
        }
    }

    #[test]
    fn replies_to_replies_are_bounded() {
        let words = TurnReply::from_text("well");
        let mut turns = vec![1];
        while let Some(next) = next_turn(turns[turns.len() - 1], 5, &words) {
            turns.push(next);
        }
        assert_eq!(turns, [1, 2, 3, 4, 5]);
        for (turn, most, text, next) in [
            (1, 5, "", None),
            (1, 5, " \n", None),
            (1, 5, "REPLY_SKIP", None),
            (1, 5, " REPLY_SKIP\n", None),
            (1, 5, "reply_skip", Some(2)),
            (1, 5, "I say REPLY_SKIP", Some(2)),
            (1, 1, "well", None),
            (1, 0, "well", None),
            (9, 5, "well", None),
        ] {
            assert_eq!(
                next_turn(turn, most, &TurnReply::from_text(text)),
                next,
                "{turn} {most} {text:?}"
            );
        }
        assert_eq!(
            TurnReply::from_text(" a "),
            TurnReply::Text(" a ".to_owned()),
            "as it was said"
        );
    }

    #[test]
    fn each_run_state_has_its_status_for_the_sender() {
        for (state, is_over, status) in [
            (RunState::Queued, false, "accepted"),
            (RunState::Running, false, "accepted"),
            (RunState::Ok, true, "ok"),
            (RunState::NoReply, true, "no_reply"),
            (RunState::Timeout, true, "timeout"),
            (RunState::Error, true, "error"),
        ] {
            assert_eq!(state.is_over(), is_over);
            assert_eq!(serde_json::json!(SendStatus::from(state)), status);
            assert_eq!(serde_json::json!(state), state.as_str());
        }
    }

    fn edges(pairs: &[(&str, &str)]) -> Vec<WaitEdge> {
        let edge = |(waiter, awaited): &(&str, &str)| WaitEdge {
            waiter: (*waiter).to_owned(),
            awaited: (*awaited).to_owned(),
        };
        pairs.iter().map(edge).collect()
    }

    #[test]
    fn a_cycle_is_returned_whole() {
        for (waits, from, to, circle) in [
            (&[][..], "a", "b", None),
            (&[], "a", "a", Some("a a")),
            (&[("b", "a")], "a", "b", Some("a b a")),
            (&[("a", "b")], "a", "b", None),
            (&[("b", "c"), ("c", "d"), ("d", "a")], "a", "b", Some("a b c d a")),
            (&[("b", "c"), ("c", "a"), ("b", "a")], "a", "b", Some("a b a")),
            (&[("b", "c"), ("c", "b")], "a", "b", None),
            (&[("x", "a"), ("b", "y")], "a", "b", None),
        ] {
            let found = wait_cycle(&edges(waits), from, to).map(|path| path.join(" "));
            assert_eq!(found.as_deref(), circle, "{waits:?} {from}->{to}");
        }
    }

    #[test]
    fn a_long_cycle_is_found() {
        let names: Vec<String> = (0..10_000).map(|number| number.to_string()).collect();
        let chain: Vec<WaitEdge> = names
            .windows(2)
            .map(|pair| WaitEdge { waiter: pair[0].clone(), awaited: pair[1].clone() })
            .collect();
        let circle = wait_cycle(&chain, "9999", "0").expect("a circle");
        assert_eq!((circle.len(), circle[0].as_str(), circle[1].as_str()), (10_001, "9999", "0"));
    }

    proptest! {
        /// If waits that would close a cycle are rejected, the graph has no cycle.
        #[test]
        fn accepted_waits_never_form_a_cycle(pairs in prop::collection::vec(("[a-f]", "[a-f]"), 0..40)) {
            let mut taken: Vec<WaitEdge> = Vec::new();
            for (waiter, awaited) in pairs {
                match wait_cycle(&taken, &waiter, &awaited) {
                    None => taken.push(WaitEdge { waiter, awaited }),
                    Some(path) => {
                        prop_assert!(path.first() == path.last() && path[1] == awaited);
                        let is_wait = |pair: &[String]| {
                            pair[0] == waiter && pair[1] == awaited
                                || taken.iter().any(|edge| edge.waiter == pair[0] && edge.awaited == pair[1])
                        };
                        prop_assert!(path.windows(2).all(is_wait), "{path:?}");
                    }
                }
            }
            // A session that waits for nobody can answer; removing such sessions repeatedly must
            // leave nothing.
            let mut left = taken;
            loop {
                let waiting: HashSet<String> = left.iter().map(|edge| edge.waiter.clone()).collect();
                let before = left.len();
                left.retain(|edge| waiting.contains(&edge.awaited));
                if left.len() == before {
                    break;
                }
            }
            prop_assert!(left.is_empty(), "{left:?}");
        }
    }
}
