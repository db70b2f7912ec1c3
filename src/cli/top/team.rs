//! The daemon's documents about the team, with every text of others sanitised.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use svc_model::agent::{RequestKind, RequestOption};
use svc_model::{Peer, PeerId, PeerStatus, Timestamp, WaitingFor, WaitingKind};

use crate::cli::{output, peer::is_of_task, terminal};

/// Documents that were fetched at about the same time.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct TeamSnapshot {
    /// Living peers first.
    pub(super) peers: Vec<Peer>,
    pub(super) attempts: Vec<OpenAttempt>,
    /// Permission requests of agents, the latest first.
    pub(super) requests: Vec<TeamRequest>,
    /// Questions that wait for an answer, the latest first.
    pub(super) questions: Vec<TeamMessage>,
    pub(super) tasks: Vec<OpenTask>,
    /// The latest first.
    pub(super) messages: Vec<TeamMessage>,
}

/// An open GHAP record: the attempt of a session.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct OpenAttempt {
    pub(super) session_id: String,
    pub(super) goal: String,
    #[serde(default)]
    pub(super) hypothesis: String,
    #[serde(default)]
    pub(super) action: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct TeamMessage {
    pub(super) id: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) from_peer: String,
    pub(super) to_peer: String,
    #[serde(default)]
    from_name: String,
    #[serde(default)]
    to_name: String,
    /// Several lines.
    pub(super) text: String,
    pub(super) state: String,
    pub(super) timestamp: Timestamp,
    #[serde(default)]
    pub(super) answered: bool,
    /// Whether it is a question that waits for its answer.
    #[serde(default)]
    pub(super) open: bool,
    /// How many further receivers the broadcast has; their rows are not shown.
    #[serde(skip)]
    copies: usize,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct TeamRequest {
    pub(super) request_id: String,
    #[serde(default)]
    pub(super) session_key: String,
    #[serde(default)]
    pub(super) peer_id: String,
    kind: RequestKind,
    pub(super) title: String,
    #[serde(default)]
    pub(super) cwd: String,
    /// The call that is asked for: `name` and `input`.
    #[serde(default)]
    pub(super) tool: Value,
    pub(super) options: Vec<RequestOption>,
    pub(super) opened_at: Timestamp,
}

impl TeamRequest {
    /// What whoever opened it wants of a person.
    pub(super) fn wants(&self) -> &'static str {
        match self.kind {
            RequestKind::Question => "asks a question",
            RequestKind::Permission => "needs permission",
        }
    }

    /// The arguments of the call by name, in the form in which they will be used: strings
    /// unchanged, everything else as JSON. Input that is not an object is one argument without a
    /// name.
    pub(super) fn arguments(&self) -> Vec<(String, String)> {
        let shown = |value: &Value| lines(&output::plain(value));
        match &self.tool["input"] {
            Value::Null => Vec::new(),
            Value::Object(members) => {
                let members = members.iter();
                members
                    .map(|(name, value)| (terminal::cell(name).into_owned(), shown(value)))
                    .collect()
            }
            value => vec![(String::new(), shown(value))],
        }
    }
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct OpenTask {
    pub(super) task_id: String,
    pub(super) status: String,
    #[serde(default)]
    pub(super) title: String,
    #[serde(default)]
    pub(super) agent: String,
    pub(super) created_at: Timestamp,
}

pub(super) fn is_away(peer: &Peer) -> bool {
    peer.status == PeerStatus::Offline
}

/// Whether this is the agent of one task, which the list of tasks shows.
pub(super) fn is_agent_of_task(peer: &Peer) -> bool {
    is_of_task(&peer.display_name)
}

/// What the peer waits for while its status is `waiting`.
pub(super) fn wait_of(peer: &Peer) -> Option<&WaitingFor> {
    peer.waiting_for.as_ref().filter(|_| peer.status == PeerStatus::Waiting)
}

pub(super) fn wait_words(wait: &WaitingFor) -> String {
    let what = match wait.kind {
        WaitingKind::Permission => "needs permission",
        WaitingKind::Question => "asks its person",
        WaitingKind::Limit => "has reached its usage limit",
        WaitingKind::Reply => "waits for a reply",
    };
    match wait.title.as_deref().unwrap_or_default() {
        "" => what.to_owned(),
        title => format!("{what}: {title}"),
    }
}

impl TeamMessage {
    pub(super) fn is_own(&self) -> bool {
        self.from_peer == PeerId::OPERATOR
    }

    pub(super) fn from(&self) -> &str {
        name_of(&self.from_peer, &self.from_name)
    }

