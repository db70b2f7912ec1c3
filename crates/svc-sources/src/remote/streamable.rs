//! Streamable HTTP: each message is a request of its own, and its response carries the answer.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use reqwest::{Response, StatusCode, header::HeaderValue};
use serde_json::{Value, json};
use svc_sys::backoff::Backoff;
use svc_wire::{
    json_rpc::JsonRpcWriter,
    mcp::{Revision, SESSION_ID},
    mcp_request::{self, RequestSetting},
    retry_after,
};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::endpoint::{
    EventReader, RemoteEndpoint, StreamCursor, add_trace, deliver, document, is_stream,
    refusal_body,
};
use crate::{
    connection::SourceConnection,
    lists::introduce,
    lock,
    message::{
        ChildMessage, ChildRequest, ConnectionEnd, RequestLoss, modern_params, request_text,
    },
};

/// Maximum number of concurrent requests; more wait.
const PARALLEL_REQUESTS: usize = 128;
/// Maximum number of concurrent messages that nobody waits for. The server makes the daemon send
/// them, by its own requests, and may answer none: more are dropped, as for a server that does not
/// read its input.
const PARALLEL_NOTES: usize = 128;
/// Deadline of one of them.
const NOTE: Duration = Duration::from_secs(30);
const GOODBYE: Duration = Duration::from_secs(2);
const LONGEST_REOPEN: Duration = Duration::from_secs(30);
/// Shortest delay that a server may name: it might end each stream at once.
const SHORTEST_REOPEN: Duration = Duration::from_millis(100);
/// Backoff before a stream is opened again, unless the server names a delay.
const REOPEN: Backoff = Backoff::new(Duration::from_secs(1), LONGEST_REOPEN);

/// The session of a legacy server, and the negotiated revision.
#[derive(Debug, Clone, Default)]
struct RemoteSession {
    id: Option<HeaderValue>,
    revision: Option<Revision>,
    /// Grows with each `initialize`.
    generation: u64,
}

#[derive(Debug)]
pub(super) struct StreamableTransport {
    endpoint: RemoteEndpoint,
    session: watch::Sender<RemoteSession>,
    /// Held while a new session is opened, so that one request of many opens it.
    reopening: tokio::sync::Mutex<()>,
    slots: Semaphore,
    note_slots: Arc<Semaphore>,
    in_flight: Mutex<HashMap<u64, CancellationToken>>,
    tasks: TaskTracker,
}

impl StreamableTransport {
    pub(super) fn new(endpoint: RemoteEndpoint) -> Arc<Self> {
        Arc::new(Self {
            endpoint,
            session: watch::Sender::default(),
            reopening: tokio::sync::Mutex::default(),
            slots: Semaphore::new(PARALLEL_REQUESTS),
            note_slots: Arc::new(Semaphore::new(PARALLEL_NOTES)),
            in_flight: Mutex::default(),
            tasks: TaskTracker::new(),
        })
    }

    fn connection(&self) -> &Arc<SourceConnection> {
        &self.endpoint.connection
    }

    /// Sends outgoing messages until the connection ends, and then ends the session.
    pub(super) async fn run(self: Arc<Self>, mut messages: mpsc::Receiver<ChildMessage>) {
        loop {
            let message = tokio::select! {
                biased;
                () = self.connection().closed.cancelled() => break,
                message = messages.recv() => message,
            };
            let Some(message) = message else { break };
            self.pass(message).await;
        }
        self.connection().close();
        self.tasks.close();
        self.tasks.wait().await;
        self.delete_remote_session().await;
    }

    async fn pass(self: &Arc<Self>, message: ChildMessage) {
        let this = Arc::clone(self);
        match message {
            ChildMessage::Request(request) => {
                let cancelled = CancellationToken::new();
                lock(&self.in_flight).insert(request.id, cancelled.clone());
                self.tasks.spawn(async move { this.exchange(request, cancelled).await }.boxed());
            }
            // Later requests wait until the server has it.
            ChildMessage::Note(text) if text.contains("\"notifications/initialized\"") => {
                this.post_note(text).await;
            }
            ChildMessage::Note(text) => self.spawn_note(text),
            ChildMessage::Cancel { id, text } => {
                self.end_exchange(id);
                // Without sessions the end of the stream cancels the request.
                if !self.connection().is_modern() {
                    self.spawn_note(text);
                }
            }
        }
    }

    fn spawn_note(self: &Arc<Self>, text: String) {
        let Ok(slot) = Arc::clone(&self.note_slots).try_acquire_owned() else {
            tracing::debug!("a message is dropped: the server does not take those before it");
            return;
        };
        let this = Arc::clone(self);
        let post = async move {
            if let Some(response) = this.post_note(text).await {
                // Without sessions the early end of the response would cancel a request.
                tokio::time::timeout(GOODBYE, refusal_body(response)).await.ok();
            }
            drop(slot);
        };
        self.tasks.spawn(post.boxed());
    }

