//! The protocol's state for one server: open requests, the calls that its questions belong to,
//! changed lists; and the server's requests to the client whose call it works for: roots, sampling,
//! elicitation.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    fmt::Write as _,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use futures_util::FutureExt as _;
use serde_json::{Map, Value, json, value::RawValue};
use svc_core::tools::{
    Call, CancelReason, ClientNote, ClientQuestion, ErrorType, Failure, LogLevel, RequestTrace,
    ToolError,
};
use svc_model::{Principal, quote, source::Redactor};
use svc_wire::json_rpc::{INTERNAL_ERROR, METHOD_NOT_FOUND};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    lock,
    message::{
        ChildMessage, ChildRequest, ConnectionEnd, MessageThrottle, Reply, RequestLoss,
        ServerMessage, ToolTraits, answer_text, members, modern_params, notification_text,
        request_text, traced_params,
    },
};

/// Capacity of the queue of messages to a server. Senders wait while it is full.
const OUTGOING: usize = 256;
/// Capacity of the queue of one call's notifications. Progress beyond it is dropped.
const CALL_UPDATES: usize = 256;
/// Maximum number of URIs of changed resources that wait to be reported.
const UPDATES: usize = 1024;
/// Longest URI of a changed resource, in bytes.
const MAX_URI: usize = 8 * 1024;
/// Longest notification that waits for the client of a call, in bytes.
const MAX_CALL_UPDATE: usize = 256 * 1024;
/// Maximum number of a server's questions that wait for clients; more are refused.
const QUESTIONS: usize = 64;
/// How long after the end of a session's call a question of the server may still belong to that
/// call.
const QUIET: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct SourceConnection {
    outgoing: mpsc::Sender<ChildMessage>,
    next_id: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiting>>,
    callers: Mutex<RecentCallers>,
    /// Progress tokens of calls that became tasks, and the requests that wait for those tasks.
    task_progress: Mutex<HashMap<u64, u64>>,
    pub(super) closed: CancellationToken,
    pub(super) list_changes: watch::Sender<u64>,
    /// The URIs of resources that changed and were not reported yet.
    pub(super) resource_updates: watch::Sender<BTreeSet<String>>,
    questions: Arc<Semaphore>,
    pace: MessageThrottle,
    redactor: RwLock<Arc<Redactor>>,
    /// The project whose folder is the only root.
    root: Option<String>,
    /// Whether each request introduces this client, as in revisions without sessions.
    is_modern: AtomicBool,
    end: OnceLock<ConnectionEnd>,
}

#[derive(Debug)]
struct Waiting {
    updates: mpsc::Sender<CallUpdate>,
    call: Option<Call>,
    /// Whether the server has the request, or may have it.
    is_sent: bool,
}

/// A calling session: the caller, and the session that it named.
type CallingSession = (Principal, Option<String>);

/// Sessions whose calls ended a short while ago. If the transport does not say which request a
/// question belongs to, it may belong to such a call, too.
#[derive(Debug, Default)]
struct RecentCallers(HashMap<CallingSession, Instant>);

impl RecentCallers {
    /// Notes the end of a session's call.
    fn end(&mut self, who: CallingSession, now: Instant) {
        self.0.retain(|_, ended| now.saturating_duration_since(*ended) < QUIET);
        self.0.insert(who, now);
    }

    /// Whether no call of another session ended recently.
    fn is_alone(&self, who: &CallingSession, now: Instant) -> bool {
        let is_recent = |ended: &Instant| now.saturating_duration_since(*ended) < QUIET;
        !self.0.iter().any(|(other, ended)| other != who && is_recent(ended))
    }
}

/// Adds a notification to what waits for the client of a call. A client that does not read loses
/// it. One place is left for the response, which would hold up all other calls of the server.
fn add_note(updates: &mpsc::Sender<CallUpdate>, note: ClientNote) {
    if updates.capacity() > 1 {
        updates.try_send(CallUpdate::Note(note)).ok();
    }
}

