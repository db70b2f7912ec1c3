//! Calls as the rest of the server shares them: their records, those that run in this process,
//! their open questions, and the signed state of a call between two rounds.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json, value::RawValue};
use sha2::{Digest as _, Sha256};
use svc_core::{
    service::{self, BudgetHold, Services},
    tools::{CancelReason, ClientAnswers, RequestTrace},
};
use svc_model::{CallId, Caller, McpSessionId, Timestamp, limits, new_secret};
use svc_store::{CallRow, CallState};
use svc_wire::mcp::Revision;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::super::rpc::RpcError;

#[derive(Debug, Clone)]
pub(crate) struct CallRecord {
    pub(crate) rpc_id: Box<RawValue>,
    pub(crate) method: &'static str,
    /// The tool, the prompt, or the URI of the resource.
    pub(crate) name: String,
    pub(crate) params: Map<String, Value>,
    /// The params as they came; `None` after a restart.
    pub(crate) raw_params: Option<Arc<RawValue>>,
    /// The ids that the client gave the request.
    pub(crate) trace: RequestTrace,
    /// The agent's session on whose behalf the tool runs.
    pub(crate) acting_session: Option<Arc<str>>,
    /// Name of the request's credential, which must still be valid when the answer is given.
    pub(crate) credential: String,
    pub(crate) started_at: Timestamp,
    /// The call's part of the caller's budget while it runs.
    pub(crate) hold: Option<Arc<BudgetHold>>,
}

impl CallRecord {
    /// The arguments as they came; `null` if there are none.
    pub(crate) fn arguments(&self) -> &Value {
        self.params.get("arguments").unwrap_or(&Value::Null)
    }

    /// The token by which the client asks for progress.
    pub(crate) fn progress_token(&self) -> Option<&Value> {
        let token = self.params.get("_meta")?.get("progressToken")?;
        (token.is_string() || token.is_number()).then_some(token)
    }

    /// The row of a call. It has no session and is no task until the caller of this function says
    /// so.
    pub(super) fn row(&self, services: &Services, caller: &Caller, revision: Revision) -> CallRow {
        CallRow {
            call_id: services.mcp.new_call_id(),
            session_id: None,
            principal: Some(caller.principal()),
            credential: Some(self.credential.clone()),
            acts_for: self.acting_session.as_deref().map(str::to_owned),
            revision: Some(revision),
            rpc_id: self.rpc_id.get().to_owned(),
            tool: self.name.clone(),
            params: serde_json::to_string(&self.params).expect("a map has a JSON form"),
            is_task: false,
            state: CallState::Working,
            asks: None,
            answers: None,
            started_at: self.started_at,
            updated_at: services.now(),
        }
    }
}

/// Recorded calls that run in this process. There are few.
#[derive(Debug, Default)]
pub(crate) struct RunningCalls(Mutex<HashMap<CallId, ActiveCall>>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestKey {
    session: McpSessionId,
    /// JSON-RPC id, serialised by this program: clients may write the same string with other
    /// escapes.
    rpc_id: String,
}

impl RequestKey {
    pub(crate) fn new(session: &McpSessionId, rpc_id: &Value) -> Self {
        Self { session: session.clone(), rpc_id: rpc_id.to_string() }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct ActiveCall {
    pub(super) record: Arc<CallRecord>,
    /// The request in a session, for `notifications/cancelled` and for requests that are repeated.
    pub(super) request: Option<RequestKey>,
    pub(super) cancel: CancellationToken,
    pub(super) cancel_reason: CancelReason,
    /// Counts requests of the tool to close the connection that waits.
    pub(crate) close_requests: watch::Receiver<u64>,
    pub(super) given: mpsc::Sender<GivenAnswers>,
}

/// Answers to a task's questions, and the sender that reports that they are stored.
pub(super) type GivenAnswers = (ClientAnswers, oneshot::Sender<Result<(), service::Error>>);

impl ActiveCall {
    /// Passes answers to a task's questions, and waits until they are stored.
    pub(crate) async fn give_answers(&self, answers: ClientAnswers) -> Result<(), service::Error> {
        let (stored, done) = oneshot::channel();
        // A call that has ended takes no answers.
        self.given.send((answers, stored)).await.ok();
        done.await.unwrap_or(Ok(()))
    }
}

impl RunningCalls {
    fn lock(&self) -> MutexGuard<'_, HashMap<CallId, ActiveCall>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn insert(&self, id: CallId, call: ActiveCall) {
        self.lock().insert(id, call);
    }

    /// Cancels the call of a request, if it runs, for the reason that its client gives.
    pub(crate) fn cancel(&self, request: &RequestKey, why: Option<&str>) {
        if let Some((_, running)) = self.by_request(request) {
            if let Some(why) = why {
                running.cancel_reason.give(why);
            }
            running.cancel.cancel();
        }
    }

    pub(crate) fn get(&self, id: &CallId) -> Option<ActiveCall> {
        self.lock().get(id).cloned()
    }

    pub(super) fn by_request(&self, request: &RequestKey) -> Option<(CallId, ActiveCall)> {
        let calls = self.lock();
        let (id, call) = calls.iter().find(|(_, call)| call.request.as_ref() == Some(request))?;
        Some((id.clone(), call.clone()))
    }

    pub(super) fn remove(&self, id: &CallId) {
        self.lock().remove(id);
    }
}

/// Questions that wait for an answer, by their JSON-RPC id.
#[derive(Debug, Default)]
pub(crate) struct OpenQuestions(Mutex<HashMap<String, QuestionWaiter>>);

type QuestionWaiter = (McpSessionId, oneshot::Sender<QuestionResult>);

/// The `result` of an answer, or its `error`.
pub(crate) type QuestionResult = Result<Value, Value>;

/// A question to a client. Dropping it withdraws the question.
pub(crate) struct OpenQuestion<'a> {
    questions: &'a OpenQuestions,
    pub(crate) id: String,
    pub(crate) reply: oneshot::Receiver<QuestionResult>,
}

impl OpenQuestions {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, QuestionWaiter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open(&self, session: &McpSessionId) -> OpenQuestion<'_> {
        let id = format!("svc-{}", new_secret().split_at(24).0);
        let (sender, reply) = oneshot::channel();
        self.lock().insert(id.clone(), (session.clone(), sender));
        OpenQuestion { questions: self, id, reply }
    }

    /// Passes an answer to the call that waits for it. If none does, the answer is dropped: the
    /// question may have been asked before a restart.
    pub(crate) fn answer(&self, session: &McpSessionId, id: &Value, reply: QuestionResult) {
        let Some(id) = id.as_str() else { return };
        let mut questions = self.lock();
        if questions.get(id).is_some_and(|(asked, _)| asked == session)
            && let Some((_, waiter)) = questions.remove(id)
        {
            // The tool may have ended in the meantime.
            waiter.send(reply).ok();
        }
    }
}

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        self.questions.lock().remove(&self.id);
    }
}

