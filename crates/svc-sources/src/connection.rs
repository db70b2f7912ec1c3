//! The protocol's state with one server: requests under way, calls that the server may ask about,
//! changed lists.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json, value::RawValue};
use svc_core::tools::{Call, CancelReason, ClientNote, LogLevel, RequestTrace};
use svc_model::{Principal, quote, source::Redactor};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::message::{
    ChildMessage, ConnectionEnd, Reply, RequestLoss, ServerMessage, ToolTraits, answer_text,
    members, modern_params, notification_text, request_text, traced_params,
};
use super::pace::MessagePace;

/// Messages that wait for a server to read them. Who sends waits when there are so many.
pub(super) const OUTGOING: usize = 256;
/// News of one call that nobody has taken yet. Progress beyond that is dropped.
const NEWS: usize = 256;
/// Most URIs of changed resources that wait to be told.
const UPDATES: usize = 1024;
/// For so long after the end of a session's call a question of the server may still be about that
/// call.
const QUIET: Duration = Duration::from_secs(5);

/// A connection to a server.
#[derive(Debug)]
pub(super) struct SourceConnection {
    outgoing: mpsc::Sender<ChildMessage>,
    next_id: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiting>>,
    callers: Mutex<RecentCallers>,
    /// Tokens of the progress of calls that were answered with a task, and the requests that wait
    /// for those tasks.
    task_progress: Mutex<HashMap<u64, u64>>,
    pub(super) closed: CancellationToken,
    pub(super) list_changes: watch::Sender<u64>,
    /// Counts changes of resources. Those of one URI that nobody has taken yet are one.
    pub(super) resource_updates: watch::Sender<u64>,
    updated: Mutex<BTreeSet<String>>,
    /// Slows down a server that sends what nobody has asked for.
    pace: MessagePace,
    /// Hides secrets in what the server says.
    redactor: RwLock<Arc<Redactor>>,
    /// The project whose instance this is.
    root: Option<String>,
    /// Whether each request introduces this client, as revisions without sessions have it.
    is_modern: AtomicBool,
    /// Why the transport has ended, if it says so.
    end: OnceLock<ConnectionEnd>,
}

/// Who waits for an answer.
#[derive(Debug)]
struct Waiting {
    news: mpsc::Sender<CallNews>,
    /// The call that the request is made for.
    call: Option<Call>,
}

/// A session that calls: the caller, and the session it named.
type CallingSession = (Principal, Option<String>);

/// Sessions whose calls have ended a short while ago. A server whose transport says nothing of what
/// its messages belong to may ask for such a call, too.
#[derive(Debug, Default)]
struct RecentCallers(HashMap<CallingSession, Instant>);

impl RecentCallers {
    /// A call of a session has ended.
    fn end(&mut self, who: CallingSession, now: Instant) {
        self.0.retain(|_, ended| now.saturating_duration_since(*ended) < QUIET);
        self.0.insert(who, now);
    }

    /// Whether no call of another session has ended lately.
    fn is_alone(&self, who: &CallingSession, now: Instant) -> bool {
        let is_recent = |ended: &Instant| now.saturating_duration_since(*ended) < QUIET;
        !self.0.iter().any(|(other, ended)| other != who && is_recent(ended))
    }
}

fn calling_session(call: &Call) -> CallingSession {
    (call.caller.principal(), call.session.as_deref().map(str::to_owned))
}

/// What is heard of a request.
#[derive(Debug)]
enum CallNews {
    Note(ClientNote),
    Done(Reply),
    Lost(RequestLoss),
}

/// A request under way. Dropping it before the answer cancels it.
#[derive(Debug)]
pub(super) struct OpenRequest {
    connection: Arc<SourceConnection>,
    /// Its number, which is also the token of its progress.
    pub(super) id: u64,
    news: mpsc::Receiver<CallNews>,
    /// What its caller has named it by.
    trace: RequestTrace,
    /// What its server is told when the caller has cancelled it.
    reason: CancelReason,
    is_over: bool,
}

