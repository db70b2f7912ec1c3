//! The writer under jobs that fail, panic, repeat themselves or lose their caller.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use futures_util::{FutureExt as _, future};
use svc_model::{NewEvent, Principal, Seq, StreamName, StreamVisibility, limits};
use tokio::sync::oneshot;

use crate::{
    ListenerRead, Result, Store, StoreError, WriteQueueKey, WriteTx,
    testing::{TestStore, append, event},
};

fn name() -> StreamName {
    StreamName::new("task", "t")
}

async fn seqs(store: &Store) -> Vec<Seq> {
    let view = store.streams().view(&name()).await.unwrap().unwrap();
    let events = store
        .events()
        .of_stream(view.id, &name(), 0, None, crate::PageSize::rows(10_000))
        .await
        .unwrap()
        .rows;
    events.iter().map(|event| event.seq).collect()
}

/// The changes of a job that is to be rolled back: a row, an append, a new stream, and a closed
/// stream.
async fn write_changes_to_roll_back(tx: &mut WriteTx) -> Result<()> {
    tx.settings().put("spoilt", "").await?;
    let other = StreamName::new("task", "spoilt");
    tx.streams().open(&other, &StreamVisibility::Team).await?;
    tx.append(&other, vec![event("frame", "{}")]).await?;
    tx.append(&name(), vec![event("frame", "{}"), event("frame", "{}")]).await?;
    tx.streams().close(&name()).await
}

#[tokio::test]
async fn a_principal_with_many_writes_does_not_delay_others() {
    let test = TestStore::open().await;
    // The first job blocks the writer until the others queue: otherwise the writer's thread would
    // take each job at once.
    let (entered, busy) = oneshot::channel();
    let (open, opened) = oneshot::channel();
    let held = test.store.write(job!(|_| {
        entered.send(()).unwrap();
        opened.await.map_err(|_| StoreError::Stopped)
    }));
    let order = Arc::new(Mutex::new(Vec::new()));
    let write = |queue_key: WriteQueueKey, name: &'static str| {
        let (store, order) = (test.store.clone(), Arc::clone(&order));
        async move {
            let done: Result<()> = store
                .writes_in(queue_key)
                .write(job!(|_| {
                    order.lock().unwrap().push(name);
                    Ok(())
                }))
                .await;
            done.unwrap();
        }
    };
    let queue_key = |key: &str| WriteQueueKey::for_principal(&Principal::Session(key.into()));
    let flood = |count| (0..count).map(|_| write(queue_key("greedy"), "greedy"));
    let others = [write(queue_key("other"), "other"), write(WriteQueueKey::DAEMON, "operator")];
    // More jobs than the capacity of one queue: the last ones wait for capacity.
    let writes = flood(10).chain(others).chain(flood(limits::SESSION_WRITE_QUEUE));
    let queue_all = async {
        busy.await.unwrap();
        let release = async { open.send(()).unwrap() };
        future::join(future::join_all(writes), release).await
    };
    let (released, _) = future::join(held, queue_all).await;
    released.unwrap();
    let order = order.lock().unwrap();
    assert_eq!(order[..3], ["greedy", "other", "operator"], "one job of each queue in turn");
    assert_eq!(order.len(), limits::SESSION_WRITE_QUEUE + 12, "every job is committed");
    assert_eq!(test.store.queued(), 0);
}

#[tokio::test]
async fn a_failed_or_panicked_job_rolls_back_only_itself_and_no_job_runs_twice() {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let test = TestStore::open().await;
    let store = &test.store;
    append(store, &name(), vec![event("frame", "{}")]).await;
    let before = store.stats().commits;
    // Queued together, so that they share commits.
    let jobs = (0..50).map(|number: usize| async move {
        let kind = number % 5;
        if kind == 0 {
            return store.append(name(), vec![event("frame", "{}")]).await.is_ok();
        }
        let done: Result<()> = store
            .write(job!(|tx| {
                RUNS.fetch_add(1, Relaxed);
                tx.append(&name(), vec![event("frame", "{}")]).await?;
                match kind {
                    1 => return tx.settings().put(&number.to_string(), "").await,
                    // It has written no row.
                    2 => return Err(StoreError::NoStream),
                    _ => write_changes_to_roll_back(tx).await?,
                }
                assert_eq!(kind, 3, "a job that panics on purpose");
                Err(StoreError::NoStream)
            }))
            .await;
        match kind {
            1 => done.is_ok(),
            4 => matches!(done, Err(StoreError::Panicked)),
            _ => matches!(done, Err(StoreError::NoStream)),
        }
    });
    let outcomes = future::join_all(jobs).await;
    assert!(outcomes.iter().all(|&as_expected| as_expected), "{outcomes:?}");
    assert_eq!(RUNS.load(Relaxed), 40);
    let commits = store.stats().commits - before;
    assert!(commits < 50, "the jobs shared commits: {commits}");
    assert_eq!(store.stats().failures, 0, "the failure of a job does not count as a failed commit");
    assert_eq!(seqs(store).await, (1..=21).collect::<Vec<_>>());
    for number in 0..50 {
        let row = store.settings().get(&number.to_string()).await.unwrap();
        assert_eq!(row.is_some(), number % 5 == 1, "{number}");
    }
    let spoilt = store.streams().view(&StreamName::new("task", "spoilt")).await.unwrap();
    assert_eq!(spoilt, None);
    assert_eq!(store.settings().get("spoilt").await.unwrap(), None);
}

