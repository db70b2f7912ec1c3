//! The one writer: takes write jobs from its queue and turns them into one commit.
//!
//! `synchronous = FULL`, so an answer means that the disk has it. Group commit makes that cheap: hundreds of jobs
//! share one wait for the disk. No timer is involved: while one commit is under way the next ones queue up.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use svc_model::{Clock, NewEvent, StreamName, limits};
use tokio::{runtime::Handle, sync::oneshot};

use super::{
    tx::{WriteRoute, WriteTx},
    version::Version,
    write_job::{WriteJob, WriterJob},
    write_queue::WriteQueue,
};
use crate::{AppendedSeqs, COMMIT_SECONDS, StoreError, ToolCall, ToolCallCount, WriterStats};

/// What the writer has done so far.
#[derive(Debug, Default)]
pub(super) struct WriterCounters {
    commits: AtomicU64,
    jobs: AtomicU64,
    failures: AtomicU64,
    commit_times: [AtomicU64; COMMIT_SECONDS.len() + 1],
    commit_micros: AtomicU64,
}

impl WriterCounters {
    /// The counters as they are now.
    pub(super) fn snapshot(&self) -> WriterStats {
        WriterStats {
            commits: self.commits.load(Relaxed),
            jobs: self.jobs.load(Relaxed),
            failures: self.failures.load(Relaxed),
            commit_times: std::array::from_fn(|class| self.commit_times[class].load(Relaxed)),
            commit_micros: self.commit_micros.load(Relaxed),
        }
    }

    fn observe(&self, took: Duration) {
        let class = COMMIT_SECONDS.partition_point(|bound| *bound < took.as_secs_f64());
        self.commit_times[class].fetch_add(1, Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.commit_micros.fetch_add(micros, Relaxed);
    }
}

/// The writer, on a thread of its own: SQLite waits for the disk, and the runtime's threads have better to do.
pub(super) struct WriterThread {
    pub(super) tx: WriteTx,
    pub(super) jobs: Arc<WriteQueue>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) counters: Arc<WriterCounters>,
    pub(super) version: Arc<Version>,
    /// In which the futures of jobs run.
    pub(super) runtime: Handle,
}

impl WriterThread {
    /// Starts it. At its end it gives its connection back.
    pub(super) fn spawn(self) -> Result<oneshot::Receiver<WriteTx>, StoreError> {
        let (ended, end) = oneshot::channel();
        let thread = std::thread::Builder::new().name("svc-writer".to_owned());
        thread.spawn(move || drop(ended.send(self.run()))).map_err(sqlx::Error::Io)?;
        Ok(end)
    }

    /// Runs until a job stops it, or all senders are gone.
    ///
    /// A commit is bounded in jobs, in bytes and in time, so that a job that comes now is not long behind those of others.
    fn run(mut self) -> WriteTx {
        let mut group = VecDeque::with_capacity(limits::JOBS_PER_COMMIT);
        let mut run_limit = limits::RUNS_PER_COMMIT;
        while self.jobs.wait() {
            // Lets those that the last commit woke queue up again, so that they ride along: 60 % more with eight
            // producers, and free with one.
            std::thread::yield_now();
            let runs = self.gather(&mut group, run_limit);
            if group.is_empty() {
                continue;
            }
            self.counters.commits.fetch_add(1, Relaxed);
            self.counters.jobs.fetch_add(group.len() as u64, Relaxed);
            self.tx.now = self.clock.now();
            let began = Instant::now();
            let work = self.runtime.block_on(write(&mut self.tx, &mut group, &self.version));
            self.counters.observe(began.elapsed());
            if work.is_none() {
                self.counters.failures.fetch_add(1, Relaxed);
            }
            run_limit = next_run_limit(run_limit, runs, work.unwrap_or_default());
            if self.tx.streams.len() > limits::STREAMS_CACHED {
                self.tx.streams.clear();
            }
            if self.tx.tally.len() > limits::STREAMS_CACHED {
                self.tx.tally.forget();
            }
        }
        self.tx
    }

