//! What was read lately. A read costs a few hand-overs to a thread of the store's; agents that look
//! at the same thing again and again, as they do, are told from here for as long as nothing was
//! written.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde::Serialize;
use svc_model::{json_bytes, limits};
use svc_store::Store;

use super::Error;

/// Results of one kind of read, by what was asked for. All of them are of one state of the
/// database.
#[derive(Debug)]
pub(super) struct ReadCache<V>(Mutex<Known<V>>);

#[derive(Debug)]
struct Known<V> {
    version: u64,
    results: HashMap<String, Arc<V>>,
    /// About what they take.
    bytes: usize,
}

impl<V> Default for ReadCache<V> {
    fn default() -> Self {
        Self(Mutex::new(Known { version: 0, results: HashMap::new(), bytes: 0 }))
    }
}

impl<V: Serialize + Send + Sync> ReadCache<V> {
    /// What `read` gives for `key`, or what it gave before if it would give the same now: it must
    /// depend on the key and on the database alone. A failure is not kept.
    pub(super) async fn get<F: Future<Output = Result<V, Error>> + Send>(
        &self,
        store: &Store,
        key: impl Serialize + Send,
        read: impl FnOnce() -> F + Send,
    ) -> Result<Arc<V>, Error> {
        let key = serde_json::to_string(&key).expect("a key has a JSON form");
        let before = store.version();
        if let Some(version) = before
            && let Some(result) = self.known(version, &key)
        {
            return Ok(result);
        }
        // Boxed: whoever is told from memory does not carry the room for a query about.
        let result = Arc::new(Box::pin(read()).await?);
        // The same number before and after: no commit could be seen in between, so it is of that
        // state and no other.
        if let Some(version) = before
            && store.version() == before
        {
            self.keep(version, key, &result);
        }
        Ok(result)
    }

    fn known(&self, version: u64, key: &str) -> Option<Arc<V>> {
        let known = self.lock();
        known.results.get(key).filter(|_| known.version == version).cloned()
    }

    fn keep(&self, version: u64, key: String, result: &Arc<V>) {
        let bytes = key.len() + weight(&**result);
        let mut known = self.lock();
        // Another reader may have seen a later state by now.
        if version < known.version {
            return;
        }
        if version > known.version || known.bytes + bytes > limits::READS_BYTES {
            *known = Known { version, results: HashMap::new(), bytes: 0 };
        }
        if bytes <= limits::READS_BYTES {
            known.bytes += bytes;
            known.results.insert(key, Arc::clone(result));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known<V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// About how much memory a result takes, with its place in the table.
fn weight<V: Serialize>(result: &V) -> usize {
    const BESIDE: usize = 512;
    BESIDE + json_bytes(result)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use svc_model::StreamName;
    use svc_store::{
        StoreError,
        testing::{TestStore, append, event},
    };

    use super::*;

    fn name() -> StreamName {
        StreamName::new("task", "t")
    }

    /// The head of the stream, and how often it was really read.
    async fn head(reads: &ReadCache<i64>, store: &Store, read: &AtomicU32) -> i64 {
        let look = async || {
            read.fetch_add(1, Relaxed);
            let view = store.streams().view(&name()).await.map_err(Error::from)?;
            Ok(view.map_or(0, |view| view.head))
        };
        *reads.get(store, 0, look).await.unwrap()
    }

    #[tokio::test]
    async fn one_read_between_two_commits() {
        let test = TestStore::open().await;
        let (store, reads, read) = (&test.store, ReadCache::default(), AtomicU32::new(0));
        append(store, &name(), vec![event("frame", "{}")]).await;
        for _ in 0..3 {
            assert_eq!(head(&reads, store, &read).await, 1);
        }
        assert_eq!(read.load(Relaxed), 1);
        append(store, &name(), vec![event("frame", "{}")]).await;
        assert_eq!(head(&reads, store, &read).await, 2);
        // One that failed is no commit, and does no harm.
        let failed: Result<(), StoreError> =
            store.write(|_| Box::pin(async { Err(StoreError::NoStream) })).await;
        failed.unwrap_err();
        assert_eq!(head(&reads, store, &read).await, 2);
        let refused: Result<Arc<i64>, Error> = reads
            .get(store, 7, async || {
                Err(Error::not_found(crate::service::ResourceKind::Memory, "7"))
            })
            .await;
        refused.unwrap_err();
        assert_eq!(*reads.get(store, 7, async || Ok(7)).await.unwrap(), 7);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nobody_is_told_less_than_was_acknowledged() {
        let test = TestStore::open().await;
        let store = &test.store;
        append(store, &name(), vec![event("frame", "{}")]).await;
        let (reads, acknowledged, told) =
            (ReadCache::default(), Arc::new(AtomicU32::new(1)), AtomicU32::new(0));
        let (writer, ours) = (store.clone(), Arc::clone(&acknowledged));
        let writing = tokio::spawn(async move {
            for _ in 0..300 {
                let places = writer.append(name(), vec![event("frame", "{}")]).await.unwrap();
                ours.store(u32::try_from(places.last).unwrap(), Relaxed);
                if places.last % 8 == 0 {
                    tokio::time::sleep(std::time::Duration::from_micros(300)).await;
                }
            }
        });
        let mut last = 0;
        while !writing.is_finished() {
            let least = i64::from(acknowledged.load(Relaxed));
            let seen = head(&reads, store, &told).await;
            assert!(seen >= least, "{seen} after {least} was acknowledged");
            assert!(seen >= last, "{seen} after {last} was told");
            last = seen;
            tokio::task::yield_now().await;
        }
        writing.await.unwrap();
        assert_eq!(head(&reads, store, &told).await, 301);
    }

    #[tokio::test]
    async fn it_takes_no_more_than_its_room() {
        let test = TestStore::open().await;
        let (store, reads) = (&test.store, ReadCache::default());
        let piece = "x".repeat(limits::READS_BYTES / 8);
        for number in 0..100 {
            let piece = piece.clone();
            reads.get(store, number, async || Ok(piece)).await.unwrap();
            let known = reads.lock();
            assert!(known.bytes <= limits::READS_BYTES && known.results.len() < 8);
        }
        reads.get(store, 100, async || Ok("x".repeat(limits::READS_BYTES))).await.unwrap();
        assert!(!reads.lock().results.contains_key("100"));
    }
}