#[tokio::test]
async fn a_rolled_back_job_closes_no_stream_for_its_listeners() {
    let test = TestStore::open().await;
    let listener = test.store.bus().listen(&name());
    let failed: Result<()> = test
        .store
        .write(job!(|tx| {
            tx.streams().open(&name(), &StreamVisibility::Team).await?;
            tx.streams().close(&name()).await?;
            Err(StoreError::NoStream)
        }))
        .await;
    assert!(matches!(failed, Err(StoreError::NoStream)));
    // This commit is a later one, so the bus has been told of the first.
    append(&test.store, &name(), vec![event("frame", "{}")]).await;
    let heard = listener.read(1, usize::MAX);
    assert!(matches!(heard, ListenerRead::Nothing), "{heard:?}");
}

#[tokio::test]
async fn a_job_whose_caller_is_dropped_still_commits() {
    let test = TestStore::open().await;
    let store = &test.store;
    append(store, &name(), vec![event("frame", "{}")]).await;
    for _ in 0..50 {
        let one = store.append(name(), vec![event("frame", "{}"), event("frame", "{}")]);
        // Polled once, so that the job is queued, and dropped.
        drop(one.now_or_never());
    }
    store.append(name(), vec![event("frame", "{}")]).await.unwrap();
    assert_eq!(seqs(store).await, (1..=102).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_repeated_append_returns_the_first_seqs() {
    let test = TestStore::open().await;
    let store = &test.store;
    append(store, &name(), vec![event("frame", "{}")]).await;
    let with_id = |id: &str| NewEvent { producer_id: Some(id.into()), ..event("frame", "{}") };
    let appended = |ids: &[&str]| {
        let events: Vec<_> = ids.iter().map(|id| with_id(id)).collect();
        async move { store.append(name(), events).await.map(|it| (it.first, it.last)) }
    };
    assert_eq!(appended(&["a", "b"]).await.unwrap(), (2, 3));
    assert_eq!(appended(&["a", "b"]).await.unwrap(), (2, 3));
    assert_eq!(appended(&["b", "c"]).await.unwrap(), (3, 4));
    assert_eq!(appended(&["d", "d"]).await.unwrap(), (5, 5));
    // Concurrently, within one commit.
    let same = future::join_all((0..10).map(|_| appended(&["e"]))).await;
    assert!(same.iter().all(|it| it.as_ref().unwrap() == &(6, 6)));
    let closed: Result<()> = store.write(job!(|tx| tx.streams().close(&name()).await)).await;
    closed.unwrap();
    assert_eq!(appended(&["a", "e"]).await.unwrap(), (2, 6));
    assert!(matches!(appended(&["f"]).await, Err(StoreError::StreamClosed)));
    assert!(matches!(appended(&["a", "f"]).await, Err(StoreError::StreamClosed)));
    let test = test.restart().await;
    assert_eq!(seqs(&test.store).await, (1..=6).collect::<Vec<_>>());
}

#[tokio::test]
async fn large_appends_use_several_statements_and_one_commit() {
    let test = TestStore::open().await;
    let store = &test.store;
    append(store, &name(), vec![event("frame", "{}")]).await;
    let many = |n: usize| (0..n).map(|_| event("frame", "{}")).collect::<Vec<_>>();
    let jobs = [1, 2, 3, 511, 512, 513, 1000, 1024, 1025, 2049]
        .map(|n| async move { store.append(name(), many(n)).await.unwrap() });
    let appended = future::join_all(jobs).await;
    let mut end = 1;
    for seqs_of_job in appended {
        assert_eq!(seqs_of_job.first, end + 1, "appends of one producer stay in order");
        end = seqs_of_job.last;
    }
    assert_eq!(seqs(store).await, (1..=end).collect::<Vec<_>>());
    assert_eq!(store.events().bounds().await.unwrap().1, end);
}
