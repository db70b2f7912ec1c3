//! The prompts of one connection, and who answered each.
//!
//! The app-server reports that a request is resolved, but not by whose answer. If this daemon had
//! sent an answer before that, the item decides whose answer counted: if the item was declined and
//! our answer was a denial, or neither, our answer counted, else the person's. A permitted item
//! reports this only at its end. So a permission counts as ours if the item is not over within
//! [`DECLINED_WITHIN`], and is corrected later if that was wrong. Without an item whose end is
//! reported, an answer that was sent before the request was resolved counts.

use std::time::Duration;

use serde_json::Value;
use svc_model::AgentRequestId;
use tokio::time::Instant;

use crate::service::prompts::{ConnectedPrompt, PromptEnd};

/// Bound on the time until the app-server reports a declined item.
const DECLINED_WITHIN: Duration = Duration::from_millis(300);

/// A prompt that the app-server reported on this connection.
#[derive(Debug)]
pub(super) struct OpenPrompt {
    /// The id of the request on this connection.
    pub(super) request: Value,
    pub(super) thread: String,
    /// The item that the request asks about, if the item began on this connection: only then will
    /// its end be reported.
    pub(super) item: Option<String>,
    pub(super) row: ConnectedPrompt,
    /// Whether the answer that this daemon sent is a denial; `None` before an answer is sent.
    pub(super) sent: Option<bool>,
    resolved: Option<Instant>,
    is_closed: bool,
}

#[derive(Debug, Default)]
pub(super) struct OpenPrompts(Vec<OpenPrompt>);

pub(super) type Ended = Vec<(AgentRequestId, PromptEnd)>;

impl OpenPrompts {
    pub(super) fn has(&self, request: &Value) -> bool {
        self.0.iter().any(|open| open.request == *request)
    }

    pub(super) fn add(
        &mut self,
        thread: String,
        request: Value,
        item: Option<String>,
        row: ConnectedPrompt,
    ) {
        let open =
            OpenPrompt { request, thread, item, row, sent: None, resolved: None, is_closed: false };
        self.0.push(open);
    }

    pub(super) fn by_request(&mut self, request: &Value) -> Option<&mut OpenPrompt> {
        self.0.iter_mut().find(|open| open.request == *request && open.resolved.is_none())
    }

    pub(super) fn rows_of(&self, thread: &str) -> Vec<AgentRequestId> {
        let own = self.0.iter().filter(|open| open.thread == thread);
        own.map(|open| open.row.id.clone()).collect()
    }

    pub(super) fn thread_of(&self, request: &Value) -> Option<String> {
        self.0.iter().find(|open| open.request == *request).map(|open| open.thread.clone())
    }

    /// The prompt of a thread that has waited longest.
    pub(super) fn first_of(&self, thread: &str) -> Option<&ConnectedPrompt> {
        let is_first = |open: &&OpenPrompt| open.thread == thread && open.resolved.is_none();
        self.0.iter().find(is_first).map(|open| &open.row)
    }

    pub(super) fn into_open(self) -> impl Iterator<Item = OpenPrompt> {
        self.0.into_iter().filter(|open| !open.is_closed)
    }

    pub(super) fn resolved(&mut self, request: &Value, now: Instant) -> Ended {
        let Some(at) = self.0.iter().position(|open| open.request == *request) else {
            return Vec::new();
        };
        let open = &mut self.0[at];
        match (open.sent, &open.item) {
            (Some(_), Some(_)) => {
                open.resolved = Some(now);
                Vec::new()
            }
            (sent, _) => {
                let end = if sent.is_some() { PromptEnd::Answered } else { PromptEnd::Person };
                vec![(self.0.remove(at).row.id, end)]
            }
        }
    }

    pub(super) fn item_over(&mut self, thread: &str, item: &str, is_declined: bool) -> Ended {
        self.remove(
            |open| open.thread == thread && open.item.as_deref() == Some(item),
            |open| match open.sent {
                Some(is_denial) if is_denial == is_declined => PromptEnd::Answered,
                _ => PromptEnd::Person,
            },
        )
    }

    pub(super) fn turn_over(&mut self, thread: &str) -> Ended {
        self.remove(
            |open| open.thread == thread,
            |open| match open.sent {
                Some(_) => PromptEnd::Answered,
                None => PromptEnd::Gone,
            },
        )
    }

    /// Closes the prompts that were permitted here and whose items have not been declined in time.
    pub(super) fn taken(&mut self, now: Instant) -> Ended {
        let due = self.0.iter_mut().filter(|open| is_due(open, now));
        let ended = due.map(|open| {
            open.is_closed = true;
            (open.row.id.clone(), PromptEnd::Answered)
        });
        ended.collect()
    }

    /// When [`Self::taken`] closes the next prompt.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let waiting = self.0.iter().filter(|open| open.sent == Some(false) && !open.is_closed);
        waiting.filter_map(|open| Some(open.resolved? + DECLINED_WITHIN)).min()
    }

    fn remove(
        &mut self,
        is_over: impl Fn(&OpenPrompt) -> bool,
        end: impl Fn(&OpenPrompt) -> PromptEnd,
    ) -> Ended {
        let ended = self.0.extract_if(.., |open| is_over(open));
        ended.map(|open| (open.row.id.clone(), end(&open))).collect()
    }
}

fn is_due(open: &OpenPrompt, now: Instant) -> bool {
    let is_over = open.resolved.is_some_and(|at| at + DECLINED_WITHIN <= now);
    is_over && open.sent == Some(false) && !open.is_closed
}
