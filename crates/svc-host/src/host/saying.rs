//! What the agent is saying: words of an entry that is not finished. No spool has them, and who comes later is told all so far.

use std::sync::Arc;
use std::time::Instant;

use svc_model::agent::{AgentDelta, HistoryRole};
use tokio::sync::watch;
use tokio::time::sleep_until;

/// Most that is told of an entry before it is finished, in bytes.
const MOST: usize = 1024 * 1024;

/// The words, which the agent adds to and each client follows.
#[derive(Debug, Clone)]
pub(super) struct Saying(Arc<watch::Sender<WordsSoFar>>);

#[derive(Debug, Default)]
struct WordsSoFar {
    /// Counts entries.
    of: u64,
    /// Bytes of the spool that come before the entry.
    after: u64,
    text: String,
    is_finished: bool,
}

/// How far a client has heard.
#[derive(Debug)]
pub(super) struct SayingReader {
    words: watch::Receiver<WordsSoFar>,
    of: u64,
    heard: usize,
}

impl Saying {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::default()))
    }

    /// Adds words. The first of an entry come after so many bytes of the spool.
    pub(super) fn add(&self, words: &str, after: impl FnOnce() -> u64) {
        self.0.send_modify(|said| {
            if said.is_finished || said.of == 0 {
                let of = said.of + 1;
                *said = WordsSoFar { of, after: after(), text: String::new(), is_finished: false };
            }
            let room = words.floor_char_boundary(MOST.saturating_sub(said.text.len()));
            said.text.push_str(&words[..room]);
        });
    }

    /// The entry is about to be recorded, or will never be: who has not heard its words yet, does not.
    pub(super) fn finish(&self) {
        self.0.send_if_modified(|said| {
            said.text = String::new();
            !std::mem::replace(&mut said.is_finished, true)
        });
    }

    pub(super) fn reader(&self) -> SayingReader {
        SayingReader { words: self.0.subscribe(), of: 0, heard: 0 }
    }
}

impl SayingReader {
    /// Waits until more was said, and at least until then.
    pub(super) async fn changed(&mut self, not_before: Instant) {
        sleep_until(not_before.into()).await;
        if self.words.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// What this client, who has so many bytes of the spool, has not heard yet.
    pub(super) fn next(&mut self, has: u64) -> Option<AgentDelta> {
        let words = self.words.borrow_and_update();
        if self.of != words.of {
            (self.of, self.heard) = (words.of, 0);
        }
        let text = words.text.get(self.heard..).filter(|text| !text.is_empty())?;
        if words.is_finished || has < words.after {
            return None;
        }
        let (role, of) = (HistoryRole::Assistant, words.of.to_string());
        let delta = AgentDelta { role, text: text.to_owned(), of };
        self.heard = words.text.len();
        Some(delta)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(reader: &mut SayingReader, has: u64) -> Option<(String, String)> {
        reader.next(has).map(|delta| (delta.of, delta.text))
    }

    #[test]
    fn each_reader_hears_an_entry_once_and_from_its_beginning() {
        let saying = Saying::new();
        let mut early = saying.reader();
        assert_eq!(next(&mut early, 0), None);
        saying.add("one ", || 7);
        assert_eq!(next(&mut early, 6), None, "what was before comes before");
        assert_eq!(next(&mut early, 7), Some(("1".to_owned(), "one ".to_owned())));
        saying.add("two", || 9);
        assert_eq!(next(&mut early, 7), Some(("1".to_owned(), "two".to_owned())));
        assert_eq!(next(&mut early, 7), None);
        let mut late = saying.reader();
        assert_eq!(next(&mut late, 7), Some(("1".to_owned(), "one two".to_owned())));
        saying.add(" three", || 9);
        saying.finish();
        assert_eq!(next(&mut early, 7), None, "the entry has it");
        saying.add("more", || 20);
        assert_eq!(next(&mut late, 19), None);
        assert_eq!(next(&mut late, 20), Some(("2".to_owned(), "more".to_owned())));
    }

    #[test]
    fn an_entry_has_a_bound() {
        let saying = Saying::new();
        saying.add(&"é".repeat(MOST), || 0);
        saying.add("x", || 0);
        let (_, text) = next(&mut saying.reader(), 0).unwrap();
        assert_eq!(text.len(), MOST);
    }
}
