//! State of the log: its size and counters, its maintenance, and the daemon's own stream.

use std::path::PathBuf;

use serde::Serialize;
use svc_model::{NewEvent, StreamName, StreamVisibility};
use svc_store::{LastBackup, ServerReport, StoreSize, WriterStats, last_backup};

use super::{Growth, Log};
use crate::service::Error;

#[derive(Debug, Clone)]
pub struct LogStatus {
    /// The database file, or the address of the server without its password.
    pub path: PathBuf,
    /// Sizes on disk, and the version of the schema.
    pub size: StoreSize,
    /// Bytes that the disk has left; `None` if the system does not tell.
    pub free: Option<u64>,
    /// `None` until the size is known of a day.
    pub growth: Option<Growth>,
    /// Position of the last event that retention removed.
    pub trimmed: i64,
    /// Position of the last event.
    pub head: i64,
    /// The server that has the rows; `None` of a file.
    pub server: Option<ServerReport>,
    /// Counters of the writer since the start of the daemon.
    pub writer: WriterStats,
    /// Write jobs that wait.
    pub queued: usize,
    /// Open subscriptions.
    pub subscribers: usize,
    /// The last backup that `svc backup` made.
    pub backup: Option<LastBackup>,
}

impl Log {
    /// Whether the server that has the rows does not answer.
    pub fn is_away(&self) -> bool {
        self.core.store.is_away()
    }

    pub async fn status(&self) -> Result<LogStatus, Error> {
        let store = &self.core.store;
        let size = store.upkeep().size().await?;
        let (trimmed, head) = store.events().bounds().await?;
        let free = svc_sys::disk::free_bytes(store.path());
        let growth = self.growth(size.database, free).await?;
        Ok(LogStatus {
            path: store.path().to_path_buf(),
            size,
            free,
            growth,
            trimmed,
            head,
            server: store.upkeep().server().await?,
            writer: store.stats(),
            queued: store.queued(),
            subscribers: store.bus().listeners(),
            backup: last_backup(store.path()),
        })
    }

    pub async fn append_daemon_event(
        &self,
        kind: &'static str,
        data: &(impl Serialize + Sync),
    ) -> Result<(), Error> {
        let event = NewEvent::new(kind, data);
        self.core
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let stream = StreamName::fixed(StreamName::DAEMON);
                    tx.streams().open(&stream, &StreamVisibility::for_daemon()).await?;
                    tx.append(&stream, vec![event]).await?;
                    Ok(())
                })
            })
            .await
    }

    /// Merges segments of the search indexes, in bounded jobs.
    pub async fn merge_indexes(&self) -> Result<(), Error> {
        self.core.store.upkeep().merge_indexes().await?;
        Ok(())
    }

    /// Counts the writes since the start of the daemon.
    pub fn writes(&self) -> u64 {
        self.core.store.stats().jobs
    }

    /// Frees the memory that earlier work has left in caches.
    pub async fn release_memory(&self) -> Result<(), Error> {
        self.core.store.upkeep().release_memory().await?;
        Ok(())
    }

    /// Checkpoints the write-ahead log.
    pub async fn checkpoint(&self) -> Result<(), Error> {
        self.core.store.upkeep().checkpoint().await?;
        Ok(())
    }
}