fn calling_session(call: &Call) -> CallingSession {
    (call.caller.principal(), call.session.as_deref().map(str::to_owned))
}

#[derive(Debug)]
enum CallUpdate {
    Note(ClientNote),
    Done(Reply),
    Lost(RequestLoss),
}

/// An open request. Dropping it before the response cancels it.
#[derive(Debug)]
pub(super) struct OpenRequest {
    connection: Arc<SourceConnection>,
    /// The request's number, which is also its progress token.
    pub(super) id: u64,
    updates: mpsc::Receiver<CallUpdate>,
    trace: RequestTrace,
    /// The reason that the server is told when the caller cancels the request.
    reason: CancelReason,
    is_over: bool,
}

impl SourceConnection {
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
            resource_updates: watch::Sender::default(),
            questions: Arc::new(Semaphore::new(QUESTIONS)),
            pace: MessageThrottle::default(),
            root,
            is_modern: AtomicBool::new(false),
            end: OnceLock::new(),
        };
        (Arc::new(connection), messages)
    }

    /// Routes the progress of a call that became a task to the request that waits for the task's
    /// result.
    pub(super) fn pass_progress(&self, token: u64, request: u64) {
        lock(&self.task_progress).insert(token, request);
    }

    /// Ends the routing: the task has ended, or nobody waits for it.
    pub(super) fn forget_progress(&self, token: u64) {
        lock(&self.task_progress).remove(&token);
    }

    fn take_waiting(&self, id: u64) -> Option<Waiting> {
        let taken = lock(&self.waiting).remove(&id)?;
        if let Some(call) = &taken.call {
            lock(&self.callers).end(calling_session(call), Instant::now());
        }
        Some(taken)
    }

    /// Fails all open requests, after the transport has ended.
    pub(super) fn close(&self) {
        self.closed.cancel();
        let open = std::mem::take(&mut *lock(&self.waiting));
        for waiting in open.into_values().filter(|waiting| !waiting.is_sent) {
            // For the others the end of their news means that the outcome is unknown.
            waiting.updates.try_send(CallUpdate::Lost(self.not_sent())).ok();
        }
    }

    /// Notes that the server gets a request now, or that it refused to take it. `false` if nobody
    /// waits for it any more: its caller was told that it is not sent, or has cancelled it.
    pub(super) fn mark_sent(&self, id: u64, is_sent: bool) -> bool {
        let mut waiting = lock(&self.waiting);
        let open = waiting.get_mut(&id);
        open.map(|open| open.is_sent = is_sent).is_some()
    }

    /// The loss of an open request when the connection ends.
    pub(super) fn loss_at_end(&self, id: u64) -> RequestLoss {
        let is_sent = lock(&self.waiting).get(&id).is_none_or(|waiting| waiting.is_sent);
        if is_sent { RequestLoss::Closed } else { self.not_sent() }
    }

    /// The loss of a request that the server never had.
    pub(super) fn not_sent(&self) -> RequestLoss {
        let reason = self.end.get().map_or("it ended", ConnectionEnd::reason);
        RequestLoss::NotTaken(reason.to_owned())
    }

    /// Records why the transport has to end. The first reason counts.
    pub(super) fn end_for(&self, end: ConnectionEnd) {
        self.end.set(end).ok();
    }

    /// Closes the connection if its transport has to end. To be called after the request that found
    /// the reason has got its result.
    pub(super) fn close_if_ended(&self) {
        if self.end.get().is_some() {
            self.closed.cancel();
        }
    }

    pub(super) fn end(&self) -> Option<&ConnectionEnd> {
        self.end.get()
    }

    pub(super) fn redactor(&self) -> Arc<Redactor> {
        Arc::clone(&self.redactor.read().unwrap_or_else(PoisonError::into_inner))
    }

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

    pub(super) fn set_modern(&self, is_modern: bool) {
        self.is_modern.store(is_modern, Relaxed);
    }

    pub(super) fn is_modern(&self) -> bool {
        self.is_modern.load(Relaxed)
    }

    pub(super) async fn lose(&self, id: u64, loss: RequestLoss) {
        if let Some(waiting) = self.take_waiting(id) {
            waiting.updates.send(CallUpdate::Lost(loss)).await.ok();
        }
    }

    /// Sends a request without waiting for its response. The request is dropped if the server does
    /// not read its input.
    pub(super) fn post(&self, method: &str, params: &Value) {
        let (id, params) = (self.next_number(), params.to_string());
        let params = if self.is_modern() { modern_params(&params) } else { params };
        self.outgoing.try_send(ChildMessage::Note(request_text(id, method, &params))).ok();
    }

    pub(super) fn next_number(&self) -> u64 {
        self.next_id.fetch_add(1, Relaxed)
    }

    pub(super) fn waits_for(&self, id: u64) -> bool {
        lock(&self.waiting).contains_key(&id)
    }

    /// Registers a request under a new number, before it is sent.
    pub(super) fn open(self: &Arc<Self>, call: Option<Call>) -> OpenRequest {
        let id = self.next_number();
        let (updates, receiver) = mpsc::channel(CALL_UPDATES);
        let reason = call.as_ref().map(Call::cancel_reason).unwrap_or_default();
        let trace = call.as_ref().map(|call| call.trace.clone()).unwrap_or_default();
        lock(&self.waiting).insert(id, Waiting { updates, call, is_sent: false });
        if self.closed.is_cancelled() {
            lock(&self.waiting).remove(&id);
        }
        let connection = Arc::clone(self);
        OpenRequest { connection, id, updates: receiver, trace, reason, is_over: false }
    }

    pub(super) async fn request(
        self: &Arc<Self>,
        method: &str,
        params: &Value,
    ) -> Result<Reply, RequestLoss> {
        let mut request = self.open(None);
        request.send(method, &params.to_string(), None).await?;
        request.answer_to(None).await
    }

    pub(super) fn notify(
        &self,
        method: &str,
        params: &Value,
    ) -> impl Future<Output = Result<(), RequestLoss>> {
        let text = notification_text(method, &params.to_string());
        self.send(ChildMessage::Note(text))
    }

    async fn send(&self, message: ChildMessage) -> Result<(), RequestLoss> {
        tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(RequestLoss::Closed),
            sent = self.outgoing.send(message) => sent.map_err(|_| RequestLoss::Closed),
        }
    }

    pub(super) fn take(self: &Arc<Self>, text: &str) -> impl Future<Output = ()> {
        self.take_from(text, None)
    }

    /// Handles a message, which may have come on the stream of a request. Such a stream carries the
    /// response to that request and to no other: another request may belong to another caller.
    pub(super) async fn take_from(self: &Arc<Self>, text: &str, request: Option<u64>) {
        match ServerMessage::parse(text) {
            Some(ServerMessage::Answer { id, reply }) if request.is_none_or(|own| own == id) => {
                if let Some(waiting) = self.take_waiting(id) {
                    // The caller may have dropped the request.
                    waiting.updates.send(CallUpdate::Done(reply)).await.ok();
                    return;
                }
            }
            Some(ServerMessage::Answer { id, .. }) => {
                tracing::debug!(id, "a server answered a request on the stream of another");
            }
            Some(ServerMessage::Request { id, method, params }) => {
                self.answer_request(id, &method, members(params.as_deref()), request);
            }
            Some(ServerMessage::Notification { method, .. }) if text.len() > MAX_CALL_UPDATE => {
                tracing::debug!(method, bytes = text.len(), "a server's notification is too long");
            }
            Some(ServerMessage::Notification { method, params }) => {
                self.handle_notification(&method, members(params.as_deref()), request);
            }
            None => tracing::debug!(bytes = text.len(), "a server sent an invalid message"),
        }
        self.skip(text.len()).await;
    }

    /// Counts output of the server that nobody asked for, and waits if it floods.
    pub(super) fn skip(&self, bytes: usize) -> impl Future<Output = ()> {
        self.pace.spend(bytes)
    }

    fn handle_notification(
        &self,
        method: &str,
        mut params: Map<String, Value>,
        request: Option<u64>,
    ) {
        match method {
            "notifications/tools/list_changed"
            | "notifications/resources/list_changed"
            | "notifications/prompts/list_changed" => {
                self.list_changes.send_modify(|count| *count += 1);
            }
            "notifications/resources/updated" => {
                let uri = params.get("uri").and_then(Value::as_str);
                let Some(uri) = uri.filter(|uri| uri.len() <= MAX_URI) else { return };
                self.resource_updates.send_if_modified(|updated| {
                    updated.len() < UPDATES && updated.insert(uri.to_owned())
                });
            }
            "notifications/progress" => {
                let Some(id) = params.get("progressToken").and_then(Value::as_u64) else { return };
                let id = lock(&self.task_progress).get(&id).copied().unwrap_or(id);
                let updates = lock(&self.waiting).get(&id).map(|waiting| waiting.updates.clone());
                if let Some(updates) = updates {
                    params.values_mut().for_each(quote::unimitated_value);
                    add_note(&updates, ClientNote::Progress(params));
                }
            }
            "notifications/message" => {
                let level = params.get("level").cloned().unwrap_or_default();
                let Ok(level) = serde_json::from_value::<LogLevel>(level) else { return };
                if let Some((updates, _)) = self.call_of(request) {
                    params.values_mut().for_each(quote::unimitated_value);
                    add_note(&updates, ClientNote::Log(level, params));
                }
            }
            _ => {}
        }
    }

    /// The call that a message belongs to: that of the request on whose stream it came, else that
    /// of the only calling session.
    fn call_of(&self, request: Option<u64>) -> Option<(mpsc::Sender<CallUpdate>, Call)> {
        let Some(id) = request else { return self.only_calling_session() };
        let waiting = lock(&self.waiting);
        let waiting = waiting.get(&id)?;
        Some((waiting.updates.clone(), waiting.call.clone()?))
    }

    /// The latest call, if all open calls, and those that ended recently, belong to one session.
    fn only_calling_session(&self) -> Option<(mpsc::Sender<CallUpdate>, Call)> {
        let waiting = lock(&self.waiting);
        let open = waiting.iter();
        let calls = open.filter_map(|(id, open)| Some((*id, &open.updates, open.call.as_ref()?)));
        let (_, updates, last) = calls.clone().max_by_key(|(id, ..)| *id)?;
        let who = calling_session(last);
        let is_one = calls.map(|(_, _, call)| calling_session(call)).all(|other| other == who)
            && lock(&self.callers).is_alone(&who, Instant::now());
        is_one.then(|| (updates.clone(), last.clone()))
    }

    /// Never waits: a server that does not read its input would block the reading of its output.
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
        let request = ChildRequest { id, text, is_first, traits, trace };
        self.connection.send(ChildMessage::Request(request)).await
    }

    /// Waits for the response, and forwards earlier notifications to the client of the call.
    pub(super) async fn answer_to(mut self, call: Option<&Call>) -> Result<Reply, RequestLoss> {
        let end = loop {
            match self.updates.recv().await {
                Some(CallUpdate::Note(note)) => {
                    if let Some(call) = call {
                        call.note(note).await;
                    }
                }
                Some(CallUpdate::Done(reply)) => break Ok(reply),
                Some(CallUpdate::Lost(loss)) => break Err(loss),
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
        // A server that does not read its input cannot be told.
        self.connection.outgoing.try_send(ChildMessage::Cancel { id: self.id, text }).ok();
    }
}

impl SourceConnection {
    pub(super) fn answer_request(
        self: &Arc<Self>,
        id: Box<RawValue>,
        method: &str,
        params: Map<String, Value>,
        request: Option<u64>,
    ) {
        if method == "ping" {
            return self.reply(&id, Ok(&json!({})));
        }
        let method = match (question_method(method), &self.root) {
            (Some("roots/list"), Some(root)) => return self.reply(&id, Ok(&roots_of(root))),
            (Some(method), _) => method,
            (None, _) => {
                return self.reply(&id, Err((METHOD_NOT_FOUND, "the client has no such method")));
            }
        };
        let Some((_, call)) = self.call_of(request) else {
            let text = "this request belongs to no single session's call, so nobody can be asked";
            return self.reply(&id, Err((INTERNAL_ERROR, text)));
        };
        let Ok(permit) = Arc::clone(&self.questions).try_acquire_owned() else {
            let text = "too many questions of this server wait for answers";
            return self.reply(&id, Err((INTERNAL_ERROR, text)));
        };
        let connection = Arc::clone(self);
        // A person may take long, and the server's other messages must not wait.
        let asking = async move {
            let _permit = permit;
            let mut params = Value::Object(params);
            quote::unimitated_value(&mut params);
            let question = ClientQuestion { key: "answer".to_owned(), method, params };
            let answer = tokio::select! {
                () = connection.closed.cancelled() => return,
                answer = call.ask(vec![question]) => answer,
            };
            match answer {
                Ok(answers) => {
                    connection.reply(&id, Ok(answers.get("answer").unwrap_or(&Value::Null)));
                }
                Err(failure) => {
                    connection.reply(&id, Err((INTERNAL_ERROR, &refusal(method, failure))));
                }
            }
        };
        tokio::spawn(asking.boxed());
    }

    /// Answers the questions in a result (`input_required`), for the session of the call.
    pub(super) async fn answer_inputs(
        &self,
        call: &Call,
        requests: &Map<String, Value>,
    ) -> Result<Map<String, Value>, Failure> {
        let (mut answers, mut questions) = (Map::new(), Vec::new());
        for (key, request) in requests {
            let method = request.get("method").and_then(Value::as_str).unwrap_or_default();
            let method = match (question_method(method), &self.root) {
                (Some("roots/list"), Some(root)) => {
                    answers.insert(key.clone(), roots_of(root));
                    continue;
                }
                (Some(method), _) => method,
                (None, _) => {
                    let text =
                        format!("the server asks for {method:?}, which this client does not know");
                    return Err(ToolError::new(ErrorType::Unavailable, text).into());
                }
            };
            let mut params = request.get("params").cloned().unwrap_or_else(|| json!({}));
            quote::unimitated_value(&mut params);
            questions.push(ClientQuestion { key: key.clone(), method, params });
        }
        if !questions.is_empty() {
            let methods: Vec<_> = questions.iter().map(|question| question.method).collect();
            let given = call.ask(questions).await.map_err(|failure| match failure {
                // The call goes on when the client has answered.
                Failure::NeedsInput => Failure::NeedsInput,
                other => ToolError::new(ErrorType::Unavailable, refusal(methods[0], other)).into(),
            })?;
            answers.extend(given);
        }
        Ok(answers)
    }
}

/// The methods by which a server asks the client.
fn question_method(method: &str) -> Option<&'static str> {
    ["roots/list", "sampling/createMessage", "elicitation/create"]
        .into_iter()
        .find(|known| *known == method)
}

