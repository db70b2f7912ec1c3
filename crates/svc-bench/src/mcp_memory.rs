//! `mcp-memory`: the daemon's memory for silent MCP clients: for each session without a connection,
//! and for each with its stream open.

use svc_wire::mcp;

use crate::{
    bench::Bench,
    caller::Caller,
    daemon::{self, Daemon},
    load::{self, Protocol},
    mcp_call::{initialize, session_of},
    progress,
    report::{Figure, Goal},
    stats::float,
    subscribers::{Frames, Subscribers},
};

/// Sessions that are opened first, for the memory that all share.
const FIRST: usize = 64;

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    progress::show("mcp-memory");
    crate::memory::raise_file_limit();
    let daemon = Daemon::start(&bench.sandbox, "mcp-memory")?;
    let count = if bench.quick { 100 } else { 1000 };
    let first = open_sessions(&daemon, FIRST)?;
    let before = daemon.process.resident_bytes()?;
    let sessions = open_sessions(&daemon, count)?;
    let each = per(daemon.process.resident_bytes()?, before, count);
    bench.add(
        Figure::new(format!("mcp-memory/session of {count}"), "KiB", each)
            .goal(Goal::at_most(20.0)),
    );
    let listen = |session: &String| {
        let headers = [(mcp::SESSION_ID, session.as_str()), ("accept", "text/event-stream")];
        let request = daemon.target.request_with("GET", "/mcp", &headers, "");
        // The first byte of the body says that the stream is open.
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
    // Such a client needs both.
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

fn per(after: u64, before: u64, count: usize) -> f64 {
    float(after.saturating_sub(before)) / float(count as u64) / 1024.0
}

/// Opens sessions on one connection, which is closed again.
fn open_sessions(daemon: &Daemon, count: usize) -> anyhow::Result<Vec<String>> {
    let mut caller = Caller::open(daemon.target.address, &Protocol::HTTP)?;
    let request = initialize(&daemon.target);
    (0..count).map(|_| session_of(&caller.ask(&request)?)).collect()
}
