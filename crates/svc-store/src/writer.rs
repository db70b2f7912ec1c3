//! The only writer: write jobs, the queues in which they wait, and the thread that commits them in
//! groups.
//!
//! Each principal has a queue of its own, and the writer takes jobs from these queues in turn
//! (round robin): a principal that writes much waits behind its own writes, and other principals
//! behind one job of each queue. Within a queue the order is that of arrival.
//!
//! `synchronous = FULL`, so an answer means that the disk has the write. Group commit makes that
//! cheap: hundreds of jobs share one disk sync. There is no timer: the next group queues while a
//! commit is under way.

use std::{
    collections::{HashMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures_util::{FutureExt as _, future::BoxFuture};
use svc_model::{Caller, Clock, NewEvent, Principal, StreamName, limits};
use tokio::{
    runtime::Handle,
    sync::{Semaphore, SemaphorePermit, oneshot},
    time::timeout,
};

use crate::{
    AppendedSeqs, Result, StoreError, bus::Version, sqlite::direct_connection::JobIsolation,
    tx::WriteTx,
};

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

/// Upper bounds of the classes of `commit_times`, in seconds.
pub const COMMIT_SECONDS: [f64; 9] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0];

/// Counters of the writer since the store was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriterStats {
    pub commits: u64,
    pub jobs: u64,
    pub failures: u64,
    /// Histogram of commit durations, disk sync included: a commit counts in the class of the
    /// smallest bound of [`COMMIT_SECONDS`] that it does not exceed; the last class has no bound.
    pub commit_times: [u64; COMMIT_SECONDS.len() + 1],
    /// Sum of all commit durations, in microseconds.
    pub commit_micros: u64,
}

#[derive(Debug, Default)]
pub(super) struct WriterCounters(Mutex<WriterStats>);

impl WriterCounters {
    pub(super) fn lock(&self) -> MutexGuard<'_, WriterStats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WriterStats {
    fn observe(&mut self, took: Duration) {
        let class = COMMIT_SECONDS.partition_point(|bound| *bound < took.as_secs_f64());
        self.commit_times[class] += 1;
        self.commit_micros += u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    }
}

/// The writer, on a thread of its own: SQLite blocks on the disk, which must not block a thread of
/// the async runtime.
pub(super) struct WriterThread {
    pub(super) tx: WriteTx,
    pub(super) jobs: Arc<WriteQueue>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) counters: Arc<WriterCounters>,
    pub(super) version: Arc<Version>,
    pub(super) runtime: Handle,
}

impl WriterThread {
    /// Starts the thread. When it ends, it returns its connection.
    pub(super) fn spawn(self) -> Result<oneshot::Receiver<WriteTx>> {
        let (ended, end) = oneshot::channel();
        let thread = std::thread::Builder::new().name("svc-writer".to_owned());
        thread
            .spawn(move || drop(ended.send(self.run())))
            .map_err(|error| StoreError::Database(Arc::new(error)))?;
        Ok(end)
    }

    /// Runs until a job stops it, or all senders are gone.
    ///
    /// A commit is bounded in jobs, in bytes and in time, which bounds the wait of a new job.
    fn run(mut self) -> WriteTx {
        let mut group = VecDeque::with_capacity(limits::JOBS_PER_COMMIT);
        let most_runs = self.tx.direct.run_limit();
        let mut run_limit = most_runs;
        while self.jobs.wait() {
            // Lets tasks that the last commit woke queue jobs for this commit: 60 % more throughput
            // with eight producers, and no cost with one.
            std::thread::yield_now();
            let runs = self.gather(&mut group, run_limit);
            if group.is_empty() {
                continue;
            }
            let mut counters = self.counters.lock();
            counters.commits += 1;
            counters.jobs += group.len() as u64;
            drop(counters);
            self.tx.now = self.clock.now();
            let began = Instant::now();
            let written = write_in_time(&mut self.tx, &mut group, &self.version, &self.jobs);
            let work = self.runtime.block_on(written);
            let mut counters = self.counters.lock();
            counters.observe(began.elapsed());
            counters.failures += u64::from(work.is_none());
            drop(counters);
            run_limit = next_run_limit(run_limit, runs, work.unwrap_or_default()).min(most_runs);
            if self.tx.streams.len() > limits::STREAMS_CACHED {
                self.tx.streams.clear();
            }
        }
        self.tx
    }

