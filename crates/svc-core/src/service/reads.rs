//! Heavy reads (pages of lists, searches, and their rendering), and the cache of recent ones.
//!
//! Heavy reads run on threads outside the runtime, a few at a time, and no principal takes every
//! slot. So a heavy read delays no light read and no write, and no principal's reads keep those of
//! another waiting for more than a few of them.
//!
//! A read costs several hand-overs to a thread of the store. Agents poll the same lists, so the
//! cache serves a result until the next commit.

use std::{
    collections::HashMap,
    num::NonZero,
    panic::resume_unwind,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::available_parallelism,
};

use serde::Serialize;
use svc_model::{Principal, json_bytes, limits};
use svc_store::Store;
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
};

use super::Result;

/// Results of one kind of read, by key, all from the same version of the database.
#[derive(Debug)]
pub(super) struct ReadCache<V>(Mutex<Known<V>>);

#[derive(Debug)]
struct Known<V> {
    version: u64,
    results: HashMap<String, Arc<V>>,
    bytes: usize,
}

impl<V> Default for ReadCache<V> {
    fn default() -> Self {
        Self(Mutex::new(Known { version: 0, results: HashMap::new(), bytes: 0 }))
    }
}

impl<V: Serialize + Send + Sync> ReadCache<V> {
    /// The result of `read` for `key`, from the cache if nothing was committed since. The result
    /// must depend only on the key and the database. Errors are not cached.
    pub(super) async fn get<F: Future<Output = Result<V>> + Send>(
        &self,
        store: &Store,
        key: impl Serialize + Send,
        read: impl FnOnce() -> F + Send,
    ) -> Result<Arc<V>> {
        let key = serde_json::to_string(&key).expect("a key has a JSON form");
        let before = store.version();
        if let Some(version) = before
            && let Some(result) = self.known(version, &key)
        {
            return Ok(result);
        }
        // Boxed, so that a cache hit does not carry the future of a query.
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
        let known = lock(&self.0);
        known.results.get(key).filter(|_| known.version == version).cloned()
    }

    fn keep(&self, version: u64, key: String, result: &Arc<V>) {
        let bytes = key.len() + weight(&**result);
        let mut known = lock(&self.0);
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
}

/// Locks a mutex also after a panic of another holder: no holder leaves half a change.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn weight<V: Serialize>(result: &V) -> usize {
    const BESIDE: usize = 512;
    BESIDE + json_bytes(result)
}

/// Bounds the heavy reads that run at a time.
#[derive(Debug, Clone)]
pub(super) struct ReadScheduler {
    /// Slots for the reads of all principals, first come first served.
    all: Arc<Semaphore>,
    /// For each principal, how many of its reads may have or wait for a slot: one less than there
    /// are, so that some are left to others.
    own: Arc<Mutex<HashMap<Principal, Arc<Semaphore>>>>,
    most_of_one: usize,
}

/// Above this number of principals, those without a read are removed.
const PRINCIPALS: usize = 64;

/// A slot for one read, released on drop.
type ReadTurn = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Default for ReadScheduler {
    fn default() -> Self {
        let cores = available_parallelism().map_or(2, NonZero::get);
        Self::new(cores.clamp(2, 4))
    }
}

impl ReadScheduler {
    fn new(most: usize) -> Self {
        let all = Arc::new(Semaphore::new(most));
        Self { all, own: Arc::default(), most_of_one: most.saturating_sub(1).max(1) }
    }

    async fn take(&self, principal: &Principal) -> ReadTurn {
        let own = {
            let mut known = lock(&self.own);
            if known.len() > PRINCIPALS {
                known.retain(|_, own| Arc::strong_count(own) > 1);
            }
            let own = known.entry(principal.clone());
            Arc::clone(own.or_insert_with(|| Arc::new(Semaphore::new(self.most_of_one))))
        };
        let own = own.acquire_owned().await.expect("it is never closed");
        let slot = Arc::clone(&self.all).acquire_owned().await.expect("it is never closed");
        (slot, own)
    }

