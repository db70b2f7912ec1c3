//! The interface of a server that is measured beside svc.

use std::time::{Duration, Instant};

use crate::{
    bench::WindowOf,
    daemon::DATA_BYTES,
    mixed::{Both, Crowd},
    report::Goal,
    stats::Slice,
};

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contest {
    /// Appends by `producers`.
    Append { producers: usize },
    /// Sixteen events in each request of svc; one in the peer's.
    Batches,
    /// Producers and subscribers together.
    Mixed,
    /// A long stream from its beginning.
    Replay,
}

/// The role of a peer in a contest.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    /// It does not take part.
    None,
    /// Its figure is shown beside svc's.
    Beside,
    /// Its figure is shown, and there is a goal.
    Goal(Goal),
}

/// A system with the function of svc.
pub(super) trait Peer {
    /// The name, with the durability.
    fn name(&self) -> &str;

    fn part(&self, contest: Contest) -> Part;

    /// Appends by `producers`, one event in each request.
    fn append(&self, window_of: WindowOf, producers: usize) -> anyhow::Result<Slice>;

    /// Appends in the contest of batches. The protocol of a peer has one event in a request, so
    /// this is [`Self::append`].
    fn append_batches(&self, window_of: WindowOf, producers: usize) -> anyhow::Result<Slice> {
        self.append(window_of, producers)
    }

    /// Producers and subscribers of one stream.
    fn mixed(&self, window_of: WindowOf, crowd: Crowd) -> anyhow::Result<Both>;

    /// Creates a stream for [`Self::replay`] of about `events` events.
    fn fill(&mut self, events: u64) -> anyhow::Result<()>;

    /// Reads that stream.
    fn replay(&self) -> anyhow::Result<Slice>;
}

/// Retries `work` until it succeeds or the deadline passes: a server that was just started does not
/// listen yet.
pub(super) fn until_ready<T>(mut work: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match work() {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() >= end => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// The data of each event.
pub(super) fn payload() -> String {
    "x".repeat(DATA_BYTES)
}
