//! One request to a server at a URL, with the headers of its entry and the token of a login; and
//! its response.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use reqwest::{
    Response, StatusCode, Url,
    header::{AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE},
};
use serde_json::value::RawValue;
use svc_core::tools::RequestTrace;
use svc_wire::{
    mcp_request::McpRequest,
    sse::{SseParser, is_event_stream},
};

use crate::{
    auth::{AuthChallenge, RenewalFailure, SourceAuth},
    connection::SourceConnection,
    http_clients::{HttpClients, problem_of, read_body},
    message::{ConnectionEnd, RequestLoss},
    spec::HeadersHelper,
    stdio::MAX_MESSAGE,
};

#[derive(Debug)]
pub(crate) struct RemoteEndpoint {
    pub(crate) connection: Arc<SourceConnection>,
    pub(crate) clients: HttpClients,
    pub(crate) url: Url,
    pub(crate) fixed: HeaderMap,
    pub(crate) helper: Option<HeadersHelper>,
    /// The headers of the helper's last run.
    pub(crate) printed: RwLock<HeaderMap>,
    pub(crate) auth: Arc<SourceAuth>,
}

pub(super) fn add_trace(headers: &mut HeaderMap, trace: &RequestTrace) {
    for (name, value) in [("x-request-id", &trace.request_id), ("traceparent", &trace.parent)] {
        let value = value.as_deref().and_then(|value| HeaderValue::from_str(value).ok());
        if let Some(value) = value {
            headers.insert(name, value);
        }
    }
}

/// The credential that a request was sent with.
enum SentCredential {
    Fixed,
    Printed,
    Login(String),
    Nothing,
}

impl RemoteEndpoint {
    pub(super) fn send(
        &self,
        request: &McpRequest,
    ) -> impl Future<Output = Result<Response, RequestLoss>> {
        self.send_to(&self.url, None, request)
    }

    /// Sends a request to a URL of the server. A refused credential is renewed once. With `id` it
    /// is an open request of the connection, whose outcome is known until the server has it, and
    /// which is not sent once nobody waits for it.
    pub(super) async fn send_to(
        &self,
        url: &Url,
        id: Option<u64>,
        request: &McpRequest,
    ) -> Result<Response, RequestLoss> {
        let mark_sent = |is_sent| id.is_none_or(|id| self.connection.mark_sent(id, is_sent));
        let mut is_renewed = false;
        loop {
            let (headers, credential) = self.headers(request).await?;
            let client = self.clients.for_url(url).map_err(|error| self.lost(error))?;
            let sending = client
                .request(request.method.clone(), url.clone())
                .headers(headers)
                .body(request.body.clone());
            if !mark_sent(true) {
                return Err(self.connection.not_sent());
            }
            let response = sending.send().await.map_err(|error| self.lost(error))?;
            mark_sent(response.status() != StatusCode::UNAUTHORIZED);
            let challenge = AuthChallenge::from_headers(response.headers());
            match response.status() {
                StatusCode::UNAUTHORIZED if !is_renewed && self.renew(&credential).await? => {
                    is_renewed = true;
                }
                StatusCode::UNAUTHORIZED => {
                    return Err(self.refused(&credential, challenge));
                }
                StatusCode::FORBIDDEN
                    if response.headers().contains_key(WWW_AUTHENTICATE) && challenge.is_auth() =>
                {
                    return Err(self.refused(&credential, challenge));
                }
                status if status.is_redirection() && status != StatusCode::NOT_MODIFIED => {
                    let text =
                        "it redirects to another address: write that as its url, if it is right";
                    return Err(self.end(ConnectionEnd::Refused(text.to_owned())));
                }
                _ => return Ok(response),
            }
        }
    }

