//! The response of an MCP server: JSON-RPC messages, in one document or in a stream of events.

use std::collections::VecDeque;
use std::time::Duration;

use svc_wire::sse::{SseEvent, SseParser};
use tokio::time::timeout;

use super::connection::StreamingReply;
use super::error::ClientError;

/// Silence after which a stream counts as broken: the daemon comments every 15 s.
const SILENCE: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub struct McpReply(McpReplyBody);

#[derive(Debug)]
enum McpReplyBody {
    Document(Option<StreamingReply>),
    Events { stream: StreamingReply, parser: SseParser, queue: VecDeque<SseEvent> },
}

impl McpReply {
    /// The caller has checked the status.
    pub fn new(stream: StreamingReply) -> Self {
        if stream.is_event_stream() {
            let (parser, queue) = (SseParser::new(), VecDeque::new());
            return Self(McpReplyBody::Events { stream, parser, queue });
        }
        Self(McpReplyBody::Document(Some(stream)))
    }

    /// The next message, unchanged but for line breaks; `None` at the end.
    ///
    /// Skips comments, and events without data, which only carry an id.
    pub async fn next(&mut self) -> Result<Option<String>, ClientError> {
        match &mut self.0 {
            McpReplyBody::Document(stream) => {
                let Some(stream) = stream.take() else {
                    return Ok(None);
                };
                let url = stream.url();
                let body = stream.collect().await?.body;
                let text = String::from_utf8(body.into())
                    .map_err(|error| ClientError::Unexpected { url, problem: error.to_string() })?;
                Ok((!text.trim().is_empty()).then(|| one_line(text)))
            }
            McpReplyBody::Events { stream, parser, queue } => loop {
                if let Some(event) = queue.pop_front() {
                    if event.data.is_empty() {
                        continue;
                    }
                    return Ok(Some(one_line(event.data)));
                }
                let chunk = timeout(SILENCE, stream.chunk()).await.map_err(|_| {
                    ClientError::Timeout { url: stream.url(), seconds: SILENCE.as_secs() }
                })?;
                let Some(bytes) = chunk? else {
                    return Ok(None);
                };
                let mut events = Vec::new();
                parser
                    .feed(&bytes, &mut events)
                    .map_err(|source| ClientError::Stream { url: stream.url(), source })?;
                queue.extend(events);
            },
        }
    }

    /// The id to resume after.
    pub fn last_event_id(&self) -> Option<&str> {
        match &self.0 {
            McpReplyBody::Document(_) => None,
            McpReplyBody::Events { parser, .. } => {
                Some(parser.last_event_id()).filter(|id| !id.is_empty())
            }
        }
    }

    /// The last reconnection time of the stream.
    pub fn retry(&self) -> Option<Duration> {
        match &self.0 {
            McpReplyBody::Document(_) => None,
            McpReplyBody::Events { parser, .. } => parser.retry(),
        }
    }
}

/// JSON on one line.
///
/// Strings escape line breaks, so one is between tokens and a space can replace it; every
/// other byte stays.
pub fn one_line(text: String) -> String {
    let text = if text.contains(['\n', '\r']) { text.replace(['\n', '\r'], " ") } else { text };
    let trimmed = text.trim();
    if trimmed.len() == text.len() { text } else { trimmed.to_owned() }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::StatusCode;
    use svc_wire::mcp_request::{RequestSetting, post};

    use super::super::Client;
    use super::super::fake_daemon::{FakeDaemon, answer, stream, target};
    use super::*;

    async fn read(raw: String) -> (StatusCode, Vec<String>, Option<String>, bool) {
        let home = tempfile::tempdir().expect("a folder");
        let fake = FakeDaemon::start(home.path(), vec![vec![raw]]);
        let ping =
            post(Bytes::from_static(br#"{"id":1,"method":"ping"}"#), RequestSetting::default());
        let opened = Client::new(target(home.path())).open("/mcp", &ping).await.expect("answers");
        let status = opened.status;
        let (mut answer, mut seen) = (McpReply::new(opened), Vec::new());
        let clean = loop {
            match answer.next().await {
                Ok(Some(message)) => seen.push(message),
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        let request = fake.requests().concat().to_ascii_lowercase();
        for part in ["post /mcp", "authorization: bearer tok", "mcp-method: ping"] {
            assert!(request.contains(part), "{part} in {request}");
        }
        (status, seen, answer.last_event_id().map(str::to_owned), clean)
    }

    #[tokio::test]
    async fn document_is_one_message_on_one_line() {
        let kind = "content-type: application/json\r\n";
        let pretty = "{\r\n  \"id\": 1,\n  \"result\": {\"big\": 12345678901234567890123, \"s\": \"a\\nb\"}\n}\n";
        let (status, seen, _, clean) = read(answer("200 OK", kind, pretty)).await;
        assert_eq!(status, 200);
        assert_eq!(
            seen,
            [r#"{    "id": 1,   "result": {"big": 12345678901234567890123, "s": "a\nb"} }"#]
        );
        assert!(clean);
        let refused = answer("404 Not Found", kind, r#"{"id":1,"error":{"code":-32601}}"#);
        assert_eq!(read(refused).await.0, 404);
        assert_eq!(read(answer("202 Accepted", "", "")).await.1, Vec::<String>::new());
    }

    #[tokio::test]
    async fn events_are_messages_and_empty_ones_move_the_id() {
        let text = "retry: 10\nid: s.0\ndata: \n\n: hello\n\nid: s.1\ndata: {\"a\":\ndata: 1}\n\nid: s.2\n\n";
        let (_, seen, last, clean) = read(stream(text)).await;
        assert_eq!(
            (seen, last.as_deref(), clean),
            (vec![r#"{"a": 1}"#.to_owned()], Some("s.2"), true)
        );
    }

    #[tokio::test]
    async fn truncated_stream_is_an_error() {
        let raw = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n";
        let (_, seen, last, clean) = read(raw.to_owned()).await;
        assert_eq!((seen, last, clean), (vec!["1".to_owned()], None, false));
    }
}
