//! Cache of recent reads. A read costs several hand-overs to a thread of the store; agents poll the
//! same things, so the result is served from here until the next commit.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde::Serialize;
use svc_model::{json_bytes, limits};
use svc_store::Store;

use super::Error;

/// Results of one kind of read, by key. All of them are from one version of the database.
#[derive(Debug)]
pub(super) struct ReadCache<V>(Mutex<Known<V>>);

#[derive(Debug)]
struct Known<V> {
    version: u64,
    results: HashMap<String, Arc<V>>,
    /// Approximate memory of the results.
    bytes: usize,
}

impl<V> Default for ReadCache<V> {
    fn default() -> Self {
        Self(Mutex::new(Known { version: 0, results: HashMap::new(), bytes: 0 }))
    }
}

impl<V: Serialize + Send + Sync> ReadCache<V> {
    /// The result of `read` for `key`, from the cache if nothing was committed since. The result
    /// must depend on the key and on the database alone. Errors are not cached.
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
        // Boxed: a hit does not carry the future of a query.
        let result = Arc::new(Box::pin(read()).await?);
        // The version is the same before and after, so no commit was visible in between and the
        // result is of that version.
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
        // Another reader may have stored a later version.
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

/// Approximate memory of a result, with its entry in the table.
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

    /// The head of the stream; `read` counts the reads that reached the database.
    async fn head(reads: &ReadCache<i64>, store: &Store, read: &AtomicU32) -> i64 {
        let look = async || {
            read.fetch_add(1, Relaxed);
            let view = store.streams().view(&name()).await.map_err(Error::from)?;
            Ok(view.map_or(0, |view| view.head))
        };
        *reads.get(store, 0, look).await.unwrap()
    }

    #[tokio::test]
    async fn a_read_between_two_commits_is_served_from_the_cache() {
        let test = TestStore::open().await;
        let (store, reads, read) = (&test.store, ReadCache::default(), AtomicU32::new(0));
        append(store, &name(), vec![event("frame", "{}")]).await;
        for _ in 0..3 {
            assert_eq!(head(&reads, store, &read).await, 1);
        }
        assert_eq!(read.load(Relaxed), 1);
        append(store, &name(), vec![event("frame", "{}")]).await;
        assert_eq!(head(&reads, store, &read).await, 2);
        // A failed write is no commit.
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
    async fn a_cached_read_is_never_older_than_an_acknowledged_commit() {
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
    async fn the_cache_stays_within_its_bound_of_bytes() {
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
