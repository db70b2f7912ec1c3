//! What is being said in streams: words of an entry that no event has yet. They are kept in memory
//! alone, and for as long as the entry is unfinished.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use svc_model::{StreamName, StreamVisibility, Timestamp, agent::AgentDelta};
use tokio::sync::watch;

/// Most bytes that a reader gets at once.
const MOST: usize = 64 * 1024;

/// The unfinished entry of each stream that has one.
#[derive(Debug)]
pub struct Sayings {
    said: Mutex<HashMap<StreamName, Said>>,
    /// Counts what was said.
    count: watch::Sender<u64>,
}

/// An unfinished entry.
#[derive(Debug)]
struct Said {
    visibility: Arc<StreamVisibility>,
    after: SaidAfter,
    /// All of it so far.
    words: AgentDelta,
    /// When the last of it was said.
    at: Timestamp,
}

/// The last event before an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaidAfter {
    /// In its stream.
    pub seq: i64,
    /// In the log, or behind that.
    pub position: i64,
}

/// Words that a reader has not heard yet.
#[derive(Debug)]
pub struct HeardWords {
    pub stream: StreamName,
    pub words: AgentDelta,
    /// When the last of it was said.
    pub at: Timestamp,
}

/// How far a reader has heard: of each stream the entry, and bytes of it.
#[derive(Debug)]
pub struct SayingListener {
    count: watch::Receiver<u64>,
    heard: HashMap<StreamName, (String, usize)>,
}

impl Sayings {
    pub(crate) fn new() -> Self {
        Self { said: Mutex::default(), count: watch::Sender::default() }
    }

    /// Words that follow those of the same entry, or begin another.
    pub fn say(
        &self,
        stream: &StreamName,
        visibility: &Arc<StreamVisibility>,
        after: SaidAfter,
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

    /// The entry is about to be an event, or will never be.
    pub fn finish(&self, stream: &StreamName) {
        self.lock().remove(stream);
    }

    /// Listens to what is said from its beginning.
    pub fn listen(&self) -> SayingListener {
        SayingListener { count: self.count.subscribe(), heard: HashMap::new() }
    }

    /// What a reader has not heard yet of the streams that it may read and is far enough in.
    pub fn hear(
        &self,
        listener: &mut SayingListener,
        may_hear: impl Fn(&StreamName, &StreamVisibility, SaidAfter) -> bool,
    ) -> Option<HeardWords> {
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
            return Some(HeardWords { stream, words: AgentDelta { role, text, of }, at });
        }
        // Whoever is silent may go on with the entry: the way to its host broke.
        if listener.heard.len() > 2 * said.len() + 64 {
            listener.heard.retain(|stream, _| said.contains_key(stream));
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<StreamName, Said>> {
        // No panic happens under this lock.
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SayingListener {
    /// Waits until something was said.
    pub async fn changed(&mut self) {
        // The sender lives as long as the bus, which the reader's store has.
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
    fn a_reader_hears_each_word_once_and_nothing_of_what_is_finished() {
        let (sayings, stream) = (Sayings::new(), StreamName::new("agent", "ag_1"));
        let visibility = Arc::new(StreamVisibility::Team);
        let after = SaidAfter { seq: 3, position: 9 };
        let say = |of: &str, text: &str| {
            sayings.say(&stream, &visibility, after, &delta(of, text), Timestamp::from_millis(1));
        };
        let hear = |listener: &mut SayingListener, cursor: i64| {
            let heard = sayings.hear(listener, |_, _, after| cursor >= after.seq);
            heard.map(|heard| (heard.words.of, heard.words.text))
        };
        let mut early = sayings.listen();
        assert_eq!(hear(&mut early, 9), None);
        say("1", "one ");
        assert_eq!(hear(&mut early, 2), None, "what was before comes before");
        assert_eq!(hear(&mut early, 3), Some(("1".to_owned(), "one ".to_owned())));
        say("1", "two");
        assert_eq!(hear(&mut early, 3), Some(("1".to_owned(), "two".to_owned())));
        assert_eq!(hear(&mut early, 3), None);
        let mut late = sayings.listen();
        assert_eq!(hear(&mut late, 3), Some(("1".to_owned(), "one two".to_owned())));
        // The way to the host broke: it tells all of the entry once more.
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
