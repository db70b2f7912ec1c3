//! Finds the session in which an MCP tool is called. Clients do not send the session with the call,
//! or each sends it in its own way. But their hooks know the session and announce the call a moment
//! before it. Only announcements of the same principal count, so no principal can announce calls of
//! another.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use svc_model::{Principal, Timestamp, hook::HookToolUse, limits};

/// Bound on the remembered calls of all sessions. A call follows its hook within moments, so few
/// are open at a time.
const REMEMBERED: usize = 1024;
/// Bound on the remembered calls of one principal. Beyond it, that principal's oldest is evicted.
const REMEMBERED_OF_ONE: usize = 64;
/// A call that comes later than this after a hook is not the one that the hook announced.
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
    fn lock(&self) -> MutexGuard<'_, VecDeque<AnnouncedCall>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

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
        let mut calls = self.lock();
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
        let mut calls = self.lock();
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
        let calls = ties.lock();
        assert_eq!(calls.len(), 1 + REMEMBERED_OF_ONE);
        assert!(calls.iter().all(|call| call.tool.arguments.is_null()));
        drop(calls);
        let found = ties.session_of(&other, None, "get_session", &json!({}), now);
        assert_eq!(found.as_deref(), Some("o"));
    }
}
