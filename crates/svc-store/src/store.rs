//! Opening and closing the database, and access to it: [`Store::write`], [`Store::append`], the
//! readers.

use std::{path::Path, sync::Arc};

use futures_util::future::BoxFuture;
use sqlx::{ConnectOptions as _, Connection as _};
use svc_model::{Caller, Clock, Machine, MachineId, NewEvent, StreamName, Timestamp, limits};
use svc_sys::machine::ThisMachine;
use tokio::{runtime::Handle, sync::oneshot};

use crate::{
    AppendedSeqs, Bus, MigrateError, OpenOptions, PostgresOptions, Result, StoreError,
    StoreTrouble, WriteQueueKey, WriterStats, boxed,
    bus::Version,
    readers::{FileReaders, ReadSource, Readers},
    sqlite::{
        direct_connection::{DirectConnection, ReadConnections},
        file::writer_options,
        migrate,
    },
    tx::{WriteConnection, WriteTx},
    writer::{ClosureJob, WriteQueueSender, WriterCounters, WriterJob, WriterThread},
};

/// The database. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    jobs: Arc<WriteQueueSender>,
    pub(super) readers: Readers,
    bus: Arc<Bus>,
    counters: Arc<WriterCounters>,
    version: Arc<Version>,
    path: Arc<Path>,
    machine: Arc<ThisMachine>,
}

/// The writer's thread, whose end [`Self::close`] awaits.
#[derive(Debug)]
pub struct Writer(oneshot::Receiver<WriteTx>);

impl Store {
    /// Opens the file and, if asked, migrates it to our version. The caller holds the database's
    /// lock.
    ///
    /// A database with data is copied to `<file>.bak-<version>` before a migration changes it.
    #[boxed(?Send)]
    pub async fn open(
        options: &OpenOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, Writer), MigrateError> {
        let mut conn = writer_options(&options.path)?.connect().await?;
        let migrations = migrate::inspect(&mut conn).await?;
        if !options.migrate && !migrations.pending.is_empty() {
            return Err(MigrateError::Pending(migrations.pending.len()));
        }
        migrate::apply_with_backup(&migrations, &mut conn, &options.path).await?;
        // Opened before `conn` is closed: closing the last connection would checkpoint and remove
        // the write-ahead log.
        let direct = DirectConnection::open(&options.path, options.max_bytes)?;
        let path: Arc<Path> = options.path.as_path().into();
        let readers = Readers::Sqlite(FileReaders {
            rows: ReadConnections::new(Arc::clone(&path), None),
            frames: ReadConnections::new(Arc::clone(&path), Some(limits::REPLAY_CACHE_KIB)),
        });
        let direct = WriteConnection::Sqlite(direct);
        let store = Self::start(direct, readers, path, &options.machine, clock).await?;
        conn.close().await?;
        Ok(store)
    }

    /// Opens a database of PostgreSQL and, if asked, migrates it to our version.
    ///
    /// # Errors
    /// [`MigrateError::Refused`] if the server does not meet the store's requirements, and in a
    /// program without PostgreSQL; [`MigrateError::InUse`] if another daemon has the database.
    #[cfg(feature = "postgres")]
    #[boxed(?Send)]
    pub async fn open_postgres(
        options: &PostgresOptions,
        machine: &ThisMachine,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, Writer), MigrateError> {
        let (writer, readers) = crate::postgres::open(options).await?;
        let direct = WriteConnection::Postgres(Box::new(writer));
        let path = Path::new(&options.url.shown()).into();
        Ok(Self::start(direct, Readers::Postgres(readers), path, machine, clock).await?)
    }

    #[cfg(not(feature = "postgres"))]
    #[boxed(?Send)]
    pub async fn open_postgres(
        _options: &PostgresOptions,
        _machine: &ThisMachine,
        _clock: Arc<dyn Clock>,
    ) -> Result<(Self, Writer), MigrateError> {
        Err(crate::postgres::refused())
    }

    async fn start(
        direct: WriteConnection,
        readers: Readers,
        path: Arc<Path>,
        machine: &ThisMachine,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, Writer)> {
        let machine = Arc::new(machine.clone());
        let bus = Bus::new();
        let (counters, version) =
            (Arc::new(WriterCounters::default()), Arc::new(Version::default()));
        let mut tx = WriteTx {
            direct,
            bus: Arc::clone(&bus),
            streams: std::collections::HashMap::new(),
            pending: Vec::new(),
            changes: Vec::new(),
            position: 0,
            undo: Vec::new(),
            now: Timestamp::from_millis(0),
            machine: machine.machine.machine_id.clone(),
        };
        tx.reset().await?;
        bus.begin_after(tx.position);
        readers.follow(&bus, &version);
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
        let store = Self { jobs, readers, bus, counters, version, path, machine };
        let this = (*store.machine).clone();
        store.write(job!(|tx| tx.machines().enter(&this).await)).await?;
        Ok((store, Writer(ended)))
    }

