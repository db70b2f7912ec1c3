//! Write jobs and the writer's queue. Each principal has a queue of its own, and the writer takes
//! jobs from these queues in turn (round robin): a principal that writes much waits behind its own
//! writes, and other principals behind one job of each queue. Within a queue the order is that of
//! arrival.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use futures_util::future::BoxFuture;
use svc_model::{Caller, NewEvent, Principal, StreamName, limits};
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use crate::{AppendedSeqs, Result, StoreError, tx::WriteTx};

/// Names the queue in which a write job waits. Each principal has its own; the operator and the
/// daemon share one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WriteQueueKey(Option<Arc<str>>);

impl WriteQueueKey {
    pub const DAEMON: Self = Self(None);

    pub fn for_principal(principal: &Principal) -> Self {
        match principal {
            Principal::Operator => Self::DAEMON,
            Principal::Session(key) => Self(Some(Arc::clone(key))),
        }
    }

    pub fn of_caller(caller: &Caller) -> Self {
        Self::for_principal(&caller.principal())
    }

    pub const fn is_daemon(&self) -> bool {
        self.0.is_none()
    }
}

pub(super) enum WriterJob {
    /// Events for one stream: the common case, which needs no statement of its own.
    Append {
        stream: StreamName,
        events: Vec<NewEvent>,
        reply: oneshot::Sender<Result<AppendedSeqs>>,
    },
    Run(Box<dyn WriteJob>),
    /// Closes the queue: later jobs are rejected.
    Stop {
        reply: oneshot::Sender<()>,
    },
}

/// A write job with its result types erased.
pub(super) trait WriteJob: Send {
    /// Does the work; returns whether to commit it.
    fn run<'tx>(&'tx mut self, tx: &'tx mut WriteTx) -> BoxFuture<'tx, bool>;
    /// Answers the caller. `committed` is the result of the commit; a job that failed is answered
    /// with its own error.
    fn answer(self: Box<Self>, committed: Result<()>);
}

pub(super) struct ClosureJob<F, T, E> {
    pub(super) work: Option<F>,
    /// `None` before the work has ended, and if it panicked.
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
            self.outcome = Some(work(tx).await);
            matches!(self.outcome, Some(Ok(_)))
        })
    }

    fn answer(self: Box<Self>, committed: Result<()>) {
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
    pub(super) fn refuse(self, error: &StoreError) {
        match self {
            Self::Append { reply, .. } => drop(reply.send(Err(error.clone()))),
            Self::Run(job) => job.answer(Err(error.clone())),
            Self::Stop { .. } => {}
        }
    }

    /// What the job adds to a commit: jobs with statements of their own, and bytes of events.
    pub(super) fn load(&self) -> (usize, usize) {
        match self {
            Self::Append { events, .. } => (0, events.iter().map(|event| event.data.len()).sum()),
            Self::Run(_) => (1, 0),
            Self::Stop { .. } => (0, 0),
        }
    }
}

#[derive(Default)]
pub(super) struct WriteQueue {
    state: Mutex<QueuedJobs>,
    arrived: Condvar,
}

/// The sending half. Dropping the last one closes the queue.
pub(super) struct WriteQueueSender(Arc<WriteQueue>);

/// A sender that waits for capacity in its principal's queue. Dropping it removes that queue if it
/// is empty.
struct WaitingSender<'a> {
    queue: &'a WriteQueue,
    turn: &'a WriteQueueKey,
    capacity: Option<Arc<Semaphore>>,
}

impl Drop for WaitingSender<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        self.capacity = None;
        state.remove_if_unused(self.turn);
    }
}

#[derive(Default)]
struct QueuedJobs {
    queues: HashMap<WriteQueueKey, PrincipalQueue>,
    /// The principals' queues that have jobs, in the order of their turns.
    turns: VecDeque<WriteQueueKey>,
    is_closed: bool,
    /// Whether the writer waits for a job.
    is_awaited: bool,
}

struct PrincipalQueue {
    jobs: VecDeque<WriterJob>,
    /// One permit for each job that may still queue.
    capacity: Arc<Semaphore>,
}

impl std::fmt::Debug for WriteQueueSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteQueueSender").field("queued", &self.queued()).finish()
    }
}

impl Drop for WriteQueueSender {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl QueuedJobs {
    fn queue_of(&mut self, key: &WriteQueueKey) -> &mut PrincipalQueue {
        self.queues.entry(key.clone()).or_insert_with(|| {
            let capacity = if key.is_daemon() {
                limits::OPERATOR_WRITE_QUEUE
            } else {
                limits::SESSION_WRITE_QUEUE
            };
            PrincipalQueue { jobs: VecDeque::new(), capacity: Arc::new(Semaphore::new(capacity)) }
        })
    }