    pub(super) fn to(&self) -> &str {
        if self.copies > 0 { "everybody" } else { name_of(&self.to_peer, &self.to_name) }
    }

    pub(super) fn line(&self) -> String {
        self.text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn is_copy_of(&self, other: &Self) -> bool {
        let common = |message: &Self| {
            (message.kind.clone(), message.from_peer.clone(), message.text.clone())
        };
        self.kind == "broadcast" && common(self) == common(other)
    }
}

impl TeamSnapshot {
    pub(super) fn attempt_of(&self, peer: &Peer) -> Option<&OpenAttempt> {
        let session = peer.session_id.as_ref()?;
        self.attempts.iter().find(|attempt| attempt.session_id == *session)
    }

    pub(super) fn has_machines(&self) -> bool {
        self.peers.iter().any(|peer| peer.machine.is_some())
    }

    /// Names of the peers for whose answers a peer waits, with a mark for offline ones.
    pub(super) fn awaited_by(&self, peer: &Peer) -> Vec<String> {
        let mut names: Vec<String> = self
            .questions
            .iter()
            .filter(|question| question.from_peer == peer.peer_id.as_str())
            .map(|question| format!("{}{}", question.to(), self.away_mark(&question.to_peer)))
            .collect();
        names.dedup();
        names
    }

    /// How many other peers are here, and how many are offline.
    pub(super) fn presence(&self) -> (usize, usize) {
        let is_other = |peer: &&Peer| !peer.peer_id.is_operator() && !is_agent_of_task(peer);
        let others = || self.peers.iter().filter(is_other);
        let away = others().filter(|peer| is_away(peer)).count();
        (others().count() - away, away)
    }

    pub(super) fn request_of(&self, peer: &Peer) -> Option<&TeamRequest> {
        self.requests.iter().find(|request| request.peer_id == peer.peer_id.as_str())
    }

    /// The name of the agent that asks.
    pub(super) fn asker<'a>(&'a self, request: &'a TeamRequest) -> &'a str {
        self.peer(&request.peer_id).map_or(&request.session_key, |peer| &peer.display_name)
    }

    pub(super) fn away_mark(&self, peer_id: &str) -> &'static str {
        if self.is_away(peer_id) { " (offline)" } else { "" }
    }

    /// Whether a peer is known to be offline. The operator is never offline, as the operator looks
    /// at this page.
    pub(super) fn is_away(&self, peer_id: &str) -> bool {
        self.peer(peer_id).is_some_and(|peer| !peer.peer_id.is_operator() && is_away(peer))
    }

    fn peer(&self, peer_id: &str) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.peer_id.as_str() == peer_id)
    }
}

/// The messages with one row for each broadcast: the first of its copies, which are adjacent.
pub(super) fn without_copies(messages: Vec<TeamMessage>) -> Vec<TeamMessage> {
    let mut rows: Vec<TeamMessage> = Vec::with_capacity(messages.len());
    for message in messages {
        match rows.last_mut().filter(|last| last.is_copy_of(&message)) {
            Some(last) => last.copies += 1,
            None => rows.push(message),
        }
    }
    rows
}

fn name_of<'a>(id: &'a str, name: &'a str) -> &'a str {
    match (id, name) {
        (PeerId::OPERATOR, _) => "you",
        (id, "") => id,
        (_, name) => name,
    }
}

/// The items of a page that parse. Items of a later version may not parse and are left out.
pub(super) fn items<T: DeserializeOwned>(page: &Value, key: &str) -> Vec<T> {
    let items = output::items(page, key).iter().map(|item| sanitised("", item));
    items.filter_map(|item| serde_json::from_value(item).ok()).collect()
}

/// A document whose texts cannot control the terminal. The text of a message keeps its lines. The
/// id of an option stays as it is: the daemon gets it back, and the screen does not show it. So
/// does the input of a call, see [`TeamRequest::arguments`].
fn sanitised(key: &str, value: &Value) -> Value {
    match value {
        _ if matches!(key, "option_id" | "input") => value.clone(),
        Value::String(text) if key == "text" => lines(text).into(),
        Value::String(text) => terminal::cell(text).into(),
        Value::Array(items) => items.iter().map(|item| sanitised(key, item)).collect(),
        Value::Object(members) => {
            let members = members.iter().filter(|(_, value)| !value.is_null());
            members.map(|(name, value)| (name.clone(), sanitised(name, value))).collect()
        }
        value => value.clone(),
    }
}

fn lines(text: &str) -> String {
    terminal::block(text).replace('\t', "    ")
}
