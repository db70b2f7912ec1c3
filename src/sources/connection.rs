//! The protocol's state with one server: requests under way, calls that the server may ask about, changed lists.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use serde_json::{Map, Value, json, value::RawValue};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::message::{Reply, ServerMessage, answer_text, members, notification_text, request_text};
use crate::{
    domain::source::Redactor,
    tools::{Call, ClientQuestion, Failure, LogLevel, RelayedNote},
};

/// Messages that wait for a server to read them. Who sends waits when there are so many.
pub(super) const OUTGOING: usize = 256;
/// News of one call that nobody has taken yet. Progress beyond that is dropped.
const NEWS: usize = 256;
/// What the server did wrong, or asks of a client that cannot be found.
const INTERNAL_ERROR: i64 = -32603;

/// A connection to a server.
#[derive(Debug)]
pub(super) struct Connection {
    outgoing: mpsc::Sender<String>,
    next_id: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiting>>,
    /// It has ended.
    pub(super) closed: CancellationToken,
    /// Counts `list_changed`.
    pub(super) list_changes: watch::Sender<u64>,
    /// Hides secrets in what the server says.
    pub(super) redactor: Redactor,
    /// The project whose instance this is.
    root: Option<String>,
}

/// Who waits for an answer.
#[derive(Debug)]
struct Waiting {
    news: mpsc::Sender<CallNews>,
    /// The call that the request is made for.
    call: Option<Call>,
}

/// What is heard of a request.
#[derive(Debug)]
enum CallNews {
    Note(RelayedNote),
    Done(Reply),
}

/// A request under way. Dropping it before the answer cancels it.
#[derive(Debug)]
pub(super) struct OpenRequest {
    connection: Arc<Connection>,
    /// Its number, which is also the token of its progress.
    pub(super) id: u64,
    news: mpsc::Receiver<CallNews>,
    is_over: bool,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConnectionClosed;

impl Connection {
    /// A connection, and what is to be sent on it.
    pub(super) fn new(
        redactor: Redactor,
        root: Option<String>,
    ) -> (Arc<Self>, mpsc::Receiver<String>) {
        let (outgoing, messages) = mpsc::channel(OUTGOING);
        let connection = Self {
            outgoing,
            next_id: AtomicU64::new(1),
            waiting: Mutex::default(),
            closed: CancellationToken::new(),
            list_changes: watch::Sender::new(0),
            redactor,
            root,
        };
        (Arc::new(connection), messages)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The transport has ended: nobody gets an answer any more.
    pub(super) fn close(&self) {
        self.closed.cancel();
        self.waiting().clear();
    }

    /// Reserves a number for a request.
    pub(super) fn open(self: &Arc<Self>, call: Option<Call>) -> OpenRequest {
        let id = self.next_id.fetch_add(1, Relaxed);
        let (news, receiver) = mpsc::channel(NEWS);
        self.waiting().insert(id, Waiting { news, call });
        if self.closed.is_cancelled() {
            self.waiting().clear();
        }
        OpenRequest { connection: Arc::clone(self), id, news: receiver, is_over: false }
    }

    /// Makes a request that belongs to no call.
    pub(super) async fn request(
        self: &Arc<Self>,
        method: &str,
        params: &Value,
    ) -> Result<Reply, ConnectionClosed> {
        let mut request = self.open(None);
        request.send(method, &params.to_string()).await?;
        request.answer().await
    }

    /// Sends a notification.
    pub(super) async fn notify(
        &self,
        method: &str,
        params: &Value,
    ) -> Result<(), ConnectionClosed> {
        self.send(notification_text(method, &params.to_string())).await
    }

    async fn send(&self, text: String) -> Result<(), ConnectionClosed> {
        tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(ConnectionClosed),
            sent = self.outgoing.send(text) => sent.map_err(|_| ConnectionClosed),
        }
    }

    /// Takes a message of the server.
    pub(super) async fn take(self: &Arc<Self>, text: &str) {
        match ServerMessage::parse(text) {
            Some(ServerMessage::Answer { id, reply }) => {
                let waiting = self.waiting().remove(&id);
                if let Some(waiting) = waiting {
                    // Whoever waited may have gone.
                    waiting.news.send(CallNews::Done(reply)).await.ok();
                }
            }
            Some(ServerMessage::Request { id, method, params }) => {
                self.answer(id, &method, members(params.as_deref()));
            }
            Some(ServerMessage::Notification { method, params }) => {
                self.hear(&method, members(params.as_deref()));
            }
            None => tracing::debug!(bytes = text.len(), "a server said what is no message"),
        }
    }