    /// Takes the jobs of a commit from the queue. Returns how many of them have statements of their
    /// own.
    fn gather(&self, group: &mut VecDeque<WriterJob>, run_limit: usize) -> usize {
        let (mut runs, mut bytes) = (0, 0);
        self.jobs.take(|job| {
            let (run, more) = job.load();
            (runs, bytes) = (runs + run, bytes + more);
            group.push_back(job);
            group.len() < limits::JOBS_PER_COMMIT
                && runs < run_limit
                && bytes < limits::COMMIT_BYTES
        });
        runs
    }
}

/// Like [`write`]. If a server takes longer than [`limits::STORE_WAIT`], the jobs in the queue are
/// refused, then again each second: no caller waits longer for a server.
async fn write_in_time(
    tx: &mut WriteTx,
    group: &mut VecDeque<WriterJob>,
    version: &Version,
    jobs: &WriteQueue,
) -> Option<Duration> {
    if !tx.direct.is_of_server() {
        return write(tx, group, version).await;
    }
    let mut bound = limits::STORE_WAIT;
    let mut writing = Box::pin(write(tx, group, version));
    let work = loop {
        match timeout(bound, &mut writing).await {
            Ok(work) => break work,
            Err(_) => refuse_all(jobs),
        }
        bound = Duration::from_secs(1);
    };
    drop(writing);
    if tx.direct.is_away() {
        // These jobs have waited while this group's attempt to connect failed.
        refuse_all(jobs);
    }
    work
}

fn refuse_all(jobs: &WriteQueue) {
    let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
    let error = StoreError::Unavailable(Arc::new(late));
    jobs.take(|job| {
        job.refuse(&error);
        true
    });
}

/// Commits the jobs of `group`. Returns the time that the jobs took, without the disk sync; `None`
/// if the commit failed, in which case each job was answered with the error.
async fn write(
    tx: &mut WriteTx,
    group: &mut VecDeque<WriterJob>,
    version: &Version,
) -> Option<Duration> {
    if group.iter().all(|job| matches!(job, WriterJob::Append { .. })) {
        return commit_append_group(tx, group, version).await;
    }
    let isolation = if group.len() == 1 { JobIsolation::Alone } else { JobIsolation::Savepoint };
    commit(tx, group, version, isolation).await
}

/// Commits appends, which are one statement together, and answers each.
async fn commit_append_group(
    tx: &mut WriteTx,
    group: &mut VecDeque<WriterJob>,
    version: &Version,
) -> Option<Duration> {
    let began = Instant::now();
    if let Err(error) = tx.begin_appends().await {
        fail(tx, &error, Vec::new(), group.drain(..)).await;
        return None;
    }
    let mut done = Vec::with_capacity(group.len());
    for job in group.drain(..) {
        if let WriterJob::Append { stream, events, reply } = job {
            append(tx, &stream, events, reply, &mut done).await;
        }
    }
    let work = began.elapsed();
    version.begin();
    let committed = tx.commit_appends().await;
    version.end();
    if let Err(error) = committed {
        fail(tx, &error, done, std::iter::empty()).await;
        return None;
    }
    succeed(tx, done);
    Some(work)
}

/// How many jobs with statements of their own the next commit may take, after `runs` such jobs took
/// `work`: as many as fit into `COMMIT_WORK`, the time for which other jobs may wait.
fn next_run_limit(limit: usize, runs: usize, work: Duration) -> usize {
    let (work, most) = (work.as_micros(), limits::COMMIT_WORK.as_micros());
    let next = if runs == 0 {
        // Appends alone say nothing about the time that such jobs take.
        limit
    } else if work > most {
        let fitting = most * u128::try_from(runs).unwrap_or(u128::MAX) / work;
        usize::try_from(fitting).unwrap_or(limit)
    } else {
        limit * 2
    };
    next.clamp(1, limits::RUNS_PER_COMMIT)
}

enum FinishedJob {
    Append(oneshot::Sender<Result<AppendedSeqs>>, AppendedSeqs),
    Run(Box<dyn WriteJob>),
}

impl FinishedJob {
    fn answer(self, committed: Result<()>) {
        // The caller may have gone away; the commit is valid nevertheless.
        match self {
            Self::Append(reply, seqs) => drop(reply.send(committed.map(|()| seqs))),
            Self::Run(job) => job.answer(committed),
        }
    }
}

