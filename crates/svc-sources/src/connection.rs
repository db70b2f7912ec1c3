//! The protocol's state with one server: requests under way, calls that the server may ask about, changed lists.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    fmt::Write as _,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json, value::RawValue};
use svc_core::tools::{
    Call, CancelReason, ClientQuestion, ErrorType, Failure, LogLevel, RelayedNote, RequestTrace,
    ToolError,
};
use svc_model::{Principal, quote, source::Redactor};
use svc_wire::json_rpc::{INTERNAL_ERROR, METHOD_NOT_FOUND};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::message::{
    Reply, ServerMessage, answer_text, members, modern_params, notification_text, request_text,
    traced_params,
};
use super::pace::MessagePace;

/// Messages that wait for a server to read them. Who sends waits when there are so many.
pub(super) const OUTGOING: usize = 256;
/// News of one call that nobody has taken yet. Progress beyond that is dropped.
const NEWS: usize = 256;
/// Most URIs of changed resources that wait to be told.
const UPDATES: usize = 1024;
/// For so long after the end of a session's call a question of the server may still be about that call.
const QUIET: Duration = Duration::from_secs(5);

/// A connection to a server.
#[derive(Debug)]
pub(super) struct SourceConnection {
    outgoing: mpsc::Sender<ChildMessage>,
    next_id: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiting>>,
    callers: Mutex<RecentCallers>,
    /// Tokens of the progress of calls that were answered with a task, and the requests that wait for those tasks.
    task_progress: Mutex<HashMap<u64, u64>>,
    /// It has ended.
    pub(super) closed: CancellationToken,
    /// Counts `list_changed`.
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

/// What is to be sent.
#[derive(Debug)]
pub(super) enum ChildMessage {
    /// A request, by its number. The first one of a session opens it.
    Request {
        id: u64,
        text: String,
        is_first: bool,
        traits: Option<Arc<ToolTraits>>,
        trace: RequestTrace,
    },
    /// A notification, or an answer.
    Note(String),
    /// The notification that nobody waits for a request any more.
    Cancel { id: u64, text: String },
}

impl ChildMessage {
    /// The message as JSON.
    pub(super) fn into_text(self) -> String {
        match self {
            Self::Request { text, .. } | Self::Note(text) | Self::Cancel { text, .. } => text,
        }
    }
}

/// What the transport has to know of a tool that is called.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ToolTraits {
    /// It changes nothing, or nothing more when it is called again.
    pub(super) is_repeatable: bool,
    /// Its schema, if arguments are repeated in headers.
    pub(super) header_schema: Option<Value>,
    /// Servers of revisions with sessions run it as a task and not otherwise.
    pub(super) is_task: bool,
}

/// Why a transport has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ConnectionEnd {
    /// The next try may do better.
    Fault(String),
    /// Somebody has to log in.
    NeedsAuth(String),
    /// What the entry says is refused, and trying again would not help.
    Refused(String),
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

/// Sessions whose calls have ended a short while ago. A server whose transport says nothing of what its messages belong to may
/// ask for such a call, too.
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
    Note(RelayedNote),
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

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestLoss {
    /// The connection has ended, and what became of the request is unknown.
    Closed,
    /// What became of it is unknown, for this reason.
    Unanswered(String),
    /// The server has not taken it, for this reason.
    NotTaken(String),
}

impl RequestLoss {
    /// The reason, for a sentence about the server.
    pub(super) fn reason(&self) -> &str {
        match self {
            Self::Closed => "it ended",
            Self::Unanswered(reason) | Self::NotTaken(reason) => reason,
        }
    }
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

    /// Lets the progress of a call that was answered with a task come to the request that waits for the task's result.
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

    /// Ends the transport, if it is to end. Whoever made the request that found it out has heard of it before.
    pub(super) fn close_if_ended(&self) {
        if self.end.get().is_some() {
            self.closed.cancel();
        }
    }

    /// Why the transport has ended.
    pub(super) fn end(&self) -> Option<&ConnectionEnd> {
        self.end.get()
    }

    /// What hides secrets.
    pub(super) fn redactor(&self) -> Arc<Redactor> {
        Arc::clone(&self.redactor.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A text of the server without secrets.
    pub(super) fn hide<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.redactor().hide(text)
    }

    /// Hides these values too.
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
        let reason = call.as_ref().map(|call| call.far_end.cancel_reason()).unwrap_or_default();
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
        request.answer().await
    }

