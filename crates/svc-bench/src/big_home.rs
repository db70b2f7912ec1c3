//! A data folder with a very long stream.

use anyhow::Context as _;

use crate::{caller::Caller, daemon::Daemon, load::Protocol, progress, sandbox::Sandbox};

/// Connections that fill it.
const PRODUCERS: u64 = 2;
/// Events in one request.
const BATCH: u64 = 1000;

/// A data folder whose one task has very many events.
#[derive(Debug, Clone)]
pub(crate) struct BigHome {
    /// Its folder in the sandbox.
    pub(crate) name: &'static str,
    pub(crate) task: String,
    pub(crate) frames: u64,
}

impl BigHome {
    /// Creates one with about that many events.
    pub(crate) fn make(sandbox: &Sandbox, name: &'static str, events: u64) -> anyhow::Result<Self> {
        let daemon = Daemon::start(sandbox, name)?;
        let task = daemon.make_task()?;
        let request = daemon.append_request(&task, usize::try_from(BATCH)?);
        let each = events / BATCH / PRODUCERS;
        let produce = || {
            let mut caller = Caller::open(daemon.target.address, &Protocol::HTTP)?;
            for number in 0..each {
                progress::show(&format!("preparing {events} events: {} %", number * 100 / each));
                caller.ask(&request)?;
            }
            anyhow::Ok(())
        };
        std::thread::scope(|scope| {
            let producers: Vec<_> = (0..PRODUCERS).map(|_| scope.spawn(produce)).collect();
            producers.into_iter().try_for_each(|producer| {
                producer.join().map_err(|_| anyhow::anyhow!("a producer panicked"))?
            })
        })
        .context("cannot prepare the events")?;
        daemon.process.stop()?;
        Ok(Self { name, task, frames: each * PRODUCERS * BATCH })
    }
}