/// State of a call that a stateless client carries between two rounds (`requestState`, SEP-2322).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RequestState {
    pub(crate) answers: Map<String, Value>,
    pub(crate) kept: Option<Value>,
}

#[derive(Serialize, Deserialize)]
struct SignedState {
    // Clients hold states with this name across an update of the daemon.
    #[serde(rename = "carried")]
    state: RequestState,
    expires_at: i64,
    bound_to: String,
}

/// Signs states, so that the client cannot change them. A state is valid for one caller and one
/// call, until it expires.
pub(crate) struct RequestStateSigner(Vec<u8>);

impl std::fmt::Debug for RequestStateSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RequestStateSigner").finish()
    }
}

impl RequestStateSigner {
    pub(crate) fn new(key: Vec<u8>) -> Self {
        Self(key)
    }

    /// The signed state as text, valid for this call only.
    pub(crate) fn sign(&self, state: RequestState, bound_to: String, now: Timestamp) -> String {
        let expires_at = now.plus(limits::MCP_STATE_TTL).as_millis();
        let signed = SignedState { state, expires_at, bound_to };
        let body = serde_json::to_vec(&signed).expect("a state has a JSON form");
        let tag = self.mac(&body).finalize().into_bytes();
        format!("{}.{}", BASE64.encode(body), BASE64.encode(tag))
    }

    pub(crate) fn verify(
        &self,
        text: &str,
        bound_to: &str,
        now: Timestamp,
    ) -> Result<RequestState, RpcError> {
        let why = "requestState: is not one that was given for this call, or too old";
        let refused = || RpcError::invalid_params(why);
        let (body, tag) = text.split_once('.').ok_or_else(refused)?;
        let body = BASE64.decode(body).map_err(|_| refused())?;
        let tag = BASE64.decode(tag).map_err(|_| refused())?;
        self.mac(&body).verify_slice(&tag).map_err(|_| refused())?;
        let signed: SignedState = serde_json::from_slice(&body).map_err(|_| refused())?;
        if signed.expires_at < now.as_millis() || signed.bound_to != bound_to {
            return Err(refused());
        }
        Ok(signed.state)
    }

    fn mac(&self, body: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::new_from_slice(&self.0).expect("a key of any length will do");
        mac.update(body);
        mac
    }
}

/// Names the call that a state is valid for. One principal may hold several sessions.
pub(super) fn state_binding(
    principal: &str,
    session: &str,
    method: &str,
    name: &str,
    arguments: &Value,
) -> String {
    let text = json!([principal, session, method, name, arguments]);
    BASE64.encode(Sha256::digest(text.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_valid_for_its_call_and_for_its_time() {
        let signer = RequestStateSigner::new(vec![7; 32]);
        let arguments = json!({"a": 1});
        let of_session =
            |principal, session| state_binding(principal, session, "tools/call", "t", &arguments);
        let binding = |principal| of_session(principal, "one");
        let state = RequestState { answers: Map::new(), kept: Some(json!("half way")) };
        let now = Timestamp::from_millis(1_000_000);
        let text = signer.sign(state.clone(), binding("operator"), now);
        assert_eq!(signer.verify(&text, &binding("operator"), now).unwrap(), state);
        let later = now.plus(limits::MCP_STATE_TTL).plus(std::time::Duration::from_millis(1));
        signer.verify(&text, &binding("operator"), later).unwrap_err();
        signer.verify(&text, &binding("session:x"), now).unwrap_err();
        signer.verify(&text, &of_session("operator", "two"), now).unwrap_err();
        RequestStateSigner::new(vec![8; 32]).verify(&text, &binding("operator"), now).unwrap_err();
        for index in 0..text.len() {
            let mut other = text.clone().into_bytes();
            other[index] = if other[index] == b'A' { b'B' } else { b'A' };
            let other = String::from_utf8(other).unwrap();
            if other != text {
                signer.verify(&other, &binding("operator"), now).unwrap_err();
            }
        }
        for text in ["", ".", "a.b", "ä.ö"] {
            signer.verify(text, &binding("operator"), now).unwrap_err();
        }
    }
}
