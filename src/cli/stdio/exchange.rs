//! One call of the client, from its line to the last line of the response, over as many connections
//! as needed; and the session's own stream, whose messages belong to no request.

use std::sync::Arc;

use http::{HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use svc_client::{McpReply, StreamingReply, backoff, one_line};
use svc_wire::json_rpc::JsonRpcEnvelope;
use svc_wire::mcp::SESSION_ID;
use svc_wire::mcp_request::{self, RequestSetting};
use tokio::time::sleep;

use super::super::output;
use super::bridge::{Bridge, LegacyMcpSession, REPEATS, note_garbage};
use super::call::{CallFailure, CallKind, ClientCall, Settlement};
use super::link::{Effort, LinkError, is_of_database};

/// The error code for an argument that is missing from the headers.
const HEADER_MISMATCH: i64 = -32020;
/// The error code for a token that is no longer good.
const UNAUTHORIZED: i64 = -32003;

#[derive(Debug, Default)]
struct Attempts {
    repeats: u32,
    has_renewed_session: bool,
    has_listed_tools: bool,
}

/// Why a response ended before its last message.
enum AnswerError {
    /// The stream cannot be resumed; the call may be sent again.
    Cut(String),
    /// The daemon has no more of this stream.
    Over(String),
}

impl Bridge {
    /// Answers a call; the client always gets a response, at least an error. A message that gets no
    /// response is idempotent, so it is resent until it has arrived.
    pub(super) async fn exchange(&self, mut call: ClientCall) {
        let Err(failure) = self.attempt(&mut call).await else { return };
        if call.is_settled() {
            let problem = failure.problem();
            output::note(&format!("svc: a notification was not delivered: {problem}"));
        }
        for reply in call.failures(&failure) {
            self.output.send(reply).await;
        }
    }

    async fn attempt(&self, call: &mut ClientCall) -> Result<(), CallFailure> {
        let mut attempts = Attempts::default();
        loop {
            let session = (call.kind == CallKind::Legacy).then(|| self.session.get()).flatten();
            let tool = call.tools.first().and_then(|name| self.tools().get(name).cloned());
            let setting = RequestSetting {
                input_schema: tool.as_ref().map(|tool| &tool.input_schema),
                expose: self.expose,
                ..session.as_deref().map(LegacyMcpSession::setting).unwrap_or_default()
            };
            let request = mcp_request::post(call.line.clone(), setting);
            // The renewal of a subscription must not start a daemon.
            let again = call.kind == CallKind::Listen && attempts.repeats > 0;
            let effort = if again { Effort::Background } else { Effort::Demand };
            let problem = match self.link.open(&request, effort).await {
                Ok(answer) if answer.status.is_success() && call.is_settled() => return Ok(()),
                Ok(answer) if answer.status.is_success() => {
                    match self.follow(call, answer, session.as_deref(), &mut attempts).await {
                        Ok(()) => return Ok(()),
                        Err(AnswerError::Over(problem)) => {
                            return Err(CallFailure::Unknown(problem));
                        }
                        Err(AnswerError::Cut(problem)) => problem,
                    }
                }
                Ok(answer) => {
                    if self.refused(call, answer, session, &mut attempts).await? {
                        continue;
                    }
                    return Ok(());
                }
                Err(LinkError::Lost(problem)) => problem,
                Err(error) if attempts.repeats > 0 || call.is_settled() => {
                    return Err(CallFailure::Unknown(error.to_string()));
                }
                Err(LinkError::Away(problem)) => return Err(CallFailure::Unavailable(problem)),
                Err(LinkError::Database(error)) => {
                    self.answer_with(call, &error).await;
                    return Ok(());
                }
            };
            self.may_repeat(call, &mut attempts, problem).await?;
        }
    }

    async fn follow(
        &self,
        call: &mut ClientCall,
        stream: StreamingReply,
        session: Option<&LegacyMcpSession>,
        attempts: &mut Attempts,
    ) -> Result<(), AnswerError> {
        let granted = stream.headers.get(SESSION_ID).cloned();
        let (mut answer, mut last, mut failures) = (McpReply::new(stream), None::<String>, 0);
        loop {
            let problem = loop {
                match answer.next().await {
                    Ok(Some(message)) if is_shutdown_error(message.as_bytes()) => {
                        return Err(AnswerError::Cut("the daemon went down".to_owned()));
                    }
                    // The next attempt has another token, if this one was of a process.
                    Ok(Some(message)) if is_token_error(message.as_bytes()) => {
                        return Err(AnswerError::Cut("its token ended".to_owned()));
                    }
                    Ok(Some(message)) => {
                        failures = 0;
                        if call.kind == CallKind::Listen {
                            attempts.repeats = 0;
                        }
                        self.forward_response(call, message, granted.as_ref()).await;
                        if call.is_settled() {
                            return Ok(());
                        }
                    }
                    Ok(None) => break "the answer ended too early".to_owned(),
                    Err(error) => break error.to_string(),
                }
            };
            last = answer.last_event_id().map(str::to_owned).or(last);
            let (Some(id), Some(session)) = (&last, session.filter(|it| it.id.is_some())) else {
                return Err(AnswerError::Cut(problem));
            };
            let request = mcp_request::get(session.setting(), Some(id));
            answer = loop {
                sleep(backoff(failures, answer.retry())).await;
                failures += 1;
                match self.link.open(&request, Effort::Demand).await {
                    Ok(stream) if stream.status == StatusCode::OK && stream.is_event_stream() => {
                        break McpReply::new(stream);
                    }
                    Ok(stream) => {
                        return Err(AnswerError::Over(format!(
                            "{problem}, and the daemon has no more of it ({})",
                            stream.status
                        )));
                    }
                    Err(LinkError::Lost(_)) => {}
                    Err(error @ (LinkError::Away(_) | LinkError::Database(_))) => {
                        return Err(AnswerError::Over(error.to_string()));
                    }
                }
            };
        }
    }

    async fn forward_response(
        &self,
        call: &mut ClientCall,
        message: String,
        granted: Option<&HeaderValue>,
    ) {
        match call.settle(&message) {
            Settlement::Garbage => note_garbage(),
            Settlement::Swallow => {}
            Settlement::Pass => {
                if call.kind == CallKind::Initialize && call.is_settled() {
                    // Stored before the client can use the session.
                    let session = LegacyMcpSession::granted(&call.line, &message, granted.cloned());
                    session.map(|session| self.session.begin(session));
                }
                self.output.send(message).await;
            }
        }
    }

    /// Handles a refusal: fixes the cause for a retry and returns true, or forwards the refusal.
    async fn refused(
        &self,
        call: &mut ClientCall,
        answer: StreamingReply,
        session: Option<Arc<LegacyMcpSession>>,
        attempts: &mut Attempts,
    ) -> Result<bool, CallFailure> {
        if answer.status == StatusCode::NOT_FOUND
            && let Some(session) = session.filter(|it| it.id.is_some())
        {
            if call.is_settled() && call.method.is_none() {
                // The message is a response to a request of the lost session.
                return Ok(false);
            }
            if !std::mem::replace(&mut attempts.has_renewed_session, true) {
                return self.renew(&session).await.map(|_| true).map_err(CallFailure::Unavailable);
            }
        }
        if call.is_settled() {
            self.note_refusal(answer).await;
            return Ok(false);
        }
        let reply =
            answer.collect().await.map_err(|error| CallFailure::Refused(error.to_string()))?;
        let problem = reply.problem();
        if problem.status == StatusCode::UNAUTHORIZED {
            self.link.note_unauthorized(&problem);
            return Err(CallFailure::Refused(problem.to_string()));
        }
        if is_shutdown_error(&reply.body) {
            self.may_repeat(call, attempts, "the daemon went down".to_owned()).await?;
            return Ok(true);
        }
        let message = JsonRpcEnvelope::parse(&reply.body).ok();
        let Some(error) =
            message.and_then(|message| message.error).filter(|error| code(error).is_some())
        else {
            return Err(CallFailure::Refused(problem.to_string()));
        };
        if code(error) == Some(HEADER_MISMATCH)
            && call.is_modern()
            && !call.tools.is_empty()
            && !std::mem::replace(&mut attempts.has_listed_tools, true)
            && self.learn_tools(call).await.is_ok()
        {
            return Ok(true);
        }
        self.answer_with(call, error).await;
        Ok(false)
    }

    /// Answers the requests without a response with an error of the daemon.
    async fn answer_with(&self, call: &mut ClientCall, error: &(impl Serialize + Sync + ?Sized)) {
        for message in call.errors(error) {
            self.forward_response(call, one_line(message), None).await;
        }
    }

    /// Waits until the call may be resent, or returns why it may not.
    async fn may_repeat(
        &self,
        call: &ClientCall,
        attempts: &mut Attempts,
        problem: String,
    ) -> Result<(), CallFailure> {
        let for_ever = call.kind == CallKind::Listen;
        if !for_ever && (attempts.repeats == REPEATS || !self.is_repeatable(call).await) {
            return Err(CallFailure::Unknown(problem));
        }
        sleep(backoff(attempts.repeats, None)).await;
        attempts.repeats = attempts.repeats.saturating_add(1);
        Ok(())
    }
}

/// The code of a JSON-RPC error. Other documents also have a member `error`, but without a code.
fn code(error: &RawValue) -> Option<i64> {
    serde_json::from_str::<Value>(error.get()).ok()?.get("code")?.as_i64()
}

/// Whether the daemon goes down, so that the next one may answer. While the database is away, no
/// daemon does.
fn is_shutdown_error(message: &[u8]) -> bool {
    error_of(message)
        .is_some_and(|error| error["data"]["retryable"] == true && !is_of_database(&error))
}

/// Whether the call has no answer because its token ended meanwhile. Errors of servers pass
/// unchanged, and one that asks for a login may have the same word, so the code is checked, too.
fn is_token_error(message: &[u8]) -> bool {
    error_of(message).is_some_and(|error| {
        error["code"] == UNAUTHORIZED && error["data"]["code"] == "unauthorized"
    })
}

fn error_of(message: &[u8]) -> Option<Value> {
    let error = JsonRpcEnvelope::parse(message).ok().and_then(|message| message.error)?;
    serde_json::from_str(error.get()).ok()
}

impl Bridge {
    /// Forwards the messages of the session's own stream. Ends only if there is no session, or the
    /// daemon has no such stream.
    pub(super) async fn listen(&self) {
        let mut last: Option<String> = None;
        let mut last_session: Option<Arc<LegacyMcpSession>> = None;
        let (mut failures, mut renewed) = (0, false);
        loop {
            let Some(session) = self.session.get().filter(|it| it.id.is_some()) else { return };
            if !last_session.as_ref().is_some_and(|it| Arc::ptr_eq(it, &session)) {
                (last, last_session) = (None, Some(Arc::clone(&session)));
            }
            let request = mcp_request::get(session.setting(), last.as_deref());
            let mut retry_after = None;
            match self.link.open(&request, Effort::Background).await {
                Ok(stream) if stream.status == StatusCode::OK && stream.is_event_stream() => {
                    renewed = false;
                    let mut answer = McpReply::new(stream);
                    while let Ok(Some(message)) = answer.next().await {
                        failures = 0;
                        self.pass(message).await;
                    }
                    last = answer.last_event_id().map(str::to_owned).or(last);
                    retry_after = answer.retry();
                }
                Ok(refusal) => match refusal.status {
                    StatusCode::METHOD_NOT_ALLOWED => return,
                    StatusCode::NO_CONTENT => last = None,
                    // The stream may be unknown although the session is known.
                    StatusCode::NOT_FOUND if last.is_some() => {
                        last = None;
                        continue;
                    }
                    StatusCode::NOT_FOUND if !std::mem::replace(&mut renewed, true) => {
                        if let Err(problem) = self.renew(&session).await {
                            output::note(&format!("svc: {problem}"));
                        }
                    }
                    StatusCode::UNAUTHORIZED => self.note_refusal(refusal).await,
                    status if status.is_server_error() => {}
                    // A retry will not help, and requests work without the stream.
                    _ => return self.note_refusal(refusal).await,
                },
                Err(_) => {}
            }
            sleep(backoff(failures, retry_after)).await;
            failures += 1;
        }
    }

    /// Ends the session. If the daemon cannot be reached, the session expires there.
    pub(super) async fn end_session(&self) {
        if let Some(session) = self.session.get().filter(|it| it.id.is_some()) {
            self.link.open(&mcp_request::delete(session.setting()), Effort::Once).await.ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn error_of_the_database_is_not_taken_for_the_end_of_the_daemon() {
        for (code, is_end) in
            [("unavailable", true), ("store_unavailable", false), ("outcome_unknown", false)]
        {
            let error = json!({ "code": -32603, "message": "m", "data": { "code": code, "retryable": true } });
            let message = json!({ "jsonrpc": "2.0", "id": 1, "error": error }).to_string();
            assert_eq!(is_shutdown_error(message.as_bytes()), is_end, "{code}");
        }
    }

    #[test]
    fn error_of_a_server_is_not_taken_for_the_end_of_the_token() {
        let error = |code: i64, data: Value| {
            let error = json!({ "code": code, "message": "m", "data": data });
            json!({ "jsonrpc": "2.0", "id": 1, "error": error }).to_string()
        };
        let unauthorized = json!({ "code": "unauthorized", "retryable": false });
        assert!(is_token_error(error(-32003, unauthorized.clone()).as_bytes()));
        for (code, data) in [(-32001, unauthorized), (-32003, json!({})), (-32003, Value::Null)] {
            let message = error(code, data);
            assert!(!is_token_error(message.as_bytes()), "{message}");
        }
        assert!(!is_token_error(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#));
    }
}
