//! `mixed`: producers and subscribers of one stream together, every acknowledgement durable.

use std::net::SocketAddr;

use crate::{
    append_http::measured,
    bench::{Bench, WindowOf},
    daemon::{self, Daemon, PREAMBLE},
    load::{self, Load, Protocol},
    report::Figure,
    sandbox::Process,
    stats::{Slice, Summary, Window},
    subscribers::{Decoder, Frames, Subscribers},
};

/// The number of producers and subscribers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crowd {
    pub(crate) producers: usize,
    pub(crate) subscribers: usize,
}

impl Crowd {
    /// As many as the run allows.
    pub(crate) fn new(bench: &Bench) -> Self {
        let (producers, subscribers) = if bench.quick { (16, 10) } else { (64, 100) };
        Self { producers, subscribers }
    }
}

/// The result of one round.
#[derive(Debug)]
pub(crate) struct Both {
    /// Acknowledged appends.
    pub(crate) acks: Slice,
    pub(crate) deliveries: Slice,
}

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let daemon = Daemon::start(&bench.sandbox, "mixed")?;
    let crowd = Crowd::new(bench);
    let name = format!("mixed/{}+{}", crowd.producers, crowd.subscribers);
    let (mut acks, mut deliveries) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        bench.begin_round(&name)?;
        let both = ours(&daemon, crowd, bench.window_of)?;
        acks.push(both.acks);
        deliveries.push(both.deliveries);
    }
    let (acks, deliveries) = (Summary::from_rounds(&acks, 1), Summary::from_rounds(&deliveries, 1));
    bench.add(Figure::summed(format!("{name} acks"), "events/s", acks));
    let full = acks.rate * crate::stats::float(crowd.subscribers as u64);
    bench.add(Figure::summed(format!("{name} deliveries"), "deliveries/s", deliveries).note(
        format!(
            "{:.0} % of what was acknowledged in the window, for each subscriber",
            100.0 * deliveries.rate / full.max(1.0)
        ),
    ));
    daemon.process.stop()
}

/// One round of svc.
pub(crate) fn ours(daemon: &Daemon, crowd: Crowd, window_of: WindowOf) -> anyhow::Result<Both> {
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

/// One round of any server.
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
