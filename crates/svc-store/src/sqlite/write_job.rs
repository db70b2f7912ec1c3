//! Write jobs, as callers give them to the writer.

use std::panic::AssertUnwindSafe;

use futures_util::{FutureExt as _, future::BoxFuture};
use svc_model::{NewEvent, StreamName};
use tokio::sync::oneshot;

use super::tx::WriteTx;
use crate::{AppendedSeqs, StoreError};

pub(super) enum WriterJob {
    /// Events for one stream: the common case, which needs no statement of its own.
    Append {
        stream: StreamName,
        events: Vec<NewEvent>,
        reply: oneshot::Sender<Result<AppendedSeqs, StoreError>>,
    },
    /// Any other job.
    Run(Box<dyn WriteJob>),
    /// Closes the queue: later jobs are rejected.
    Stop { reply: oneshot::Sender<()> },
}

/// A write job with its result types erased.
pub(super) trait WriteJob: Send {
    /// Does the work; returns whether to commit it.
    fn run<'tx>(&'tx mut self, tx: &'tx mut WriteTx) -> BoxFuture<'tx, bool>;
    /// Answers the caller. `committed` is the result of the commit; a job that failed is answered
    /// with its own error.
    fn answer(self: Box<Self>, committed: Result<(), StoreError>);
}

pub(super) struct ClosureJob<F, T, E> {
    pub(super) work: Option<F>,
    pub(super) outcome: Option<Result<T, E>>,
    pub(super) reply: oneshot::Sender<Result<T, E>>,
}

impl<F, T, E> WriteJob for ClosureJob<F, T, E>
where
    F: for<'tx> FnOnce(&'tx mut WriteTx) -> BoxFuture<'tx, Result<T, E>> + Send,
    T: Send,
    E: From<StoreError> + Send,
{
    fn run<'tx>(&'tx mut self, tx: &'tx mut WriteTx) -> BoxFuture<'tx, bool> {
        let work = self.work.take().expect("a job runs once");
        Box::pin(async move {
            // A panic must not end the writer's thread. The job's rows are rolled back and its
            // changes in memory are reverted, so no later job sees partial state.
            let outcome = AssertUnwindSafe(async { work(tx).await }).catch_unwind().await;
            self.outcome = outcome.ok();
            matches!(self.outcome, Some(Ok(_)))
        })
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        let outcome = match (self.outcome, committed) {
            (Some(Err(error)), _) => Err(error),
            (_, Err(error)) => Err(error.into()),
            (Some(Ok(value)), Ok(())) => Ok(value),
            (None, Ok(())) => Err(StoreError::Panicked.into()),
        };
        // The caller may have gone away; the commit is valid nevertheless.
        self.reply.send(outcome).ok();
    }
}

impl WriterJob {
    /// What the job adds to a commit: jobs with statements of their own, and bytes of events.
    pub(super) fn load(&self) -> (usize, usize) {
        match self {
            Self::Append { events, .. } => (0, events.iter().map(|event| event.data.len()).sum()),
            Self::Run(_) => (1, 0),
            Self::Stop { .. } => (0, 0),
        }
    }
}