    async fn headers(
        &self,
        request: &McpRequest,
    ) -> Result<(HeaderMap, SentCredential), RequestLoss> {
        let mut headers = self.fixed.clone();
        let mut credential = if headers.contains_key(AUTHORIZATION) {
            SentCredential::Fixed
        } else {
            SentCredential::Nothing
        };
        for (name, value) in self.printed.read().unwrap_or_else(PoisonError::into_inner).iter() {
            if name == AUTHORIZATION {
                credential = SentCredential::Printed;
            }
            headers.insert(name, value.clone());
        }
        if matches!(credential, SentCredential::Nothing) {
            let token =
                self.auth.token(&self.url).await.map_err(|failure| self.not_renewed(failure))?;
            if let Some(token) = token {
                self.connection.hide_also(std::slice::from_ref(&token));
                if let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {token}")) {
                    value.set_sensitive(true);
                    headers.insert(AUTHORIZATION, value);
                }
                credential = SentCredential::Login(token);
            }
        }
        // The entry must not override the protocol's headers.
        headers.extend(request.headers.clone());
        Ok((headers, credential))
    }

    /// Renews a refused credential; `false` if it cannot be renewed.
    async fn renew(&self, sent: &SentCredential) -> Result<bool, RequestLoss> {
        if self.helper.is_some() {
            self.print_headers().await?;
            return Ok(true);
        }
        match sent {
            SentCredential::Login(token) => {
                self.auth.renew(token).await.map_err(|failure| self.not_renewed(failure))
            }
            _ => Ok(false),
        }
    }

    /// Runs the helper, if the entry has one.
    pub(super) async fn print_headers(&self) -> Result<(), RequestLoss> {
        let Some(helper) = &self.helper else { return Ok(()) };
        match helper.run().await {
            Ok((headers, values)) => {
                self.connection.hide_also(&values);
                *self.printed.write().unwrap_or_else(PoisonError::into_inner) = headers;
                Ok(())
            }
            Err(problem) => {
                Err(self.end(ConnectionEnd::Fault(format!("headersHelper: {problem}"))))
            }
        }
    }

    fn lost(&self, error: reqwest::Error) -> RequestLoss {
        let is_unreachable = error.is_connect();
        let problem = problem_of(error);
        if is_unreachable {
            return self.end(ConnectionEnd::Fault(format!("it cannot be reached: {problem}")));
        }
        self.down(problem)
    }

    /// Ends the connection to a server that is down; the outcome of the request is unknown.
    pub(super) fn down(&self, reason: String) -> RequestLoss {
        self.connection.end_for(ConnectionEnd::Fault(reason.clone()));
        RequestLoss::Unanswered(reason)
    }

    fn not_renewed(&self, failure: RenewalFailure) -> RequestLoss {
        self.end(match failure {
            RenewalFailure::NeedsLogin(reason) => ConnectionEnd::NeedsAuth(reason),
            RenewalFailure::Unreachable(reason) => ConnectionEnd::Fault(reason),
        })
    }

    fn refused(&self, sent: &SentCredential, challenge: AuthChallenge) -> RequestLoss {
        let lacks_scope = challenge.lacks_scope();
        let reason = match sent {
            SentCredential::Fixed => {
                let text = "it refuses the Authorization header of its entry";
                return self.end(ConnectionEnd::Refused(text.to_owned()));
            }
            SentCredential::Printed => "it refuses what headersHelper printed",
            SentCredential::Login(_) if lacks_scope => "it needs more than the login allows",
            SentCredential::Login(_) => "it refuses the login",
            SentCredential::Nothing => "it needs a login",
        };
        if matches!(sent, SentCredential::Printed) {
            return self.end(ConnectionEnd::Fault(reason.to_owned()));
        }
        self.auth.note(challenge);
        self.end(ConnectionEnd::NeedsAuth(reason.to_owned()))
    }

    /// Ends the connection; the request was not carried out.
    pub(super) fn end(&self, end: ConnectionEnd) -> RequestLoss {
        let reason = end.reason().to_owned();
        self.connection.end_for(end);
        RequestLoss::NotTaken(reason)
    }
}

/// How long the rest of a stream is read after its response, so that the connection can be reused.
const LEFTOVER: Duration = Duration::from_secs(1);
/// Largest body of a refusal, in bytes.
const MAX_REFUSAL: usize = 64 * 1024;

