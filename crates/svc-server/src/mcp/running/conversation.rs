//! The state that a running call shares with whoever waits for it, answers its questions or ends it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Serialize, Serializer};
use serde_json::Value;
use svc_core::tools::{CancelReason, ClientAnswers, ClientQuestion};
use svc_model::{CallId, StreamName};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::record::CallRecord;

/// The questions and answers between a tool and its client, and where the tool's messages go.
#[derive(Debug)]
pub(crate) struct CallConversation {
    pub(crate) record: CallRecord,
    state: Mutex<ConversationState>,
    /// Held while the call becomes a task and while it ends, so that the one does not pass the other unseen.
    settling: tokio::sync::Mutex<()>,
    /// The call has become a task.
    pub(crate) detached: CancellationToken,
    /// Why the client cancelled the call.
    pub(crate) cancel_reason: CancelReason,
    /// Counts wishes of the tool to close the connection that waits.
    pub(crate) hang_ups: watch::Sender<u64>,
    /// Counts answers to a task's questions.
    answered: watch::Sender<u64>,
}

#[derive(Debug)]
struct ConversationState {
    sink: MessageSink,
    answers: ClientAnswers,
    /// Open questions: a task waits for their answers, any other call has stopped at them.
    questions: Vec<ClientQuestion>,
    /// State of the tool's own for the next round.
    kept: Option<Value>,
    /// The tool is done, and its outcome is on its way to whoever waits: it is too late for a task.
    is_over: bool,
}

/// Where a tool's messages go.
#[derive(Debug, Clone)]
pub(crate) enum MessageSink {
    /// To the response that is open. Unbounded, as a tool must not wait for a reader, and says little.
    Response(mpsc::UnboundedSender<String>),
    /// Into the log, where the response reads them.
    Log(StreamName),
    /// Nowhere: a task has a state, which the client asks for.
    Task(CallId),
}

/// Questions and answers of a call as they stand.
#[derive(Debug)]
pub(crate) struct CallRound {
    pub(crate) questions: Vec<ClientQuestion>,
    pub(crate) answers: ClientAnswers,
    pub(crate) kept: Option<Value>,
}

/// Questions and answers of a task, as JSON for its row.
#[derive(Debug)]
pub(crate) struct TaskQuestions {
    pub(crate) task: CallId,
    /// `None` if no question is open.
    pub(crate) questions: Option<String>,
    pub(crate) answers: String,
}

/// How a tool's questions to a stateless client are answered.
#[derive(Debug)]
pub(crate) enum AskOutcome {
    /// The client has answered all of them already.
    Answered(ClientAnswers),
    /// A task waits for the answers. The row has to show the questions.
    TaskWaits(TaskQuestions),
    /// The call ends with the questions, and the client sends it again with the answers.
    NextRound,
}

/// Questions as `inputRequests`.
#[derive(Debug)]
pub(crate) struct InputRequests<'a>(pub(crate) &'a [ClientQuestion]);

#[derive(Serialize)]
struct InputRequest<'a> {
    method: &'static str,
    params: &'a Value,
}

impl Serialize for InputRequests<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|ask| {
            let ClientQuestion { key, method, params } = ask;
            (key, InputRequest { method, params })
        }))
    }
}

