//! Durable appends. `append-inproc`: through `Store::append`; the baseline is a bare group commit.
//! `append-http`: over HTTP; the baseline is an axum handler that only reads the body. `check-in`:
//! tool calls that the journal counts; the baseline is plain appends.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use svc_core::service::{ServiceSettings, Services, Tokens, Tuning, team::ActingSession};
use svc_model::{Caller, Ids, NewEvent, StreamName, StreamVisibility, SystemClock, limits};
use svc_store::{OpenOptions, Store, StoreError, Writer};
use tokio::{runtime::Runtime, task::JoinSet};

use super::{
    bench::{Bench, WindowOf},
    ceiling::{Appender, GroupCommit, STREAMS, data, runtime},
    daemon::{self, Daemon},
    load::{self, Load, Protocol},
    report::{Goal, Slice, Window},
    sandbox::Process,
    server::{Kind, Server},
};

pub(crate) const BATCH: usize = 64;

pub(crate) fn run_inproc(bench: &mut Bench) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let (store, writer) = open(&runtime, bench, "inproc")?;
    let names = make_streams(&runtime, &store)?;
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
        let (names, event) = (Arc::clone(&names), event.clone());
        let ours = Ours { store: store.clone(), names, event, events };
        let bare = Bare { appender: group.appender(), data: Arc::clone(&data), events };
        let figure = bench.in_turns(
            (&name, "events/s", events as u64),
            |bench| runtime.block_on(produce(producers, bench.window(), ours.clone())),
            ("bare group commit", |bench| {
                runtime.block_on(produce(producers, bench.window(), bare.clone()))
            }),
        )?;
        let least = if events == 1 { 0.95 } else { 0.75 };
        bench.add(figure.goal_if(producers >= 64, Goal::ratio(least)));
    }
    group.finish()?;
    runtime.block_on(writer.close(store))?;
    Ok(())
}

/// The name of a figure: `append/64`, or `append/64x16` for sixteen events per request.
pub(crate) fn name(what: &str, connections: usize, events: usize) -> String {
    match events {
        1 => format!("{what}/{connections}"),
        _ => format!("{what}/{connections}x{events}"),
    }
}

/// A bare group commit on the same tables.
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

pub(crate) fn open(
    runtime: &Runtime,
    bench: &Bench,
    name: &str,
) -> anyhow::Result<(Store, Writer)> {
    let path = bench.sandbox.path(&format!("{name}.db"));
    let options = OpenOptions::for_file(path)?;
    Ok(runtime.block_on(Store::open(&options, Arc::new(SystemClock)))?)
}

pub(crate) fn make_streams(
    runtime: &Runtime,
    store: &Store,
) -> Result<Arc<[StreamName]>, StoreError> {
    let names = (0..STREAMS).map(|number| StreamName::new("bench", number));
    let names: Arc<[StreamName]> = names.collect();
    let opened = Arc::clone(&names);
    let opening = store.write(move |tx| {
        Box::pin(async move {
            for name in opened.iter() {
                tx.streams().open(name, &StreamVisibility::for_daemon()).await?;
            }
            Ok::<_, StoreError>(())
        })
    });
    runtime.block_on(opening)?;
    Ok(names)
}

/// Appends an event to the stream with this number.
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

/// Lets `producers` append for a window; each waits for its acknowledgements.
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
    // A checkpoint or a late commit of this contender must end before the next contender begins.
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

const TASKS: usize = 100;

pub(crate) fn run_http(bench: &mut Bench) -> anyhow::Result<()> {
    let daemon = Daemon::start(&bench.sandbox, "append-http")?;
    let noop = Server::start(&bench.sandbox, Kind::Noop)?;
    let tasks = make_tasks(bench, &daemon)?;
    let path = format!("/v1/tasks/{}/events", tasks[0]);
    let levels: &[(usize, usize)] = if bench.quick {
        &[(1, 1), (64, 1), (64, 16)]
    } else {
        &[(1, 1), (8, 1), (64, 1), (256, 1), (64, 16), (64, BATCH)]
    };
    for (connections, events) in levels.iter().copied() {
        let name = name("append-http", connections, events);
        let figure = bench.in_turns(
            (&name, "events/s", events as u64),
            |bench| append(&daemon, &tasks, bench.window_of, connections, events),
            ("no-op handler", |bench| {
                let (process, address) = (&noop.process, noop.target.address);
                slice(bench.window_of, address, process, connections, |_| {
                    let request = noop.target.request("POST", &path, &daemon::body(events));
                    (Protocol::HTTP, vec![request])
                })
            }),
        )?;
        let is_goal = (connections, events) == (64, 1);
        bench.add(figure.goal_if(is_goal, Goal::ratio(0.5)));
    }
    compare_batches(bench, &daemon, &tasks)?;
    daemon.process.stop()
}

