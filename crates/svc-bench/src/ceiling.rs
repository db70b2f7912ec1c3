//! Bare loops on `rusqlite`: the limits of this machine's disk and of `SQLite` without svc.

use std::{
    path::Path,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rusqlite::{Connection, OpenFlags, params};
use svc_model::{Clock as _, SystemClock, limits};
use svc_server::daemon::worker_threads;
use tokio::{
    runtime::Runtime,
    sync::{mpsc, oneshot},
};

use super::daemon::DATA_BYTES;

/// Streams that producers use in turn.
pub(crate) const STREAMS: usize = 100;

/// A group commit: one thread, one transaction for all queued events, on svc's tables.
#[derive(Debug)]
pub(crate) struct GroupCommit {
    jobs: mpsc::Sender<Job>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

#[derive(Debug)]
struct Job {
    stream: i64,
    data: Arc<str>,
    events: usize,
    reply: oneshot::Sender<i64>,
}

/// An event of a commit: its stream, its number in the stream, and its data.
pub(crate) type BareEvent = (i64, i64, Arc<str>);

impl GroupCommit {
    /// Opens the database at `path`, which has svc's tables and `streams` streams.
    pub(crate) fn start(path: &Path, streams: i64) -> anyhow::Result<Self> {
        let connection = Connection::open(path)?;
        settings(&connection)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "full")?;
        for stream in 1..=streams {
            connection.execute(
                "insert or ignore into stream (id, name, created_at) values (?1, 'bench/' || ?1, 0)",
                [stream],
            )?;
        }
        Self::spawn(streams, move |events| {
            let mut begin = connection.prepare_cached("begin immediate")?;
            let mut commit = connection.prepare_cached("commit")?;
            let mut insert = connection.prepare_cached(
                "insert into event (at, stream_id, seq, kind, data, producer_id) values (?, ?, ?, ?, ?, null)",
            )?;
            let at = SystemClock.now().as_millis();
            begin.execute([])?;
            for (stream, seq, data) in events {
                insert.execute(params![at, stream, seq, "frame", &**data])?;
            }
            commit.execute([])?;
            Ok(())
        })
    }

    /// As `start`, with another way to commit events.
    pub(crate) fn spawn(
        streams: i64,
        commit: impl FnMut(&[BareEvent]) -> anyhow::Result<()> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (jobs, queue) = mpsc::channel(limits::OPERATOR_WRITE_QUEUE);
        let heads = vec![0; usize::try_from(streams)? + 1];
        let thread = std::thread::spawn(move || write(commit, queue, heads));
        Ok(Self { jobs, thread: Some(thread) })
    }

    pub(crate) fn appender(&self) -> Appender {
        Appender(self.jobs.clone())
    }

    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        let thread = self.thread.take();
        drop(self);
        if let Some(thread) = thread {
            thread.join().map_err(|_| anyhow::anyhow!("the bare loop panicked"))??;
        }
        Ok(())
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Appender(mpsc::Sender<Job>);

impl Appender {
    /// Appends events to a stream; returns when they are on the disk.
    pub(crate) async fn append(
        &self,
        stream: i64,
        data: Arc<str>,
        events: usize,
    ) -> anyhow::Result<i64> {
        let (reply, answer) = oneshot::channel();
        let job = Job { stream, data, events, reply };
        self.0.send(job).await.map_err(|_| anyhow::anyhow!("the bare loop is over"))?;
        Ok(answer.await?)
    }
}

fn write(
    mut commit: impl FnMut(&[BareEvent]) -> anyhow::Result<()>,
    mut queue: mpsc::Receiver<Job>,
    mut heads: Vec<i64>,
) -> anyhow::Result<()> {
    let mut replies = Vec::with_capacity(limits::JOBS_PER_COMMIT);
    let mut batch = Vec::with_capacity(limits::JOBS_PER_COMMIT);
    while let Some(first) = queue.blocking_recv() {
        let mut next = Some(first);
        while let Some(Job { stream, data, events, reply }) = next {
            let head = &mut heads[usize::try_from(stream).unwrap_or(0)];
            for _ in 0..events {
                *head += 1;
                batch.push((stream, *head, Arc::clone(&data)));
            }
            replies.push((reply, *head));
            next =
                if replies.len() < limits::JOBS_PER_COMMIT { queue.try_recv().ok() } else { None };
        }
        commit(&batch)?;
        batch.clear();
        for (reply, seq) in replies.drain(..) {
            reply.send(seq).ok();
        }
    }
    Ok(())
}

/// Reads a whole stream and copies each row's text. Returns the number of rows and the duration.
pub(crate) fn read_stream(path: &Path, stream: &str) -> anyhow::Result<(u64, Duration)> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    settings(&connection)?;
    let id: i64 =
        connection.query_row("select id from stream where name = ?", [stream], |row| row.get(0))?;
    let mut select = connection
        .prepare("select seq, kind, data, at from event where stream_id = ? order by seq")?;
    let begun = Instant::now();
    let mut rows = select.query([id])?;
    let (mut count, mut check) = (0, 0);
    let mut page = Vec::with_capacity(limits::CHUNK_BYTES);
    while let Some(row) = rows.next()? {
        let (seq, at): (i64, i64) = (row.get(0)?, row.get(3)?);
        check ^= seq ^ at;
        if page.len() >= limits::CHUNK_BYTES {
            std::hint::black_box(&page);
            page.clear();
        }
        page.extend_from_slice(row.get_ref(1)?.as_bytes()?);
        page.extend_from_slice(row.get_ref(2)?.as_bytes()?);
        count += 1;
    }
    std::hint::black_box((check, &page));
    Ok((count, begun.elapsed()))
}

fn settings(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "temp_store", "memory")?;
    connection.busy_timeout(limits::BUSY_TIMEOUT)
}

pub(crate) fn data() -> Arc<str> {
    format!("{{\"line\":\"{}\"}}", "x".repeat(DATA_BYTES - 11)).into()
}

pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    let threads = worker_threads();
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?)
}
