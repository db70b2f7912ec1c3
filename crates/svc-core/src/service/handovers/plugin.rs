//! The plugin of opencode, which keeps one connection for all sessions of its process.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use schemars::JsonSchema;
use serde::Serialize;
use svc_model::{HandoverId, MessageId, Principal};
use tokio::sync::{mpsc, oneshot};

use crate::boxed;
use crate::service::core::lock;

/// How long a plugin may take to report.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Most words that wait for one plugin.
const WORDS: usize = 64;

/// What a plugin is to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum PluginWord {
    /// Hand this text to the session, once.
    Give {
        /// Names it in the report.
        handover_id: HandoverId,
        /// The client's own id of the session.
        session_id: String,
        text: String,
    },
    /// Look which of these messages are in the session.
    Look {
        handover_id: HandoverId,
        session_id: String,
        /// Each message with the words of its stamp that name it.
        marks: Vec<(MessageId, String)>,
    },
}

impl PluginWord {
    fn handover(&self) -> &HandoverId {
        match self {
            Self::Give { handover_id, .. } | Self::Look { handover_id, .. } => handover_id,
        }
    }
}

/// What a plugin says of a hand-over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PluginReport {
    /// The client took the text.
    Taken,
    Refused,
    /// Whether the client took the text is not known.
    Unknown,
    /// These of the messages are in the session, and no other.
    Shows(Vec<MessageId>),
    /// The session cannot be read.
    Unreadable,
}

/// The connections of plugins, one for each principal.
#[derive(Debug, Default)]
pub(super) struct PluginConnections {
    connections: Mutex<HashMap<Principal, PluginConnection>>,
}

#[derive(Debug)]
struct PluginConnection {
    words: mpsc::Sender<PluginWord>,
    /// What the plugin has not answered.
    open: HashMap<HandoverId, oneshot::Sender<PluginReport>>,
}

/// A plugin's end of its connection, until it is dropped or a later one takes its place.
#[derive(Debug)]
pub struct PluginHold {
    connections: Arc<PluginConnections>,
    principal: Principal,
    words: mpsc::Receiver<PluginWord>,
}

impl PluginHold {
    /// The next word; `None` if a later connection took the place of this one.
    #[boxed]
    pub async fn next(&mut self) -> Option<PluginWord> {
        self.words.recv().await
    }
}

impl Drop for PluginHold {
    fn drop(&mut self) {
        self.words.close();
        let mut connections = self.connections.lock();
        // A later connection may have taken the place of this one.
        if connections.get(&self.principal).is_some_and(|known| known.words.is_closed()) {
            connections.remove(&self.principal);
        }
    }
}

impl PluginConnections {
    fn lock(&self) -> MutexGuard<'_, HashMap<Principal, PluginConnection>> {
        lock(&self.connections)
    }

    pub(super) fn hold(self: &Arc<Self>, principal: Principal) -> PluginHold {
        let (sender, words) = mpsc::channel(WORDS);
        let connection = PluginConnection { words: sender, open: HashMap::new() };
        self.lock().insert(principal.clone(), connection);
        PluginHold { connections: Arc::clone(self), principal, words }
    }

    /// Passes a report on. Returns whether somebody waited for it.
    pub(super) fn report(
        &self,
        principal: &Principal,
        id: &HandoverId,
        report: PluginReport,
    ) -> bool {
        let waits =
            self.lock().get_mut(principal).and_then(|connection| connection.open.remove(id));
        waits.is_some_and(|waits| waits.send(report).is_ok())
    }

    pub(super) fn is_held(&self, principal: Option<&Principal>) -> bool {
        principal.is_some_and(|principal| self.lock().contains_key(principal))
    }

    /// Says a word to a plugin, and waits for its report: `Refused` if the plugin certainly did not
    /// hear the word, `Unknown` if it does not report in time.
    pub(super) async fn ask(
        &self,
        principal: Option<&Principal>,
        word: PluginWord,
    ) -> PluginReport {
        let Some(report) = self.say(principal, word) else { return PluginReport::Refused };
        match tokio::time::timeout(TIMEOUT, report).await {
            Ok(Ok(report)) => report,
            _ => PluginReport::Unknown,
        }
    }

    fn say(
        &self,
        principal: Option<&Principal>,
        word: PluginWord,
    ) -> Option<oneshot::Receiver<PluginReport>> {
        let mut connections = self.lock();
        let connection = connections.get_mut(principal?)?;
        let (sender, report) = oneshot::channel();
        let id = word.handover().clone();
        connection.words.try_send(word).ok()?;
        connection.open.insert(id, sender);
        Some(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_later_line_takes_the_place_of_an_earlier_one() {
        let connections = Arc::new(PluginConnections::default());
        let own = Principal::Session("p".into());
        let mut first = connections.hold(own.clone());
        let id = HandoverId::from("ho_1".to_owned());
        let look = || PluginWord::Look {
            handover_id: id.clone(),
            session_id: "s".to_owned(),
            marks: Vec::new(),
        };
        let report = connections.say(Some(&own), look()).expect("it is held");
        assert_eq!(first.next().await, Some(look()));
        assert!(!connections.report(&Principal::Operator, &id, PluginReport::Taken), "of another");
        assert!(connections.report(&own, &id, PluginReport::Taken));
        assert!(!connections.report(&own, &id, PluginReport::Taken), "once");
        assert_eq!(report.await, Ok(PluginReport::Taken));
        let second = connections.hold(own.clone());
        assert_eq!(first.next().await, None);
        drop(first);
        assert!(connections.is_held(Some(&own)));
        let report = connections.say(Some(&own), look()).expect("it is held");
        drop(second);
        assert!(!connections.is_held(Some(&own)) && connections.say(Some(&own), look()).is_none());
        assert!(report.await.is_err(), "nobody answers any more");
    }
}
