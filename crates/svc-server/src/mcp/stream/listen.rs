//! The stream of `subscriptions/listen`.

use axum::response::Response;
use serde_json::value::RawValue;
use svc_core::service;

use super::{
    super::{McpServer, notices::NoticeQueue},
    body::{McpResponseBody, MessageSource, event},
};

/// The stream of a listen request: the acknowledgement, and then notices that name the request. It ends without a
/// result, which would end the subscription: after a restart the client listens again.
pub(crate) fn listen_response(
    server: &McpServer,
    request: Box<RawValue>,
    acknowledgement: &str,
    notices: NoticeQueue,
) -> Response {
    let source = ListenSource { request, notices: Box::new(notices) };
    McpResponseBody::new(server, source).beginning_with(Some(event(acknowledgement))).events()
}

struct ListenSource {
    /// JSON-RPC id of the request.
    request: Box<RawValue>,
    notices: Box<NoticeQueue>,
}

impl MessageSource for ListenSource {
    async fn next(&mut self) -> Result<Option<String>, service::Error> {
        let notice = self.notices.next().await?;
        Ok(Some(event(&notice.message(Some(&self.request)))))
    }
}