    fn end_exchange(&self, id: u64) {
        let token = lock(&self.in_flight).remove(&id);
        if let Some(token) = token {
            token.cancel();
        }
    }

    /// Posts a message that nobody waits for. Returns the response if the server took the message.
    async fn post_note(&self, text: String) -> Option<Response> {
        let session = self.session.borrow().clone();
        let request = mcp_request::post(Bytes::from(text), setting(&session, None));
        let sent = tokio::select! {
            () = self.connection().closed.cancelled() => return None,
            sent = tokio::time::timeout(NOTE, self.endpoint.send(&request)) => sent,
        };
        self.connection().close_if_ended();
        let response = sent.ok()?.ok()?;
        if !response.status().is_success() {
            tracing::debug!(status = %response.status(), "a server refuses a notification");
            return None;
        }
        Some(response)
    }

    async fn exchange(&self, request: ChildRequest, cancelled: CancellationToken) {
        let id = request.id;
        let outcome = tokio::select! {
            biased;
            () = cancelled.cancelled() => return,
            () = self.connection().closed.cancelled() => Err(self.connection().loss_at_end(id)),
            outcome = self.answer(request) => outcome,
        };
        lock(&self.in_flight).remove(&id);
        if let Err(loss) = outcome {
            self.connection().lose(id, loss).await;
        }
        self.connection().close_if_ended();
    }

    /// Sends a request, and passes all that is received to the connection.
    async fn answer(&self, request: ChildRequest) -> Result<(), RequestLoss> {
        let ChildRequest { id, text, is_first, traits, trace } = request;
        let body = Bytes::from(text);
        // The requests that hold the slots may wait for the session that this one opens.
        let _slot = if is_first { None } else { Some(self.slots.acquire().await) };
        let mut is_reopened = false;
        loop {
            let session =
                if is_first { RemoteSession::default() } else { self.session.borrow().clone() };
            let schema = traits.as_ref().and_then(|traits| traits.header_schema.as_ref());
            let mut post = mcp_request::post(body.clone(), setting(&session, schema));
            add_trace(&mut post.headers, &trace);
            let url = &self.endpoint.url;
            let response = self.endpoint.send_to(url, Some(id), &post).await?;
            let status = response.status();
            if status == StatusCode::NOT_FOUND && session.id.is_some() && !is_reopened {
                is_reopened = true;
                self.reopen(session.generation).await?;
                let is_repeatable = traits.as_ref().is_none_or(|tool| tool.is_repeatable);
                if is_repeatable {
                    continue;
                }
                let text = "its session had ended, and there is a new one";
                return Err(RequestLoss::Unanswered(text.to_owned()));
            }
            if status == StatusCode::ACCEPTED || status == StatusCode::NO_CONTENT {
                return Err(RequestLoss::Unanswered(
                    "it took the request without an answer".to_owned(),
                ));
            }
            if !status.is_success() {
                return self.take_refusal(id, response).await;
            }
            if is_first {
                let session = response.headers().get(SESSION_ID).cloned();
                return self.take_introduction(id, session, response).await;
            }
            return self.take_answer(id, response, &session).await;
        }
    }

    async fn take_answer(
        &self,
        id: u64,
        response: Response,
        session: &RemoteSession,
    ) -> Result<(), RequestLoss> {
        if !is_stream(&response) {
            let text = document(response)
                .await
                .map_err(|broken| self.unanswered(broken.reason, broken.is_cut))?;
            deliver(self.connection(), &text, Some(id)).await;
            return self.answered(id, "its response has no answer to the request");
        }
        let mut reader = EventReader::new(response);
        let (_, mut broke) = reader.deliver_all(self.connection(), Some(id)).await;
        let mut cursor = reader.cursor();
        let mut failures = 0;
        while self.connection().waits_for(id) {
            let may_resume = !self.connection().is_modern() && !cursor.last_event_id.is_empty();
            if !may_resume {
                let why = broke.unwrap_or_else(|| "its stream ended without the answer".to_owned());
                return Err(self.unanswered(why, reader.is_cut()));
            }
            drop(reader);
            tokio::time::sleep(reopen_pause(failures, cursor.retry)).await;
            failures += 1;
            let get = mcp_request::get(setting(session, None), Some(&cursor.last_event_id));
            let response = match self.endpoint.send(&get).await {
                Ok(response) if is_stream(&response) => response,
                Ok(response) => {
                    let status = response.status();
                    let text = format!("its stream cannot be resumed (HTTP {})", status.as_u16());
                    return Err(RequestLoss::Unanswered(text));
                }
                // Whatever the resumption returns, the server may have carried the request out.
                Err(loss) => return Err(RequestLoss::Unanswered(loss.reason().to_owned())),
            };
            reader = EventReader::new(response);
            (_, broke) = reader.deliver_all(self.connection(), Some(id)).await;
            let StreamCursor { last_event_id, retry } = reader.cursor();
            if !last_event_id.is_empty() {
                cursor.last_event_id = last_event_id;
                failures = 0;
            }
            cursor.retry = retry.or(cursor.retry);
        }
        Ok(())
    }