    /// Runs a read in the principal's turn, on a thread outside the runtime. A reader that is
    /// cancelled before its turn takes no turn; after that, the read runs to its end.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        principal: &Principal,
        read: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let turn = self.take(principal).await;
        let runtime = Handle::current();
        let reading = spawn_blocking(move || {
            let outcome = runtime.block_on(read);
            drop(turn);
            outcome
        });
        match reading.await {
            Ok(outcome) => outcome,
            // The task is never aborted: either it panicked, or the runtime is ending.
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => std::future::pending().await,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use futures_util::FutureExt as _;
    use svc_model::StreamName;
    use svc_store::{
        StoreError,
        testing::{TestStore, append, event},
    };

    use super::{super::Error, *};

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
        // A failed write does not count as a commit.
        let failed: Result<(), StoreError> =
            store.write(|_| Box::pin(async { Err(StoreError::NoStream) })).await;
        failed.unwrap_err();
        assert_eq!(head(&reads, store, &read).await, 2);
        let refused: Result<Arc<i64>> = reads
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
            let known = lock(&reads.0);
            assert!(known.bytes <= limits::READS_BYTES && known.results.len() < 8);
        }
        reads.get(store, 100, async || Ok("x".repeat(limits::READS_BYTES))).await.unwrap();
        assert!(!lock(&reads.0).results.contains_key("100"));
    }

    fn principal(key: &str) -> Principal {
        Principal::Session(key.into())
    }

    #[test]
    fn principals_take_turns_and_none_takes_every_slot() {
        let turns = ReadScheduler::new(2);
        let (greedy, other) = (principal("greedy"), principal("other"));
        let first = turns.take(&greedy).now_or_never().unwrap();
        let mut second = Box::pin(turns.take(&greedy));
        let mut third = Box::pin(turns.take(&greedy));
        assert!(second.as_mut().now_or_never().is_none(), "one of two is left to others");
        assert!(third.as_mut().now_or_never().is_none());
        // Another principal does not wait, although two reads of the first principal have waited
        // longer.
        let own = turns.take(&other).now_or_never().unwrap();
        let mut next = Box::pin(turns.take(&other));
        assert!(next.as_mut().now_or_never().is_none());
        drop(first);
        let second = second.as_mut().now_or_never().unwrap();
        drop(own);
        let next = next.as_mut().now_or_never().unwrap();
        assert!(third.as_mut().now_or_never().is_none());
        drop((second, next));
        assert!(third.as_mut().now_or_never().is_some());
    }

    #[tokio::test]
    async fn with_one_turn_principals_alternate() {
        let turns = ReadScheduler::new(1);
        let running = turns.take(&principal("greedy")).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut readers = Vec::new();
        for name in ["greedy", "greedy", "greedy", "other", "other"] {
            let (turns, order) = (turns.clone(), Arc::clone(&order));
            readers.push(tokio::spawn(async move {
                let turn = turns.take(&principal(name)).await;
                lock(&order).push(name);
                tokio::task::yield_now().await;
                drop(turn);
            }));
        }
        // All of them wait now.
        tokio::task::yield_now().await;
        drop(running);
        for reader in readers {
            reader.await.unwrap();
        }
        assert_eq!(*lock(&order), ["other", "greedy", "other", "greedy", "greedy"]);
    }

    #[test]
    fn a_cancelled_reader_takes_no_turn() {
        let turns = ReadScheduler::new(1);
        let (greedy, other) = (principal("greedy"), principal("other"));
        let running = turns.take(&greedy).now_or_never();
        let mut gone = Box::pin(turns.take(&greedy));
        let mut waiting = Box::pin(turns.take(&other));
        assert!(gone.as_mut().now_or_never().is_none());
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(gone);
        drop(running);
        assert!(waiting.as_mut().now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_read_runs_outside_the_runtime_and_its_panic_reaches_the_reader() {
        let turns = ReadScheduler::new(1);
        let own = std::thread::current().id();
        let read = async { std::thread::current().id() };
        assert_ne!(turns.run(&principal("a"), read).await, own);
        let one = principal("a");
        let failed = turns.run(&one, async { panic!("as a test wants") });
        let failed: Result<(), _> = std::panic::AssertUnwindSafe(failed).catch_unwind().await;
        failed.unwrap_err();
        assert_eq!(turns.run(&principal("b"), async { 7 }).await, 7, "the turn came back");
    }
}
