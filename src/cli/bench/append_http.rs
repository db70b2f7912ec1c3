//! `append-http`: durable appends over HTTP, beside an axum handler that only reads the body.

use anyhow::Context as _;

use super::{
    Bench, WindowOf,
    daemon::{self, Daemon},
    load::{self, Load, Protocol},
    report::{Entry, Goal},
    sandbox::Process,
    server::{Kind, Server},
    stats::{self, Slice, Summary, Window},
    wire::Target,
};

const TASKS: usize = 100;

/// Runs it.
pub(super) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let daemon = Daemon::start(&bench.sandbox, "append-http")?;
    let noop = Server::start(&bench.sandbox, Kind::Noop)?;
    let tasks = daemon.make_tasks(if bench.quick { 8 } else { TASKS })?;
    let levels: &[(usize, usize)] = if bench.quick {
        &[(1, 1), (64, 1), (64, 16)]
    } else {
        &[(1, 1), (8, 1), (64, 1), (256, 1), (64, 16)]
    };
    for (connections, events) in levels.iter().copied() {
        let (mut ours, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..bench.rounds {
            bench
                .progress(&format!("append-http: {connections} connections, {events} events each"));
            ours.push(slice(
                bench.window_of,
                &daemon.target,
                &daemon.process,
                connections,
                |number| daemon.append_request(&tasks[number % tasks.len()], events),
            )?);
            let path = format!("/v1/tasks/{}/events", tasks[0]);
            beside.push(slice(bench.window_of, &noop.target, &noop.process, connections, |_| {
                noop.target.request("POST", &path, &daemon::body(events))
            })?);
        }
        let weight = events as u64;
        let name = match events {
            1 => format!("append-http/{connections}"),
            _ => format!("append-http/{connections}x{events}"),
        };
        let entry = Entry::summed(name, "events/s", Summary::of(&ours, weight)).beside(
            "no-op handler",
            Summary::of(&beside, weight),
            stats::ratio(&ours, &beside),
        );
        let is_goal = (connections, events) == (64, 1);
        bench.add(if is_goal { entry.goal(Goal::ratio(0.5)) } else { entry });
    }
    daemon.process.stop()
}

/// Loads a server for one window.
pub(super) fn slice(
    (warm, measure): WindowOf,
    target: &Target,
    process: &Process,
    connections: usize,
    request: impl Fn(usize) -> Vec<u8> + Sync,
) -> anyhow::Result<Slice> {
    load::runtime()?.block_on(async {
        let address = target.address;
        let mut load =
            Load::open(address, &Protocol::HTTP, connections, |n| vec![request(n)]).await?;
        let window = Window::after(warm, measure);
        measured(process, window, load.run(window)).await.context("the load of HTTP")
    })
}

/// Adds what the process spent within the window to what was counted in it.
pub(super) async fn measured(
    process: &Process,
    window: Window,
    work: impl Future<Output = anyhow::Result<Slice>>,
) -> anyhow::Result<Slice> {
    let cpu = async {
        tokio::time::sleep_until(window.from.into()).await;
        let before = process.cpu();
        tokio::time::sleep_until(window.until.into()).await;
        process.cpu().zip(before).map(|(after, before)| after.saturating_sub(before))
    };
    let (slice, cpu) = tokio::join!(work, cpu);
    Ok(Slice { cpu, ..slice? })
}