    fn hear(&self, method: &str, params: Map<String, Value>) {
        match method {
            "notifications/tools/list_changed"
            | "notifications/resources/list_changed"
            | "notifications/prompts/list_changed" => {
                self.list_changes.send_modify(|count| *count += 1);
            }
            "notifications/progress" => {
                let Some(id) = params.get("progressToken").and_then(Value::as_u64) else { return };
                let news = self.waiting().get(&id).map(|waiting| waiting.news.clone());
                if let Some(news) = news {
                    // One that is not taken in time is no loss: the next one says more.
                    news.try_send(CallNews::Note(RelayedNote::Progress(params))).ok();
                }
            }
            "notifications/message" => {
                let level = params.get("level").cloned().unwrap_or_default();
                let Ok(level) = serde_json::from_value::<LogLevel>(level) else { return };
                if let Some((news, _)) = self.only_session() {
                    news.try_send(CallNews::Note(RelayedNote::Log(level, params))).ok();
                }
            }
            _ => {}
        }
    }

    /// The latest call, if all calls under way are one session's.
    fn only_session(&self) -> Option<(mpsc::Sender<CallNews>, Call)> {
        let waiting = self.waiting();
        let mut calls = waiting
            .iter()
            .filter_map(|(id, waiting)| Some((*id, &waiting.news, waiting.call.as_ref()?)))
            .collect::<Vec<_>>();
        calls.sort_by_key(|(id, ..)| *id);
        let (_, news, last) = calls.last()?;
        let who = |call: &Call| (call.caller.principal(), call.session.clone());
        let is_one = calls.iter().all(|(_, _, call)| who(call) == who(last));
        is_one.then(|| ((*news).clone(), (*last).clone()))
    }

    fn answer(self: &Arc<Self>, id: Box<RawValue>, method: &str, params: Map<String, Value>) {
        let method: &'static str = match method {
            "ping" => return self.reply(&id, Ok(&json!({}))),
            "roots/list" => match &self.root {
                Some(root) => {
                    let name = root.rsplit('/').next().unwrap_or_default();
                    let roots = json!({ "roots": [{ "uri": file_uri(root), "name": name }] });
                    return self.reply(&id, Ok(&roots));
                }
                None => "roots/list",
            },
            "sampling/createMessage" => "sampling/createMessage",
            "elicitation/create" => "elicitation/create",
            _ => return self.reply(&id, Err((-32601, "the client has no such method"))),
        };
        let Some((_, call)) = self.only_session() else {
            let text =
                "this request belongs to no call of one session alone, so there is nobody to ask";
            return self.reply(&id, Err((INTERNAL_ERROR, text)));
        };
        let connection = Arc::clone(self);
        // A person may take long, and the server's other messages do not wait.
        tokio::spawn(async move {
            let question =
                ClientQuestion { key: "answer".to_owned(), method, params: Value::Object(params) };
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
        self.outgoing.try_send(answer_text(id, answer)).ok();
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

/// The URI of a folder (RFC 8089).
pub(super) fn file_uri(path: &str) -> String {
    let mut uri = "file://".to_owned();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            uri.push_str(&format!("%{byte:02X}"));
        }
    }
    uri
}

impl OpenRequest {
    /// Sends it.
    pub(super) async fn send(
        &mut self,
        method: &str,
        params: &str,
    ) -> Result<(), ConnectionClosed> {
        self.connection.send(request_text(self.id, method, params)).await
    }

    /// Waits for the answer, and passes on what is heard before it.
    pub(super) async fn answer_to(mut self, call: &Call) -> Result<Reply, ConnectionClosed> {
        loop {
            match self.news.recv().await {
                Some(CallNews::Note(note)) => call.far_end.relay(note).await,
                Some(CallNews::Done(reply)) => {
                    self.is_over = true;
                    return Ok(reply);
                }
                None => {
                    self.is_over = true;
                    return Err(ConnectionClosed);
                }
            }
        }
    }

    async fn answer(mut self) -> Result<Reply, ConnectionClosed> {
        loop {
            match self.news.recv().await {
                Some(CallNews::Note(_)) => {}
                Some(CallNews::Done(reply)) => {
                    self.is_over = true;
                    return Ok(reply);
                }
                None => {
                    self.is_over = true;
                    return Err(ConnectionClosed);
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
        self.connection.waiting().remove(&self.id);
        let params = json!({ "requestId": self.id, "reason": "the caller waits no longer" });
        let text = notification_text("notifications/cancelled", &params.to_string());
        // A server that reads nothing cannot be told.
        self.connection.outgoing.try_send(text).ok();
    }
}
