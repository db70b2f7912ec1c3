//! The least that this stack and its database can do: an axum handler, and a bare group commit
//! behind it. No rules, no identity, no parsing. It is no peer, but the upper bound of svc on this
//! stack, measured beside the peers.

use anyhow::bail;

use super::peer::{Contest, Part, Peer};
use crate::{
    append_http,
    append_inproc::{self, STREAMS},
    bench::{Bench, WindowOf},
    load::Protocol,
    mixed::{Both, Crowd},
    server::{Kind, Server},
    stats::Slice,
};

/// A running server.
pub(super) struct BareAxum(Server);

impl BareAxum {
    /// Starts it on a database of its own.
    pub(super) fn start(bench: &Bench) -> anyhow::Result<Self> {
        let runtime = append_inproc::runtime()?;
        let (store, writer) = append_inproc::open(&runtime, bench, "bare-axum")?;
        let database = store.path().to_owned();
        runtime.block_on(writer.close(store))?;
        Ok(Self(Server::start(&bench.sandbox, Kind::Commits { database })?))
    }

    fn append_of(
        &self,
        window_of: WindowOf,
        producers: usize,
        events: usize,
    ) -> anyhow::Result<Slice> {
        let Server { process, target } = &self.0;
        let body = crate::daemon::body(events);
        let slice = append_http::slice(window_of, target.address, process, producers, |number| {
            let path = format!("/append/{}/{events}", 1 + number % STREAMS);
            (Protocol::HTTP, vec![target.request("POST", &path, &body)])
        })?;
        Ok(Slice { count: slice.count * events as u64, ..slice })
    }
}

impl Peer for BareAxum {
    fn name(&self) -> &'static str {
        "axum, bare group commit"
    }

    fn part(&self, contest: Contest) -> Part {
        match contest {
            Contest::Append { .. } | Contest::Batches => Part::Beside,
            Contest::Mixed | Contest::Replay => Part::None,
        }
    }

    fn append(&self, window_of: WindowOf, producers: usize) -> anyhow::Result<Slice> {
        self.append_of(window_of, producers, 1)
    }

    fn append_batches(&self, window_of: WindowOf, producers: usize) -> anyhow::Result<Slice> {
        self.append_of(window_of, producers, 16)
    }

    fn mixed(&self, _: WindowOf, _: Crowd) -> anyhow::Result<Both> {
        bail!("it has no subscribers")
    }

    fn fill(&mut self, _: u64) -> anyhow::Result<()> {
        bail!("it replays nothing")
    }

    fn replay(&self) -> anyhow::Result<Slice> {
        bail!("it replays nothing")
    }
}
