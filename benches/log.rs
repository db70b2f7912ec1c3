//! Small parts of the log, for a look at the cost of a change: a group of appends, the frames of a
//! commit, a page of a replay. `svc bench` measures the whole.

use std::{hint::black_box, sync::Arc, time::Duration};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use svc_model::{
    Clock, Event, Framing, NewEvent, StreamName, StreamVisibility, SystemClock, Timestamp,
};
use svc_store::{OpenOptions, Store, StoreError, Writer, render};
use tokio::runtime::Runtime;

const PRODUCERS: u64 = 64;

struct World {
    runtime: Runtime,
    store: Store,
    writer: Writer,
    // Removed when it is dropped, after the store is closed.
    _folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let runtime = Runtime::new().expect("a runtime");
        let path = folder.path().join("svc.db");
        let options = OpenOptions::for_file(path).expect("a machine");
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (store, writer) = runtime.block_on(Store::open(&options, clock)).expect("a store");
        let world = Self { runtime, store, writer, _folder: folder };
        let opened: Result<(), StoreError> = world.runtime.block_on(world.store.write(|tx| {
            Box::pin(
                async move { tx.streams().open(&name(), &StreamVisibility::Team).await.map(drop) },
            )
        }));
        opened.expect("a stream");
        world
    }

    fn close(self) {
        self.runtime.block_on(self.writer.close(self.store)).expect("a clean end");
    }
}

fn name() -> StreamName {
    StreamName::new("task", "bench")
}

fn event() -> NewEvent {
    let data = format!(r#"{{"line":"{}"}}"#, "x".repeat(188));
    NewEvent { kind: "frame".into(), data: data.into(), producer_id: None }
}

/// 64 producers at once, each waiting for the disk: one group, or two.
fn appends(c: &mut Criterion) {
    let world = World::new();
    let mut group = c.benchmark_group("log");
    group.throughput(Throughput::Elements(PRODUCERS)).measurement_time(Duration::from_secs(3));
    group.bench_function("append_64", |b| {
        b.to_async(&world.runtime).iter(|| {
            let appends = (0..PRODUCERS).map(|_| world.store.append(name(), vec![event()]));
            futures_util::future::join_all(appends)
        });
    });
    group.finish();
    world.close();
}

fn frames(c: &mut Criterion) {
    let events: Vec<Event> = (1..=64)
        .map(|seq| Event {
            position: seq,
            stream: name(),
            seq,
            kind: "frame".into(),
            data: event().data,
            at: Timestamp::from_millis(1_795_181_760_000),
        })
        .collect();
    let mut group = c.benchmark_group("log");
    group.throughput(Throughput::Elements(64));
    for (label, framing) in [("data", Framing::Data), ("item", Framing::ItemBySeq)] {
        group.bench_function(format!("frame_64_{label}"), |b| {
            b.iter(|| render(black_box(&events), framing));
        });
    }
    group.finish();
}

fn replay(c: &mut Criterion) {
    let world = World::new();
    let fill = world.store.append(name(), (0..20_000).map(|_| event()).collect());
    world.runtime.block_on(fill).expect("a full stream");
    let view = world
        .runtime
        .block_on(world.store.streams().view(&name()))
        .expect("a store")
        .expect("a stream");
    let mut group = c.benchmark_group("log");
    group.throughput(Throughput::Elements(256));
    group.bench_function("replay_page", |b| {
        let name = name();
        b.to_async(&world.runtime).iter(async || {
            let (pages, read) = tokio::sync::mpsc::channel(1);
            world
                .store
                .frames()
                .of_stream(view.id, &name, 4096, Framing::Data, pages)
                .await
                .map(|()| read)
        });
    });
    group.finish();
    world.close();
}

criterion_group!(benches, appends, frames, replay);
criterion_main!(benches);
