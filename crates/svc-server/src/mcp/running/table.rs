//! The calls at work in this process.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;
use svc_model::{CallId, McpSessionId};
use tokio_util::sync::CancellationToken;

use super::conversation::CallConversation;

/// Calls on record that are at work, by their id and by the request that made them.
#[derive(Debug, Default)]
pub(crate) struct RunningCalls(Mutex<CallTable>);

#[derive(Debug, Default)]
struct CallTable {
    calls: HashMap<CallId, ActiveCall>,
    /// For `notifications/cancelled`, and for requests that come twice.
    requests: HashMap<RequestKey, CallId>,
}

/// Names a request of a legacy session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RequestKey {
    session: McpSessionId,
    /// JSON-RPC id as this program writes it: clients write the same text in several ways.
    rpc_id: String,
}

/// A call at work.
#[derive(Debug, Clone)]
pub(crate) struct ActiveCall {
    pub(crate) conversation: Arc<CallConversation>,
    /// Ends the call.
    pub(crate) cancel: CancellationToken,
}

impl RequestKey {
    pub(crate) fn new(session: &McpSessionId, rpc_id: &Value) -> Self {
        Self { session: session.clone(), rpc_id: rpc_id.to_string() }
    }
}

impl RunningCalls {
    fn lock(&self) -> MutexGuard<'_, CallTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a call; the token ends it.
    pub(crate) fn insert(
        &self,
        id: CallId,
        request: Option<RequestKey>,
        conversation: Arc<CallConversation>,
    ) -> CancellationToken {
        let cancel = CancellationToken::new();
        let mut table = self.lock();
        if let Some(request) = request {
            table.requests.insert(request, id.clone());
        }
        table.calls.insert(id, ActiveCall { conversation, cancel: cancel.clone() });
        cancel
    }

    /// Ends the call at work for a request, if there is one, for the reason that its client gives.
    pub(crate) fn cancel(&self, request: &RequestKey, why: Option<&str>) {
        if let Some((_, running)) = self.of_request(request) {
            if let Some(why) = why {
                running.conversation.cancel_reason.give(why);
            }
            running.cancel.cancel();
        }
    }

    pub(crate) fn get(&self, id: &CallId) -> Option<ActiveCall> {
        self.lock().calls.get(id).cloned()
    }

    /// The call at work for a request.
    pub(crate) fn of_request(&self, request: &RequestKey) -> Option<(CallId, ActiveCall)> {
        let table = self.lock();
        let id = table.requests.get(request)?;
        Some((id.clone(), table.calls.get(id)?.clone()))
    }

    pub(crate) fn remove(&self, id: &CallId) {
        let mut table = self.lock();
        table.calls.remove(id);
        table.requests.retain(|_, call| call != id);
    }
}
