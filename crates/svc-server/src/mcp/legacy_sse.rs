//! The transport of 2024-11-05: `GET /sse` opens a session and its one stream, `POST /messages`
//! sends to it.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Request as HttpRequest, State},
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, Method, StatusCode};
use svc_core::service::{Error, mcp::NewMcpSession};
use svc_model::{Caller, Seq, StreamName};
use svc_store::McpTransport;
use svc_sys::telemetry;
use svc_wire::mcp::Revision;

use super::{
    McpServer,
    call::{CallReply, PendingAnswer},
    introduction::{client_name, initialize_result, introduction},
    post::{PostedMessages, handle_one_way, meter_of, parts_of, refusal},
    request::{RequestOrigin, subject_name},
    rpc::{
        ClientBody, ClientMessage, ClientRequest, RequestEra, RpcError, UnreadableMessage,
        error_message, result_message,
    },
    server::{McpSession, RequestOutcome},
    stream::{LogCursor, sse_session_response, stream_head},
};
use crate::web::{Code, Problem};

/// `GET /sse`: opens a session, or resumes one.
pub(super) async fn open(
    State(server): State<McpServer>,
    Extension(caller): Extension<Caller>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    if method == Method::HEAD {
        return Ok(stream_head());
    }
    let resumed = session_to_resume(&server, &caller, &headers).await?;
    let (session, after) = if let Some(resumed) = resumed {
        resumed
    } else {
        let new = NewMcpSession {
            transport: McpTransport::Sse,
            revision: Revision::V2024_11_05,
            client: None,
            capabilities: "{}".to_owned(),
        };
        (server.sessions.open(&caller, new).await?, 0)
    };
    Ok(sse_session_response(&server, &caller, session, after).await?)
}

async fn session_to_resume(
    server: &McpServer,
    caller: &Caller,
    headers: &HeaderMap,
) -> Result<Option<(Arc<McpSession>, Seq)>, Error> {
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let Some(LogCursor { stream, after }) = last.and_then(LogCursor::parse) else {
        return Ok(None);
    };
    let session = server.sessions.find(caller, stream).await?;
    let session = session.filter(|session| session.transport == McpTransport::Sse);
    let Some(session) = session else { return Ok(None) };
    let end = server.services.log.stream_end(&StreamName::new("mcp", &session.id)).await?;
    // A client that knows more than the log, which was restored, gets all of it.
    let is_known = end.is_some_and(|end| after <= end.head);
    Ok(Some((session, if is_known { after } else { 0 })))
}

/// `POST /messages?session_id=…`: the answer goes to the session's stream, before this response is
/// sent.
pub(super) async fn post_message(
    State(server): State<McpServer>,
    Extension(caller): Extension<Caller>,
    request: HttpRequest,
) -> Result<Response, Problem> {
    let (parts, body) = parts_of(request);
    let query = parts.uri.query().unwrap_or_default();
    let id = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "session_id");
    let Some((_, id)) = id else {
        let why = "session_id: is missing; GET /sse gives the address to POST to";
        return Err(Problem::malformed(why));
    };
    let session = server.sessions.find(&caller, &id).await?;
    let session =
        session.filter(|session| session.transport == McpTransport::Sse).ok_or_else(|| {
            Problem::new(Code::NotFound, "there is no such session: begin with GET /sse")
        })?;
    let posted = PostedMessages::new(&server, &caller, &parts);
    let messages = match posted.parse(body).await? {
        Ok(ClientBody::Single(message)) => vec![Ok(message)],
        Ok(ClientBody::Batch(batch)) => batch,
        Err(UnreadableMessage { id, error }) => {
            return Ok(refusal(id.as_deref(), &error, posted.forms));
        }
    };
    for message in messages {
        let answer = match message {
            Ok(ClientMessage::Request(request)) => answer(posted, &session, request).await,
            Ok(message) => {
                handle_one_way(&server, Some(&session), message).await;
                None
            }
            Err(UnreadableMessage { id, error }) => Some(error_message(id.as_deref(), &error)),
        };
        let Some(answer) = answer else { continue };
        let stream = StreamName::new("mcp", &session.id);
        server.services.mcp.say(&caller, &stream, answer).await?;
    }
    Ok((StatusCode::ACCEPTED, "Accepted").into_response())
}

/// The answer to a request; `None` for a recorded call, which puts its answer into the stream.
async fn answer(
    posted: PostedMessages<'_>,
    session: &Arc<McpSession>,
    request: ClientRequest,
) -> Option<String> {
    let PostedMessages { server, headers, .. } = posted;
    let id = request.id.clone();
    let name = subject_name(headers, &request.method, &request.params);
    let mut meter = meter_of(server, &request.method, name.as_deref(), RequestEra::Legacy);
    let answer = if request.method == "initialize" {
        initialize(posted, session, &request).await
    } else {
        let origin = RequestOrigin::Legacy(Arc::clone(session));
        match posted.reply(origin, request, &mut meter).await {
            Ok(CallReply::Whole(answer)) => Ok(answer),
            Ok(CallReply::Pending(pending)) => {
                Ok(answer_with_messages(posted, session, pending).await)
            }
            // It is counted when it ends.
            Ok(CallReply::Recorded(_)) => return None,
            Err(error) => Err(error),
        }
    };
    let outcome = if answer.is_ok() { RequestOutcome::Result } else { RequestOutcome::Error };
    meter.count(&server.metrics, outcome);
    Some(answer.unwrap_or_else(|error| error_message(Some(&id), &error)))
}

async fn initialize(
    posted: PostedMessages<'_>,
    session: &McpSession,
    request: &ClientRequest,
) -> Result<String, RpcError> {
    let PostedMessages { server, caller, .. } = posted;
    let NewMcpSession { revision, client, capabilities, .. } =
        introduction(&request.params, McpTransport::Sse)?;
    server.sessions.describe(session, revision, client, capabilities).await?;
    let name = client_name(&request.params);
    let result = initialize_result(server, caller, name, revision).await?;
    Ok(result_message(&request.id, &result))
}

/// Waits for an answer, and puts messages before it into the session's stream.
async fn answer_with_messages(
    posted: PostedMessages<'_>,
    session: &McpSession,
    pending: PendingAnswer,
) -> String {
    let PendingAnswer { mut answer, messages, .. } = pending;
    let PostedMessages { server, caller, .. } = posted;
    let stream = StreamName::new("mcp", &session.id);
    let Some(mut messages) = messages else { return answer.await.message };
    loop {
        let message = tokio::select! {
            biased;
            Some(message) = messages.recv() => message,
            answer = &mut answer => return answer.message,
        };
        if let Err(error) = server.services.mcp.say(caller, &stream, message).await {
            tracing::warn!(error = telemetry::chain(&error), "a message to a client is lost");
        }
    }
}
