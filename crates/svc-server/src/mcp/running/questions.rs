//! Questions to legacy clients, which answer them with a message of their own.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;
use svc_model::{McpSessionId, new_secret};
use tokio::sync::oneshot;

/// Questions that wait for an answer, by their JSON-RPC id.
#[derive(Debug, Default)]
pub(crate) struct OpenQuestions(Mutex<HashMap<String, QuestionWaiter>>);

#[derive(Debug)]
struct QuestionWaiter {
    session: McpSessionId,
    reply: oneshot::Sender<QuestionReply>,
}

/// The `result` of an answer, or its `error`.
pub(crate) type QuestionReply = Result<Value, Value>;

/// A question that was put. Dropping it takes the question back.
#[derive(Debug)]
pub(crate) struct OpenQuestion<'a> {
    questions: &'a OpenQuestions,
    /// JSON-RPC id.
    pub(crate) id: String,
    pub(crate) reply: oneshot::Receiver<QuestionReply>,
}

impl OpenQuestions {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, QuestionWaiter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for the answer to a question in this session.
    pub(crate) fn open(&self, session: &McpSessionId) -> OpenQuestion<'_> {
        let id = format!("svc-{}", new_secret().split_at(24).0);
        let (sender, reply) = oneshot::channel();
        let question = QuestionWaiter { session: session.clone(), reply: sender };
        self.lock().insert(id.clone(), question);
        OpenQuestion { questions: self, id, reply }
    }

    /// Hands in an answer. One that no call waits for is dropped: the question may be from before a restart.
    pub(crate) fn answer(&self, session: &McpSessionId, id: &Value, reply: QuestionReply) {
        let Some(id) = id.as_str() else { return };
        let mut questions = self.lock();
        if questions.get(id).is_some_and(|question| question.session == *session)
            && let Some(question) = questions.remove(id)
        {
            // The tool may have ended in the meantime.
            question.reply.send(reply).ok();
        }
    }
}

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        self.questions.lock().remove(&self.id);
    }
}