impl CallConversation {
    pub(crate) fn new(record: CallRecord, sink: MessageSink) -> Self {
        Self {
            record,
            state: Mutex::new(ConversationState {
                sink,
                answers: ClientAnswers::new(),
                questions: Vec::new(),
                kept: None,
                is_over: false,
            }),
            settling: tokio::sync::Mutex::new(()),
            detached: CancellationToken::new(),
            cancel_reason: CancelReason::default(),
            hang_ups: watch::Sender::new(0),
            answered: watch::Sender::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, ConversationState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn sink(&self) -> MessageSink {
        self.state().sink.clone()
    }

    /// Takes over what was answered and kept in earlier rounds.
    pub(crate) fn restore(&self, answers: ClientAnswers, kept: Option<Value>) {
        let mut state = self.state();
        state.answers.extend(answers);
        state.kept = kept;
    }

    pub(crate) fn round(&self) -> CallRound {
        let state = self.state();
        CallRound {
            questions: state.questions.clone(),
            answers: state.answers.clone(),
            kept: state.kept.clone(),
        }
    }

    pub(crate) fn keep(&self, kept: Value) {
        self.state().kept = Some(kept);
    }

    pub(crate) fn kept(&self) -> Option<Value> {
        self.state().kept.clone()
    }

    /// The task that the call has become. That does not change before the guard is dropped.
    pub(crate) async fn settled(&self) -> (tokio::sync::MutexGuard<'_, ()>, Option<CallId>) {
        let guard = self.settling.lock().await;
        let task = match &self.state().sink {
            MessageSink::Task(id) => Some(id.clone()),
            MessageSink::Response(_) | MessageSink::Log(_) => None,
        };
        (guard, task)
    }

    /// The outcome goes to whoever waits. Called while the guard of [`Self::settled`] is held.
    pub(crate) fn set_over(&self) {
        self.state().is_over = true;
    }

    /// Whether the call may still become a task. Asked while the guard of [`Self::settled`] is held.
    pub(crate) fn may_become_task(&self) -> bool {
        let state = self.state();
        !state.is_over && !matches!(state.sink, MessageSink::Task(_))
    }

    /// The call has become a task. Called while the guard of [`Self::settled`] is held.
    pub(crate) fn set_task(&self, id: CallId) {
        self.state().sink = MessageSink::Task(id);
        self.detached.cancel();
    }

    /// Answers so far, as JSON.
    pub(crate) fn answers_json(&self) -> String {
        json_of(&self.state().answers)
    }

    /// Asks the client of a stateless revision, as far as it has not answered.
    pub(crate) fn ask(&self, questions: Vec<ClientQuestion>) -> AskOutcome {
        let mut state = self.state();
        if let Some(answers) = answers_to(questions.iter().map(|ask| &ask.key), &state.answers) {
            return AskOutcome::Answered(answers);
        }
        state.questions = questions;
        state.drop_answered();
        match state.task_questions() {
            Some(task) => AskOutcome::TaskWaits(task),
            None => AskOutcome::NextRound,
        }
    }

    /// Takes the answers to a task's open questions; `None` if the call is no task.
    pub(crate) fn take_answers(&self, given: ClientAnswers) -> Option<TaskQuestions> {
        let mut state = self.state();
        for (key, answer) in given {
            if state.questions.iter().any(|ask| ask.key == key) {
                state.answers.insert(key, answer);
            }
        }
        state.drop_answered();
        state.task_questions()
    }

    /// Wakes the tool that waits for answers.
    pub(crate) fn announce_answers(&self) {
        self.answered.send_modify(|count| *count += 1);
    }

    /// Waits for the answers with these keys.
    pub(crate) async fn wait_for_answers(&self, keys: &[String]) -> ClientAnswers {
        let mut answered = self.answered.subscribe();
        loop {
            if let Some(answers) = answers_to(keys.iter(), &self.state().answers) {
                return answers;
            }
            // The sender is ours, so it is not gone.
            answered.changed().await.ok();
        }
    }
}

impl ConversationState {
    fn drop_answered(&mut self) {
        let Self { questions, answers, .. } = self;
        questions.retain(|ask| !answers.contains_key(&ask.key));
    }

    fn task_questions(&self) -> Option<TaskQuestions> {
        let MessageSink::Task(task) = &self.sink else { return None };
        let questions =
            (!self.questions.is_empty()).then(|| json_of(&InputRequests(&self.questions)));
        Some(TaskQuestions { task: task.clone(), questions, answers: json_of(&self.answers) })
    }
}

fn answers_to<'a>(
    keys: impl Iterator<Item = &'a String>,
    answers: &ClientAnswers,
) -> Option<ClientAnswers> {
    keys.map(|key| Some((key.clone(), answers.get(key)?.clone()))).collect()
}

fn json_of(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("questions and answers have a JSON form")
}
