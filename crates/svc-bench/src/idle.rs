//! The cost of an idle daemon. `startup`: time from `exec` to the first healthy response. `memory`:
//! of the daemon and of each idle subscriber. `mcp-memory`: of each silent MCP client, without a
//! connection and with an open stream.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use svc_wire::mcp;

use super::{
    bench::Bench,
    calls::{initialize, session_of},
    daemon::{self, Daemon, PREAMBLE},
    load::{self, Caller, Protocol},
    report::{self, Figure, Goal, float},
    subscribers::{Frames, Subscribers},
};

pub(crate) fn run_startup(bench: &mut Bench) -> anyhow::Result<()> {
    let big = bench.big_home()?;
    let (mut empty, mut existing) = (Vec::new(), Vec::new());
    // A start takes only milliseconds, so it needs more rounds than other figures.
    for round in 0..if bench.quick { 3 } else { 9 } {
        bench.begin_round("startup")?;
        empty.push(Daemon::time_start(&bench.sandbox, &format!("startup-{round}"))?);
        existing.push(Daemon::time_start(&bench.sandbox, big.name)?);
    }
    let millis = |times: Vec<Duration>| {
        report::median(times.iter().map(|time| time.as_secs_f64() * 1e3).collect())
    };
    bench.add(Figure::new("startup/empty", "ms", millis(empty)).goal(Goal::at_most(15.0)));
    let name = format!("startup/{} events", big.frames);
    bench.add(Figure::new(name, "ms", millis(existing)).goal(Goal::at_most(50.0)));
    Ok(())
}

const MEBIBYTE: f64 = 1024.0 * 1024.0;

pub(crate) fn run_memory(bench: &mut Bench) -> anyhow::Result<()> {
    // The daemon inherits the limit.
    let files = raise_file_limit();
    let binary = std::fs::metadata(bench.sandbox.svc())?.len();
    bench.add(Figure::new("binary", "MiB", float(binary) / MEBIBYTE).goal(Goal::at_most(12.0)));
    report::show_step("memory");
    let daemon = Daemon::start(&bench.sandbox, "memory")?;
    let idle = daemon.process.resident_bytes()?;
    bench.add(Figure::new("memory/idle", "MiB", float(idle) / MEBIBYTE).goal(Goal::at_most(15.0)));
    let wanted = if bench.quick { 200 } else { 10_000 };
    // Leaves descriptors for files.
    let subscribers = wanted.min(usize::try_from(files.saturating_sub(100))?);
    let task = daemon.make_task()?;
    let address = daemon.target.address;
    let before = daemon.process.resident_bytes()?;
    let (after, before) = load::runtime()?.block_on(async {
        // These subscribers are opened first, as their memory includes what all subscribers share.
        let subscribe =
            |_| (daemon.follow_request(&task, 1), Frames::new(PREAMBLE, 2, daemon::frame_size()));
        let _few = Subscribers::open(address, 16, subscribe).await?;
        let before = daemon.process.resident_bytes()?.max(before);
        let _many = Subscribers::open(address, subscribers, subscribe).await?;
        anyhow::Ok((daemon.process.resident_bytes()?, before))
    })?;
    let each = per(after, before, subscribers);
    let name = format!("memory/subscriber of {subscribers}");
    bench.add(Figure::new(name, "KiB", each).goal(Goal::at_most(12.0)));
    daemon.process.stop()
}

/// Raises the limit of open files for this process and its children as far as the system allows.
/// Returns the limit.
pub(crate) fn raise_file_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // If this fails, the returned limit shows it.
    setrlimit(Resource::Nofile, raised).ok();
    getrlimit(Resource::Nofile).current.unwrap_or(65_536)
}

/// Sessions that are opened first, as their memory includes what all sessions share.
const FIRST: usize = 64;

pub(crate) fn run_mcp_memory(bench: &mut Bench) -> anyhow::Result<()> {
    report::show_step("mcp-memory");
    raise_file_limit();
    let daemon = Daemon::start(&bench.sandbox, "mcp-memory")?;
    let count = if bench.quick { 100 } else { 1000 };
    let first = open_sessions(&daemon, FIRST)?;
    let before = daemon.process.resident_bytes()?;
    let sessions = open_sessions(&daemon, count)?;
    let each = per(daemon.process.resident_bytes()?, before, count);
    let name = format!("mcp-memory/session of {count}");
    bench.add(Figure::new(name, "KiB", each).goal(Goal::at_most(20.0)));
    let listen = |session: &String| {
        let headers = [(mcp::SESSION_ID, session.as_str()), ("accept", "text/event-stream")];
        let request = daemon.target.request_with("GET", "/mcp", &headers, "");
        // The first byte of the body shows that the stream is open.
        (request, Frames::new("\n", 1, daemon::frame_size()))
    };
    let address = daemon.target.address;
    let (after, before, threads) = load::runtime()?.block_on(async {
        let _few = Subscribers::open(address, FIRST, |number| listen(&first[number])).await?;
        let before = (daemon.process.resident_bytes()?, daemon.process.threads());
        let _many = Subscribers::open(address, count, |number| listen(&sessions[number])).await?;
        let threads = before.1.zip(daemon.process.threads());
        anyhow::Ok((daemon.process.resident_bytes()?, before.0, threads))
    })?;
    // A client with a stream has both costs.
    let both = each + per(after, before, count);
    let name = format!("mcp-memory/session with a stream of {count}");
    bench.add(Figure::new(name, "KiB", both).goal(Goal::at_most(20.0)));
    if let Some((before, after)) = threads {
        let name = format!("mcp-memory/threads that {count} streams add");
        let more = float(after.saturating_sub(before));
        bench.add(Figure::new(name, "threads", more).goal(Goal::at_most(0.0)));
    }
    daemon.process.stop()
}

/// The memory that each one added, in KiB.
fn per(after: u64, before: u64, count: usize) -> f64 {
    float(after.saturating_sub(before)) / float(count as u64) / 1024.0
}

/// Opens sessions on one connection, and closes the connection.
fn open_sessions(daemon: &Daemon, count: usize) -> anyhow::Result<Vec<String>> {
    let mut caller = Caller::open(daemon.target.address, &Protocol::HTTP)?;
    let request = initialize(&daemon.target);
    (0..count).map(|_| session_of(&caller.ask(&request)?)).collect()
}
