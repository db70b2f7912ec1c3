//! Opening and closing the database, and the doors to it: [`Store::write`], [`Store::append`], the
//! readers.

use std::{path::Path, sync::Arc};

use futures_util::future::BoxFuture;
use sqlx::{ConnectOptions as _, Connection as _, SqlitePool, sqlite::SqlitePoolOptions};
use svc_model::{Caller, Clock, NewEvent, StreamName, Timestamp, limits};
use tokio::{runtime::Handle, sync::oneshot, task::spawn_blocking};

use super::{
    connect::{reader_options, writer_options},
    direct_connection::DirectConnection,
    frame_readers::FrameReaders,
    migrate,
    row_readers::RowReaders,
    tx::WriteTx,
    version::Version,
    write_job::{ClosureJob, WriterJob},
    write_queue::WriteQueueSender,
    writer::{WriterCounters, WriterThread},
};
use crate::{AppendedSeqs, Bus, MigrateError, OpenOptions, StoreError, WriteLane, WriterStats};

/// The database. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    jobs: Arc<WriteQueueSender>,
    pub(super) readers: SqlitePool,
    /// For pages of lists: a connection reads no more than a row or two ahead, and no other read
    /// waits behind a page.
    pub(super) page_readers: SqlitePool,
    pub(super) frame_readers: Arc<FrameReaders>,
    pub(super) row_readers: Arc<RowReaders>,
    bus: Arc<Bus>,
    counters: Arc<WriterCounters>,
    version: Arc<Version>,
    path: Arc<Path>,
}

/// The writer's end, which whoever closes the store waits for.
#[derive(Debug)]
pub struct Writer(oneshot::Receiver<WriteTx>);

impl Store {
    /// Opens the file and, if asked, brings it to our version. The caller holds the database's
    /// lock.
    ///
    /// A database that has data is copied to `<file>.bak-<version>` before a migration touches it.
    pub async fn open(
        options: &OpenOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, Writer), MigrateError> {
        let mut conn = writer_options(&options.path)?.connect().await.map_err(StoreError::from)?;
        let migrations = migrate::inspect(&mut conn).await?;
        if !options.migrate && !migrations.pending.is_empty() {
            return Err(MigrateError::Pending(migrations.pending.len()));
        }
        migrate::apply_with_backup(&migrations, &mut conn, &options.path).await?;
        // Opened before the other is closed, which would empty the write-ahead log as the last.
        let direct = DirectConnection::open(&options.path, options.max_bytes)?;
        let store = Self::start(direct, &options.path, clock)?;
        conn.close().await.map_err(StoreError::from)?;
        Ok(store)
    }

    fn start(
        direct: DirectConnection,
        path: &Path,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, Writer), StoreError> {
        let bus = Bus::new();
        let (counters, version) =
            (Arc::new(WriterCounters::default()), Arc::new(Version::default()));
        let mut tx = WriteTx {
            direct,
            bus: Arc::clone(&bus),
            streams: std::collections::HashMap::new(),
            pending: Vec::new(),
            closing: Vec::new(),
            reseen: Vec::new(),
            position: 0,
            undo: Vec::new(),
            now: Timestamp::from_millis(0),
        };
        tx.reset()?;
        let pool = SqlitePoolOptions::new()
            .max_connections(limits::READERS)
            .min_connections(0)
            .idle_timeout(None)
            .max_lifetime(None)
            // A ping is a round trip to SQLite's thread, and a local file does not hang up.
            .test_before_acquire(false);
        let page_readers = pool.clone().connect_lazy_with(reader_options(path)?.row_buffer_size(1));
        let readers = pool.connect_lazy_with(reader_options(path)?);
        let (jobs, queue) = WriteQueueSender::open();
        let jobs = Arc::new(jobs);
        let writer = WriterThread {
            tx,
            jobs: queue,
            clock,
            counters: Arc::clone(&counters),
            version: Arc::clone(&version),
            runtime: Handle::current(),
        };
        let ended = writer.spawn()?;
        let path: Arc<Path> = path.into();
        let frame_readers = FrameReaders::new(Arc::clone(&path));
        let row_readers = RowReaders::new(Arc::clone(&path));
        let store = Self {
            jobs,
            readers,
            page_readers,
            frame_readers,
            row_readers,
            bus,
            counters,
            version,
            path,
        };
        Ok((store, Writer(ended)))
    }

