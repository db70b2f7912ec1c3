//! Unfinished entries: text that an agent streams before an event records it. Kept in memory only,
//! until the entry is finished.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use svc_model::{StreamName, StreamVisibility, Timestamp, agent::AgentDelta};
use tokio::sync::watch;

/// Maximum bytes per read.
const MOST: usize = 64 * 1024;

/// The unfinished entry of each stream that has one.
#[derive(Debug)]
pub struct UnfinishedEntries {
    said: Mutex<HashMap<StreamName, Said>>,
    /// Incremented on each [`Self::say`], to wake listeners.
    count: watch::Sender<u64>,
}

#[derive(Debug)]
struct Said {
    visibility: Arc<StreamVisibility>,
    after: PrecedingEvent,
    /// The whole text so far.
    words: AgentDelta,
    /// Time of the last delta.
    at: Timestamp,
}

/// The last event before an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrecedingEvent {
    pub seq: i64,
    /// Position of that event in the log, or a later position.
    pub position: i64,
}

/// Text that a reader has not received yet.
#[derive(Debug)]
pub struct EntryDelta {
    pub stream: StreamName,
    pub words: AgentDelta,
    /// Time of the last delta.
    pub at: Timestamp,
}

/// A reader's progress: for each stream, the entry's id and the bytes that the reader has received.
#[derive(Debug)]
pub struct EntryListener {
    count: watch::Receiver<u64>,
    heard: HashMap<StreamName, (String, usize)>,
}

impl UnfinishedEntries {
    pub(crate) fn new() -> Self {
        Self { said: Mutex::default(), count: watch::Sender::default() }
    }

    /// Appends a delta to the stream's entry; a delta of another entry replaces the entry.
    pub fn say(
        &self,
        stream: &StreamName,
        visibility: &Arc<StreamVisibility>,
        after: PrecedingEvent,
        delta: &AgentDelta,
        at: Timestamp,
    ) {
        let mut said = self.lock();
        match said.get_mut(stream) {
            Some(known) if known.words.of == delta.of => {
                known.words.text.push_str(&delta.text);
                known.at = at;
            }
            _ => {
                let (visibility, words) = (Arc::clone(visibility), delta.clone());
                said.insert(stream.clone(), Said { visibility, after, words, at });
            }
        }
        drop(said);
        self.count.send_modify(|count| *count += 1);
    }

    /// Removes the entry, because an event is about to record it or none ever will.
    pub fn finish(&self, stream: &StreamName) {
        self.lock().remove(stream);
    }

    /// Listens from the beginning of each unfinished entry.
    pub fn listen(&self) -> EntryListener {
        EntryListener { count: self.count.subscribe(), heard: HashMap::new() }
    }

    /// The next text that the reader has not received, of a stream for which `may_hear` is true.
    pub fn hear(
        &self,
        listener: &mut EntryListener,
        may_hear: impl Fn(&StreamName, &StreamVisibility, PrecedingEvent) -> bool,
    ) -> Option<EntryDelta> {
        let said = self.lock();
        for (stream, Said { visibility, after, words, at }) in &*said {
            if !may_hear(stream, visibility, *after) {
                continue;
            }
            let known = listener.heard.get(stream);
            let heard = known.filter(|(of, _)| *of == words.of).map_or(0, |(_, heard)| *heard);
            let Some(rest) = words.text.get(heard..).filter(|rest| !rest.is_empty()) else {
                continue;
            };
            let text = rest[..rest.floor_char_boundary(MOST)].to_owned();
            let stream = stream.clone();
            listener.heard.insert(stream.clone(), (words.of.clone(), heard + text.len()));
            let (role, of, at) = (words.role, words.of.clone(), *at);
            return Some(EntryDelta { stream, words: AgentDelta { role, text, of }, at });
        }
        // Progress in a stream without an entry is kept for a while: after a broken connection the
        // host repeats the entry from its beginning.
        if listener.heard.len() > 2 * said.len() + 64 {
            listener.heard.retain(|stream, _| said.contains_key(stream));
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<StreamName, Said>> {
        // No code panics under this lock.
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EntryListener {
    /// Waits until any entry grows.
    pub async fn changed(&mut self) {
        // The bus owns the sender, and the reader's store owns the bus.
        if self.count.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use svc_model::agent::HistoryRole;

    use super::*;

    fn delta(of: &str, text: &str) -> AgentDelta {
        AgentDelta { role: HistoryRole::Assistant, text: text.to_owned(), of: of.to_owned() }
    }

    #[test]
    fn a_reader_gets_each_delta_once_and_nothing_of_finished_entries() {
        let (sayings, stream) = (UnfinishedEntries::new(), StreamName::new("agent", "ag_1"));
        let visibility = Arc::new(StreamVisibility::Team);
        let after = PrecedingEvent { seq: 3, position: 9 };
        let say = |of: &str, text: &str| {
            sayings.say(&stream, &visibility, after, &delta(of, text), Timestamp::from_millis(1));
        };
        let hear = |listener: &mut EntryListener, cursor: i64| {
            let heard = sayings.hear(listener, |_, _, after| cursor >= after.seq);
            heard.map(|heard| (heard.words.of, heard.words.text))
        };
        let mut early = sayings.listen();
        assert_eq!(hear(&mut early, 9), None);
        say("1", "one ");
        assert_eq!(hear(&mut early, 2), None, "the reader has not read the preceding event");
        assert_eq!(hear(&mut early, 3), Some(("1".to_owned(), "one ".to_owned())));
        say("1", "two");
        assert_eq!(hear(&mut early, 3), Some(("1".to_owned(), "two".to_owned())));
        assert_eq!(hear(&mut early, 3), None);
        let mut late = sayings.listen();
        assert_eq!(hear(&mut late, 3), Some(("1".to_owned(), "one two".to_owned())));
        // The connection to the host broke; the host repeats the whole entry.
        sayings.finish(&stream);
        assert_eq!(hear(&mut late, 3), None);
        say("1", "one two three");
        assert_eq!(hear(&mut late, 3), Some(("1".to_owned(), " three".to_owned())));
        say("2", &"é".repeat(MOST));
        let (_, first) = hear(&mut late, 3).unwrap();
        let (_, second) = hear(&mut late, 3).unwrap();
        assert_eq!((first.len(), second.len()), (MOST, MOST));
    }
}