impl SourceConnection {
    /// A connection, and what is to be sent on it.
    pub(super) fn new(
        redactor: Redactor,
        root: Option<String>,
    ) -> (Arc<Self>, mpsc::Receiver<ChildMessage>) {
        let (outgoing, messages) = mpsc::channel(OUTGOING);
        let connection = Self {
            outgoing,
            next_id: AtomicU64::new(1),
            waiting: Mutex::default(),
            callers: Mutex::default(),
            task_progress: Mutex::default(),
            closed: CancellationToken::new(),
            list_changes: watch::Sender::new(0),
            redactor: RwLock::new(Arc::new(redactor)),
            resource_updates: watch::Sender::new(0),
            updated: Mutex::default(),
            pace: MessagePace::default(),
            root,
            is_modern: AtomicBool::new(false),
            end: OnceLock::new(),
        };
        (Arc::new(connection), messages)
    }

    fn task_progress(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.task_progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the progress of a call that was answered with a task come to the request that waits for
    /// the task's result.
    pub(super) fn pass_progress(&self, token: u64, request: u64) {
        self.task_progress().insert(token, request);
    }

    /// The task is over, or nobody waits for it.
    pub(super) fn forget_progress(&self, token: u64) {
        self.task_progress().remove(&token);
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn callers(&self) -> MutexGuard<'_, RecentCallers> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes whoever waits for a request, who waits no longer.
    fn take_waiting(&self, id: u64) -> Option<Waiting> {
        let taken = self.waiting().remove(&id)?;
        if let Some(call) = &taken.call {
            self.callers().end(calling_session(call), Instant::now());
        }
        Some(taken)
    }

    /// The transport has ended: nobody gets an answer any more.
    pub(super) fn close(&self) {
        self.closed.cancel();
        self.waiting().clear();
    }

    /// The transport is to end for a reason. The first one counts.
    pub(super) fn end_for(&self, end: ConnectionEnd) {
        self.end.set(end).ok();
    }

    /// Ends the transport, if it is to end. Whoever made the request that found it out has heard of
    /// it before.
    pub(super) fn close_if_ended(&self) {
        if self.end.get().is_some() {
            self.closed.cancel();
        }
    }

    /// Why the transport has ended.
    pub(super) fn end(&self) -> Option<&ConnectionEnd> {
        self.end.get()
    }

    /// The project whose folder is the only root.
    pub(super) fn root(&self) -> Option<&str> {
        self.root.as_deref()
    }

    pub(super) fn redactor(&self) -> Arc<Redactor> {
        Arc::clone(&self.redactor.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A text of the server without secrets.
    pub(super) fn hide<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.redactor().hide(text)
    }

    pub(super) fn hide_also(&self, values: &[String]) {
        let present = self.redactor();
        if !values.iter().all(|value| present.covers(value)) {
            let mut redactor = self.redactor.write().unwrap_or_else(PoisonError::into_inner);
            *redactor = Arc::new(redactor.with(values.iter().cloned()));
        }
    }

    /// Says whether each request introduces this client.
    pub(super) fn set_modern(&self, is_modern: bool) {
        self.is_modern.store(is_modern, Relaxed);
    }

    /// Whether each request introduces this client.
    pub(super) fn is_modern(&self) -> bool {
        self.is_modern.load(Relaxed)
    }

    /// Tells who waits for a request that there will be no answer.
    pub(super) async fn lose(&self, id: u64, loss: RequestLoss) {
        if let Some(waiting) = self.take_waiting(id) {
            waiting.news.send(CallNews::Lost(loss)).await.ok();
        }
    }

    /// Makes a request whose answer nobody waits for. A server that reads nothing cannot be told.
    pub(super) fn post(&self, method: &str, params: &Value) {
        let (id, params) = (self.next_number(), params.to_string());
        let params = if self.is_modern() { modern_params(&params) } else { params };
        let text = request_text(id, method, &params);
        let (traits, trace) = (None, RequestTrace::default());
        let message = ChildMessage::Request { id, text, is_first: false, traits, trace };
        self.outgoing.try_send(message).ok();
    }

    /// A number for a request whose answer nobody waits for.
    pub(super) fn next_number(&self) -> u64 {
        self.next_id.fetch_add(1, Relaxed)
    }

    /// Whether somebody waits for a request.
    pub(super) fn waits_for(&self, id: u64) -> bool {
        self.waiting().contains_key(&id)
    }

    /// Reserves a number for a request.
    pub(super) fn open(self: &Arc<Self>, call: Option<Call>) -> OpenRequest {
        let id = self.next_id.fetch_add(1, Relaxed);
        let (news, receiver) = mpsc::channel(NEWS);
        let reason = call.as_ref().map(Call::cancel_reason).unwrap_or_default();
        let trace = call.as_ref().map(|call| call.trace.clone()).unwrap_or_default();
        self.waiting().insert(id, Waiting { news, call });
        if self.closed.is_cancelled() {
            self.waiting().clear();
        }
        let connection = Arc::clone(self);
        OpenRequest { connection, id, news: receiver, trace, reason, is_over: false }
    }

    /// Makes a request that belongs to no call.
    pub(super) async fn request(
        self: &Arc<Self>,
        method: &str,
        params: &Value,
    ) -> Result<Reply, RequestLoss> {
        let mut request = self.open(None);
        request.send(method, &params.to_string(), None).await?;
        request.answer_to(None).await
    }

    pub(super) async fn notify(&self, method: &str, params: &Value) -> Result<(), RequestLoss> {
        let text = notification_text(method, &params.to_string());
        self.send(ChildMessage::Note(text)).await
    }

    async fn send(&self, message: ChildMessage) -> Result<(), RequestLoss> {
        tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(RequestLoss::Closed),
            sent = self.outgoing.send(message) => sent.map_err(|_| RequestLoss::Closed),
        }
    }

    /// Takes a message of the server.
    pub(super) async fn take(self: &Arc<Self>, text: &str) {
        self.take_from(text, None).await;
    }

    /// Takes a message that came on the stream of a request, if it did.
    ///
    /// A stream of a request carries the answer to that request and to no other: another request
    /// may be another caller's.
    pub(super) async fn take_from(self: &Arc<Self>, text: &str, request: Option<u64>) {
        match ServerMessage::parse(text) {
            Some(ServerMessage::Answer { id, reply }) if request.is_none_or(|own| own == id) => {
                if let Some(waiting) = self.take_waiting(id) {
                    // The caller may have gone.
                    waiting.news.send(CallNews::Done(reply)).await.ok();
                    return;
                }
            }
            Some(ServerMessage::Answer { id, .. }) => {
                tracing::debug!(id, "a server answered a request on the stream of another");
            }
            Some(ServerMessage::Request { id, method, params }) => {
                self.answer_request(id, &method, members(params.as_deref()), request);
            }
            Some(ServerMessage::Notification { method, params }) => {
                self.hear(&method, members(params.as_deref()), request);
            }
            None => tracing::debug!(bytes = text.len(), "a server said what is no message"),
        }
        self.pace.spend(text.len()).await;
    }

    /// The URIs of resources that have changed since this was last asked.
    pub(super) fn take_updates(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.updated.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn hear(&self, method: &str, mut params: Map<String, Value>, request: Option<u64>) {
        match method {
            "notifications/tools/list_changed"
            | "notifications/resources/list_changed"
            | "notifications/prompts/list_changed" => {
                self.list_changes.send_modify(|count| *count += 1);
            }
            "notifications/resources/updated" => {
                let Some(uri) = params.get("uri").and_then(Value::as_str) else { return };
                let mut updated = self.updated.lock().unwrap_or_else(PoisonError::into_inner);
                if updated.len() < UPDATES {
                    updated.insert(uri.to_owned());
                }
                drop(updated);
                self.resource_updates.send_modify(|count| *count += 1);
            }
            "notifications/progress" => {
                let Some(id) = params.get("progressToken").and_then(Value::as_u64) else { return };
                let id = self.task_progress().get(&id).copied().unwrap_or(id);
                let news = self.waiting().get(&id).map(|waiting| waiting.news.clone());
                if let Some(news) = news {
                    params.values_mut().for_each(quote::unimitated_value);
                    // One that is not taken in time is no loss: the next one says more.
                    news.try_send(CallNews::Note(ClientNote::Progress(params))).ok();
                }
            }
            "notifications/message" => {
                let level = params.get("level").cloned().unwrap_or_default();
                let Ok(level) = serde_json::from_value::<LogLevel>(level) else { return };
                if let Some((news, _)) = self.call_of(request) {
                    params.values_mut().for_each(quote::unimitated_value);
                    news.try_send(CallNews::Note(ClientNote::Log(level, params))).ok();
                }
            }
            _ => {}
        }
    }

    /// The call that a message belongs to: that of the request whose stream it came on, else that
    /// of the only session that calls.
    fn call_of(&self, request: Option<u64>) -> Option<(mpsc::Sender<CallNews>, Call)> {
        let Some(id) = request else { return self.only_session() };
        let waiting = self.waiting();
        let waiting = waiting.get(&id)?;
        Some((waiting.news.clone(), waiting.call.clone()?))
    }

    /// The call that a question belongs to.
    pub(super) fn asking_call(&self, request: Option<u64>) -> Option<Call> {
        self.call_of(request).map(|(_, call)| call)
    }

    /// The latest call, if all calls under way, and those that ended lately, are one session's.
    fn only_session(&self) -> Option<(mpsc::Sender<CallNews>, Call)> {
        let waiting = self.waiting();
        let mut calls = waiting
            .iter()
            .filter_map(|(id, waiting)| Some((*id, &waiting.news, waiting.call.as_ref()?)))
            .collect::<Vec<_>>();
        calls.sort_by_key(|(id, ..)| *id);
        let (_, news, last) = calls.last()?;
        let who = calling_session(last);
        let is_one = calls.iter().all(|(_, _, call)| calling_session(call) == who);
        let is_one = is_one && self.callers().is_alone(&who, Instant::now());
        is_one.then(|| ((*news).clone(), (*last).clone()))
    }

    /// Never waits: a server that does not read its input would keep its own messages from being
    /// read.
    pub(super) fn reply(&self, id: &RawValue, answer: Result<&Value, (i64, &str)>) {
        self.outgoing.try_send(ChildMessage::Note(answer_text(id, answer))).ok();
    }
}

impl OpenRequest {
    pub(super) async fn send(
        &mut self,
        method: &str,
        params: &str,
        traits: Option<Arc<ToolTraits>>,
    ) -> Result<(), RequestLoss> {
        let params = traced_params(params, &self.trace);
        let text = if self.connection.is_modern() {
            request_text(self.id, method, &modern_params(&params))
        } else {
            request_text(self.id, method, &params)
        };
        let (id, is_first, trace) = (self.id, method == "initialize", self.trace.clone());
        self.connection.send(ChildMessage::Request { id, text, is_first, traits, trace }).await
    }

    /// Waits for the answer, and passes on what is heard before it to the client of a call.
    pub(super) async fn answer_to(mut self, call: Option<&Call>) -> Result<Reply, RequestLoss> {
        let end = loop {
            match self.news.recv().await {
                Some(CallNews::Note(note)) => {
                    if let Some(call) = call {
                        call.note(note).await;
                    }
                }
                Some(CallNews::Done(reply)) => break Ok(reply),
                Some(CallNews::Lost(loss)) => break Err(loss),
                None => break Err(RequestLoss::Closed),
            }
        };
        self.is_over = true;
        end
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.connection.take_waiting(self.id);
        let reason = self.reason.get().unwrap_or("the caller waits no longer");
        let params = json!({ "requestId": self.id, "reason": reason });
        let text = notification_text("notifications/cancelled", &params.to_string());
        // A server that reads nothing cannot be told.
        self.connection.outgoing.try_send(ChildMessage::Cancel { id: self.id, text }).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_of_one_session_if_no_call_of_another_ended_lately() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let who = |name: &str| (Principal::Session(name.into()), Some(name.to_owned()));
        let (a, b) = (who("a"), who("b"));
        let mut callers = RecentCallers::default();
        assert!(callers.is_alone(&b, at(0)));
        callers.end(a.clone(), at(100));
        assert!(callers.is_alone(&a, at(150)));
        assert!(!callers.is_alone(&b, at(150)), "it may be about the call of a");
        callers.end(b.clone(), at(200));
        assert!(!callers.is_alone(&a, at(250)) && !callers.is_alone(&b, at(5_099)));
        // Calls of its own keep nobody in doubt.
        assert!(callers.is_alone(&b, at(5_100)) && !callers.is_alone(&a, at(5_199)));
        callers.end(b.clone(), at(9_000));
        assert_eq!(callers.0.len(), 1, "what is over is forgotten");
    }

    #[tokio::test]
    async fn a_stream_of_a_request_answers_no_other() {
        let (connection, _messages) = SourceConnection::new(Redactor::default(), None);
        let (own, other) = (connection.open(None), connection.open(None));
        let answer = |id: u64| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"of":{id}}}}}"#);
        connection.take_from(&answer(other.id), Some(own.id)).await;
        assert!(connection.waits_for(other.id), "it is the other's to answer");
        connection.take_from(&answer(own.id), Some(own.id)).await;
        connection.take(&answer(other.id)).await;
        for request in [own, other] {
            let expected = format!(r#"{{"of":{}}}"#, request.id);
            let reply = request.answer_to(None).await.expect("an answer").expect("a result");
            assert_eq!(reply.get(), expected);
        }
    }
}