    /// The writes of a caller, in the lane of its principal.
    pub fn on_behalf_of(&self, caller: &Caller) -> LaneWrites<'_> {
        self.writes_in(WriteLane::of_caller(caller))
    }

    pub(super) fn writes_in(&self, lane: WriteLane) -> LaneWrites<'_> {
        LaneWrites { store: self, lane }
    }

    /// A write of the daemon's own: see [`LaneWrites::write`]. That of a caller goes through
    /// [`Self::on_behalf_of`].
    pub async fn write<T, E, F>(&self, work: F) -> Result<T, E>
    where
        F: for<'tx> FnOnce(&'tx mut WriteTx) -> BoxFuture<'tx, Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.writes_in(WriteLane::DAEMON).write(work).await
    }

    /// An append of the daemon's own: see [`LaneWrites::append`].
    pub async fn append(
        &self,
        stream: StreamName,
        events: Vec<NewEvent>,
    ) -> Result<AppendedSeqs, StoreError> {
        self.writes_in(WriteLane::DAEMON).append(stream, events).await
    }

    /// Lets others have the thread from time to time: a read on the caller's own thread waits for
    /// nothing.
    pub(super) async fn take_turn(&self) {
        tokio::task::coop::consume_budget().await;
    }

    /// The channels that notify of commits.
    pub fn bus(&self) -> &Arc<Bus> {
        &self.bus
    }

    /// What the writer has done so far.
    pub fn stats(&self) -> WriterStats {
        self.counters.snapshot()
    }

    /// A number that stands for what readers see: as long as it is the same, so is every answer.
    /// `None` while that is about to change.
    pub fn version(&self) -> Option<u64> {
        self.version.settled()
    }

    /// Jobs that wait for the writer.
    pub fn queued(&self) -> usize {
        self.jobs.queued()
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Writes in one lane of the writer's queue: lanes take turns, so nobody waits behind all that
/// another has queued.
#[derive(Debug)]
pub struct LaneWrites<'a> {
    store: &'a Store,
    lane: WriteLane,
}

impl LaneWrites<'_> {
    /// Runs `work` in a write transaction, and answers when it is on the disk.
    ///
    /// The job runs to its end even if the caller's future is dropped. If it fails, nothing of it
    /// is kept, and the jobs that share its commit are not touched.
    pub async fn write<T, E, F>(self, work: F) -> Result<T, E>
    where
        F: for<'tx> FnOnce(&'tx mut WriteTx) -> BoxFuture<'tx, Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job = ClosureJob { work: Some(work), outcome: None, reply };
        self.store.jobs.send(&self.lane, WriterJob::Run(Box::new(job))).await?;
        answer.await.map_err(|_| StoreError::Stopped)?
    }

    /// Appends `events` to an open stream, and answers when they are on the disk.
    ///
    /// # Errors
    /// [`StoreError::NoStream`], [`StoreError::StreamClosed`], or the database's.
    ///
    /// # Panics
    /// If `events` is empty.
    pub async fn append(
        self,
        stream: StreamName,
        events: Vec<NewEvent>,
    ) -> Result<AppendedSeqs, StoreError> {
        assert!(!events.is_empty(), "an append has at least one event");
        let (reply, answer) = oneshot::channel();
        self.store.jobs.send(&self.lane, WriterJob::Append { stream, events, reply }).await?;
        answer.await.map_err(|_| StoreError::Stopped)?
    }
}

impl Writer {
    /// Finishes what is queued, empties the write-ahead log into the database and closes both. All
    /// clones of the store are gone by then, or their writes answer [`StoreError::Stopped`].
    pub async fn close(self, store: Store) -> Result<(), StoreError> {
        let Store { jobs, readers, page_readers, frame_readers, row_readers, .. } = store;
        // Clones of the store may still exist, so the writer gets a job that closes the channel.
        let (reply, closed) = oneshot::channel();
        jobs.send(&WriteLane::DAEMON, WriterJob::Stop { reply }).await?;
        closed.await.map_err(|_| StoreError::Stopped)?;
        readers.close().await;
        page_readers.close().await;
        frame_readers.close().await;
        row_readers.close();
        let tx = self.0.await.map_err(|_| StoreError::Panicked)?;
        // All is on the disk already, in the write-ahead log if not in the database. Where there is
        // no room to move it, the next start does.
        let closed = spawn_blocking(move || tx.direct.close()).await;
        if let Err(error) = closed.map_err(|_| StoreError::Panicked).flatten() {
            tracing::warn!(
                error = svc_sys::telemetry::chain(&error),
                "closed without a checkpoint"
            );
        }
        Ok(())
    }
}
