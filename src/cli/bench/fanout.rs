//! `fanout`: one stream, many subscribers, as many events as they take; beside axum's events and bare sockets.

use std::time::Duration;

use super::{
    Bench, WindowOf,
    append_http::measured,
    daemon::{self, Daemon, PREAMBLE},
    load,
    publisher::{Gate, Publisher},
    report::{Entry, Goal},
    server::{self, Kind, Server},
    stats::{self, Slice, Summary, Window},
    subscribers::{Frames, Subscribers},
};

/// Events in one request of the publisher.
const BATCH: usize = 500;
/// Connections of the publisher.
const PUBLISHERS: usize = 2;

/// Runs it.
pub(super) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let daemon = Daemon::start(&bench.sandbox, "fanout")?;
    let events = Server::start(&bench.sandbox, Kind::Events)?;
    let raw = Server::start(&bench.sandbox, Kind::Raw)?;
    let levels: &[usize] = if bench.quick { &[1, 20] } else { &[1, 100, 1000] };
    for subscribers in levels.iter().copied() {
        let mut rounds: [Vec<Slice>; 5] = Default::default();
        for _ in 0..bench.rounds {
            bench.progress(&format!("fanout: {subscribers} subscribers"));
            rounds[0].push(ours(&daemon, subscribers, bench.window_of, None)?);
            rounds[1].push(ours(&daemon, subscribers, bench.window_of, Some(16 * BATCH as u64))?);
            rounds[2].push(other(&events, subscribers, 1, bench.window_of)?);
            rounds[3].push(other(&raw, subscribers, 1, bench.window_of)?);
            rounds[4].push(other(&raw, subscribers, 64, bench.window_of)?);
        }
        let [free, gated, events, raw, raw_batched] = &rounds;
        let entry = |name: &str, ours: &[Slice], what: &str, beside: &[Slice]| {
            Entry::summed(
                format!("fanout/{subscribers}{name}"),
                "deliveries/s",
                Summary::of(ours, 1),
            )
            .beside(what, Summary::of(beside, 1), stats::ratio(ours, beside))
        };
        let many = subscribers >= 100;
        let first = entry("", free, "axum Event", events);
        bench.add(if many { first.goal(Goal::ratio(8.0)) } else { first });
        let second = entry(" lossless", gated, "axum Event", events);
        bench.add(if many { second.goal(Goal::ratio(8.0)) } else { second });
        bench.add(entry("", free, "raw writes, 1 frame each", raw));
        bench.add(entry("", free, "raw writes, 64 frames each", raw_batched));
    }
    daemon.process.stop()
}

/// Ours with a publisher over HTTP, which waits for nobody, or for the slowest subscriber to be `ahead` events behind.
fn ours(
    daemon: &Daemon,
    subscribers: usize,
    (warm, measure): WindowOf,
    ahead: Option<u64>,
) -> anyhow::Result<Slice> {
    let task = daemon.make_task()?;
    let request = daemon.append_request(&task, BATCH);
    load::runtime()?.block_on(async {
        let address = daemon.target.address;
        let mut subscribers = Subscribers::open(address, subscribers, |_| {
            (daemon.follow_request(&task, 1), Frames::new(PREAMBLE, 2, daemon::frame_size()))
        })
        .await?;
        let gate = ahead.map(|ahead| Gate { counters: subscribers.counters(), ahead });
        let publisher =
            Publisher::saturate(address, &request, BATCH as u64, PUBLISHERS, gate.as_ref())?;
        let window = Window::after(warm, measure);
        let slice = measured(&daemon.process, window, subscribers.count(window)).await?;
        publisher.finish()?;
        Ok(slice)
    })
}

/// Another server, which publishes by itself.
fn other(
    server: &Server,
    subscribers: usize,
    batch: usize,
    (warm, measure): WindowOf,
) -> anyhow::Result<Slice> {
    load::runtime()?.block_on(async {
        let request = server.follow_request(subscribers, batch);
        let mut subscribers = Subscribers::open(server.target.address, subscribers, |_| {
            (request.clone(), Frames::new("", 1, server::frame_size()))
        })
        .await?;
        let window = Window::after(warm, measure);
        measured(&server.process, window, subscribers.count(window)).await
    })
}