    fn next(&mut self) -> Option<WriterJob> {
        let turn = self.turns.pop_front()?;
        let queue = self.queues.get_mut(&turn)?;
        let job = queue.jobs.pop_front()?;
        queue.capacity.add_permits(1);
        if queue.jobs.is_empty() {
            self.remove_if_unused(&turn);
        } else {
            self.turns.push_back(turn);
        }
        Some(job)
    }

    /// Reserves capacity for a job, if there is any. Taking the job from the queue releases the
    /// capacity.
    fn take_capacity(&mut self, turn: &WriteQueueKey) -> bool {
        self.queue_of(turn).capacity.try_acquire().map(SemaphorePermit::forget).is_ok()
    }

    /// Appends a job to its principal's queue. Returns whether the writer has to be woken.
    fn push(&mut self, turn: &WriteQueueKey, job: WriterJob) -> bool {
        let queue = self.queue_of(turn);
        let is_first = queue.jobs.is_empty();
        queue.jobs.push_back(job);
        if is_first {
            self.turns.push_back(turn.clone());
        }
        std::mem::take(&mut self.is_awaited)
    }

    fn close(&mut self) {
        self.is_closed = true;
        for queue in self.queues.values() {
            queue.capacity.close();
        }
    }

    /// Removes a principal's queue if it is empty and no sender waits for its capacity.
    fn remove_if_unused(&mut self, turn: &WriteQueueKey) {
        let is_unused = |queue: &PrincipalQueue| {
            queue.jobs.is_empty() && Arc::strong_count(&queue.capacity) == 1
        };
        if self.queues.get(turn).is_some_and(is_unused) {
            self.queues.remove(turn);
        }
    }
}

impl WriteQueue {
    fn lock(&self) -> MutexGuard<'_, QueuedJobs> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a job; returns false once the queue is closed and empty.
    pub(super) fn wait(&self) -> bool {
        let mut state = self.lock();
        while state.turns.is_empty() && !state.is_closed {
            state.is_awaited = true;
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_awaited = false;
        !state.turns.is_empty()
    }

    /// Passes queued jobs to `take` until it returns false. A stop job closes the queue.
    pub(super) fn take(&self, mut take: impl FnMut(WriterJob) -> bool) {
        let mut state = self.lock();
        while let Some(job) = state.next() {
            if let WriterJob::Stop { reply } = job {
                state.close();
                reply.send(()).ok();
            } else if !take(job) {
                break;
            }
        }
    }

    /// Rejects new jobs. Queued jobs are still taken.
    fn close(&self) {
        self.lock().close();
        self.arrived.notify_one();
    }
}

impl WriteQueueSender {
    pub(super) fn open() -> (Self, Arc<WriteQueue>) {
        let queue = Arc::new(WriteQueue::default());
        (Self(Arc::clone(&queue)), queue)
    }

    /// Queues a job as soon as its principal's queue has capacity.
    pub(super) async fn send(&self, turn: &WriteQueueKey, job: WriterJob) -> Result<()> {
        let waiting = {
            let mut state = self.0.lock();
            if state.is_closed {
                return Err(StoreError::Stopped);
            }
            if state.take_capacity(turn) {
                let is_awaited = state.push(turn, job);
                drop(state);
                self.wake(is_awaited);
                return Ok(());
            }
            let capacity = Some(Arc::clone(&state.queue_of(turn).capacity));
            WaitingSender { queue: &self.0, turn, capacity }
        };
        if let Some(capacity) = &waiting.capacity {
            capacity.acquire().await.map_err(|_| StoreError::Stopped)?.forget();
        }
        let mut state = self.0.lock();
        if state.is_closed {
            return Err(StoreError::Stopped);
        }
        let is_awaited = state.push(turn, job);
        drop(state);
        self.wake(is_awaited);
        drop(waiting);
        Ok(())
    }

    fn wake(&self, is_awaited: bool) {
        if is_awaited {
            self.0.arrived.notify_one();
        }
    }

    pub(super) fn queued(&self) -> usize {
        self.0.lock().queues.values().map(|queue| queue.jobs.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, future::join_all};

    use super::*;

    fn job() -> WriterJob {
        WriterJob::Stop { reply: oneshot::channel().0 }
    }

    #[tokio::test]
    async fn an_empty_queue_is_removed_when_its_last_waiting_sender_is_dropped() {
        let (sender, queue) = WriteQueueSender::open();
        let key = WriteQueueKey::for_principal(&Principal::Session("greedy".into()));
        let send = || sender.send(&key, job());
        join_all((0..limits::SESSION_WRITE_QUEUE).map(|_| send())).await;
        let mut waiting = Box::pin(send());
        assert!(waiting.as_mut().now_or_never().is_none(), "the queue is full");
        while queue.lock().next().is_some() {}
        assert_eq!(queue.lock().queues.len(), 1, "a sender still waits for the queue");
        drop(waiting);
        assert!(queue.lock().queues.is_empty());
        send().await.unwrap();
        assert!(queue.lock().next().is_some());
        assert!(queue.lock().queues.is_empty());
    }
}
