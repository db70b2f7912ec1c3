//! svc compared with other servers. Each uses its own protocol, with the same kind of generator and
//! the same 200 bytes per event.

mod contests;
mod postgres;
mod postgres_store;
mod redis;

pub(crate) use contests::{run_append, run_mcp, run_mixed, run_replay};
pub(crate) use postgres_store::run as run_postgres_store;

use std::time::{Duration, Instant};

use super::{
    bench::WindowOf,
    daemon::DATA_BYTES,
    fanout::{Both, Crowd},
    report::{Goal, Slice},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contest {
    Append {
        producers: usize,
    },
    /// Sixteen events per request of svc; one per request of the peer.
    Batches,
    /// Producers and subscribers at the same time.
    Mixed,
    /// A long stream from its beginning.
    Replay,
}

/// The role of a peer in a contest.
#[derive(Debug, Clone, Copy)]
enum Part {
    None,
    Beside,
    Goal(Goal),
}

trait Peer {
    /// The name, including the durability.
    fn name(&self) -> &str;

    fn part(&self, contest: Contest) -> Part;

    /// Appends by `producers` with one event per request.
    fn append(&self, window_of: WindowOf, producers: usize) -> anyhow::Result<Slice>;

    /// Appends in the contest of batches. A peer's protocol has one event per request, so this is
    /// [`Self::append`].
    fn append_batches(&self, window_of: WindowOf, producers: usize) -> anyhow::Result<Slice> {
        self.append(window_of, producers)
    }

    fn mixed(&self, window_of: WindowOf, crowd: Crowd) -> anyhow::Result<Both>;

    /// Creates a stream for [`Self::replay`] of about `events` events.
    fn fill(&mut self, events: u64) -> anyhow::Result<()>;

    fn replay(&self) -> anyhow::Result<Slice>;
}

/// Retries `work` until it succeeds or the deadline passes, as a server that was just started does
/// not listen yet.
fn until_ready<T>(mut work: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match work() {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() >= end => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn payload() -> String {
    "x".repeat(DATA_BYTES)
}
