//! A store on a temporary file, for tests of this floor and of the one above.

use std::sync::Arc;

use super::{OpenOptions, Store, StoreError, Writer};
use crate::domain::{Clock, ManualClock, NewEvent, StreamName, Timestamp};

pub(crate) struct TestStore {
    pub(crate) store: Store,
    pub(crate) clock: Arc<ManualClock>,
    writer: Writer,
    folder: tempfile::TempDir,
}

impl TestStore {
    pub(crate) async fn open() -> Self {
        Self::at(tempfile::tempdir().unwrap(), Arc::new(ManualClock::new(Timestamp::from_millis(1_000)))).await
    }

    async fn at(folder: tempfile::TempDir, clock: Arc<ManualClock>) -> Self {
        let options =
            OpenOptions { path: folder.path().join("svc.db"), max_bytes: None, migrate: true };
        let shared: Arc<dyn Clock> = Arc::clone(&clock) as _;
        let (store, writer) = Store::open(&options, shared).await.unwrap();
        Self { store, clock, writer, folder }
    }

    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Closes and opens again.
    pub(crate) async fn restart(self) -> Self {
        self.writer.close(self.store).await.unwrap();
        Self::at(self.folder, self.clock).await
    }
}

pub(crate) fn event(kind: &str, data: &str) -> NewEvent {
    NewEvent { kind: kind.into(), data: data.into(), producer_id: None }
}

/// Appends to a stream, which is made if it is new.
pub(crate) async fn append(store: &Store, name: &StreamName, events: Vec<NewEvent>) {
    let name = name.clone();
    let done: Result<(), StoreError> = store
        .write(move |tx| {
            Box::pin(async move {
                tx.open_stream(&name).await?;
                tx.append(&name, events).await?;
                Ok(())
            })
        })
        .await;
    done.unwrap();
}
