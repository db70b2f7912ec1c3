//! `append-inproc`: durable appends through `Store::append`; the baseline is a bare group commit.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use svc_model::{NewEvent, StreamName, StreamVisibility, SystemClock};
use svc_server::daemon::worker_threads;
use svc_store::{OpenOptions, Store, StoreError, Writer};
use tokio::{runtime::Runtime, task::JoinSet};

use crate::{
    bench::Bench,
    ceiling::{Appender, GroupCommit},
    daemon::DATA_BYTES,
    report::{Figure, Goal},
    stats::{self, Slice, Summary, Window},
};

/// Events of a large batch.
pub(crate) const BATCH: usize = 64;

/// Streams that producers use in turn.
pub(crate) const STREAMS: usize = 100;

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let (store, writer) = open(&runtime, bench, "inproc")?;
    let names: Arc<[StreamName]> =
        (0..STREAMS).map(|number| StreamName::new("bench", number)).collect();
    runtime.block_on(make_streams(&store, &names))?;
    let group = bare_loop(&runtime, bench, "bare")?;
    let data = data();
    let event = NewEvent { kind: "frame".into(), data: Arc::clone(&data), producer_id: None };
    let levels: &[(usize, usize)] = if bench.quick {
        &[(1, 1), (64, 1), (64, BATCH)]
    } else {
        &[(1, 1), (8, 1), (64, 1), (256, 1), (64, BATCH)]
    };
    for (producers, events) in levels.iter().copied() {
        let name = name("append-inproc", producers, events);
        let (mut ours, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..bench.rounds {
            bench.begin_round(&name)?;
            let append = Ours {
                store: store.clone(),
                names: Arc::clone(&names),
                event: event.clone(),
                events,
            };
            ours.push(runtime.block_on(produce(producers, bench.window(), append))?);
            let append = Bare { appender: group.appender(), data: Arc::clone(&data), events };
            beside.push(runtime.block_on(produce(producers, bench.window(), append))?);
        }
        let weight = events as u64;
        let figure = Figure::summed(name, "events/s", Summary::from_rounds(&ours, weight)).beside(
            "bare group commit",
            Summary::from_rounds(&beside, weight),
            stats::ratio(&ours, &beside),
        );
        let least = if events == 1 { 0.95 } else { 0.75 };
        bench.add(figure.goal_if(producers >= 64, Goal::ratio(least)));
    }
    group.finish()?;
    runtime.block_on(writer.close(store))?;
    Ok(())
}

/// `append/64`, and `append/64x16` for sixteen events in each request.
pub(crate) fn name(what: &str, connections: usize, events: usize) -> String {
    match events {
        1 => format!("{what}/{connections}"),
        _ => format!("{what}/{connections}x{events}"),
    }
}

/// A bare loop over the same tables.
pub(crate) fn bare_loop(
    runtime: &Runtime,
    bench: &Bench,
    name: &str,
) -> anyhow::Result<GroupCommit> {
    let (store, writer) = open(runtime, bench, name)?;
    let path = store.path().to_owned();
    runtime.block_on(writer.close(store))?;
    GroupCommit::start(&path, i64::try_from(STREAMS)?)
}

pub(crate) fn data() -> Arc<str> {
    format!("{{\"line\":\"{}\"}}", "x".repeat(DATA_BYTES - 11)).into()
}

pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    let threads = worker_threads();
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?)
}

pub(crate) fn open(
    runtime: &Runtime,
    bench: &Bench,
    name: &str,
) -> anyhow::Result<(Store, Writer)> {
    let path = bench.sandbox.path(&format!("{name}.db"));
    let options = OpenOptions::for_file(path)?;
    Ok(runtime.block_on(Store::open(&options, Arc::new(SystemClock)))?)
}

pub(crate) async fn make_streams(
    store: &Store,
    names: &Arc<[StreamName]>,
) -> Result<(), StoreError> {
    let names = Arc::clone(names);
    store
        .write(move |tx| {
            Box::pin(async move {
                for name in names.iter() {
                    tx.streams().open(name, &StreamVisibility::for_daemon()).await?;
                }
                Ok(())
            })
        })
        .await
}

/// Appends an event to the stream of a number.
pub(crate) trait Append: Clone + Send + 'static {
    fn append(&self, stream: usize) -> impl Future<Output = anyhow::Result<()>> + Send;
}

#[derive(Clone)]
pub(crate) struct Ours {
    pub(crate) store: Store,
    pub(crate) names: Arc<[StreamName]>,
    pub(crate) event: NewEvent,
    pub(crate) events: usize,
}

impl Append for Ours {
    async fn append(&self, stream: usize) -> anyhow::Result<()> {
        self.store
            .append(self.names[stream].clone(), vec![self.event.clone(); self.events])
            .await?;
        Ok(())
    }
}

#[derive(Clone)]
pub(crate) struct Bare {
    pub(crate) appender: Appender,
    pub(crate) data: Arc<str>,
    pub(crate) events: usize,
}

impl Append for Bare {
    async fn append(&self, stream: usize) -> anyhow::Result<()> {
        let data = Arc::clone(&self.data);
        self.appender.append(i64::try_from(stream)? + 1, data, self.events).await?;
        Ok(())
    }
}

/// Lets `producers` append for a window, each waiting for its acknowledgements.
pub(crate) async fn produce(
    producers: usize,
    window: Window,
    append: impl Append,
) -> anyhow::Result<Slice> {
    let mut tasks = JoinSet::new();
    for number in 0..producers {
        tasks.spawn(producer(number, window, append.clone()));
    }
    let mut slice = Slice { length: window.length(), ..Slice::default() };
    while let Some(done) = tasks.join_next().await {
        slice.join(done.context("a producer panicked")??);
    }
    // Lets a checkpoint or a late commit of this contender end before the next one begins.
    tokio::time::sleep(Duration::from_millis(10)).await;
    Ok(slice)
}

async fn producer(number: usize, window: Window, append: impl Append) -> anyhow::Result<Slice> {
    let mut slice = Slice::default();
    let mut stream = number % STREAMS;
    let mut begun = Instant::now();
    loop {
        append.append(stream).await?;
        stream = (stream + 1) % STREAMS;
        let now = Instant::now();
        if now >= window.until {
            return Ok(slice);
        }
        if now >= window.from {
            slice.add(now - begun);
        }
        begun = now;
    }
}