    /// Takes the jobs of a commit from the queue. Tells how many of them have statements of their own.
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

/// Commits the jobs of `group`, directly if all of them can be. What a direct commit leaves over goes through the checked
/// connection.
async fn write(
    tx: &mut WriteTx,
    group: &mut VecDeque<WriterJob>,
    version: &Version,
) -> Option<Duration> {
    if group.iter().all(|job| matches!(job, WriterJob::Append { .. })) {
        tx.route = WriteRoute::Direct;
        return commit_appends(tx, group, version).await;
    }
    let is_direct = group.iter().all(WriterJob::is_direct);
    tx.route = if is_direct { WriteRoute::Direct } else { WriteRoute::Checked };
    let isolation = match (group.len(), tx.route) {
        (1, _) => JobIsolation::Alone,
        (_, WriteRoute::Direct) => JobIsolation::Together,
        (_, WriteRoute::Checked) => JobIsolation::Savepoint,
    };
    let mut outcome = commit(tx, group, version, isolation).await;
    if matches!(outcome, CommitOutcome::Again) {
        outcome = commit(tx, group, version, JobIsolation::Savepoint).await;
    }
    let mut work = outcome.work();
    if !group.is_empty() {
        tx.route = WriteRoute::Checked;
        let isolation =
            if group.len() == 1 { JobIsolation::Alone } else { JobIsolation::Savepoint };
        let more = commit(tx, group, version, isolation).await.work();
        work = work.zip(more).map(|(work, more)| work + more);
    }
    work
}

/// How what a job wrote is taken back if it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobIsolation {
    /// It is the only job of its transaction, which is rolled back.
    Alone,
    /// It runs in a savepoint. SQLite then keeps a copy of each page that it changes.
    Savepoint,
    /// With the whole transaction: the jobs run again, in savepoints. Jobs that fail after they wrote are rare. Only a
    /// direct commit can do so, because its jobs may run twice.
    Together,
}

/// What became of a commit.
enum CommitOutcome {
    /// The disk has it. The jobs worked so long, without the wait for the disk.
    Done(Duration),
    /// Nothing was kept, and each job was told so.
    Failed,
    /// Nothing was kept, and the jobs are in the group again: one of them has to be taken back alone.
    Again,
}

impl CommitOutcome {
    /// How long the jobs worked; `None` if nothing was kept.
    fn work(self) -> Option<Duration> {
        match self {
            Self::Done(work) => Some(work),
            Self::Failed | Self::Again => None,
        }
    }
}

/// Commits appends, which are one statement together, and answers each.
async fn commit_appends(
    tx: &mut WriteTx,
    group: &mut VecDeque<WriterJob>,
    version: &Version,
) -> Option<Duration> {
    let began = Instant::now();
    let mut done = Vec::with_capacity(group.len());
    for job in group.drain(..) {
        let WriterJob::Append { stream, events, reply } = job else { continue };
        let mark = tx.mark();
        match tx.append(&stream, events).await {
            Ok(seqs) => done.push((reply, seqs)),
            Err(error) => {
                tx.rewind(mark);
                reply.send(Err(error)).ok();
            }
        }
    }
    let work = began.elapsed();
    version.begin();
    let committed = tx.commit_appends();
    version.end();
    if let Err(error) = committed {
        let finished = |(reply, seqs)| FinishedJob::Append { reply, seqs, again: None };
        let done = done.into_iter().map(finished).collect();
        fail(tx, error, done, std::iter::empty()).await;
        return None;
    }
    for (reply, seqs) in done {
        // The caller may have gone away; the commit stands all the same.
        reply.send(Ok(seqs)).ok();
    }
    tx.publish();
    Some(work)
}

/// How many jobs with statements of their own the next commit may take, after one that took `runs` of them and worked that
/// long: as many as fit into the time that others wait for it.
fn next_run_limit(limit: usize, runs: usize, work: Duration) -> usize {
    let (work, most) = (work.as_micros(), limits::COMMIT_WORK.as_micros());
    let next = if work > most {
        let fitting = most * u128::try_from(runs).unwrap_or(u128::MAX) / work;
        usize::try_from(fitting).unwrap_or(limit)
    } else {
        limit * 2
    };
    next.clamp(1, limits::RUNS_PER_COMMIT)
}

/// A job that did its part and waits for the commit.
enum FinishedJob {
    Append {
        reply: oneshot::Sender<Result<AppendedSeqs, StoreError>>,
        seqs: AppendedSeqs,
        /// The job as it came, if it may have to run again.
        again: Option<(StreamName, Vec<NewEvent>)>,
    },
    Count(oneshot::Sender<Result<ToolCallCount, StoreError>>, ToolCallCount),
    Run(Box<dyn WriteJob>),
}

impl FinishedJob {
    fn answer(self, committed: Result<(), StoreError>) {
        // The caller may have gone away; the commit stands all the same.
        match self {
            Self::Append { reply, seqs, .. } => drop(reply.send(committed.map(|()| seqs))),
            Self::Count(reply, counted) => drop(reply.send(committed.map(|()| counted))),
            Self::Run(job) => job.answer(committed),
        }
    }

