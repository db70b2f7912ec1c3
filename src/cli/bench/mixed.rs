//! `mixed`: producers and subscribers of one stream together, every acknowledgement durable.

use super::{
    Bench, WindowOf,
    append_http::measured,
    daemon::{self, Daemon, PREAMBLE},
    load::{self, Load, Protocol},
    report::Entry,
    stats::{Slice, Summary, Window},
    subscribers::{Frames, Subscribers},
};

/// What one round of it came to.
#[derive(Debug)]
pub(super) struct Both {
    /// Acknowledged appends.
    pub(super) acks: Slice,
    /// Deliveries.
    pub(super) deliveries: Slice,
}

/// Producers and subscribers.
pub(super) fn sizes(bench: &Bench) -> (usize, usize) {
    if bench.quick { (16, 10) } else { (64, 100) }
}

/// Runs it.
pub(super) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let daemon = Daemon::start(&bench.sandbox, "mixed")?;
    let (producers, subscribers) = sizes(bench);
    let (mut acks, mut deliveries) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        bench.progress("mixed");
        let both = ours(&daemon, producers, subscribers, bench.window_of)?;
        acks.push(both.acks);
        deliveries.push(both.deliveries);
    }
    let name = format!("mixed/{producers}+{subscribers}");
    bench.add(Entry::summed(format!("{name} acks"), "events/s", Summary::of(&acks, 1)));
    let summary = Summary::of(&deliveries, 1);
    bench.add(Entry::summed(format!("{name} deliveries"), "deliveries/s", summary));
    daemon.process.stop()
}

/// One round of ours.
pub(super) fn ours(
    daemon: &Daemon,
    producers: usize,
    subscribers: usize,
    (warm, measure): WindowOf,
) -> anyhow::Result<Both> {
    let task = daemon.make_task()?;
    load::runtime()?.block_on(async {
        let address = daemon.target.address;
        let mut subscribers = Subscribers::open(address, subscribers, |_| {
            (daemon.follow_request(&task, 1), Frames::new(PREAMBLE, 2, daemon::frame_size()))
        })
        .await?;
        let request = daemon.append_request(&task, 1);
        let mut load =
            Load::open(address, &Protocol::HTTP, producers, |_| vec![request.clone()]).await?;
        let window = Window::after(warm, measure);
        let (acks, deliveries) = tokio::join!(
            load.run(window),
            measured(&daemon.process, window, subscribers.count(window))
        );
        Ok(Both { acks: acks?, deliveries: deliveries? })
    })
}
