//! Calls that go on in a server while a client without sessions is asked.
//!
//! A server of a revision with sessions asks in the middle of a call, and waits for the answer. A client without sessions is asked
//! by the end of its request, and answers in the next one (SEP-2322). Between the two requests the call goes on here: it is made
//! once, and the request that brings the answers takes it up again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use svc_core::{
    service::BudgetHold,
    tools::{
        Call, CancelReason, ClientAnswers, ClientQuestion, ErrorType, Failure, FarEnd, LogLevel,
        RelayedNote, ToolError, ToolProgress,
    },
};
use svc_model::{BudgetKind, limits, new_secret};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use super::call_outcome::{CallOutcome, ServerCallEnd};

/// The calls whose clients are being asked. Clones are one.
///
/// Only this process knows them: a call is a request to a server that this process has started.
#[derive(Debug, Clone, Default)]
pub(super) struct SuspendedCalls(Arc<Mutex<HashMap<String, SuspendedCall>>>);

/// A call that waits for its client.
#[derive(Debug)]
struct SuspendedCall {
    ongoing: OngoingCall,
    /// It counts among the calls of who made it.
    _hold: Option<BudgetHold>,
    /// Ends it when the client does not come back.
    _expiry: AbortOnDropHandle<()>,
}

/// A call at work in a server, apart from the request that waits for it.
#[derive(Debug)]
struct OngoingCall {
    id: String,
    client: Arc<ClientOfRounds>,
    questions: mpsc::Receiver<ServerQuestion>,
    /// The question that the client has not answered.
    open: Option<ServerQuestion>,
    run: AbortOnDropHandle<ServerCallEnd>,
}

/// Questions of a server that are asked together, and where it waits for the answers.
#[derive(Debug)]
struct ServerQuestion {
    questions: Vec<ClientQuestion>,
    reply: oneshot::Sender<Result<ClientAnswers, Failure>>,
}

impl SuspendedCalls {
    /// Makes a call whose client is asked between its requests.
    pub(super) async fn run<F>(&self, call: &Call, work: impl FnOnce(Call) -> F) -> ServerCallEnd
    where
        F: Future<Output = ServerCallEnd> + Send + 'static,
    {
        let (sender, questions) = mpsc::channel(1);
        let client = Arc::new(ClientOfRounds::new(&call.far_end, sender));
        let far_end = Arc::clone(&client) as Arc<dyn FarEnd>;
        let run = tokio::spawn(work(Call { far_end, ..call.clone() }));
        let run = AbortOnDropHandle::new(run);
        let id = new_secret();
        self.follow(OngoingCall { id, client, questions, open: None, run }, call).await
    }

    /// The call that an earlier round has left, if it has.
    pub(super) fn id_of_kept(kept: &Value) -> Option<&str> {
        kept.get("suspended")?.as_str()
    }

    /// Goes on with a call of an earlier round. Its id is in a state that is good for that caller and that call alone.
    pub(super) async fn resume(&self, id: &str, call: &Call) -> ServerCallEnd {
        let Some(SuspendedCall { ongoing, .. }) = self.calls().remove(id) else {
            let text = "the call that asked this question is over: it waits for an hour at most, is answered once, and ends \
                        with the daemon; its outcome is unknown: look before you call it again";
            return (CallOutcome::Unavailable, Err(ToolError::unknown_outcome(text).into()));
        };
        ongoing.client.set(Some(Arc::clone(&call.far_end)));
        self.follow(ongoing, call).await
    }

    /// Waits for the end of a call, or for a question that ends this round.
    async fn follow(&self, mut ongoing: OngoingCall, call: &Call) -> ServerCallEnd {
        loop {
            if let Some(open) = ongoing.open.take() {
                let asked = call.far_end.ask(open.questions.clone());
                let answers = tokio::select! {
                    answers = asked => answers,
                    // The server waits no longer.
                    end = &mut ongoing.run => return end_of(end),
                };
                match answers {
                    Err(Failure::NeedsInput) => {
                        ongoing.open = Some(open);
                        match self.suspend(ongoing, call) {
                            Ok(()) => return (CallOutcome::Error, Err(Failure::NeedsInput)),
                            Err(left) => {
                                let (left, failure) = *left;
                                ongoing = left;
                                refuse(ongoing.open.take(), failure);
                            }
                        }
                    }
                    answers => {
                        // The server may have gone.
                        open.reply.send(answers).ok();
                    }
                }
            }
            tokio::select! {
                biased;
                end = &mut ongoing.run => return end_of(end),
                Some(question) = ongoing.questions.recv() => ongoing.open = Some(question),
            }
        }
    }

