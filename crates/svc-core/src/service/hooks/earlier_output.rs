//! Removes text that precedes a message from the answer to that message. At the end of a turn,
//! Gemini CLI reports all text since the person's prompt, so the text for the person would come
//! before the answer, or in place of it.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Mutex, MutexGuard, PoisonError},
};

use svc_model::{
    Principal,
    hook::{HookClient, HookEvent, HookMoment},
};

/// For each session whose turn continued with a message: the text that was reported last.
#[derive(Debug, Default)]
pub(super) struct EarlierTexts(Mutex<HashMap<(Principal, String), ReportedText>>);

/// Above this number of sessions the table is cleared; an answer may then begin with text from
/// before the message.
const SESSIONS: usize = 10_000;
/// The text that Gemini CLI reports for a turn in which the model said nothing.
const NO_WORDS: &str = "[no response text]";

/// Length and hash of a reported text; the text is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReportedText {
    bytes: usize,
    hash: u64,
}

impl ReportedText {
    fn from_text(words: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        words.hash(&mut hasher);
        Self { bytes: words.len(), hash: hasher.finish() }
    }

    /// The part of `told` after this text; `None` if `told` does not begin with this text.
    fn rest_of(self, told: &str) -> Option<&str> {
        let (earlier, rest) = told.split_at_checked(self.bytes)?;
        (Self::from_text(earlier) == self).then_some(())?;
        if rest.is_empty() { Some(rest) } else { rest.strip_prefix('\n') }
    }
}

impl EarlierTexts {
    fn lock(&self) -> MutexGuard<'_, HashMap<(Principal, String), ReportedText>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes from a turn's last words the text that was reported earlier in the turn. Returns the
    /// whole text for [`Self::note`]; `None` for other events and clients.
    pub(super) fn take_off(
        &self,
        principal: &Principal,
        event: &mut HookEvent,
    ) -> Option<ReportedText> {
        let HookMoment::Stop { words: Some(words), .. } = &mut event.moment else { return None };
        if event.client != HookClient::Gemini {
            return None;
        }
        if words == NO_WORDS {
            words.clear();
        }
        let told = ReportedText::from_text(words);
        let earlier = self.lock().get(&(principal.clone(), event.session_id.clone())).copied();
        if let Some(rest) = earlier.and_then(|earlier| earlier.rest_of(words)) {
            *words = rest.to_owned();
        }
        Some(told)
    }

    /// Stores the text that was reported when the turn of a session continued with a message.
    pub(super) fn note(&self, principal: &Principal, session: &str, told: ReportedText) {
        let mut earlier = self.lock();
        if earlier.len() >= SESSIONS {
            earlier.clear();
        }
        earlier.insert((principal.clone(), session.to_owned()), told);
    }

    /// Removes the stored text of a session in which the person began a turn.
    pub(super) fn forget(&self, principal: &Principal, session: &str) {
        self.lock().remove(&(principal.clone(), session.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stop(client: HookClient, words: &str) -> HookEvent {
        HookEvent {
            client,
            name: "AfterAgent".to_owned(),
            session_id: "s".to_owned(),
            agent_id: String::new(),
            cwd: None,
            permission_mode: None,
            moment: HookMoment::Stop { again: true, words: Some(words.to_owned()) },
        }
    }

    #[test]
    fn the_words_of_a_turn_that_went_on_are_those_that_follow() {
        let earlier = EarlierTexts::default();
        let own = Principal::Operator;
        let said = |client, words: &str| {
            let mut event = stop(client, words);
            let told = earlier.take_off(&own, &mut event);
            let HookMoment::Stop { words: Some(words), .. } = event.moment else { panic!("words") };
            (words, told)
        };
        let (words, told) = said(HookClient::Gemini, "for its person");
        assert_eq!(words, "for its person");
        earlier.note(&own, "s", told.unwrap());
        for (told, words) in [
            ("for its person\nthe answer", "the answer"),
            ("for its person", ""),
            ("another turn", "another turn"),
            ("for its personal use", "for its personal use"),
            ("for", "for"),
            ("for its persön\nx", "for its persön\nx"),
            ("[no response text]", ""),
        ] {
            assert_eq!(said(HookClient::Gemini, told).0, words, "{told}");
        }
        let codex = said(HookClient::Codex, "for its person\nx");
        assert_eq!(codex, ("for its person\nx".to_owned(), None));
        // A second message in the same turn.
        let (_, told) = said(HookClient::Gemini, "for its person\nthe answer");
        earlier.note(&own, "s", told.unwrap());
        let (words, _) = said(HookClient::Gemini, "for its person\nthe answer\nand this");
        assert_eq!(words, "and this");
        earlier.forget(&own, "s");
        assert_eq!(said(HookClient::Gemini, "for its person\nx").0, "for its person\nx");
    }
}
