//! What a server at a URL sends back: a document, or a stream of events.

use std::{sync::Arc, time::Duration};

use reqwest::Response;
use serde_json::value::RawValue;
use svc_wire::sse::SseParser;

use super::super::{connection::SourceConnection, http_clients::problem_of, stdio::MAX_MESSAGE};

/// Largest body that says why a request was refused.
const MAX_REFUSAL: usize = 64 * 1024;

/// The body of a document. The error says what is wrong with it.
pub(super) async fn document(mut response: Response) -> Result<String, BrokenDocument> {
    let unusable = |reason: &str| BrokenDocument { reason: reason.to_owned(), is_cut: false };
    let cut = |error| BrokenDocument { reason: problem_of(error), is_cut: true };
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(cut)? {
        if body.len() + chunk.len() > MAX_MESSAGE {
            return Err(unusable("it sent a message of more than 16 MiB"));
        }
        body.extend_from_slice(&chunk);
    }
    String::from_utf8(body).map_err(|_| unusable("it sent a message that is no UTF-8"))
}

/// Why a response has no document.
#[derive(Debug)]
pub(super) struct BrokenDocument {
    pub(super) reason: String,
    /// Whether the connection ended in the middle.
    pub(super) is_cut: bool,
}

/// What a refusal says, as far as it is short.
pub(super) async fn refusal_body(mut response: Response) -> String {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        if body.len() + chunk.len() > MAX_REFUSAL {
            break;
        }
        body.extend_from_slice(&chunk);
    }
    String::from_utf8_lossy(&body).into_owned()
}

/// Gives messages to the connection: one, or a batch as revision 2025-03-26 has them.
pub(super) async fn deliver(connection: &Arc<SourceConnection>, text: &str, request: Option<u64>) {
    let text = text.trim();
    if !text.starts_with('[') {
        return connection.take_from(text, request).await;
    }
    let batch: Vec<Box<RawValue>> = serde_json::from_str(text).unwrap_or_default();
    for message in batch {
        connection.take_from(message.get(), request).await;
    }
}

/// How far a stream was read.
#[derive(Debug, Default)]
pub(super) struct StreamCursor {
    /// The event to resume after; empty if the stream named none.
    pub(super) last_event_id: String,
    /// How long to wait before the stream is opened again.
    pub(super) retry: Option<Duration>,
}

/// Events of a response, as they come.
#[derive(Debug)]
pub(super) struct EventReader {
    response: Response,
    parser: SseParser,
    is_cut: bool,
}

impl EventReader {
    pub(super) fn new(response: Response) -> Self {
        Self { response, parser: SseParser::with_bound(MAX_MESSAGE), is_cut: false }
    }

    /// The next events, each with its type and data; `None` at the end of the stream. The error says what broke it.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<(String, String)>>, String> {
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

    /// Whether the connection ended in the middle.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// How far it was read.
    pub(super) fn cursor(&self) -> StreamCursor {
        StreamCursor {
            last_event_id: self.parser.last_event_id().to_owned(),
            retry: self.parser.retry(),
        }
    }
}
