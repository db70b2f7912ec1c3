//! The only writer: takes write jobs from its queue and commits them in groups.
//!
//! `synchronous = FULL`, so an answer means that the disk has the write. Group commit makes that
//! cheap: hundreds of jobs share one disk sync. There is no timer: the next group queues while a
//! commit is under way.

use std::{
    collections::VecDeque,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use futures_util::FutureExt as _;
use svc_model::{Clock, NewEvent, StreamName, limits};
use tokio::{runtime::Handle, sync::oneshot, time::timeout};

use crate::{
    AppendedSeqs, COMMIT_SECONDS, Result, StoreError, WriterStats,
    bus::Version,
    sqlite::direct_connection::JobIsolation,
    tx::WriteTx,
    write_queue::{WriteJob, WriteQueue, WriterJob},
};

#[derive(Debug, Default)]
pub(super) struct WriterCounters {
    commits: AtomicU64,
    jobs: AtomicU64,
    failures: AtomicU64,
    commit_times: [AtomicU64; COMMIT_SECONDS.len() + 1],
    commit_micros: AtomicU64,
}

impl WriterCounters {
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
            self.counters.commits.fetch_add(1, Relaxed);
            self.counters.jobs.fetch_add(group.len() as u64, Relaxed);
            self.tx.now = self.clock.now();
            let began = Instant::now();
            let written = write_in_time(&mut self.tx, &mut group, &self.version, &self.jobs);
            let work = self.runtime.block_on(written);
            self.counters.observe(began.elapsed());
            if work.is_none() {
                self.counters.failures.fetch_add(1, Relaxed);
            }
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
    use super::*;

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