/// Reads a response that is one document, up to [`MAX_MESSAGE`] bytes. The error says what is wrong
/// with it.
pub(super) async fn document(mut response: Response) -> Result<String, BrokenDocument> {
    let unusable = |reason: &str| BrokenDocument { reason: reason.to_owned(), is_cut: false };
    let cut = |error| BrokenDocument { reason: problem_of(error), is_cut: true };
    let (body, is_longer) = read_body(&mut response, MAX_MESSAGE).await.map_err(cut)?;
    if is_longer {
        return Err(unusable("it sent a message of more than 16 MiB"));
    }
    String::from_utf8(body).map_err(|_| unusable("it sent a message that is no UTF-8"))
}

#[derive(Debug)]
pub(super) struct BrokenDocument {
    pub(super) reason: String,
    /// Whether the connection broke within it.
    pub(super) is_cut: bool,
}

/// The body of a refusal, up to the bound.
pub(super) async fn refusal_body(mut response: Response) -> String {
    let (body, _) = read_body(&mut response, MAX_REFUSAL).await.unwrap_or_default();
    String::from_utf8_lossy(&body).into_owned()
}

/// Passes messages to the connection: one, or a batch as in revision 2025-03-26.
pub(super) async fn deliver(connection: &Arc<SourceConnection>, text: &str, request: Option<u64>) {
    let text = text.trim();
    if !text.starts_with('[') {
        return connection.take_from(text, request).await;
    }
    let batch: Vec<&RawValue> = serde_json::from_str(text).unwrap_or_default();
    for message in batch {
        connection.take_from(message.get(), request).await;
    }
}

#[derive(Debug, Default)]
pub(super) struct StreamCursor {
    /// The event to resume after; empty if the stream named none.
    pub(super) last_event_id: String,
    /// The delay before the stream is opened again.
    pub(super) retry: Option<Duration>,
}

pub(super) fn is_stream(response: &Response) -> bool {
    response.status().is_success() && is_event_stream(response.headers())
}

#[derive(Debug)]
pub(super) struct EventReader {
    response: Response,
    parser: SseParser,
    /// Events that were read and put back.
    unread: Vec<(String, String)>,
    is_cut: bool,
}

impl EventReader {
    pub(super) fn new(response: Response) -> Self {
        let parser = SseParser::with_bound(MAX_MESSAGE);
        Self { response, parser, unread: Vec::new(), is_cut: false }
    }

    /// Makes these events the next ones.
    pub(super) fn put_back(&mut self, events: Vec<(String, String)>) {
        self.unread = events;
    }

