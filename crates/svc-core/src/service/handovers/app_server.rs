//! Codex' app-server: its queue takes a text for a thread, and begins a turn with it as soon as the
//! thread is idle. The turn under way takes one, too, which its model reads after the next tool.
//! After a person has interrupted a turn, the queue waits for the person's next prompt. The
//! app-server's own record shows what waits there and what was read.

use std::sync::Arc;

use futures_util::{FutureExt as _, future::BoxFuture};
use svc_model::{HandoverWay, hook::HookClient};
use svc_reach::codex::MessagePlace;

use super::native_way::{
    NativeDelivery, NativeQuestion, NativeRecord, NativeSession, NativeText, NativeTraits,
    NativeWay,
};
use crate::service::codex::AppServerLines;

/// The way through the queues of Codex' app-servers.
#[derive(Debug)]
pub(super) struct AppServerWay(Arc<AppServerLines>);

impl AppServerWay {
    pub(super) fn new(lines: Arc<AppServerLines>) -> Self {
        Self(lines)
    }
}

impl NativeWay for AppServerWay {
    fn traits(&self) -> NativeTraits {
        NativeTraits {
            via: HandoverWay::AppServer,
            client: HookClient::Codex,
            joins_turns: true,
            tries: 2,
            answers_for_itself: true,
            keeps_queue: true,
        }
    }

    fn is_open<'a>(&'a self, session: &'a NativeSession) -> BoxFuture<'a, bool> {
        async move { self.0.is_open(&session.process, &session.session_id) }.boxed()
    }

    fn record<'a>(&'a self, _session: &'a NativeSession) -> BoxFuture<'a, Option<String>> {
        async move { None }.boxed()
    }

    fn deliver<'a>(
        &'a self,
        session: &'a NativeSession,
        text: &'a NativeText,
    ) -> BoxFuture<'a, NativeDelivery> {
        async move {
            let NativeSession { process, session_id, .. } = session;
            let words = (text.text.as_str(), text.joins_turn);
            match self.0.deliver(process, session_id, text.id.as_str(), words).await {
                Some(true) => NativeDelivery::Taken,
                Some(false) => NativeDelivery::NotTaken,
                None => NativeDelivery::Unknown,
            }
        }
        .boxed()
    }

    fn record_shows<'a>(
        &'a self,
        session: Option<&'a NativeSession>,
        question: &'a NativeQuestion,
    ) -> BoxFuture<'a, NativeRecord> {
        async move {
            let Some(NativeSession { process, session_id, .. }) = session else {
                return NativeRecord::Unreadable;
            };
            let place = self.0.find(process, session_id, question.id.as_str()).await;
            let all = || question.marks.iter().map(|(id, _)| id.clone()).collect();
            let (read, waiting) = match place {
                Some(MessagePlace::Conversation) => (all(), Vec::new()),
                Some(MessagePlace::Queue) => (Vec::new(), all()),
                Some(MessagePlace::Nowhere) => (Vec::new(), Vec::new()),
                None => return NativeRecord::Unreadable,
            };
            NativeRecord::Shows { read, waiting, begun: Vec::new() }
        }
        .boxed()
    }
}
