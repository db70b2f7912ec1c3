//! The text so far of an entry that is not finished. The spool does not have it; a late reader gets
//! all of it.

use std::sync::Arc;
use std::time::Instant;

use svc_model::agent::{AgentDelta, HistoryRole};
use tokio::sync::watch;
use tokio::time::sleep_until;

/// Longest text of an unfinished entry, in bytes.
const MAX_TEXT: usize = 1024 * 1024;

/// The agent adds to it, and each client follows it.
#[derive(Debug, Clone)]
pub(super) struct PartialEntry(Arc<watch::Sender<PartialText>>);

#[derive(Debug, Default)]
struct PartialText {
    of: u64,
    /// Bytes of the spool before the entry.
    after: u64,
    text: String,
    is_finished: bool,
}

/// How far a client has heard.
#[derive(Debug)]
pub(super) struct PartialEntryReader {
    words: watch::Receiver<PartialText>,
    of: u64,
    heard: usize,
}

impl PartialEntry {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::default()))
    }

    /// Adds text. `after` gives the bytes of the spool before a new entry.
    pub(super) fn add(&self, words: &str, after: impl FnOnce() -> u64) {
        self.0.send_modify(|said| {
            if said.is_finished || said.of == 0 {
                let of = said.of + 1;
                *said = PartialText { of, after: after(), text: String::new(), is_finished: false };
            }
            let room = words.floor_char_boundary(MAX_TEXT.saturating_sub(said.text.len()));
            said.text.push_str(&words[..room]);
        });
    }

    /// The entry is recorded next, or never will be: readers get no more of this text.
    pub(super) fn finish(&self) {
        self.0.send_if_modified(|said| {
            said.text = String::new();
            !std::mem::replace(&mut said.is_finished, true)
        });
    }

    pub(super) fn reader(&self) -> PartialEntryReader {
        PartialEntryReader { words: self.0.subscribe(), of: 0, heard: 0 }
    }
}

impl PartialEntryReader {
    /// Waits for more text, and at least until `not_before`.
    pub(super) async fn changed(&mut self, not_before: Instant) {
        sleep_until(not_before.into()).await;
        if self.words.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// What is new to a client that has so many bytes of the spool.
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

    fn next(reader: &mut PartialEntryReader, has: u64) -> Option<(String, String)> {
        reader.next(has).map(|delta| (delta.of, delta.text))
    }

    #[test]
    fn each_reader_gets_partial_text_once_and_from_its_beginning() {
        let partial = PartialEntry::new();
        let mut early = partial.reader();
        assert_eq!(next(&mut early, 0), None);
        partial.add("one ", || 7);
        assert_eq!(next(&mut early, 6), None, "what was before comes before");
        assert_eq!(next(&mut early, 7), Some(("1".to_owned(), "one ".to_owned())));
        partial.add("two", || 9);
        assert_eq!(next(&mut early, 7), Some(("1".to_owned(), "two".to_owned())));
        assert_eq!(next(&mut early, 7), None);
        let mut late = partial.reader();
        assert_eq!(next(&mut late, 7), Some(("1".to_owned(), "one two".to_owned())));
        partial.add(" three", || 9);
        partial.finish();
        assert_eq!(next(&mut early, 7), None, "the entry has it");
        partial.add("more", || 20);
        assert_eq!(next(&mut late, 19), None);
        assert_eq!(next(&mut late, 20), Some(("2".to_owned(), "more".to_owned())));
    }

    #[test]
    fn partial_text_has_a_bound() {
        let partial = PartialEntry::new();
        partial.add(&"é".repeat(MAX_TEXT), || 0);
        partial.add("x", || 0);
        let (_, text) = next(&mut partial.reader(), 0).unwrap();
        assert_eq!(text.len(), MAX_TEXT);
    }
}