/// Large batches over HTTP; the baseline is a bare loop in this process with batches of the same
/// size.
fn compare_batches(bench: &mut Bench, daemon: &Daemon, tasks: &[String]) -> anyhow::Result<()> {
    const PRODUCERS: usize = 64;
    let runtime = runtime()?;
    let group = bare_loop(&runtime, bench, "append-http-bare")?;
    let name = format!("{} in process", name("append-http", PRODUCERS, BATCH));
    let bare = Bare { appender: group.appender(), data: data(), events: BATCH };
    let figure = bench.in_turns(
        (&name, "events/s", BATCH as u64),
        |bench| append(daemon, tasks, bench.window_of, PRODUCERS, BATCH),
        ("bare group commit", |bench| {
            runtime.block_on(produce(PRODUCERS, bench.window(), bare.clone()))
        }),
    )?;
    // The loop ends when its last appender is dropped.
    drop(bare);
    group.finish()?;
    bench.add(figure.goal(Goal::ratio(0.75)));
    Ok(())
}

pub(crate) fn make_tasks(bench: &Bench, daemon: &Daemon) -> anyhow::Result<Vec<String>> {
    (0..if bench.quick { 8 } else { TASKS }).map(|_| daemon.make_task()).collect()
}

/// One round of svc with `events` per request.
pub(crate) fn append(
    daemon: &Daemon,
    tasks: &[String],
    window_of: WindowOf,
    connections: usize,
    events: usize,
) -> anyhow::Result<Slice> {
    slice(window_of, daemon.target.address, &daemon.process, connections, |number| {
        let request = daemon.append_request(&tasks[number % tasks.len()], events);
        (Protocol::HTTP, vec![request])
    })
}

pub(crate) fn slice(
    (warm, measure): WindowOf,
    address: SocketAddr,
    process: &Process,
    connections: usize,
    speech: impl Fn(usize) -> (Protocol, Vec<Vec<u8>>) + Sync,
) -> anyhow::Result<Slice> {
    load::runtime()?.block_on(async {
        let mut load = Load::open(address, connections, &speech).await?;
        let window = Window::after(warm, measure);
        measured(process, window, load.run(window)).await
    })
}

/// Adds the process's CPU time to the count of a window.
pub(crate) async fn measured(
    process: &Process,
    window: Window,
    work: impl Future<Output = anyhow::Result<Slice>>,
) -> anyhow::Result<Slice> {
    let cpu = async {
        tokio::time::sleep_until(window.from.into()).await;
        let before = process.cpu();
        tokio::time::sleep_until(window.until.into()).await;
        process.cpu_since(before)
    };
    let (slice, cpu) = tokio::join!(work, cpu);
    Ok(Slice { cpu, ..slice? })
}

const CALLERS: usize = 64;
/// The goal: the share of the rate of plain appends.
const SHARE: f64 = 0.7;

pub(crate) fn run_check_in(bench: &mut Bench) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let (store, writer) = open(&runtime, bench, "check-in")?;
    let names = make_streams(&runtime, &store)?;
    let tokens = Tokens::open_or_make(&bench.sandbox.path("check-in.token"))?;
    let (clock, ids) = (Arc::new(SystemClock), Ids::random());
    let services = Services::new(
        store.clone(),
        clock,
        ids,
        Tuning::default(),
        tokens,
        ServiceSettings::default(),
    );
    let event = NewEvent { kind: "frame".into(), data: data(), producer_id: None };
    let plain = Ours { store: store.clone(), names, event, events: 1 };
    for (name, sessions) in [("sessions", STREAMS), ("one session", 1)] {
        let count = CheckIns { services: services.clone(), sessions };
        let figure = bench.in_turns(
            (&format!("check-in/{CALLERS} on {name}"), "calls/s", 1),
            |bench| runtime.block_on(produce(CALLERS, bench.window(), count.clone())),
            ("plain appends", |bench| {
                runtime.block_on(produce(CALLERS, bench.window(), plain.clone()))
            }),
        )?;
        bench.add(figure.goal(Goal::ratio(SHARE)));
    }
    drop((services, plain));
    runtime.block_on(writer.close(store))?;
    Ok(())
}

#[derive(Clone)]
struct CheckIns {
    services: Services,
    sessions: usize,
}

impl Append for CheckIns {
    async fn append(&self, stream: usize) -> anyhow::Result<()> {
        let session_id = format!("session-{}", stream % self.sessions);
        let session = ActingSession { session_id, agent_id: String::new() };
        let tool = Some("Bash".to_owned());
        let frequency = Some(limits::CHECK_IN);
        self.services.team.count_tool(&Caller::Operator, session, tool, frequency).await?;
        Ok(())
    }
}
