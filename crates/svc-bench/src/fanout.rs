//! `fanout`: one stream, many subscribers, unthrottled; the baselines are axum's events and bare
//! sockets.
//!
//! No subscriber loses an event. svc's publisher goes on as fast as it is acknowledged, and
//! subscribers that fall behind catch up from the log; the other publishers wait for their slowest
//! subscriber.

use crate::{
    append_http::measured,
    bench::{Bench, WindowOf},
    daemon::{self, Daemon, PREAMBLE},
    load,
    publisher::Publisher,
    report::{Figure, Goal},
    server::{self, Kind, Server},
    stats::{self, Slice, Summary, Window},
    subscribers::{Frames, Subscribers},
};

/// Events in one request of the publisher.
const BATCH: usize = 500;
/// Connections of the publisher.
const PUBLISHERS: usize = 2;

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let daemon = Daemon::start(&bench.sandbox, "fanout")?;
    let events = Server::start(&bench.sandbox, Kind::Events)?;
    let raw = Server::start(&bench.sandbox, Kind::Raw)?;
    let levels: &[usize] = if bench.quick { &[1, 20] } else { &[1, 100, 1000] };
    for subscribers in levels.iter().copied() {
        let name = format!("fanout/{subscribers}");
        let mut rounds: [Vec<Slice>; 4] = Default::default();
        for _ in 0..bench.rounds {
            bench.begin_round(&name)?;
            rounds[0].push(ours(&daemon, subscribers, bench.window_of)?);
            rounds[1].push(other(&events, subscribers, 1, bench.window_of)?);
            rounds[2].push(other(&raw, subscribers, 1, bench.window_of)?);
            rounds[3].push(other(&raw, subscribers, 64, bench.window_of)?);
        }
        let [ours, events, raw, raw_batched] = &rounds;
        let figure = |what: &str, beside: &[Slice]| {
            Figure::summed(&name, "deliveries/s", Summary::from_rounds(ours, 1)).beside(
                what,
                Summary::from_rounds(beside, 1),
                stats::ratio(ours, beside),
            )
        };
        // With one subscriber the publisher is the bottleneck.
        bench.add(figure("axum Event", events).goal_if(subscribers >= 100, Goal::ratio(8.0)));
        bench.add(figure("raw writes, 1 frame each", raw));
        bench.add(figure("raw writes, 64 frames each", raw_batched));
    }
    daemon.process.stop()
}

/// svc, with a publisher over HTTP that waits for no subscriber.
fn ours(daemon: &Daemon, subscribers: usize, (warm, measure): WindowOf) -> anyhow::Result<Slice> {
    let task = daemon.make_task()?;
    let request = daemon.append_request(&task, BATCH);
    load::runtime()?.block_on(async {
        let address = daemon.target.address;
        let mut subscribers = Subscribers::open(address, subscribers, |_| {
            (daemon.follow_request(&task, 1), Frames::new(PREAMBLE, 2, daemon::frame_size()))
        })
        .await?;
        let publisher = Publisher::saturate(address, &request, BATCH as u64, PUBLISHERS)?;
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