    pub fn on_behalf_of(&self, caller: &Caller) -> PrincipalWrites<'_> {
        self.writes_in(WriteQueueKey::of_caller(caller))
    }

    pub(super) fn writes_in(&self, queue_key: WriteQueueKey) -> PrincipalWrites<'_> {
        PrincipalWrites { store: self, queue_key }
    }

    /// A write of the daemon's own, see [`PrincipalWrites::write`]. Writes of a caller use
    /// [`Self::on_behalf_of`].
    pub fn write<T, E, F>(&self, work: F) -> impl Future<Output = Result<T, E>>
    where
        F: for<'tx> FnOnce(&'tx mut WriteTx) -> BoxFuture<'tx, Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.writes_in(WriteQueueKey::DAEMON).write(work)
    }

    /// An append of the daemon's own, see [`PrincipalWrites::append`].
    pub fn append(
        &self,
        stream: StreamName,
        events: Vec<NewEvent>,
    ) -> impl Future<Output = Result<AppendedSeqs>> {
        self.writes_in(WriteQueueKey::DAEMON).append(stream, events)
    }

    /// For queries of few rows by an index.
    pub(super) fn near(&self) -> ReadSource<'_> {
        ReadSource { readers: &self.readers, is_near: true }
    }

    pub(super) fn pool(&self) -> ReadSource<'_> {
        ReadSource { readers: &self.readers, is_near: false }
    }

    pub fn bus(&self) -> &Arc<Bus> {
        &self.bus
    }

    pub fn stats(&self) -> WriterStats {
        *self.counters.lock()
    }

    /// Number of the database's state: reads with the same number return the same result. `None`
    /// while a commit is under way, and while the server does not notify us of commits of other
    /// connections.
    pub fn version(&self) -> Option<u64> {
        self.version.settled()
    }

    /// Why the database server takes no writes at present; always `None` for a file.
    pub fn trouble(&self) -> Option<StoreTrouble> {
        self.readers.trouble()
    }

    /// Waits until another daemon has taken the database from this one and has left it again.
    /// Nothing is written through this store any more then: the daemon must open it anew.
    pub async fn released(&self) {
        self.readers.released().await;
    }

    /// Whether the database is a file, which one daemon opens at a time.
    pub fn is_file(&self) -> bool {
        self.readers.file().is_some()
    }

    pub fn queued(&self) -> usize {
        self.jobs.queued()
    }

    /// Path of the file, or the server's address without the password.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn machine(&self) -> &Machine {
        &self.machine.machine
    }

    pub(super) fn machine_id(&self) -> &MachineId {
        &self.machine.machine.machine_id
    }
}

/// Writes that queue for one principal. The writer takes jobs of principals in turn, so no
/// principal waits behind all jobs of another.
#[derive(Debug)]
pub struct PrincipalWrites<'a> {
    store: &'a Store,
    queue_key: WriteQueueKey,
}

impl PrincipalWrites<'_> {
    /// Runs `work` in a write transaction, and answers when the disk has the commit.
    ///
    /// The job runs to its end even if the caller's future is dropped. If the job fails, all its
    /// changes are rolled back; other jobs of the same commit are unaffected.
    pub fn write<T, E, F>(self, work: F) -> impl Future<Output = Result<T, E>>
    where
        F: for<'tx> FnOnce(&'tx mut WriteTx) -> BoxFuture<'tx, Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job = WriterJob::Run(Box::new(ClosureJob { work: Some(work), outcome: None, reply }));
        self.run(job, answer)
    }

    /// Apart, so that it exists once for each type of an outcome and not for each job.
    async fn run<T, E: From<StoreError>>(
        self,
        job: WriterJob,
        answer: oneshot::Receiver<Result<T, E>>,
    ) -> Result<T, E> {
        self.store.jobs.send(&self.queue_key, job).await?;
        answer.await.map_err(|_| StoreError::Stopped)?
    }

    /// Appends `events` to an open stream, and answers when the disk has the commit.
    ///
    /// # Errors
    /// [`StoreError::NoStream`], [`StoreError::StreamClosed`], or an error of the database.
    ///
    /// # Panics
    /// If `events` is empty.
    pub async fn append(self, stream: StreamName, events: Vec<NewEvent>) -> Result<AppendedSeqs> {
        assert!(!events.is_empty(), "an append has at least one event");
        let (reply, answer) = oneshot::channel();
        self.store.jobs.send(&self.queue_key, WriterJob::Append { stream, events, reply }).await?;
        answer.await.map_err(|_| StoreError::Stopped)?
    }
}

impl Writer {
    /// Runs the queued jobs, checkpoints the write-ahead log and closes the database. Clones of the
    /// store may still exist; their writes return [`StoreError::Stopped`].
    #[boxed(?Send)]
    pub async fn close(self, store: Store) -> Result<()> {
        let Store { jobs, readers, .. } = store;
        // Clones of the store may still exist, so a job closes the queue.
        let (reply, closed) = oneshot::channel();
        jobs.send(&WriteQueueKey::DAEMON, WriterJob::Stop { reply }).await?;
        closed.await.map_err(|_| StoreError::Stopped)?;
        readers.close().await;
        let tx = self.0.await.map_err(|_| StoreError::Panicked)?;
        // The disk has all commits, in the write-ahead log if not in the database. If the disk has
        // no space for a checkpoint, the next start does it.
        if let Err(error) = tx.direct.close().await {
            tracing::warn!(
                error = svc_sys::telemetry::chain(&error),
                "closed without a checkpoint"
            );
        }
        Ok(())
    }
}
