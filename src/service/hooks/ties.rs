//! Whose an MCP connection is. Clients do not say in which of their sessions a tool is called, or each says it in a way of
//! its own; their hooks, which do know the session, are told of the same call a moment before.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::Value;

use crate::domain::{Timestamp, hook::ToolUse};

/// Calls that are remembered. They come within moments, so a handful for each session would do.
const REMEMBERED: usize = 1024;
/// How soon a call has to come after its hook.
const SOON: Duration = Duration::from_mins(1);

/// Calls that hooks have told of.
#[derive(Debug, Default)]
pub struct Ties(Mutex<VecDeque<Tie>>);

#[derive(Debug)]
struct Tie {
    session: Arc<str>,
    using: ToolUse,
    at: Timestamp,
}

impl Ties {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Tie>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tool is about to be called in this session.
    pub(super) fn expect(&self, session: &str, using: &ToolUse, now: Timestamp) {
        let mut ties = self.lock();
        while ties.len() >= REMEMBERED || ties.front().is_some_and(|tie| now.since(tie.at) > SOON) {
            ties.pop_front();
        }
        ties.push_back(Tie { session: session.into(), using: using.clone(), at: now });
    }

    /// The session in which this call was made: by the client's id of the call, or else by the tool and its arguments,
    /// unless two sessions are about to make the same call.
    pub fn session_of(
        &self,
        use_id: Option<&str>,
        tool: &str,
        arguments: &Value,
        now: Timestamp,
    ) -> Option<Arc<str>> {
        let mut ties = self.lock();
        let fresh = |tie: &Tie| now.since(tie.at) <= SOON;
        if let Some(id) = use_id {
            let known = |tie: &&Tie| tie.using.use_id.as_deref() == Some(id) && fresh(tie);
            return ties.iter().find(known).map(|tie| Arc::clone(&tie.session));
        }
        let same =
            |tie: &Tie| fresh(tie) && tie.using.calls(tool) && tie.using.arguments == *arguments;
        let mut found = ties.iter().enumerate().filter(|(_, tie)| same(tie));
        let (place, first) = found.next()?;
        if found.any(|(_, other)| other.session != first.session) {
            return None;
        }
        let session = Arc::clone(&first.session);
        ties.remove(place);
        Some(session)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn using(tool: &str, use_id: Option<&str>, arguments: Value) -> ToolUse {
        ToolUse { tool: tool.to_owned(), use_id: use_id.map(str::to_owned), arguments, ran: None }
    }

    #[test]
    fn a_call_is_known_by_its_id_or_by_what_it_says() {
        let ties = Ties::default();
        let now = Timestamp::from_millis(1_000_000);
        let of = |use_id, tool, arguments: Value| {
            ties.session_of(use_id, tool, &arguments, now).map(|session| session.to_string())
        };
        ties.expect("claude", &using("mcp__svc__get_session", Some("toolu_1"), json!({})), now);
        ties.expect("gemini", &using("mcp_svc_get_session", None, json!({ "a": 1 })), now);
        assert_eq!(of(Some("toolu_1"), "get_session", json!({})).as_deref(), Some("claude"));
        assert_eq!(of(Some("toolu_2"), "get_session", json!({})), None);
        assert_eq!(of(None, "end_session", json!({ "a": 1 })), None, "another tool");
        assert_eq!(of(None, "get_session", json!({ "a": 2 })), None, "other arguments");
        assert_eq!(of(None, "get_session", json!({ "a": 1 })).as_deref(), Some("gemini"));
        assert_eq!(of(None, "get_session", json!({ "a": 1 })), None, "each tells of one call");
    }

    #[test]
    fn two_sessions_with_the_same_call_are_not_mixed_up() {
        let ties = Ties::default();
        let now = Timestamp::from_millis(1_000_000);
        ties.expect("one", &using("svc_peer_list", None, json!({})), now);
        ties.expect("two", &using("svc_peer_list", None, json!({})), now);
        assert_eq!(ties.session_of(None, "peer_list", &json!({}), now), None);
        let later = now.plus(Duration::from_secs(61));
        ties.expect("two", &using("svc_peer_list", None, json!({})), later);
        assert_eq!(ties.session_of(None, "peer_list", &json!({}), later).as_deref(), Some("two"));
    }
}
