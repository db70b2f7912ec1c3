//! How the log is: its size and counters, its maintenance, and the daemon's own stream.

use std::path::PathBuf;

use serde::Serialize;
use svc_model::{NewEvent, StreamName, StreamVisibility};
use svc_store::{LastBackup, StoreSize, WriterStats, last_backup};

use super::Log;
use crate::service::Error;

/// Size and counters of the log and its store.
#[derive(Debug, Clone)]
pub struct LogStatus {
    /// The database file.
    pub path: PathBuf,
    /// Sizes on the disk, and the version of the schema.
    pub size: StoreSize,
    /// Position of the last event that retention removed.
    pub trimmed: i64,
    /// Position of the last event.
    pub head: i64,
    /// Counters of the writer since the start.
    pub writer: WriterStats,
    /// Write jobs that wait.
    pub queued: usize,
    /// Open subscriptions.
    pub subscribers: usize,
    /// The last backup that `svc backup` made.
    pub backup: Option<LastBackup>,
}

impl Log {
    /// Size and counters at present.
    pub async fn status(&self) -> Result<LogStatus, Error> {
        let store = &self.core.store;
        let size = store.upkeep().size().await?;
        let (trimmed, head) = store.events().bounds().await?;
        Ok(LogStatus {
            path: store.path().to_path_buf(),
            size,
            trimmed,
            head,
            writer: store.stats(),
            queued: store.queued(),
            subscribers: store.bus().listeners(),
            backup: last_backup(store.path()),
        })
    }

    /// Appends to the daemon's own stream.
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

    /// Merges the pieces of the search indexes, in bounded jobs.
    pub async fn merge_indexes(&self) -> Result<(), Error> {
        self.core.store.upkeep().merge_indexes().await?;
        Ok(())
    }

    /// Cuts back what the store keeps beside its rows.
    pub async fn checkpoint(&self) -> Result<(), Error> {
        self.core.store.upkeep().checkpoint().await?;
        Ok(())
    }
}