    /// The job, to run once more; `None` for one that is never in a commit that is begun again.
    fn into_job(self) -> Option<WriterJob> {
        match self {
            Self::Append { reply, again, .. } => {
                again.map(|(stream, events)| WriterJob::Append { stream, events, reply })
            }
            Self::Count(..) => None,
            Self::Run(job) => Some(WriterJob::Run(job)),
        }
    }
}

/// A tool call that waits to be counted.
type ToCount = (ToolCall, oneshot::Sender<Result<ToolCallCount, StoreError>>);

/// Runs the jobs of `group` in one transaction and answers each. A job that needs the checked connection ends a direct one: it
/// stays in `group`, with those behind it.
async fn commit(
    tx: &mut WriteTx,
    group: &mut VecDeque<WriterJob>,
    version: &Version,
    isolation: JobIsolation,
) -> CommitOutcome {
    let began = Instant::now();
    let mut done = Vec::with_capacity(group.len());
    let outcome = async {
        execute(tx, "begin immediate").await?;
        if !run_jobs(tx, group, isolation, &mut done).await? {
            return Ok(None);
        }
        let work = began.elapsed();
        version.begin();
        let flushed = async {
            tx.flush().await?;
            execute(tx, "commit").await
        };
        let flushed = flushed.await;
        version.end();
        flushed.map(|()| Some(work))
    }
    .await;
    match outcome {
        Ok(Some(work)) => {
            // Answers first: whoever waits for one may hand over its next job while readers are woken.
            for job in done {
                job.answer(Ok(()));
            }
            tx.publish();
            CommitOutcome::Done(work)
        }
        Ok(None) => match begin_again(tx).await {
            Ok(()) => {
                for job in done.into_iter().rev().filter_map(FinishedJob::into_job) {
                    group.push_front(job);
                }
                CommitOutcome::Again
            }
            Err(error) => {
                fail(tx, error, done, group.drain(..)).await;
                CommitOutcome::Failed
            }
        },
        Err(error) => {
            // SQLite may have rolled back by itself (on a full disk it does); then this says so, harmlessly.
            execute(tx, "rollback").await.ok();
            fail(tx, error, done, group.drain(..)).await;
            CommitOutcome::Failed
        }
    }
}

/// Takes a transaction back, on disk and in memory.
async fn begin_again(tx: &mut WriteTx) -> Result<(), StoreError> {
    execute(tx, "rollback").await?;
    tx.reset().await
}

/// Runs jobs until `group` is empty, or one needs the checked connection. `false` if one failed that cannot be taken back alone:
/// it is the first of `group` then.
async fn run_jobs(
    tx: &mut WriteTx,
    group: &mut VecDeque<WriterJob>,
    isolation: JobIsolation,
    done: &mut Vec<FinishedJob>,
) -> Result<bool, StoreError> {
    let mut calls = Vec::new();
    while let Some(job) = group.pop_front() {
        match job {
            WriterJob::Append { stream, events, reply } => {
                append(tx, (stream, events, reply), isolation, done).await;
            }
            WriterJob::Count { call, reply } => calls.push((call, reply)),
            // It may ask for what was counted before it, and change it.
            WriterJob::Run(job) => {
                count(tx, &mut calls, done).await?;
                let ran = run_job(tx, job, isolation, done).await?;
                tx.tally.forget();
                match ran {
                    RanJob::Settled => {}
                    RanJob::Misrouted(job) => {
                        group.push_front(WriterJob::Run(job));
                        break;
                    }
                    RanJob::Entangled(job) => {
                        group.push_front(WriterJob::Run(job));
                        return Ok(false);
                    }
                }
            }
            // The queue handles it.
            WriterJob::Stop { .. } => {}
        }
    }
    count(tx, &mut calls, done).await?;
    Ok(true)
}

/// The parts of [`WriterJob::Append`].
type ToAppend = (StreamName, Vec<NewEvent>, oneshot::Sender<Result<AppendedSeqs, StoreError>>);

/// Gives events their seqs. They are written at the end of the commit.
async fn append(
    tx: &mut WriteTx,
    (stream, events, reply): ToAppend,
    isolation: JobIsolation,
    done: &mut Vec<FinishedJob>,
) {
    let mark = tx.mark();
    let again = (isolation == JobIsolation::Together).then(|| (stream.clone(), events.clone()));
    match tx.append(&stream, events).await {
        Ok(seqs) => done.push(FinishedJob::Append { reply, seqs, again }),
        Err(error) => {
            tx.rewind(mark);
            reply.send(Err(error)).ok();
        }
    }
}

