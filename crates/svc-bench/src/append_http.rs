//! `append-http`: durable appends over HTTP; the baseline is an axum handler that only reads the
//! body.

use std::net::SocketAddr;

use crate::{
    append_inproc::{self, BATCH, Bare, name, produce},
    bench::{Bench, WindowOf},
    daemon::{self, Daemon},
    load::{self, Load, Protocol},
    report::{Figure, Goal},
    sandbox::Process,
    server::{Kind, Server},
    stats::{self, Slice, Summary, Window},
};

const TASKS: usize = 100;

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
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
        let (mut ours, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..bench.rounds {
            bench.begin_round(&name)?;
            ours.push(append(&daemon, &tasks, bench.window_of, connections, events)?);
            let (process, address) = (&noop.process, noop.target.address);
            beside.push(slice(bench.window_of, address, process, connections, |_| {
                let request = noop.target.request("POST", &path, &daemon::body(events));
                (Protocol::HTTP, vec![request])
            })?);
        }
        let weight = events as u64;
        let beside_summary = Summary::from_rounds(&beside, weight);
        let figure = Figure::summed(name, "events/s", Summary::from_rounds(&ours, weight)).beside(
            "no-op handler",
            beside_summary,
            stats::ratio(&ours, &beside),
        );
        let is_goal = (connections, events) == (64, 1);
        bench.add(figure.goal_if(is_goal, Goal::ratio(0.5)));
    }
    compare_batches(bench, &daemon, &tasks)?;
    daemon.process.stop()
}

/// Large batches over HTTP; the baseline is a bare loop in process with equal batches.
fn compare_batches(bench: &mut Bench, daemon: &Daemon, tasks: &[String]) -> anyhow::Result<()> {
    const PRODUCERS: usize = 64;
    let runtime = append_inproc::runtime()?;
    let group = append_inproc::bare_loop(&runtime, bench, "append-http-bare")?;
    let name = format!("{} in process", name("append-http", PRODUCERS, BATCH));
    let (mut ours, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        bench.begin_round(&name)?;
        ours.push(append(daemon, tasks, bench.window_of, PRODUCERS, BATCH)?);
        let append =
            Bare { appender: group.appender(), data: append_inproc::data(), events: BATCH };
        beside.push(runtime.block_on(produce(PRODUCERS, bench.window(), append))?);
    }
    group.finish()?;
    let weight = BATCH as u64;
    let figure = Figure::summed(name, "events/s", Summary::from_rounds(&ours, weight)).beside(
        "bare group commit",
        Summary::from_rounds(&beside, weight),
        stats::ratio(&ours, &beside),
    );
    bench.add(figure.goal(Goal::ratio(0.75)));
    Ok(())
}

/// Tasks to append to.
pub(crate) fn make_tasks(bench: &Bench, daemon: &Daemon) -> anyhow::Result<Vec<String>> {
    (0..if bench.quick { 8 } else { TASKS }).map(|_| daemon.make_task()).collect()
}

/// One round of svc, with `events` in each request.
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

/// Loads a server for one window.
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

/// Adds the CPU time of the process to the count of a window.
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