    /// The outcome of a request without a response. A server whose connection broke is down.
    fn unanswered(&self, reason: String, is_cut: bool) -> RequestLoss {
        if is_cut { self.endpoint.down(reason) } else { RequestLoss::Unanswered(reason) }
    }

    fn answered(&self, id: u64, problem: &str) -> Result<(), RequestLoss> {
        if self.connection().waits_for(id) {
            return Err(RequestLoss::Unanswered(problem.to_owned()));
        }
        Ok(())
    }

    /// The response to the first request opens the session.
    async fn take_introduction(
        &self,
        id: u64,
        session: Option<HeaderValue>,
        response: Response,
    ) -> Result<(), RequestLoss> {
        let text = if is_stream(&response) {
            let mut reader = EventReader::new(response);
            loop {
                let events = reader.next().await.map_err(RequestLoss::Unanswered)?;
                let Some(events) = events else {
                    let text = "its stream ended without the answer";
                    return Err(RequestLoss::Unanswered(text.to_owned()));
                };
                let first = events
                    .into_iter()
                    .find(|(_, data)| data.contains("\"result\"") || data.contains("\"error\""));
                if let Some((_, data)) = first {
                    break data;
                }
            }
        } else {
            document(response).await.map_err(|broken| RequestLoss::Unanswered(broken.reason))?
        };
        let parsed: Value = serde_json::from_str(&text).unwrap_or_default();
        let revision = parsed.pointer("/result/protocolVersion").and_then(Value::as_str);
        let revision = revision.and_then(Revision::parse);
        self.session.send_modify(|now| {
            *now = RemoteSession { id: session, revision, generation: now.generation + 1 };
        });
        deliver(self.connection(), &text, Some(id)).await;
        self.answered(id, "its response has no answer to initialize")
    }

    /// Handles a refusal. One that is an error of the protocol is the response.
    async fn take_refusal(&self, id: u64, response: Response) -> Result<(), RequestLoss> {
        let status = response.status();
        let body = refusal_body(response).await;
        let parsed: Option<Value> = serde_json::from_str(&body).ok();
        let error = parsed
            .as_ref()
            .and_then(|parsed| parsed.get("error"))
            .filter(|error| error.is_object());
        if let Some(error) = error {
            let text = JsonRpcWriter::new().id(&id).error(error).into_text();
            self.connection().take_from(&text, Some(id)).await;
            return Ok(());
        }
        let text = format!("it answered HTTP {}", status.as_u16());
        Err(match status {
            StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => self.endpoint.down(text),
            _ if status.is_client_error() => RequestLoss::NotTaken(text),
            _ => RequestLoss::Unanswered(text),
        })
    }

    /// Opens a new session in place of one that has ended, once for all requests that notice it.
    async fn reopen(&self, generation: u64) -> Result<(), RequestLoss> {
        let _turn = self.reopening.lock().await;
        if self.session.borrow().generation != generation {
            return Ok(());
        }
        match introduce(self.connection()).await {
            Ok(_) => {
                // Another server may be behind the URL now.
                self.connection().list_changes.send_modify(|count| *count += 1);
                Ok(())
            }
            Err(problem) => {
                let text =
                    format!("its session has ended, and a new one cannot be opened: {problem}");
                Err(self.endpoint.end(ConnectionEnd::Fault(text)))
            }
        }
    }

    /// Follows the stream of messages that belong to no request, until the connection ends.
    pub(super) fn listen(self: &Arc<Self>) {
        let this = Arc::clone(self);
        self.tasks.spawn(async move {
            let closed = this.connection().closed.clone();
            tokio::select! {
                () = closed.cancelled() => {}
                () = this.follow_messages() => {}
            }
        });
    }

