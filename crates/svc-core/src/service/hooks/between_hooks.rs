//! The state of sessions between two of their hooks, in memory only.
//!
//! [`AnnouncedCalls`] finds the session in which an MCP tool is called. Clients do not send the
//! session with the call, or each sends it in its own way. But their hooks know the session and
//! announce the call a moment before it. Only announcements of the same principal count, so no
//! principal can announce calls of another.
//!
//! [`MailWaiters`] knows which process waits for which session's mail.
//!
//! [`EarlierTexts`] removes text that precedes a message from the answer to that message. At the
//! end of a turn, Gemini CLI reports all text since the person's prompt, so the text for the person
//! would come before the answer, or in place of it.

use std::{
    collections::{HashMap, VecDeque},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use svc_model::{
    Principal, Timestamp,
    hook::{HookClient, HookEvent, HookMoment, HookToolUse},
    limits,
};
use tokio::sync::watch;

use crate::service::core::lock;

/// Bound on the remembered calls of all sessions. A call follows its hook within moments, so few
/// are open at a time.
const REMEMBERED: usize = 1024;
/// Bound on the remembered calls of one principal. Beyond it, that principal's oldest is evicted.
const REMEMBERED_OF_ONE: usize = 64;
/// Longest time from the hook that announces a call to the call.
const SOON: Duration = Duration::from_mins(1);

/// Tool calls that hooks have announced, the latest last.
#[derive(Debug, Default)]
pub struct AnnouncedCalls(Mutex<VecDeque<AnnouncedCall>>);

#[derive(Debug)]
struct AnnouncedCall {
    /// The principal whose hook announced the call.
    principal: Principal,
    session: Arc<str>,
    /// The tool's use without its arguments, which may be long.
    tool: HookToolUse,
    /// SHA-256 of the arguments.
    fingerprint: [u8; 32],
    at: Timestamp,
}

/// The SHA-256 of a call's arguments, independent of the order of object members.
fn fingerprint(arguments: &Value) -> [u8; 32] {
    Sha256::digest(arguments.to_string()).into()
}

impl AnnouncedCalls {
    /// Notes that a session is about to call a tool.
    pub(super) fn expect(
        &self,
        principal: &Principal,
        session: &str,
        tool: &HookToolUse,
        now: Timestamp,
    ) {
        let texts = [Some(tool.tool.as_str()), tool.use_id.as_deref(), Some(session)];
        if texts.into_iter().flatten().any(|text| text.len() > limits::SHORT_TEXT_BYTES) {
            return;
        }
        let announced = AnnouncedCall {
            principal: principal.clone(),
            session: session.into(),
            tool: HookToolUse {
                tool: tool.tool.clone(),
                use_id: tool.use_id.clone(),
                arguments: Value::Null,
                run: None,
            },
            fingerprint: fingerprint(&tool.arguments),
            at: now,
        };
        let mut calls = lock(&self.0);
        let is_old = |call: &AnnouncedCall| now.since(call.at) > SOON;
        while calls.len() >= REMEMBERED || calls.front().is_some_and(is_old) {
            calls.pop_front();
        }
        let own = || calls.iter().enumerate().filter(|(_, call)| call.principal == *principal);
        if own().count() >= REMEMBERED_OF_ONE
            && let Some((oldest, _)) = own().next()
        {
            calls.remove(oldest);
        }
        calls.push_back(announced);
    }

    /// The session in which this principal made this call. A call that has the client's id is
    /// matched by that id; any other call by the tool and its arguments, unless two of the
    /// principal's sessions have announced the same call.
    pub fn session_of(
        &self,
        principal: &Principal,
        use_id: Option<&str>,
        tool: &str,
        arguments: &Value,
        now: Timestamp,
    ) -> Option<Arc<str>> {
        let mut calls = lock(&self.0);
        let is_fresh =
            |call: &AnnouncedCall| call.principal == *principal && now.since(call.at) <= SOON;
        if let Some(id) = use_id {
            let has_id =
                |call: &&AnnouncedCall| call.tool.use_id.as_deref() == Some(id) && is_fresh(call);
            return calls.iter().find(has_id).map(|call| Arc::clone(&call.session));
        }
        let concerns = |call: &AnnouncedCall| is_fresh(call) && call.tool.calls(tool);
        if !calls.iter().any(concerns) {
            return None;
        }
        let arguments = fingerprint(arguments);
        let is_same = |call: &AnnouncedCall| concerns(call) && call.fingerprint == arguments;
        let mut matching = calls.iter().enumerate().filter(|(_, call)| is_same(call));
        let (index, first) = matching.next()?;
        if matching.any(|(_, other)| other.session != first.session) {
            return None;
        }
        let session = Arc::clone(&first.session);
        calls.remove(index);
        Some(session)
    }
}

/// Waiters for the mail of sessions. For each session, a principal has one waiter: the latest. Ids
/// of waiters are ordered by their start.
#[derive(Debug, Default)]
pub(super) struct MailWaiters(Mutex<WaiterTable>);

type WaiterTable = HashMap<(Principal, String), SessionWaiter>;

/// The latest waiter of a session.
#[derive(Debug, Default)]
struct SessionWaiter {
    latest: watch::Sender<String>,
    /// When a message last woke the session.
    woken: Option<Timestamp>,
}

/// Above this number of sessions, sessions without a waiter are removed. A waiter enters again with
/// its next request.
const SESSIONS: usize = 10_000;
/// How long a session that was woken counts as reading its inbox before its client reports a turn.
const WAKING: Duration = Duration::from_secs(10);

impl MailWaiters {
    /// Makes `waiter` the waiter of a session. The receiver shows the session's latest waiter from
    /// now on; `None` if a later one waits already.
    pub(super) fn enter(
        &self,
        principal: &Principal,
        session: &str,
        waiter: &str,
    ) -> Option<watch::Receiver<String>> {
        let mut waiters = lock(&self.0);
        if waiters.len() >= SESSIONS {
            waiters.retain(|_, entry| entry.latest.receiver_count() > 0);
        }
        let entry = waiters.entry((principal.clone(), session.to_owned())).or_default();
        if entry.latest.borrow().as_str() > waiter {
            return None;
        }
        entry.latest.send_if_modified(|latest| {
            let is_new = latest != waiter;
            waiter.clone_into(latest);
            is_new
        });
        Some(entry.latest.subscribe())
    }

    /// Notes that the session's waiter got a message, which wakes the session.
    pub(super) fn note_woken(&self, principal: &Principal, session: &str, at: Timestamp) {
        if let Some(entry) = lock(&self.0).get_mut(&(principal.clone(), session.to_owned())) {
            entry.woken = Some(at);
        }
    }

    /// Whether a message wakes the session, or has just woken it. If the session became idle after
    /// the wake, the woken turn has ended, so that wake does not count.
    pub(super) fn wake(
        &self,
        principal: &Principal,
        session: &str,
        (now, idle_since): (Timestamp, Option<Timestamp>),
    ) -> bool {
        let waiters = lock(&self.0);
        let Some(entry) = waiters.get(&(principal.clone(), session.to_owned())) else {
            return false;
        };
        let is_waking = entry.woken.is_some_and(|woken| {
            now.since(woken) < WAKING && idle_since.is_none_or(|since| since <= woken)
        });
        is_waking || entry.latest.receiver_count() > 0
    }
}

/// For each session whose turn continued with a message: the text that was reported last.
#[derive(Debug, Default)]
pub(super) struct EarlierTexts(Mutex<HashMap<(Principal, String), ReportedText>>);

/// Above this number of sessions the table is cleared; an answer may then begin with text from
/// before the message.
const TURNS: usize = 10_000;
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
        let earlier = lock(&self.0).get(&(principal.clone(), event.session_id.clone())).copied();
        if let Some(rest) = earlier.and_then(|earlier| earlier.rest_of(words)) {
            *words = rest.to_owned();
        }
        Some(told)
    }

    /// Stores the text that was reported when the turn of a session continued with a message.
    pub(super) fn note(&self, principal: &Principal, session: &str, told: ReportedText) {
        let mut earlier = lock(&self.0);
        if earlier.len() >= TURNS {
            earlier.clear();
        }
        earlier.insert((principal.clone(), session.to_owned()), told);
    }

    /// Removes the stored text of a session in which the person began a turn.
    pub(super) fn forget(&self, principal: &Principal, session: &str) {
        lock(&self.0).remove(&(principal.clone(), session.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool_use(tool: &str, use_id: Option<&str>, arguments: Value) -> HookToolUse {
        let use_id = use_id.map(str::to_owned);
        HookToolUse { tool: tool.to_owned(), use_id, arguments, run: None }
    }

    fn principal() -> Principal {
        Principal::Session("a".into())
    }

    #[test]
    fn a_call_is_matched_by_its_id_or_by_tool_and_arguments() {
        let (ties, a) = (AnnouncedCalls::default(), principal());
        let now = Timestamp::from_millis(1_000_000);
        let of = |use_id, tool, arguments: Value| {
            ties.session_of(&a, use_id, tool, &arguments, now).map(|session| session.to_string())
        };
        let by_claude = tool_use("mcp__svc__get_session", Some("toolu_1"), json!({}));
        ties.expect(&a, "claude", &by_claude, now);
        ties.expect(&a, "gemini", &tool_use("mcp_svc_get_session", None, json!({ "a": 1 })), now);
        assert_eq!(of(Some("toolu_1"), "get_session", json!({})).as_deref(), Some("claude"));
        assert_eq!(of(Some("toolu_2"), "get_session", json!({})), None);
        assert_eq!(of(None, "end_session", json!({ "a": 1 })), None, "another tool");
        assert_eq!(of(None, "get_session", json!({ "a": 2 })), None, "other arguments");
        assert_eq!(of(None, "get_session", json!({ "a": 1 })).as_deref(), Some("gemini"));
        assert_eq!(of(None, "get_session", json!({ "a": 1 })), None, "each tells of one call");
    }

    #[test]
    fn a_call_that_two_sessions_announced_matches_neither() {
        let (ties, a) = (AnnouncedCalls::default(), principal());
        let now = Timestamp::from_millis(1_000_000);
        ties.expect(&a, "one", &tool_use("svc_peer_list", None, json!({})), now);
        ties.expect(&a, "two", &tool_use("svc_peer_list", None, json!({})), now);
        assert_eq!(ties.session_of(&a, None, "peer_list", &json!({}), now), None);
        let later = now.plus(Duration::from_secs(61));
        ties.expect(&a, "two", &tool_use("svc_peer_list", None, json!({})), later);
        let of = ties.session_of(&a, None, "peer_list", &json!({}), later);
        assert_eq!(of.as_deref(), Some("two"));
    }

    #[test]
    fn announcements_of_another_principal_are_ignored() {
        let (ties, a) = (AnnouncedCalls::default(), principal());
        let now = Timestamp::from_millis(1_000_000);
        let inbox = || tool_use("mcp__svc__peer_inbox", Some("toolu_1"), json!({}));
        for other in [Principal::Session("b".into()), Principal::Operator] {
            ties.expect(&other, "theirs", &inbox(), now);
            let of = |use_id| ties.session_of(&a, use_id, "peer_inbox", &json!({}), now);
            assert_eq!((of(Some("toolu_1")), of(None)), (None, None), "{other}");
        }
        // Announcements of other principals do not make the caller's own ambiguous.
        ties.expect(&a, "mine", &inbox(), now);
        let of = ties.session_of(&a, None, "peer_inbox", &json!({}), now);
        assert_eq!(of.as_deref(), Some("mine"));
    }

    #[test]
    fn a_principal_evicts_only_its_own_calls_and_arguments_are_not_kept() {
        let ties = AnnouncedCalls::default();
        let now = Timestamp::from_millis(1_000_000);
        let [greedy, other] = ["greedy", "other"].map(|key| Principal::Session(key.into()));
        ties.expect(&other, "o", &tool_use("svc_get_session", None, json!({})), now);
        for number in 0..=REMEMBERED {
            let arguments = json!({ "x": "x".repeat(10_000), "n": number });
            ties.expect(&greedy, "g", &tool_use("svc_get_session", None, arguments), now);
        }
        ties.expect(&greedy, "g", &tool_use(&"x".repeat(10_000), None, json!({})), now);
        let calls = lock(&ties.0);
        assert_eq!(calls.len(), 1 + REMEMBERED_OF_ONE);
        assert!(calls.iter().all(|call| call.tool.arguments.is_null()));
        drop(calls);
        let found = ties.session_of(&other, None, "get_session", &json!({}), now);
        assert_eq!(found.as_deref(), Some("o"));
    }

    #[test]
    fn a_later_waiter_of_a_session_replaces_the_earlier_one() {
        let waiters = MailWaiters::default();
        let enter = |session, waiter| waiters.enter(&Principal::Operator, session, waiter);
        let mut first = enter("s", "1").unwrap();
        assert!(!first.has_changed().unwrap());
        assert!(enter("s", "1").is_some(), "asks again");
        assert!(!first.has_changed().unwrap());
        let other = enter("t", "0").unwrap();
        let _second = enter("s", "2").unwrap();
        assert!(first.has_changed().unwrap() && !other.has_changed().unwrap());
        first.mark_unchanged();
        assert!(enter("s", "1").is_none());
        let other = Principal::Session("p".into());
        assert!(waiters.enter(&other, "s", "1").is_some(), "nobody retires another's waiter");
        assert!(!first.has_changed().unwrap());
    }

    #[test]
    fn a_message_wakes_a_session_that_has_a_waiter() {
        let waiters = MailWaiters::default();
        let (own, other) = (Principal::Operator, Principal::Session("p".into()));
        let now = Timestamp::from_millis(1_800_000_000_000);
        let idle_since = Some(now.minus(Duration::from_hours(1)));
        let wake = |principal, session| waiters.wake(principal, session, (now, idle_since));
        assert!(!wake(&own, "s"));
        let waits = waiters.enter(&own, "s", "1").unwrap();
        assert!(wake(&own, "s") && !wake(&other, "s") && !wake(&own, "t"));
        waiters.note_woken(&own, "s", now);
        drop(waits);
        assert!(wake(&own, "s"), "its turn is about to begin");
        assert!(!waiters.wake(&own, "s", (now.plus(WAKING), idle_since)));
        // The session's turn began and failed.
        let later = now.plus(Duration::from_millis(20));
        assert!(waiters.wake(&own, "s", (later, None)));
        assert!(!waiters.wake(&own, "s", (later, Some(later))));
    }

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
