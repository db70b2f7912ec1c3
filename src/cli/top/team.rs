//! The daemon's documents about the team. Deserialisation sanitises the text of others, so no other
//! code has to.

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use svc_model::{PeerId, Timestamp};

use crate::cli::agent_attach::is_permanent;
use crate::cli::peer::is_of_task;
use crate::cli::terminal;

/// Documents that were fetched at about the same time.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct TeamSnapshot {
    /// Living peers first.
    pub(super) peers: Vec<TeamPeer>,
    pub(super) attempts: Vec<OpenAttempt>,
    /// Permission requests of agents, the latest first.
    pub(super) requests: Vec<TeamRequest>,
    /// Questions that wait for an answer, the latest first.
    pub(super) questions: Vec<TeamMessage>,
    pub(super) tasks: Vec<OpenTask>,
    /// The latest first.
    pub(super) messages: Vec<TeamMessage>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct TeamPeer {
    #[serde(deserialize_with = "harmless")]
    pub(super) peer_id: String,
    #[serde(deserialize_with = "harmless")]
    pub(super) display_name: String,
    #[serde(deserialize_with = "harmless")]
    pub(super) backend: String,
    #[serde(deserialize_with = "harmless")]
    pub(super) status: String,
    #[serde(default, deserialize_with = "harmless")]
    pub(super) evidence: String,
    #[serde(default, deserialize_with = "harmless")]
    pub(super) role: String,
    #[serde(default, deserialize_with = "harmless")]
    pub(super) path: String,
    /// Empty unless the team has several machines.
    #[serde(default, deserialize_with = "harmless")]
    pub(super) machine: String,
    #[serde(default, deserialize_with = "harmless")]
    pub(super) session_id: String,
    pub(super) last_seen: Option<Timestamp>,
    /// What the peer waits for while its status is `waiting`.
    pub(super) waiting_for: Option<TeamWait>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct TeamWait {
    #[serde(deserialize_with = "harmless")]
    kind: String,
    #[serde(default, deserialize_with = "harmless")]
    title: String,
    pub(super) since: Option<Timestamp>,
    /// The known end of a usage limit.
    pub(super) until: Option<Timestamp>,
}

/// An open GHAP record: the attempt of a session.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct OpenAttempt {
    #[serde(deserialize_with = "harmless")]
    pub(super) session_id: String,
    #[serde(deserialize_with = "harmless")]
    pub(super) goal: String,
    #[serde(default, deserialize_with = "harmless")]
    pub(super) hypothesis: String,
    #[serde(default, deserialize_with = "harmless")]
    pub(super) action: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct TeamMessage {
    #[serde(deserialize_with = "harmless")]
    pub(super) id: String,
    #[serde(rename = "type", deserialize_with = "harmless")]
    pub(super) kind: String,
    #[serde(deserialize_with = "harmless")]
    pub(super) from_peer: String,
    #[serde(deserialize_with = "harmless")]
    pub(super) to_peer: String,
    #[serde(default, deserialize_with = "harmless")]
    from_name: String,
    #[serde(default, deserialize_with = "harmless")]
    to_name: String,
    /// Several lines.
    #[serde(deserialize_with = "harmless_lines")]
    pub(super) text: String,
    #[serde(default, deserialize_with = "harmless")]
    pub(super) state: String,
    pub(super) timestamp: Option<Timestamp>,
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
    #[serde(deserialize_with = "harmless")]
    pub(super) request_id: String,
    #[serde(default, deserialize_with = "harmless")]
    pub(super) session_key: String,
    #[serde(default, deserialize_with = "harmless")]
    pub(super) peer_id: String,
    #[serde(default)]
    kind: String,
    #[serde(deserialize_with = "harmless")]
    pub(super) title: String,
    #[serde(default, deserialize_with = "harmless")]
    pub(super) cwd: String,
    #[serde(default)]
    pub(super) tool: Option<TeamCall>,
    pub(super) options: Vec<TeamRequestOption>,
    pub(super) opened_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct TeamCall {
    #[serde(default, deserialize_with = "harmless")]
    pub(super) name: String,
    /// Arguments in the form in which they will be used: strings unchanged, everything else as
    /// JSON.
    #[serde(default, deserialize_with = "call_input")]
    pub(super) input: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct TeamRequestOption {
    /// Not sanitised: the daemon gets it back, and the screen does not show it.
    pub(super) option_id: String,
    #[serde(deserialize_with = "harmless")]
    pub(super) name: String,
    #[serde(default)]
    kind: String,
}

impl TeamRequest {
    /// What whoever opened it wants of a person.
    pub(super) fn wants(&self) -> &'static str {
        if self.kind == "question" { "asks a question" } else { "needs permission" }
    }
}

impl TeamRequestOption {
    pub(super) fn is_permanent(&self) -> bool {
        is_permanent(&self.kind)
    }

    pub(super) fn is_denial(&self) -> bool {
        self.kind == "deny"
    }
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct OpenTask {
    #[serde(deserialize_with = "harmless")]
    pub(super) task_id: String,
    #[serde(deserialize_with = "harmless")]
    pub(super) status: String,
    #[serde(default, deserialize_with = "harmless")]
    pub(super) title: String,
    #[serde(default, deserialize_with = "harmless")]
    pub(super) agent: String,
    pub(super) created_at: Option<Timestamp>,
}

impl TeamPeer {
    /// Whether this is the operator's own peer.
    pub(super) fn is_own(&self) -> bool {
        self.peer_id == PeerId::OPERATOR
    }

    /// Whether this is the agent of one task, which the list of tasks shows.
    pub(super) fn is_of_task(&self) -> bool {
        is_of_task(&self.display_name)
    }

    /// What the peer waits for, in words, and since when.
    pub(super) fn wait(&self) -> Option<(String, Option<Timestamp>)> {
        let wait = self.waiting_for.as_ref().filter(|_| self.status == "waiting")?;
        let what = match wait.kind.as_str() {
            "permission" => "needs permission",
            "question" => "asks its person",
            "limit" => "has reached its usage limit",
            other => other,
        };
        let words = match wait.title.as_str() {
            "" => what.to_owned(),
            title => format!("{what}: {title}"),
        };
        Some((words, wait.since))
    }

    pub(super) fn limit(&self) -> Option<&TeamWait> {
        let wait = self.waiting_for.as_ref().filter(|_| self.status == "waiting")?;
        (wait.kind == "limit").then_some(wait)
    }

    pub(super) fn is_away(&self) -> bool {
        self.status == "offline"
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
    pub(super) fn attempt_of(&self, peer: &TeamPeer) -> Option<&OpenAttempt> {
        let is_of = |attempt: &&OpenAttempt| attempt.session_id == peer.session_id;
        self.attempts.iter().find(is_of).filter(|_| !peer.session_id.is_empty())
    }

    pub(super) fn has_machines(&self) -> bool {
        self.peers.iter().any(|peer| !peer.machine.is_empty())
    }

    /// Names of the peers for whose answers a peer waits, with a mark for offline ones.
    pub(super) fn awaited_by(&self, peer: &TeamPeer) -> Vec<String> {
        let mut names: Vec<String> = self
            .questions
            .iter()
            .filter(|question| question.from_peer == peer.peer_id)
            .map(|question| format!("{}{}", question.to(), self.away_mark(&question.to_peer)))
            .collect();
        names.dedup();
        names
    }

    /// How many other peers are here, and how many are offline.
    pub(super) fn presence(&self) -> (usize, usize) {
        let others = || self.peers.iter().filter(|peer| !peer.is_own() && !peer.is_of_task());
        let away = others().filter(|peer| peer.is_away()).count();
        (others().count() - away, away)
    }

    pub(super) fn has_agent_of_task(&self) -> bool {
        self.peers.iter().any(|peer| peer.is_of_task() && !peer.is_away())
    }

    pub(super) fn request_of(&self, peer: &TeamPeer) -> Option<&TeamRequest> {
        self.requests.iter().find(|request| request.peer_id == peer.peer_id)
    }

    /// The name of the agent that asks.
    pub(super) fn asker<'a>(&'a self, request: &'a TeamRequest) -> &'a str {
        let known = self.peers.iter().find(|peer| peer.peer_id == request.peer_id);
        known.map_or(&request.session_key, |peer| &peer.display_name)
    }

    pub(super) fn away_mark(&self, peer_id: &str) -> &'static str {
        if self.is_away(peer_id) { " (offline)" } else { "" }
    }

    /// Whether a peer is known to be offline. The operator is never offline, as the operator looks
    /// at this page.
    pub(super) fn is_away(&self, peer_id: &str) -> bool {
        let is_it = |peer: &&TeamPeer| peer.peer_id == peer_id;
        self.peers.iter().find(is_it).is_some_and(|peer| !peer.is_own() && peer.is_away())
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
pub(super) fn items<T: for<'de> Deserialize<'de>>(page: &Value, key: &str) -> Vec<T> {
    let items = page.get(key).and_then(Value::as_array).into_iter().flatten();
    items.filter_map(|item| T::deserialize(item).ok()).collect()
}

/// The arguments of a call by name. Input that is not an object becomes one argument without a
/// name.
fn call_input<'de, D: Deserializer<'de>>(source: D) -> Result<Vec<(String, String)>, D::Error> {
    let text = |value: Value| match value {
        Value::String(text) => text,
        value => value.to_string(),
    };
    let shown = |text: String| terminal::block(&text).replace('\t', "    ");
    Ok(match Value::deserialize(source)? {
        Value::Null => Vec::new(),
        Value::Object(members) => members
            .into_iter()
            .map(|(name, value)| (terminal::cell(&name).into_owned(), shown(text(value))))
            .collect(),
        value => vec![(String::new(), shown(text(value)))],
    })
}

fn harmless<'de, D: Deserializer<'de>>(source: D) -> Result<String, D::Error> {
    let text = Option::<String>::deserialize(source)?.unwrap_or_default();
    Ok(terminal::cell(&text).into_owned())
}

fn harmless_lines<'de, D: Deserializer<'de>>(source: D) -> Result<String, D::Error> {
    let text = Option::<String>::deserialize(source)?.unwrap_or_default();
    Ok(terminal::block(&text).replace('\t', "    "))
}