/// What became of a job with statements of its own.
enum RanJob {
    /// It is done, or was taken back and answered.
    Settled,
    /// It needs the checked connection, and was taken back.
    Misrouted(Box<dyn WriteJob>),
    /// It wrote something that is to be taken back, which only the whole transaction can be.
    Entangled(Box<dyn WriteJob>),
}

/// Runs one job. Its own failure undoes only itself; an error here is the transaction's.
async fn run_job(
    tx: &mut WriteTx,
    mut job: Box<dyn WriteJob>,
    isolation: JobIsolation,
    done: &mut Vec<FinishedJob>,
) -> Result<RanJob, StoreError> {
    let mark = tx.mark();
    let before = match isolation {
        JobIsolation::Alone => None,
        JobIsolation::Savepoint => {
            execute(tx, "savepoint job").await?;
            None
        }
        JobIsolation::Together => Some(tx.direct.changes()?),
    };
    tx.is_misrouted = false;
    // What a job makes of a statement that was not run does not count.
    let keep = job.run(tx).await && !tx.is_misrouted;
    let settled = match (isolation, keep) {
        (JobIsolation::Alone, true) => Ok(()),
        (JobIsolation::Alone, false) => execute(tx, "rollback; begin immediate").await,
        (JobIsolation::Savepoint, true) => execute(tx, "release job").await,
        (JobIsolation::Savepoint, false) => execute(tx, "rollback to job; release job").await,
        // What would be written after SQLite has rolled back by itself would stand alone.
        (JobIsolation::Together, _) => tx.direct.check_transaction(),
    };
    if keep {
        done.push(FinishedJob::Run(job));
        settled?;
        return Ok(RanJob::Settled);
    }
    if let (Some(before), Ok(())) = (before, &settled)
        && tx.direct.changes()? != before
    {
        return Ok(RanJob::Entangled(job));
    }
    tx.rewind(mark);
    if tx.is_misrouted && settled.is_ok() {
        return Ok(RanJob::Misrouted(job));
    }
    job.answer(Ok(()));
    settled?;
    Ok(RanJob::Settled)
}

/// Counts the calls that have gathered. An error here is the transaction's, for there is nothing in a call to fail by.
async fn count(
    tx: &mut WriteTx,
    calls: &mut Vec<ToCount>,
    done: &mut Vec<FinishedJob>,
) -> Result<(), StoreError> {
    if calls.is_empty() {
        return Ok(());
    }
    let each: Vec<&ToolCall> = calls.iter().map(|(call, _)| call).collect();
    match tx.count_tools(&each).await {
        Ok(counted) => {
            let replies = calls.drain(..).map(|(_, reply)| reply);
            done.extend(
                replies.zip(counted).map(|(reply, counted)| FinishedJob::Count(reply, counted)),
            );
            Ok(())
        }
        Err(error) => {
            for (_, reply) in calls.drain(..) {
                reply.send(Err(error.clone())).ok();
            }
            Err(error)
        }
    }
}

/// Answers everybody that nothing was kept.
async fn fail(
    tx: &mut WriteTx,
    error: StoreError,
    done: Vec<FinishedJob>,
    rest: impl Iterator<Item = WriterJob>,
) {
    tracing::error!(error = svc_sys::telemetry::chain(&error), "a commit failed");
    if let Err(error) = tx.reset().await {
        tracing::error!(
            error = svc_sys::telemetry::chain(&error),
            "cannot read the head of the log"
        );
    }
    for job in done {
        job.answer(Err(error.clone()));
    }
    for job in rest {
        match job {
            WriterJob::Append { reply, .. } => {
                reply.send(Err(error.clone())).ok();
            }
            WriterJob::Count { reply, .. } => {
                reply.send(Err(error.clone())).ok();
            }
            WriterJob::Run(job) => job.answer(Err(error.clone())),
            WriterJob::Stop { .. } => {}
        }
    }
}

async fn execute(tx: &mut WriteTx, statement: &'static str) -> Result<(), StoreError> {
    match tx.route {
        WriteRoute::Direct => tx.direct.execute(statement),
        WriteRoute::Checked => {
            sqlx::query(statement).execute(&mut tx.conn).await?;
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_takes_as_many_jobs_as_fit_into_its_time() {
        let most = limits::RUNS_PER_COMMIT;
        for (limit, runs, work_ms, next) in [
            (most, most, 1, most),
            // Half of them would have taken the time that there is.
            (most, most, 4, most / 2),
            (most, 3, 30, 1),
            // One that takes long is not made shorter, but alone.
            (1, 1, 50, 1),
            (1, 1, 1, 2),
            (most / 2, 5, 0, most),
        ] {
            assert_eq!(next_run_limit(limit, runs, Duration::from_millis(work_ms)), next);
        }
    }
}
