//! `fanout-paced`: the latency from a producer to its subscribers at a moderate rate.

use std::time::Duration;

use crate::{
    append_http::measured,
    bench::{Bench, WindowOf},
    daemon::{self, Daemon, PREAMBLE},
    load::{self, Protocol},
    publisher::Publisher,
    report::{Figure, Goal},
    stats::{Slice, Summary, Window},
    subscribers::{StampedFrames, Subscribers, Timing},
};

/// A thousand events a second, one in each request, to a hundred subscribers.
pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let daemon = Daemon::start(&bench.sandbox, "fanout-paced")?;
    let subscribers = if bench.quick { 10 } else { 100 };
    let mut rounds = Vec::new();
    for _ in 0..bench.rounds {
        bench.begin_round("fanout-paced")?;
        rounds.push(slice(&daemon, subscribers, bench.window_of)?);
    }
    let figure = Figure::summed(
        format!("fanout/{subscribers} paced"),
        "deliveries/s",
        Summary::from_rounds(&rounds, 1),
    );
    bench.add(
        figure
            .goal(Goal::p99_us(1500.0))
            .note("1,000 events/s, durable, time from the request to each subscriber"),
    );
    Ok(())
}

fn slice(daemon: &Daemon, subscribers: usize, (warm, measure): WindowOf) -> anyhow::Result<Slice> {
    let task = daemon.make_task()?;
    load::runtime()?.block_on(async {
        let (address, target) = (daemon.target.address, daemon.target.clone());
        // Opening the subscriptions takes a while, and the window begins after it.
        let opening = Duration::from_millis(100 + subscribers as u64);
        let window = Window::after(warm + opening, measure);
        let timing = Timing::new(window);
        let mut subscribers = Subscribers::open(address, subscribers, |_| {
            let frames = StampedFrames::new(
                PREAMBLE,
                2,
                daemon::frame_size(),
                daemon::stamp_from_end(),
                timing.clone(),
            );
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