    /// The next events, each with its type and data; `None` at the end of the stream. The error
    /// says what broke it.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<(String, String)>>, String> {
        if !self.unread.is_empty() {
            return Ok(Some(std::mem::take(&mut self.unread)));
        }
        let chunk = self.response.chunk().await.map_err(|error| {
            self.is_cut = true;
            problem_of(error)
        })?;
        let Some(chunk) = chunk else { return Ok(None) };
        let mut events = Vec::new();
        let fed = self.parser.feed(&chunk, &mut events);
        fed.map_err(|_| "it sent a message of more than 16 MiB".to_owned())?;
        Ok(Some(events.into_iter().map(|event| (event.event, event.data)).collect()))
    }

    /// Passes all messages to the connection, until the stream ends. Returns whether there were
    /// any, and what broke the stream, if it broke. `request` is the request that the stream
    /// belongs to.
    pub(super) async fn deliver_all(
        &mut self,
        connection: &Arc<SourceConnection>,
        request: Option<u64>,
    ) -> (bool, Option<String>) {
        let mut received = false;
        loop {
            let next = if request.is_none_or(|id| connection.waits_for(id)) {
                self.next().await
            } else {
                // The response has arrived; the rest of the stream is read briefly, so that the
                // connection can be reused.
                tokio::time::timeout(LEFTOVER, self.next()).await.unwrap_or(Ok(None))
            };
            match next {
                Ok(Some(events)) => {
                    for (_, data) in events.iter().filter(|(_, data)| !data.is_empty()) {
                        received = true;
                        deliver(connection, data, request).await;
                    }
                }
                Ok(None) => return (received, None),
                Err(problem) => return (received, Some(problem)),
            }
        }
    }

    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    pub(super) fn cursor(&self) -> StreamCursor {
        StreamCursor {
            last_event_id: self.parser.last_event_id().to_owned(),
            retry: self.parser.retry(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::{
        io::{self, BufRead as _, BufReader, Write as _},
        net::{TcpListener, TcpStream},
        path::Path,
    };

    use bytes::Bytes;
    use svc_core::service::{Services, testing::opened};
    use svc_model::source::Redactor;
    use svc_sys::config::sources::SourceVault;
    use svc_wire::mcp_request::{RequestSetting, post};

    use super::*;

    /// An endpoint without a credential, of this connection.
    pub(in crate::remote) fn endpoint_at(
        url: Url,
        connection: &Arc<SourceConnection>,
        (services, home): (Services, &Path),
    ) -> RemoteEndpoint {
        let (clients, vault) = (HttpClients::default(), SourceVault::new(home));
        let auth = SourceAuth::new(services, vault, clients.clone(), "web".to_owned());
        RemoteEndpoint {
            connection: Arc::clone(connection),
            clients,
            url,
            fixed: HeaderMap::new(),
            helper: None,
            printed: RwLock::default(),
            auth,
        }
    }

    /// Answers a request with a stream of the older transport, in one piece.
    fn give_stream(mut client: TcpStream) -> io::Result<()> {
        let mut request = BufReader::new(client.try_clone()?).lines();
        while request.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
        client.write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\
              event: endpoint\ndata: /messages\n\nevent: message\ndata: {\"first\":1}\n\n",
        )
    }

    #[tokio::test]
    async fn a_message_that_comes_with_the_address_is_kept() {
        let (_test, services) = opened().await;
        let home = tempfile::tempdir().unwrap();
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = Url::parse(&format!("http://{}/sse", server.local_addr().unwrap())).unwrap();
        let giving = std::thread::spawn(move || give_stream(server.accept()?.0));
        let (connection, _messages) = SourceConnection::new(Redactor::default(), None);
        let endpoint = endpoint_at(url, &connection, (services, home.path()));
        let (mut reader, address) = super::super::open(&endpoint).await.unwrap();
        assert_eq!(address.path(), "/messages");
        let events = reader.next().await.unwrap().expect("events");
        assert_eq!(events, [("message".to_owned(), r#"{"first":1}"#.to_owned())]);
        assert_eq!(reader.next().await.unwrap(), None);
        giving.join().unwrap().unwrap();
    }

    #[tokio::test]
    async fn request_whose_caller_was_told_that_it_is_not_sent_reaches_no_server() {
        let (_test, services) = opened().await;
        let home = tempfile::tempdir().unwrap();
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        server.set_nonblocking(true).unwrap();
        let url = Url::parse(&format!("http://{}/mcp", server.local_addr().unwrap())).unwrap();
        let (connection, _messages) = SourceConnection::new(Redactor::default(), None);
        let endpoint = endpoint_at(url, &connection, (services, home.path()));
        let body = Bytes::from(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#);
        let call = post(body, RequestSetting::default());
        let request = connection.open(None);
        connection.close();
        let sending = endpoint.send_to(&endpoint.url, Some(request.id), &call);
        // Nobody answers a request that is sent.
        let sent = tokio::time::timeout(Duration::from_secs(30), sending).await.unwrap();
        let told = request.answer_to(None).await.expect_err("is lost");
        assert_eq!(sent.expect_err("is not sent"), told);
        assert_eq!(told, RequestLoss::NotTaken("it ended".to_owned()));
        let came = server.accept().map(drop).map_err(|error| error.kind());
        assert_eq!(came, Err(io::ErrorKind::WouldBlock));
    }
}
