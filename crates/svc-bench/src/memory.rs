//! `memory`: the memory of an idle daemon, and of each idle subscriber.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{
    bench::Bench,
    daemon::{self, Daemon, PREAMBLE},
    load, progress,
    report::{Figure, Goal},
    stats::float,
    subscribers::{Frames, Subscribers},
};

const MEBIBYTE: f64 = 1024.0 * 1024.0;

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    // The daemon inherits the limit.
    let files = raise_file_limit();
    let binary = std::fs::metadata(bench.sandbox.svc())?.len();
    bench.add(Figure::new("binary", "MiB", float(binary) / MEBIBYTE).goal(Goal::at_most(12.0)));
    progress::show("memory");
    let daemon = Daemon::start(&bench.sandbox, "memory")?;
    let idle = daemon.process.resident_bytes()?;
    bench.add(Figure::new("memory/idle", "MiB", float(idle) / MEBIBYTE).goal(Goal::at_most(15.0)));
    let wanted = if bench.quick { 200 } else { 10_000 };
    // Some descriptors are for files.
    let subscribers = wanted.min(usize::try_from(files.saturating_sub(100))?);
    let task = daemon.make_task()?;
    let address = daemon.target.address;
    let before = daemon.process.resident_bytes()?;
    let (after, before) = load::runtime()?.block_on(async {
        // Subscribers that are opened first, for the memory that all share.
        let subscribe =
            |_| (daemon.follow_request(&task, 1), Frames::new(PREAMBLE, 2, daemon::frame_size()));
        let _few = Subscribers::open(address, 16, subscribe).await?;
        let before = daemon.process.resident_bytes()?.max(before);
        let _many = Subscribers::open(address, subscribers, subscribe).await?;
        anyhow::Ok((daemon.process.resident_bytes()?, before))
    })?;
    let each = float(after.saturating_sub(before)) / float(subscribers as u64) / 1024.0;
    bench.add(
        Figure::new(format!("memory/subscriber of {subscribers}"), "KiB", each)
            .goal(Goal::at_most(12.0)),
    );
    daemon.process.stop()
}

/// Raises the limit of open files of this process and its children as far as the system allows;
/// returns it.
pub(crate) fn raise_file_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // If it fails the returned limit shows it.
    setrlimit(Resource::Nofile, raised).ok();
    getrlimit(Resource::Nofile).current.unwrap_or(65_536)
}