async fn commit(
    tx: &mut WriteTx,
    group: &mut VecDeque<WriterJob>,
    version: &Version,
    isolation: JobIsolation,
) -> Option<Duration> {
    let began = Instant::now();
    let mut done = Vec::with_capacity(group.len());
    let outcome = async {
        tx.begin().await?;
        run_jobs(tx, group, isolation, &mut done).await?;
        let work = began.elapsed();
        version.begin();
        let flushed = match tx.flush().await {
            Ok(()) => tx.direct.commit().await,
            Err(error) => Err(error),
        };
        version.end();
        flushed.map(|()| work)
    }
    .await;
    match outcome {
        Ok(work) => {
            succeed(tx, done);
            Some(work)
        }
        Err(error) => {
            tx.direct.rollback().await.ok();
            fail(tx, &error, done, group.drain(..)).await;
            None
        }
    }
}

async fn run_jobs(
    tx: &mut WriteTx,
    group: &mut VecDeque<WriterJob>,
    isolation: JobIsolation,
    done: &mut Vec<FinishedJob>,
) -> Result<()> {
    while let Some(job) = group.pop_front() {
        match job {
            WriterJob::Append { stream, events, reply } => {
                append(tx, &stream, events, reply, done).await;
            }
            WriterJob::Run(job) => run_job(tx, job, isolation, done).await?,
            // The queue handles it.
            WriterJob::Stop { .. } => {}
        }
    }
    Ok(())
}

/// Gives events their seqs. The commit's end writes the events.
async fn append(
    tx: &mut WriteTx,
    stream: &StreamName,
    events: Vec<NewEvent>,
    reply: oneshot::Sender<Result<AppendedSeqs>>,
    done: &mut Vec<FinishedJob>,
) {
    let mark = tx.mark();
    match tx.append(stream, events).await {
        Ok(seqs) => done.push(FinishedJob::Append(reply, seqs)),
        Err(error) => {
            tx.rewind(mark);
            reply.send(Err(error)).ok();
        }
    }
}

/// Runs one job. Its own failure rolls back only its own changes; an error here fails the
/// transaction.
async fn run_job(
    tx: &mut WriteTx,
    mut job: Box<dyn WriteJob>,
    isolation: JobIsolation,
    done: &mut Vec<FinishedJob>,
) -> Result<()> {
    let mark = tx.mark();
    tx.direct.begin_job(isolation);
    // A panic must not end the writer's thread. The job's rows are rolled back and its changes in
    // memory are reverted, so no later job sees partial state.
    let ran = AssertUnwindSafe(async { job.run(tx).await }).catch_unwind().await;
    let keep = ran.unwrap_or(false);
    let settled = tx.direct.end_job(isolation, keep).await;
    if keep {
        done.push(FinishedJob::Run(job));
    } else {
        tx.rewind(mark);
        job.answer(Ok(()));
    }
    settled
}

/// Answers before it wakes readers: meanwhile a caller can queue its next job.
fn succeed(tx: &mut WriteTx, done: Vec<FinishedJob>) {
    for job in done {
        job.answer(Ok(()));
    }
    tx.publish();
}

async fn fail(
    tx: &mut WriteTx,
    error: &StoreError,
    done: Vec<FinishedJob>,
    rest: impl Iterator<Item = WriterJob>,
) {
    if error.is_of_absence() {
        // The connection that waits for the server logs its absence once, and not each commit does.
        tracing::debug!(error = svc_sys::telemetry::chain(error), "a commit failed");
        tx.forget();
    } else {
        tracing::error!(error = svc_sys::telemetry::chain(error), "a commit failed");
        if let Err(error) = tx.reset().await {
            tracing::error!(
                error = svc_sys::telemetry::chain(&error),
                "cannot read the head of the log"
            );
        }
    }
    for job in done {
        job.answer(Err(error.clone()));
    }
    for job in rest {
        job.refuse(error);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

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

    #[test]
    fn the_job_limit_follows_the_time_of_the_last_commit() {
        let most = limits::RUNS_PER_COMMIT;
        for (limit, runs, work_ms, next) in [
            (most, most, 1, most),
            // Half of these jobs would have taken the allowed time.
            (most, most, 4, most / 2),
            (most, 3, 30, 1),
            // A single job longer than the bound is not split: it runs alone.
            (1, 1, 50, 1),
            (1, 1, 1, 2),
            (most, 0, 5, most),
            (most / 2, 5, 0, most),
        ] {
            assert_eq!(next_run_limit(limit, runs, Duration::from_millis(work_ms)), next);
        }
    }
}
