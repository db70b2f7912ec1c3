//! Calls that go on in a server while a client without sessions is asked.
//!
//! A server of a revision with sessions asks in the middle of a call, and waits for the answer. A
//! client without sessions is asked by the end of its request, and answers in the next one
//! (SEP-2322). Between the two requests the call is kept here: it is made once, and the request
//! with the answers resumes it.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use serde_json::{Value, json};
use svc_core::{
    service::BudgetHold,
    tools::{
        Call, ClientQuestion, ErrorType, Failure, QuestionReply, ToolClient, ToolError, ToolSignal,
    },
};
use svc_model::{BudgetKind, limits, new_secret};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    lock,
    metrics::{CallOutcome, ServerCallEnd},
};

/// The calls whose clients are being asked. Clones share them.
///
/// They live in this process only, since each belongs to a request to a server that this process
/// started.
#[derive(Debug, Clone, Default)]
pub(super) struct SuspendedCalls(Arc<Mutex<HashMap<String, SuspendedCall>>>);

#[derive(Debug)]
struct SuspendedCall {
    resume: oneshot::Sender<()>,
    waiting: JoinHandle<Option<OngoingCall>>,
    /// The call's part of its caller's budget while it waits here.
    hold: Option<BudgetHold>,
}

/// A call under way in a server, independent of the request that waits for it.
#[derive(Debug)]
struct OngoingCall {
    id: String,
    signals: mpsc::Receiver<ToolSignal>,
    /// Questions that the client has not answered.
    open: VecDeque<ServerQuestion>,
    /// How many questions there were. Each gets a new key, because the client sends the answers of
    /// all rounds.
    asked: u64,
    run: AbortOnDropHandle<ServerCallEnd>,
}

/// Questions of a server that are asked together, and the channel for the answers.
#[derive(Debug)]
struct ServerQuestion {
    /// The server's own keys.
    keys: Vec<String>,
    questions: Vec<ClientQuestion>,
    reply: QuestionReply,
}

impl OngoingCall {
    /// Adds questions, with keys that are unique within the call.
    fn ask(&mut self, mut questions: Vec<ClientQuestion>, reply: QuestionReply) {
        let mut keys = Vec::new();
        for question in &mut questions {
            self.asked += 1;
            let own = format!("question-{}", self.asked);
            keys.push(std::mem::replace(&mut question.key, own));
        }
        self.open.push_back(ServerQuestion { keys, questions, reply });
    }

    /// Forwards a signal of the call to the client of the present request; without one it is
    /// dropped.
    async fn take(&mut self, signal: ToolSignal, present: Option<&Call>) {
        match (signal, present) {
            (ToolSignal::Ask(questions, reply), _) => self.ask(questions, reply),
            (ToolSignal::Note(note), Some(call)) => call.note(note).await,
            (ToolSignal::CloseResponse, Some(call)) => call.close_response().await,
            (ToolSignal::Detach(reply), Some(call)) => drop(reply.send(call.detach().await)),
            (ToolSignal::Detach(reply), None) => drop(reply.send(Ok(()))),
            (ToolSignal::Note(_) | ToolSignal::CloseResponse, None) => {}
        }
    }
}

impl SuspendedCalls {
    /// Makes a call whose client is asked between its requests.
    pub(super) async fn run<F>(&self, call: &Call, work: impl FnOnce(Call) -> F) -> ServerCallEnd
    where
        F: Future<Output = ServerCallEnd> + Send + 'static,
    {
        let (client, signals) =
            ToolClient::new(call.capabilities(), false, call.cancel_reason(), None);
        let run = tokio::spawn(work(Call { client: Some(client), ..call.clone() }));
        let (run, open) = (AbortOnDropHandle::new(run), VecDeque::new());
        self.follow(OngoingCall { id: new_secret(), signals, open, asked: 0, run }, call).await
    }

    pub(super) fn kept_id(kept: &Value) -> Option<&str> {
        kept.get("suspended")?.as_str()
    }

    /// Resumes a call of an earlier round. The id comes from a state that is valid for that caller
    /// and that call only.
    pub(super) async fn resume(&self, id: &str, call: &Call) -> ServerCallEnd {
        let left = self.calls().remove(id);
        let ongoing = match left {
            Some(SuspendedCall { resume, waiting, hold }) => {
                drop(hold);
                // A call that has just expired returns nothing.
                resume.send(()).ok();
                waiting.await.ok().flatten()
            }
            None => None,
        };
        let Some(ongoing) = ongoing else {
            let text = "the call that asked this question is over: it waits for an hour at most, is answered once, and ends \
                        with the daemon; its outcome is unknown: look before you call it again";
            return (CallOutcome::Unavailable, Err(ToolError::unknown_outcome(text).into()));
        };
        self.follow(ongoing, call).await
    }

    /// Waits for the end of a call, or for a question that ends this round.
    async fn follow(&self, mut ongoing: OngoingCall, call: &Call) -> ServerCallEnd {
        loop {
            if let Some(open) = ongoing.open.pop_front() {
                let answers = tokio::select! {
                    answers = call.ask(open.questions.clone()) => answers,
                    // The call has ended, so the server does not wait for the answers any more.
                    end = &mut ongoing.run => return end_of(end),
                };
                let answers = match answers {
                    Err(Failure::NeedsInput) => {
                        ongoing.open.push_front(open);
                        match self.suspend(ongoing, call) {
                            Ok(()) => return (CallOutcome::Error, Err(Failure::NeedsInput)),
                            Err(left) => {
                                let failure;
                                (ongoing, failure) = *left;
                                let Some(open) = ongoing.open.pop_front() else { continue };
                                // The server may not wait for the answers any more.
                                open.reply.send(Err(failure)).ok();
                                continue;
                            }
                        }
                    }
                    answers => answers,
                };
                let named = answers.map(|mut answers| {
                    let own = open.questions.iter().map(|question| &question.key);
                    let named = open.keys.into_iter().zip(own);
                    named.filter_map(|(key, own)| Some((key, answers.remove(own)?))).collect()
                });
                open.reply.send(named).ok();
            }
            tokio::select! {
                biased;
                Some(signal) = ongoing.signals.recv() => ongoing.take(signal, Some(call)).await,
                end = &mut ongoing.run => return end_of(end),
            }
        }
    }

    /// Keeps a call until its client comes back. Returns the call if there is no capacity.
    fn suspend(
        &self,
        mut ongoing: OngoingCall,
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
        call.keep(json!({ "suspended": id }));
        let (table, expired) = (Arc::downgrade(&self.0), id.clone());
        let (resume, mut resumed) = oneshot::channel();
        let waiting = tokio::spawn(async move {
            let mut expiry = std::pin::pin!(tokio::time::sleep(limits::MCP_STATE_TTL));
            loop {
                tokio::select! {
                    biased;
                    taken = &mut resumed => return taken.ok().map(|()| ongoing),
                    () = &mut expiry => break,
                    // Signals of the server meanwhile must not block its connection.
                    Some(signal) = ongoing.signals.recv() => ongoing.take(signal, None).await,
                }
            }
            let call = table.upgrade().and_then(|table| Self(table).calls().remove(&expired));
            drop(call);
            None
        });
        calls.insert(id, SuspendedCall { resume, waiting, hold });
        Ok(())
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<String, SuspendedCall>> {
        lock(&self.0)
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
