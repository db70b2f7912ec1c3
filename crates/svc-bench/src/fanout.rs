//! One stream and its subscribers. `fanout`: many subscribers, unthrottled; the baselines are
//! axum's event streams and bare sockets. `fanout-paced`: the latency at a moderate rate. `mixed`:
//! subscribers beside many producers, with every acknowledgement durable. `replay`: one subscriber
//! that reads a long stream; the baseline is a bare read.
//!
//! No subscriber loses an event. svc's publisher continues as fast as it gets acknowledgements, and
//! subscribers that fall behind catch up from the log; the other publishers wait for their slowest
//! subscriber.

use std::{
    io::Write as _,
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use super::{
    append::measured,
    bench::{Bench, WindowOf},
    ceiling,
    daemon::{self, BigHome, Daemon, PREAMBLE},
    load::{self, Load, Protocol, read_some},
    report::{self, Figure, Goal, Slice, Summary, Window},
    sandbox::Process,
    server::{self, Kind, Server},
    subscribers::{Decoder, Frames, Publisher, StampedFrames, Subscribers, Timing},
    wire::Body,
};

const BATCH: usize = 500;
const PUBLISHERS: usize = 2;

pub(crate) fn run_fanout(bench: &mut Bench) -> anyhow::Result<()> {
    let daemon = Daemon::start(&bench.sandbox, "fanout")?;
    let events = Server::start(&bench.sandbox, Kind::Events)?;
    let raw = Server::start(&bench.sandbox, Kind::Raw)?;
    let levels: &[usize] = if bench.quick { &[1, 20] } else { &[1, 100, 1000] };
    for subscribers in levels.iter().copied() {
        let name = format!("fanout/{subscribers}");
        let mut rounds: [Vec<Slice>; 4] = Default::default();
        for _ in 0..bench.rounds {
            bench.begin_round(&name)?;
            rounds[0].push(saturated(&daemon, subscribers, bench.window_of)?);
            rounds[1].push(other(&events, subscribers, 1, bench.window_of)?);
            rounds[2].push(other(&raw, subscribers, 1, bench.window_of)?);
            rounds[3].push(other(&raw, subscribers, 64, bench.window_of)?);
        }
        let [ours, events, raw, raw_batched] = &rounds;
        let figure = |what: &str, beside: &[Slice]| {
            Figure::compared(&name, "deliveries/s", 1, ours, (what, beside))
        };
        // With one subscriber the publisher is the bottleneck.
        bench.add(figure("axum Event", events).goal_if(subscribers >= 100, Goal::ratio(8.0)));
        bench.add(figure("raw writes, 1 frame each", raw));
        bench.add(figure("raw writes, 64 frames each", raw_batched));
    }
    daemon.process.stop()
}

/// svc, with a publisher over HTTP that does not wait for subscribers.
fn saturated(
    daemon: &Daemon,
    subscribers: usize,
    (warm, measure): WindowOf,
) -> anyhow::Result<Slice> {
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

/// Another server, which is its own publisher.
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

/// A thousand events a second, one per request, to a hundred subscribers.
pub(crate) fn run_paced(bench: &mut Bench) -> anyhow::Result<()> {
    let daemon = Daemon::start(&bench.sandbox, "fanout-paced")?;
    let subscribers = if bench.quick { 10 } else { 100 };
    let mut rounds = Vec::new();
    for _ in 0..bench.rounds {
        bench.begin_round("fanout-paced")?;
        rounds.push(paced(&daemon, subscribers, bench.window_of)?);
    }
    let name = format!("fanout/{subscribers} paced");
    bench.add(
        Figure::summed(name, "deliveries/s", Summary::from_rounds(&rounds, 1))
            .goal(Goal::p99_us(1500.0))
            .note("1,000 events/s, durable, time from the request to each subscriber"),
    );
    Ok(())
}

fn paced(daemon: &Daemon, subscribers: usize, (warm, measure): WindowOf) -> anyhow::Result<Slice> {
    let task = daemon.make_task()?;
    load::runtime()?.block_on(async {
        let (address, target) = (daemon.target.address, daemon.target.clone());
        // Opening the subscriptions takes some time; the window begins after it.
        let opening = Duration::from_millis(100 + subscribers as u64);
        let window = Window::after(warm + opening, measure);
        let timing = Timing::new(window);
        let mut subscribers = Subscribers::open(address, subscribers, |_| {
            let (size, stamp) = (daemon::frame_size(), daemon::stamp_from_end());
            let frames = StampedFrames::new(PREAMBLE, 2, size, stamp, timing.clone());
            (daemon.follow_request(&task, 1), frames)
        })
        .await?;
        let path = format!("/v1/tasks/{task}/events");
        let request = move |stamp| target.request("POST", &path, &daemon::event_body(stamp));
        let period = Duration::from_millis(1);
        let mut publisher =
            Publisher::pace(address, &Protocol::HTTP, period, timing.epoch, window.until, request)?;
        let counted = measured(&daemon.process, window, subscribers.count(window)).await?;
        while !publisher.is_over() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Fails if a subscriber missed an event.
        subscribers.received(publisher.join()?, Duration::from_secs(10)).await?;
        let latencies = timing.finish().latencies;
        Ok(Slice { latencies, ..counted })
    })
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Crowd {
    pub(crate) producers: usize,
    pub(crate) subscribers: usize,
}

impl Crowd {
    /// As many producers and subscribers as the run allows.
    pub(crate) fn new(bench: &Bench) -> Self {
        let (producers, subscribers) = if bench.quick { (16, 10) } else { (64, 100) };
        Self { producers, subscribers }
    }
}

#[derive(Debug)]
pub(crate) struct Both {
    pub(crate) acks: Slice,
    pub(crate) deliveries: Slice,
}

pub(crate) fn run_mixed(bench: &mut Bench) -> anyhow::Result<()> {
    let daemon = Daemon::start(&bench.sandbox, "mixed")?;
    let crowd = Crowd::new(bench);
    let name = format!("mixed/{}+{}", crowd.producers, crowd.subscribers);
    let (mut acks, mut deliveries) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        bench.begin_round(&name)?;
        let both = mixed_round(&daemon, crowd, bench.window_of)?;
        acks.push(both.acks);
        deliveries.push(both.deliveries);
    }
    let (acks, deliveries) = (Summary::from_rounds(&acks, 1), Summary::from_rounds(&deliveries, 1));
    bench.add(Figure::summed(format!("{name} acks"), "events/s", acks));
    let full = acks.rate * report::float(crowd.subscribers as u64);
    let share = 100.0 * deliveries.rate / full.max(1.0);
    bench.add(
        Figure::summed(format!("{name} deliveries"), "deliveries/s", deliveries).note(format!(
            "{share:.0} % of what was acknowledged in the window, for each subscriber"
        )),
    );
    daemon.process.stop()
}

pub(crate) fn mixed_round(
    daemon: &Daemon,
    crowd: Crowd,
    window_of: WindowOf,
) -> anyhow::Result<Both> {
    let task = daemon.make_task()?;
    let (follow, append) = (daemon.follow_request(&task, 1), daemon.append_request(&task, 1));
    round(
        window_of,
        (daemon.target.address, &daemon.process),
        crowd,
        |_| (follow.clone(), Frames::new(PREAMBLE, 2, daemon::frame_size())),
        |_| (Protocol::HTTP, vec![append.clone()]),
    )
}

pub(crate) fn round<D: Decoder>(
    (warm, measure): WindowOf,
    (address, process): (SocketAddr, &Process),
    crowd: Crowd,
    subscribe: impl FnMut(usize) -> (Vec<u8>, D),
    speech: impl Fn(usize) -> (Protocol, Vec<Vec<u8>>) + Sync,
) -> anyhow::Result<Both> {
    load::runtime()?.block_on(async {
        let mut subscribers = Subscribers::open(address, crowd.subscribers, subscribe).await?;
        let mut load = Load::open(address, crowd.producers, &speech).await?;
        let window = Window::after(warm, measure);
        let (acks, deliveries) = tokio::join!(
            measured(process, window, load.run(window)),
            measured(process, window, subscribers.count(window))
        );
        Ok(Both { acks: acks?, deliveries: deliveries? })
    })
}

pub(crate) fn run_replay(bench: &mut Bench) -> anyhow::Result<()> {
    let home = bench.big_home()?;
    let daemon = Daemon::start(&bench.sandbox, home.name)?;
    let stream = format!("task/{}", home.task);
    let (mut alone, mut bare, mut beside_stalled) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        bench.begin_round("replay")?;
        alone.push(replay(&daemon, &home)?);
        let (rows, elapsed) = ceiling::read_stream(&daemon.database(), &stream)?;
        bare.push(Slice::counted(rows, elapsed));
        let stalled = stalled_reader(&daemon, &home)?;
        beside_stalled.push(replay(&daemon, &home)?);
        drop(stalled);
    }
    let name = format!("replay/{}", home.frames);
    let figure = Figure::compared(&name, "events/s", 1, &alone, ("bare read", &bare));
    bench.add(figure.goal(Goal::ratio(0.7)));
    let name = format!("{name} beside a stalled reader");
    let beside = ("without one", alone.as_slice());
    let figure = Figure::compared(name, "events/s", 1, &beside_stalled, beside);
    bench.add(figure.goal(Goal::ratio(0.9)));
    daemon.process.stop()
}

/// Reads the whole stream and checks that it is complete.
pub(crate) fn replay(daemon: &Daemon, home: &BigHome) -> anyhow::Result<Slice> {
    let size = daemon::frame_size();
    let mut socket = TcpStream::connect(daemon.target.address)?;
    socket.set_read_timeout(Some(Duration::from_secs(30)))?;
    let preamble = PREAMBLE.len() as u64;
    // The first event is the task itself.
    let expected = preamble + size.bytes_of(2, home.frames);
    let cpu = daemon.process.cpu();
    let begun = Instant::now();
    socket.write_all(&daemon.follow_request(&home.task, 1))?;
    let mut body = Body::default();
    let mut buffer = vec![0; 256 * 1024];
    while body.payload < expected {
        body.feed(read_some(&mut socket, &mut buffer)?, |_| {})?;
    }
    anyhow::ensure!(body.payload == expected, "the replay gave more than there is");
    let length = begun.elapsed();
    let cpu = daemon.process.cpu_since(cpu);
    Ok(Slice { cpu, ..Slice::counted(home.frames, length) })
}

/// A reader that requests the whole stream but reads nothing, until it is dropped.
fn stalled_reader(daemon: &Daemon, home: &BigHome) -> anyhow::Result<TcpStream> {
    let mut socket = TcpStream::connect(daemon.target.address)?;
    socket.write_all(&daemon.follow_request(&home.task, 1))?;
    // By then the sockets' buffers are full.
    std::thread::sleep(Duration::from_millis(200));
    Ok(socket)
}
