//! The session's own stream: messages that belong to no request.

use std::sync::Arc;

use http::StatusCode;
use svc_client::{McpReply, backoff};
use svc_wire::mcp_request;
use tokio::time::sleep;

use super::super::output;
use super::bridge::Bridge;
use super::link::{Effort, LinkError};
use super::session::LegacySession;

impl Bridge {
    /// Forwards the messages of the session's own stream. Ends only if there is no session, or the
    /// daemon has no such stream.
    pub(super) async fn listen(&self) {
        let mut last: Option<String> = None;
        let mut heard_in: Option<Arc<LegacySession>> = None;
        let (mut failures, mut renewed) = (0, false);
        loop {
            let Some(session) = self.session.get().filter(|it| it.id.is_some()) else {
                return;
            };
            if !heard_in.as_ref().is_some_and(|it| Arc::ptr_eq(it, &session)) {
                (last, heard_in) = (None, Some(Arc::clone(&session)));
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
                    // The stream may be unknown while the session is known.
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
                Err(LinkError::Lost(_) | LinkError::Away(_)) => {}
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