    /// Sends a notification.
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
    /// A stream of a request carries the answer to that request and to no other: another request may be another caller's.
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
                self.answer(id, &method, members(params.as_deref()), request);
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
                    news.try_send(CallNews::Note(RelayedNote::Progress(params))).ok();
                }
            }
            "notifications/message" => {
                let level = params.get("level").cloned().unwrap_or_default();
                let Ok(level) = serde_json::from_value::<LogLevel>(level) else { return };
                if let Some((news, _)) = self.call_of(request) {
                    params.values_mut().for_each(quote::unimitated_value);
                    news.try_send(CallNews::Note(RelayedNote::Log(level, params))).ok();
                }
            }
            _ => {}
        }
    }

    /// The call that a message belongs to: that of the request whose stream it came on, else that of the only session that calls.
    fn call_of(&self, request: Option<u64>) -> Option<(mpsc::Sender<CallNews>, Call)> {
        let Some(id) = request else { return self.only_session() };
        let waiting = self.waiting();
        let waiting = waiting.get(&id)?;
        Some((waiting.news.clone(), waiting.call.clone()?))
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

    fn answer(
        self: &Arc<Self>,
        id: Box<RawValue>,
        method: &str,
        params: Map<String, Value>,
        request: Option<u64>,
    ) {
        let method: &'static str = match method {
            "ping" => return self.reply(&id, Ok(&json!({}))),
            "roots/list" => match &self.root {
                Some(root) => return self.reply(&id, Ok(&roots_of(root))),
                None => "roots/list",
            },
            "sampling/createMessage" => "sampling/createMessage",
            "elicitation/create" => "elicitation/create",
            _ => return self.reply(&id, Err((METHOD_NOT_FOUND, "the client has no such method"))),
        };
        let Some((_, call)) = self.call_of(request) else {
            let text = "this request belongs to no single session's call, so nobody can be asked";
            return self.reply(&id, Err((INTERNAL_ERROR, text)));
        };
        let connection = Arc::clone(self);
        // A person may take long, and the server's other messages do not wait.
        tokio::spawn(async move {
            let mut params = Value::Object(params);
            quote::unimitated_value(&mut params);
            let question = ClientQuestion { key: "answer".to_owned(), method, params };
            let answer = tokio::select! {
                () = connection.closed.cancelled() => return,
                answer = call.far_end.ask(vec![question]) => answer,
            };
            match answer {
                Ok(mut answers) => {
                    let answer = answers.remove("answer").unwrap_or_default();
                    connection.reply(&id, Ok(&answer));
                }
                Err(failure) => {
                    let text = refusal(method, failure);
                    connection.reply(&id, Err((INTERNAL_ERROR, &text)));
                }
            }
        });
    }

    /// Never waits: a server that does not read its input would keep its own messages from being read.
    fn reply(&self, id: &RawValue, answer: Result<&Value, (i64, &str)>) {
        self.outgoing.try_send(ChildMessage::Note(answer_text(id, answer))).ok();
    }
}

impl SourceConnection {
    /// Answers the questions that a result asks for (`input_required`), as the session of the call does.
    pub(super) async fn answer_inputs(
        &self,
        call: &Call,
        requests: &Map<String, Value>,
    ) -> Result<Map<String, Value>, Failure> {
        let (mut answers, mut questions) = (Map::new(), Vec::new());
        for (key, request) in requests {
            let method = request.get("method").and_then(Value::as_str).unwrap_or_default();
            let method = match (method, &self.root) {
                ("roots/list", Some(root)) => {
                    answers.insert(key.clone(), roots_of(root));
                    continue;
                }
                ("roots/list", None) => "roots/list",
                ("sampling/createMessage", _) => "sampling/createMessage",
                ("elicitation/create", _) => "elicitation/create",
                _ => {
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
            let given = call.far_end.ask(questions).await.map_err(|failure| match failure {
                // The run goes on when the client has answered.
                Failure::NeedsInput => Failure::NeedsInput,
                other => ToolError::new(ErrorType::Unavailable, refusal(methods[0], other)).into(),
            })?;
            answers.extend(given);
        }
        Ok(answers)
    }
}

fn refusal(method: &str, failure: Failure) -> String {
    match failure {
        Failure::Tool(error) => error.message,
        Failure::MissingCapability(_) => format!("the session's client cannot answer {method}"),
        Failure::NeedsInput => format!("the session's client cannot answer {method} within a call"),
        Failure::Protocol { message, .. } => message.into_owned(),
    }
}

/// The answer to `roots/list` for one folder.
fn roots_of(root: &str) -> Value {
    let name = root.rsplit('/').next().unwrap_or_default();
    json!({ "roots": [{ "uri": file_uri(root), "name": name }] })
}

/// The URI of a folder (RFC 8089).
pub(super) fn file_uri(path: &str) -> String {
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

impl OpenRequest {
    /// The connection that it is made on.
    pub(super) fn connection(&self) -> Arc<SourceConnection> {
        Arc::clone(&self.connection)
    }

    /// Sends it.
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

    /// Waits for the answer, and passes on what is heard before it.
    pub(super) async fn answer_to(mut self, call: &Call) -> Result<Reply, RequestLoss> {
        loop {
            match self.news.recv().await {
                Some(CallNews::Note(note)) => call.far_end.relay(note).await,
                Some(CallNews::Done(reply)) => {
                    self.is_over = true;
                    return Ok(reply);
                }
                Some(CallNews::Lost(loss)) => {
                    self.is_over = true;
                    return Err(loss);
                }
                None => {
                    self.is_over = true;
                    return Err(RequestLoss::Closed);
                }
            }
        }
    }

    async fn answer(mut self) -> Result<Reply, RequestLoss> {
        loop {
            match self.news.recv().await {
                Some(CallNews::Note(_)) => {}
                Some(CallNews::Done(reply)) => {
                    self.is_over = true;
                    return Ok(reply);
                }
                Some(CallNews::Lost(loss)) => {
                    self.is_over = true;
                    return Err(loss);
                }
                None => {
                    self.is_over = true;
                    return Err(RequestLoss::Closed);
                }
            }
        }
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
            let reply = request.answer().await.expect("an answer").expect("a result");
            assert_eq!(reply.get(), expected);
        }
    }
}