    /// Keeps a call until its client comes back. One that there is no room for is given back.
    fn suspend(
        &self,
        ongoing: OngoingCall,
        call: &Call,
    ) -> Result<(), Box<(OngoingCall, Failure)>> {
        let hold = match call.services.hold(&call.caller, BudgetKind::Requests, 1) {
            Ok(hold) => hold,
            Err(error) => return Err(Box::new((ongoing, error.into()))),
        };
        let id = ongoing.id.clone();
        let mut calls = self.calls();
        if calls.len() >= limits::SUSPENDED_CALLS {
            let text = "too many calls wait for their clients";
            let failure = ToolError::new(ErrorType::Unavailable, text).into();
            return Err(Box::new((ongoing, failure)));
        }
        call.far_end.keep(json!({ "suspended": id }));
        ongoing.client.set(None);
        let (table, expired) = (Arc::downgrade(&self.0), id.clone());
        let expiry = AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::time::sleep(limits::MCP_STATE_TTL).await;
            let Some(table) = table.upgrade() else { return };
            let call = Self(table).calls().remove(&expired);
            drop(call);
        }));
        calls.insert(id, SuspendedCall { ongoing, _hold: hold, _expiry: expiry });
        Ok(())
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<String, SuspendedCall>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refuse(question: Option<ServerQuestion>, failure: Failure) {
    if let Some(question) = question {
        // The server may have gone.
        question.reply.send(Err(failure)).ok();
    }
}

fn end_of(end: Result<ServerCallEnd, tokio::task::JoinError>) -> ServerCallEnd {
    match end {
        Ok(end) => end,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => {
            let text = "the daemon ended in the middle of the call, and its outcome is unknown: look before you call it again";
            (CallOutcome::Cancelled, Err(ToolError::unknown_outcome(text).into()))
        }
    }
}

/// The client of a call over several requests: that of the present one, if there is one.
#[derive(Debug)]
struct ClientOfRounds {
    present: Mutex<Option<Arc<dyn FarEnd>>>,
    capabilities: Value,
    cancel_reason: CancelReason,
    questions: mpsc::Sender<ServerQuestion>,
    /// How many questions there were. Each has a key of its own, for the client carries all answers along.
    asked: Mutex<u64>,
}

impl ClientOfRounds {
    fn new(first: &Arc<dyn FarEnd>, questions: mpsc::Sender<ServerQuestion>) -> Self {
        Self {
            capabilities: first.capabilities(),
            cancel_reason: first.cancel_reason(),
            present: Mutex::new(Some(Arc::clone(first))),
            questions,
            asked: Mutex::new(0),
        }
    }

    fn set(&self, present: Option<Arc<dyn FarEnd>>) {
        *self.present.lock().unwrap_or_else(PoisonError::into_inner) = present;
    }

    fn present(&self) -> Option<Arc<dyn FarEnd>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The questions with keys that no other question of the call has.
    fn numbered(&self, questions: Vec<ClientQuestion>) -> Vec<ClientQuestion> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let number = |question: ClientQuestion| {
            *asked += 1;
            ClientQuestion { key: format!("question-{asked}"), ..question }
        };
        questions.into_iter().map(number).collect()
    }

    async fn put(&self, questions: Vec<ClientQuestion>) -> Result<ClientAnswers, Failure> {
        let keys: Vec<String> = questions.iter().map(|question| question.key.clone()).collect();
        let questions = self.numbered(questions);
        let own: Vec<String> = questions.iter().map(|question| question.key.clone()).collect();
        let gone = || Failure::from(ToolError::new(ErrorType::Unavailable, "the client is gone"));
        let (reply, answers) = oneshot::channel();
        self.questions.send(ServerQuestion { questions, reply }).await.map_err(|_| gone())?;
        let mut answers = answers.await.map_err(|_| gone())??;
        let named = keys.into_iter().zip(own);
        Ok(named.filter_map(|(key, own)| Some((key, answers.remove(&own)?))).collect())
    }
}

impl FarEnd for ClientOfRounds {
    fn progress(&self, progress: ToolProgress) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Some(client) = self.present() {
                client.progress(progress).await;
            }
        })
    }

    fn log(&self, level: LogLevel, data: Value) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Some(client) = self.present() {
                client.log(level, data).await;
            }
        })
    }

    fn relay(&self, note: RelayedNote) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Some(client) = self.present() {
                client.relay(note).await;
            }
        })
    }

    fn ask(&self, asks: Vec<ClientQuestion>) -> BoxFuture<'_, Result<ClientAnswers, Failure>> {
        Box::pin(self.put(asks))
    }

    fn detach(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async move {
            match self.present() {
                Some(client) => client.detach().await,
                None => Ok(()),
            }
        })
    }

    fn hang_up(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Some(client) = self.present() {
                client.hang_up().await;
            }
        })
    }

    // The call itself goes on, so nothing has to be kept for another run.
    fn keep(&self, _state: Value) {}

    fn kept(&self) -> Option<Value> {
        None
    }

    fn capabilities(&self) -> Value {
        self.capabilities.clone()
    }

    fn cancel_reason(&self) -> CancelReason {
        self.cancel_reason.clone()
    }
}