    async fn follow_messages(&self) {
        let mut sessions = self.session.subscribe();
        let (mut failures, mut last_event_id) = (0, String::new());
        loop {
            let session = sessions.borrow_and_update().clone();
            let is_modern = self.connection().is_modern();
            let request = if is_modern {
                mcp_request::post(Bytes::from(self.listen_text()), RequestSetting::default())
            } else {
                let after = Some(last_event_id.as_str()).filter(|id| !id.is_empty());
                mcp_request::get(setting(&session, None), after)
            };
            let pause = match self.endpoint.send(&request).await {
                Ok(response) if is_stream(&response) => {
                    let mut reader = EventReader::new(response);
                    tokio::select! {
                        changed = sessions.changed() => {
                            if changed.is_err() {
                                return;
                            }
                            last_event_id.clear();
                            continue;
                        }
                        (received, _) = reader.deliver_all(self.connection(), None) => {
                            if received {
                                failures = 0;
                            }
                        }
                    }
                    let cursor = reader.cursor();
                    if !cursor.last_event_id.is_empty() {
                        last_event_id = cursor.last_event_id;
                    }
                    reopen_pause(failures, cursor.retry)
                }
                Ok(response)
                    if response.status() == StatusCode::NOT_FOUND && session.id.is_some() =>
                {
                    let reopened = self.reopen(session.generation).await;
                    self.connection().close_if_ended();
                    if reopened.is_err() {
                        return;
                    }
                    last_event_id.clear();
                    // Once without a pause: the server may not know the new session either.
                    if failures == 0 {
                        failures = 1;
                        continue;
                    }
                    REOPEN.wait(failures)
                }
                Ok(response) if has_no_stream(response.status(), is_modern) => return,
                Ok(response) => {
                    let least = retry_after(response.headers()).unwrap_or_default();
                    REOPEN.wait_at_least(failures, least)
                }
                Err(RequestLoss::Unanswered(_) | RequestLoss::Closed) => {
                    reopen_pause(failures, None)
                }
                Err(RequestLoss::NotTaken(_)) => {
                    self.connection().close_if_ended();
                    return;
                }
            };
            tokio::time::sleep(pause).await;
            failures += 1;
        }
    }

    fn listen_text(&self) -> String {
        let wanted = json!({ "notifications": {
            "toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true,
        } });
        let params = modern_params(&wanted.to_string());
        request_text(self.connection().next_number(), "subscriptions/listen", &params)
    }

    async fn delete_remote_session(&self) {
        let session = self.session.borrow().clone();
        if session.id.is_none() || self.connection().end().is_some() {
            return;
        }
        let request = mcp_request::delete(setting(&session, None));
        tokio::time::timeout(GOODBYE, self.endpoint.send(&request)).await.ok();
    }
}

fn setting<'a>(session: &'a RemoteSession, schema: Option<&'a Value>) -> RequestSetting<'a> {
    RequestSetting {
        revision: session.revision,
        session: session.id.as_ref(),
        input_schema: schema,
        ..RequestSetting::default()
    }
}

/// Whether a response without a stream says that the server has none. Other refusals may pass: 409,
/// for example, as long as the server takes an earlier stream of the session for open.
fn has_no_stream(status: StatusCode, is_modern: bool) -> bool {
    // In the revision without sessions the request is a call of a method that may be unknown.
    let is_unknown_method = is_modern && status == StatusCode::BAD_REQUEST;
    status.is_success()
        || matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED)
        || is_unknown_method
}

fn reopen_pause(failures: u32, named: Option<Duration>) -> Duration {
    named
        .map_or_else(|| REOPEN.wait(failures), |named| named.clamp(SHORTEST_REOPEN, LONGEST_REOPEN))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use reqwest::Url;
    use svc_core::service::testing::opened;
    use svc_model::source::Redactor;

    use super::{super::endpoint::tests::endpoint_at, *};

    #[test]
    fn delay_that_a_server_names_has_bounds() {
        for (named, pause) in [(0, 100), (1, 100), (2_000, 2_000), (u64::MAX, 30_000)] {
            let named = Some(Duration::from_millis(named));
            assert_eq!(reopen_pause(0, named), Duration::from_millis(pause));
        }
    }

    #[tokio::test]
    async fn server_that_takes_no_messages_holds_a_bounded_number_of_connections() {
        let (_test, services) = opened().await;
        let home = tempfile::tempdir().unwrap();
        // It accepts no connection.
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = Url::parse(&format!("http://{}/mcp", server.local_addr().unwrap())).unwrap();
        let (connection, _messages) = SourceConnection::new(Redactor::default(), None);
        let endpoint = endpoint_at(url, &connection, (services, home.path()));
        let transport = StreamableTransport::new(endpoint);
        for number in 0..2 * PARALLEL_NOTES as u64 {
            let (note, cancel) = (ChildMessage::Note("{}".to_owned()), "{}".to_owned());
            transport.pass(note).await;
            transport.pass(ChildMessage::Cancel { id: number, text: cancel }).await;
        }
        assert_eq!(transport.tasks.len(), PARALLEL_NOTES);
        connection.close();
        transport.tasks.close();
        transport.tasks.wait().await;
    }
}
