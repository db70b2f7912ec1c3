//! Calls at work in this process, as they are shared by those who run them, wait for them and end
//! them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::{Map, Value, value::RawValue};
use svc_core::{
    service::{self, BudgetHold, mcp::NewCall},
    tools::{CancelReason, ClientAnswers, RequestTrace},
};
use svc_model::{CallId, McpSessionId, Timestamp, new_secret};
use svc_store::McpTransport;
use svc_wire::mcp::Revision;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// A request for a tool, a prompt or a resource.
#[derive(Debug, Clone)]
pub(crate) struct CallRecord {
    /// JSON-RPC id of the request.
    pub(crate) rpc_id: Box<RawValue>,
    pub(crate) method: &'static str,
    /// The tool, the prompt, or the URI of the resource.
    pub(crate) name: String,
    pub(crate) params: Map<String, Value>,
    /// The same as they came; `None` after a restart.
    pub(crate) raw_params: Option<Arc<RawValue>>,
    /// What the client has named the request by.
    pub(crate) trace: RequestTrace,
    /// The agent's session on whose behalf the tool runs.
    pub(crate) acting_session: Option<Arc<str>>,
    /// Names the credential that the request came with: it has to be good still when the answer is
    /// given.
    pub(crate) credential: String,
    pub(crate) started_at: Timestamp,
    /// Its part of the caller's budget, for as long as it is at work.
    pub(crate) hold: Option<Arc<BudgetHold>>,
}

impl CallRecord {
    /// The arguments as they came; `null` if there are none.
    pub(crate) fn arguments(&self) -> &Value {
        self.params.get("arguments").unwrap_or(&Value::Null)
    }

    /// The token of the progress that the client wants to hear of.
    pub(crate) fn progress_token(&self) -> Option<&Value> {
        let token = self.params.get("_meta")?.get("progressToken")?;
        (token.is_string() || token.is_number()).then_some(token)
    }

    /// The row of a call in a session.
    pub(crate) fn in_session(
        &self,
        id: McpSessionId,
        transport: McpTransport,
        revision: Revision,
    ) -> NewCall {
        NewCall { session: Some((id, transport)), ..self.new_call(revision) }
    }

    /// The row of a task.
    pub(crate) fn as_task(&self, revision: Revision, answers: String) -> NewCall {
        NewCall { is_task: true, answers: Some(answers), ..self.new_call(revision) }
    }

    fn new_call(&self, revision: Revision) -> NewCall {
        NewCall {
            session: None,
            credential: self.credential.clone(),
            acts_for: self.acting_session.as_deref().map(str::to_owned),
            revision,
            rpc_id: self.rpc_id.get().to_owned(),
            tool: self.name.clone(),
            params: serde_json::to_string(&self.params).expect("a map has a JSON form"),
            is_task: false,
            answers: None,
            started_at: self.started_at,
        }
    }
}

/// Calls on record that are at work in this process, by their id and by the request that made them.
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

/// A call on record, as others reach its run.
#[derive(Debug, Clone)]
pub(crate) struct ActiveCall {
    pub(super) record: Arc<CallRecord>,
    pub(super) cancel: CancellationToken,
    pub(super) cancel_reason: CancelReason,
    /// Counts requests of the tool to close the connection that waits.
    pub(crate) hang_ups: watch::Receiver<u64>,
    pub(super) given: mpsc::Sender<GivenAnswers>,
}

/// Answers to a task's questions, and who waits until they are stored.
pub(super) type GivenAnswers = (ClientAnswers, oneshot::Sender<Result<(), service::Error>>);

impl ActiveCall {
    /// Hands over answers to a task's questions, and waits until they are stored.
    pub(crate) async fn give_answers(&self, answers: ClientAnswers) -> Result<(), service::Error> {
        let (stored, done) = oneshot::channel();
        // A call that has ended waits for no answers.
        self.given.send((answers, stored)).await.ok();
        done.await.unwrap_or(Ok(()))
    }
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

    pub(super) fn insert(&self, id: CallId, request: Option<RequestKey>, call: ActiveCall) {
        let mut table = self.lock();
        table.requests.extend(request.map(|request| (request, id.clone())));
        table.calls.insert(id, call);
    }

    /// Ends the call at work for a request, if there is one, for the reason that its client gives.
    pub(crate) fn cancel(&self, request: &RequestKey, why: Option<&str>) {
        if let Some((_, running)) = self.by_request(request) {
            if let Some(why) = why {
                running.cancel_reason.give(why);
            }
            running.cancel.cancel();
        }
    }

    pub(crate) fn get(&self, id: &CallId) -> Option<ActiveCall> {
        self.lock().calls.get(id).cloned()
    }

    pub(super) fn by_request(&self, request: &RequestKey) -> Option<(CallId, ActiveCall)> {
        let table = self.lock();
        let id = table.requests.get(request)?;
        Some((id.clone(), table.calls.get(id)?.clone()))
    }

    pub(super) fn remove(&self, id: &CallId) {
        let mut table = self.lock();
        table.calls.remove(id);
        table.requests.retain(|_, call| call != id);
    }
}

/// Questions that wait for an answer, by their JSON-RPC id.
#[derive(Debug, Default)]
pub(crate) struct OpenQuestions(Mutex<HashMap<String, QuestionWaiter>>);

#[derive(Debug)]
struct QuestionWaiter {
    session: McpSessionId,
    reply: oneshot::Sender<SessionAnswer>,
}

/// The `result` of an answer, or its `error`.
pub(crate) type SessionAnswer = Result<Value, Value>;

/// A question that was put. Dropping it takes the question back.
#[derive(Debug)]
pub(crate) struct OpenQuestion<'a> {
    questions: &'a OpenQuestions,
    /// JSON-RPC id.
    pub(crate) id: String,
    pub(crate) reply: oneshot::Receiver<SessionAnswer>,
}

impl OpenQuestions {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, QuestionWaiter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for the answer to a question in this session.
    pub(crate) fn open(&self, session: &McpSessionId) -> OpenQuestion<'_> {
        let id = format!("svc-{}", new_secret().split_at(24).0);
        let (sender, reply) = oneshot::channel();
        let question = QuestionWaiter { session: session.clone(), reply: sender };
        self.lock().insert(id.clone(), question);
        OpenQuestion { questions: self, id, reply }
    }

    /// Hands in an answer. One that no call waits for is dropped: the question may be from before a
    /// restart.
    pub(crate) fn answer(&self, session: &McpSessionId, id: &Value, reply: SessionAnswer) {
        let Some(id) = id.as_str() else { return };
        let mut questions = self.lock();
        if questions.get(id).is_some_and(|question| question.session == *session)
            && let Some(question) = questions.remove(id)
        {
            // The tool may have ended in the meantime.
            question.reply.send(reply).ok();
        }
    }
}

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        self.questions.lock().remove(&self.id);
    }
}