fn refusal(method: &str, failure: Failure) -> String {
    match failure {
        Failure::Tool(error) => error.message,
        Failure::MissingCapability(_) => format!("the session's client cannot answer {method}"),
        Failure::NeedsInput => format!("the session's client cannot answer {method} within a call"),
        Failure::Protocol { message, .. } => message.into_owned(),
    }
}

fn roots_of(root: &str) -> Value {
    let name = root.rsplit('/').next().unwrap_or_default();
    json!({ "roots": [{ "uri": file_uri(root), "name": name }] })
}

/// The URI of a folder (RFC 8089).
fn file_uri(path: &str) -> String {
    let mut uri = "file://".to_owned();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            write!(uri, "%{byte:02X}").expect("writing to a string does not fail");
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use svc_core::{service::testing::opened, tools::ToolClient};
    use svc_model::Caller;

    use super::*;

    #[test]
    fn question_is_attributed_only_without_recent_calls_of_others() {
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
        // A session's own calls are not ambiguous.
        assert!(callers.is_alone(&b, at(5_100)) && !callers.is_alone(&a, at(5_199)));
        callers.end(b.clone(), at(9_000));
        assert_eq!(callers.0.len(), 1, "what is over is forgotten");
    }

    #[tokio::test]
    async fn request_that_was_not_sent_has_a_known_outcome() {
        let (connection, _messages) = SourceConnection::new(Redactor::default(), None);
        let requests = [(); 3].map(|()| connection.open(None));
        let [queued, refused, sent] = &requests;
        for request in [refused, sent] {
            connection.mark_sent(request.id, true);
        }
        connection.mark_sent(refused.id, false);
        connection.end_for(ConnectionEnd::NeedsAuth("the login is over".to_owned()));
        let not_taken = RequestLoss::NotTaken("the login is over".to_owned());
        for (request, loss) in
            [(queued, &not_taken), (refused, &not_taken), (sent, &RequestLoss::Closed)]
        {
            assert_eq!(connection.loss_at_end(request.id), *loss);
        }
        connection.close();
        let losses = [&not_taken, &not_taken, &RequestLoss::Closed];
        for (request, loss) in requests.into_iter().zip(losses) {
            assert_eq!(request.answer_to(None).await.expect_err("is lost"), *loss);
        }
    }

    #[tokio::test]
    async fn request_that_nobody_waits_for_is_not_sent() {
        let (connection, mut messages) = SourceConnection::new(Redactor::default(), None);
        let [cancelled, told, begun] = [(); 3].map(|()| connection.open(None));
        let left = cancelled.id;
        drop(cancelled);
        assert!(!connection.mark_sent(left, true), "its caller has cancelled it");
        assert!(connection.mark_sent(begun.id, true));
        connection.post("tasks/cancel", &json!({ "taskId": "t" }));
        messages.recv().await.expect("the cancellation");
        let posted = messages.recv().await.expect("a message");
        assert!(matches!(posted, ChildMessage::Note(_)), "it is sent");
        connection.close();
        assert!(!connection.mark_sent(told.id, true), "its caller was told that it is not sent");
        let loss = told.answer_to(None).await.expect_err("is lost");
        assert_eq!(loss, RequestLoss::NotTaken("it ended".to_owned()));
    }

    #[tokio::test]
    async fn request_stream_cannot_answer_another_request() {
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

    #[tokio::test]
    async fn response_does_not_wait_for_a_client_that_reads_no_progress() {
        let (connection, _messages) = SourceConnection::new(Redactor::default(), None);
        let request = connection.open(None);
        let id = request.id;
        let progress = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{id}}}}}"#
        );
        for _ in 0..CALL_UPDATES + 8 {
            connection.take(&progress).await;
        }
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
        let taken = tokio::time::timeout(Duration::from_secs(30), connection.take(&answer));
        taken.await.expect("others' messages are read on");
        request.answer_to(None).await.expect("an answer").expect("a result");
    }

    #[tokio::test]
    async fn questions_that_wait_are_bounded() {
        let (_test, services) = opened().await;
        let reason = CancelReason::default();
        let (client, _signals) = ToolClient::new(Arc::default(), false, reason, None);
        let call = Call { client: Some(client), ..Call::alone(services, Caller::Operator) };
        let (connection, mut messages) = SourceConnection::new(Redactor::default(), None);
        let _open = connection.open(Some(call));
        for number in 0..=QUESTIONS {
            let question = format!(r#"{{"id":{number},"method":"elicitation/create"}}"#);
            connection.take(&question).await;
        }
        let Some(ChildMessage::Note(refusal)) = messages.recv().await else { panic!("an answer") };
        assert!(refusal.contains(&format!(r#""id":{QUESTIONS}"#)), "{refusal}");
        assert!(refusal.contains("too many questions"), "{refusal}");
    }
}
