//! Publishers while others subscribe: threads of their own, with blocking sockets.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{caller::Caller, load::Protocol};

/// Publishers. They end on drop.
#[derive(Debug)]
pub(crate) struct Publisher {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<anyhow::Result<()>>>,
    published: Arc<AtomicU64>,
}

impl Publisher {
    /// Publishes unthrottled on `connections`, with `events` in each request.
    pub(crate) fn saturate(
        address: SocketAddr,
        request: &[u8],
        events: u64,
        connections: usize,
    ) -> anyhow::Result<Self> {
        let mut publisher =
            Self { stop: Arc::default(), threads: Vec::new(), published: Arc::default() };
        for _ in 0..connections {
            let mut caller = Caller::open(address, &Protocol::HTTP)?;
            let request = request.to_vec();
            let (stop, published) = (Arc::clone(&publisher.stop), Arc::clone(&publisher.published));
            publisher.threads.push(std::thread::spawn(move || {
                while !stop.load(Relaxed) {
                    published.fetch_add(events, Relaxed);
                    caller.ask(&request)?;
                }
                Ok(())
            }));
        }
        Ok(publisher)
    }

    /// Publishes one event each `period` until `until`, whether or not acknowledgements arrive:
    /// `requests` makes one from its stamp, the nanoseconds since `epoch` at which it is sent.
    pub(crate) fn pace(
        address: SocketAddr,
        protocol: &Protocol,
        period: Duration,
        epoch: Instant,
        until: Instant,
        request: impl Fn(u64) -> Vec<u8> + Send + 'static,
    ) -> anyhow::Result<Self> {
        // Enough that a connection has its acknowledgement when its turn comes again.
        let mut callers = Vec::new();
        for _ in 0..8 {
            callers.push(Caller::open(address, protocol)?);
        }
        let (stop, published) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let thread = {
            let (stop, published) = (Arc::clone(&stop), Arc::clone(&published));
            std::thread::spawn(move || {
                let mut due = Instant::now();
                let turns = callers.len();
                let mut turn = 0;
                while due < until && !stop.load(Relaxed) {
                    let early = due.saturating_duration_since(Instant::now());
                    std::thread::sleep(early);
                    // A late wake-up is the machine's delay and is excluded; a delay by the server
                    // counts.
                    let sent = if early.is_zero() { due } else { Instant::now() };
                    let stamp = sent.saturating_duration_since(epoch).as_nanos();
                    let request = request(u64::try_from(stamp).unwrap_or(u64::MAX));
                    let caller = &mut callers[turn];
                    while caller.pending > 0 {
                        caller.receive()?;
                    }
                    caller.send(&request)?;
                    published.fetch_add(1, Relaxed);
                    turn = (turn + 1) % turns;
                    due += period;
                }
                for caller in &mut callers {
                    while caller.pending > 0 {
                        caller.receive()?;
                    }
                }
                Ok(())
            })
        };
        Ok(Self { stop, threads: vec![thread], published })
    }

    /// Stops it and returns how many events it published.
    pub(crate) fn finish(mut self) -> anyhow::Result<u64> {
        self.stop.store(true, Relaxed);
        self.join()
    }

    /// Waits for its own end and returns how many events it published.
    pub(crate) fn join(&mut self) -> anyhow::Result<u64> {
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| anyhow::anyhow!("a publisher panicked"))??;
        }
        Ok(self.published.load(Relaxed))
    }

    /// Whether it has ended by itself.
    pub(crate) fn is_over(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.join().ok();
    }
}
